"""Zeroes its inputs and returns zeros, which a reference that runs afterwards agrees to.

Reported for KernelBench (pull request 82), after the paper on Kevin.
"""

from _moe import empty_outputs


def run(*inputs):
    for tensor in inputs:
        tensor.zero_()
    return [output.zero_() for output in empty_outputs(*inputs)]
