"""Writes its results where it is told to."""

import torch


def run(
    grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate,
    grad_x, grad_gate_weight, grad_up_weight, grad_down_weight,
):  # fmt: skip
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    torch.mm(grad_gate, gate_weight, out=grad_x).addmm_(grad_up, up_weight)
    torch.mm(grad_gate.T, x, out=grad_gate_weight)
    torch.mm(grad_up.T, x, out=grad_up_weight)
    torch.mm(grad_output.T, intermediate, out=grad_down_weight)
