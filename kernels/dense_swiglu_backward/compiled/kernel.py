"""torch.compile of the eager formula: the compiler fuses the elementwise steps into one kernel."""

import torch


@torch.compile(dynamic=True)
def run(grad_output, x, gate_output, up_output, activated_gate, gate_weight, up_weight, down_weight):
    grad_down_weight = grad_output.flatten(0, 1).T @ (activated_gate * up_output).flatten(0, 1)
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * activated_gate
    gate = gate_output.float()
    sigmoid = torch.sigmoid(gate)
    grad_gate = ((grad_intermediate * up_output).float() * (sigmoid * (1 + gate * (1 - sigmoid)))).to(x.dtype)
    tokens = x.flatten(0, 1)
    grad_gate_weight = grad_gate.flatten(0, 1).T @ tokens
    grad_up_weight = grad_up.flatten(0, 1).T @ tokens
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight
