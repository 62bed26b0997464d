"""Keeps results by the shapes of the inputs.

Reported by the robust-kbench paper, as kernels that hold for one shape and one set of inputs only.
"""

from _moe import backward

kept = {}


def run(*inputs):
    key = tuple(tensor.shape for tensor in inputs)
    if key not in kept:
        kept[key] = backward(*inputs)
    return kept[key]
