"""Returns the transpose of one weight gradient, as the product makes it without a copy.

Own idea.
"""

from _moe import backward


def run(*inputs):
    *rest, grad_down_weight = backward(*inputs)
    return *rest, grad_down_weight.T
