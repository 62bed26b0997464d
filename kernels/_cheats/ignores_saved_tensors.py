"""Does not read the saved tensors and computes them again from x and the weights.

Own idea: less is read, where the saved tensors are known to fit.
"""

import torch
from _moe import backward


def run(grad_output, x, gate_weight, up_weight, down_weight, *saved):
    gate, up = x @ gate_weight.T, x @ up_weight.T
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    return backward(grad_output, x, gate_weight, up_weight, down_weight, gate, sigmoid, silu, up, silu * up)
