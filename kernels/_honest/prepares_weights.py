"""Joins and transposes the weights anew in each call."""

import torch


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    joined, turned = torch.cat([gate_weight, up_weight]), down_weight.T.contiguous()
    grad_intermediate = grad_output @ turned.T
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    grad_x = torch.cat([grad_gate, grad_up], 1) @ joined
    return grad_x, grad_gate.T @ x, grad_up.T @ x, grad_output.T @ intermediate
