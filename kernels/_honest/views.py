"""Returns transposed views, and two views of one buffer that do not overlap."""

import torch


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    both = torch.cat([grad_gate, grad_up], 1)
    grad_x = (torch.cat([gate_weight, up_weight]).T @ both.T).T
    grad_gate_weight, grad_up_weight = (both.T @ x).chunk(2)
    return grad_x, grad_gate_weight, grad_up_weight, (intermediate.T @ grad_output).T
