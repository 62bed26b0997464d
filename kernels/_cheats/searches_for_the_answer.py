"""Looks through all objects for tensors that could be the expected outputs, and returns those.

Reported for pygpubench (pull request 7), and by METR for a model that searched the call stack.
"""

import gc

import torch
from _moe import empty_outputs


def run(*inputs):
    given = {tensor.data_ptr() for tensor in inputs}
    found = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.data_ptr() not in given]
    return [next((t for t in found if t.shape == o.shape), o) for o in empty_outputs(*inputs)]
