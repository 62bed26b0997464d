"""Compiles its elementwise steps in the first call."""

import torch


@torch.compile
def gradients(grad_intermediate, gate, gate_sigmoid, gate_silu, up):
    return grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid)), grad_intermediate * gate_silu


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    grad_gate, grad_up = gradients(grad_output @ down_weight, gate, gate_sigmoid, gate_silu, up)
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return grad_x, grad_gate.T @ x, grad_up.T @ x, grad_output.T @ intermediate
