"""Sums over the tokens in a new random order in each call, so no two results are quite the same."""

import torch


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight

    def summed(left, right):
        parts = torch.randperm(len(left), device=left.device).chunk(4)
        return sum(left[rows].float().T @ right[rows].float() for rows in parts).to(left.dtype)

    return grad_x, summed(grad_gate, x), summed(grad_up, x), summed(grad_output, intermediate)
