"""Exchanges two outputs of the same shape.

Own idea, from a common mistake.
"""

from _moe import backward


def run(*inputs):
    grad_x, grad_gate_weight, grad_up_weight, grad_down_weight = backward(*inputs)
    return grad_x, grad_up_weight, grad_gate_weight, grad_down_weight
