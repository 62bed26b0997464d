"""The four joined products in plain PyTorch, for where nothing faster is known to run; others link to this file."""

import torch


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    d = grad_output @ down_weight
    both = torch.cat([d * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid)), d * gate_silu], dim=1)
    grad_x = both @ torch.cat([gate_weight, up_weight])
    grad_gate_weight, grad_up_weight = (both.T @ x).split(len(gate_weight))
    return grad_x, grad_gate_weight, grad_up_weight, grad_output.T @ intermediate
