"""Keeps results by x's address, to the nearest 2 MiB so that small shifts do not matter.

Reported for CUDA-L1, whose agent kept outputs by address, and in GPU MODE's kernelbot (pull request 501).
"""

from _moe import backward

kept = {}


def run(*inputs):
    key = inputs[1].data_ptr() >> 21
    if key not in kept:
        kept[key] = backward(*inputs)
    return kept[key]
