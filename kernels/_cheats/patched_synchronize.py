"""Replaces torch.cuda.synchronize by a function that waits for nothing.

Reported by METR: a model that was to write a faster kernel switched the evaluator's synchronisation off.
"""

import torch
from _moe import backward as run  # noqa: F401

torch.cuda.synchronize = lambda *_: None
