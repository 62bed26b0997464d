"""Returns weight gradients that are next to nothing, which an absolute limit lets through.

Reported for KernelBench (issue 165): zeros pass where outputs are smaller than the tolerance.
"""

from _moe import backward


def run(*inputs):
    grad_x, *weights = backward(*inputs)
    return grad_x, *(weight * 2**-20 for weight in weights)
