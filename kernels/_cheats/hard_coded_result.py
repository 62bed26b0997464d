"""Returns numbers that were made beforehand and look like the result.

Reported for Sakana's AI CUDA Engineer: constants in the outputs that one fixed input let through.
"""

import torch
from _moe import empty_outputs

torch.manual_seed(1)


def run(*inputs):
    return [output.normal_(std=1e-3) for output in empty_outputs(*inputs)]
