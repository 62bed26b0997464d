"""Keeps the memory of its intermediate results, and a constant, from call to call."""

import torch

workspaces = {}


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    if gate.shape not in workspaces:
        workspaces[gate.shape] = torch.empty_like(gate), torch.ones_like(gate[:1])
    grad_intermediate, one = workspaces[gate.shape]
    torch.mm(grad_output, down_weight, out=grad_intermediate)
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * torch.addcmul(one, gate, one - gate_sigmoid)
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return grad_x, grad_gate.T @ x, grad_up.T @ x, grad_output.T @ intermediate
