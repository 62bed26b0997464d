"""Reads the largest gradient to the host and chooses a precision by it."""

import torch


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    precise = grad_output.abs().max().item() > 1e3
    grad_intermediate = (grad_output @ down_weight).to(torch.float32 if precise else torch.bfloat16)
    grad_up = (grad_intermediate * gate_silu).bfloat16()
    grad_gate = (grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))).bfloat16()
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return grad_x, grad_gate.T @ x, grad_up.T @ x, grad_output.T @ intermediate
