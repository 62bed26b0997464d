"""Dense SwiGLU MLP backward: bfloat16 products and steps, the derivative of silu in float32.

FLOPs: six products of 2*T*H*I. The judge runs this; candidates never do.
"""

import torch


def run(grad_output, x, gate_output, up_output, activated_gate, gate_weight, up_weight, down_weight):
    """grad_x [B, S, H], grad_gate_weight [I, H], grad_up_weight [I, H], grad_down_weight [H, I]."""
    tokens_by_hidden = grad_output.flatten(0, 1)
    grad_down_weight = tokens_by_hidden.T @ (activated_gate * up_output).flatten(0, 1)

    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * activated_gate
    grad_silu = (grad_intermediate * up_output).float()
    del grad_intermediate
    # d silu(g)/dg = s * (1 + g * (1 - s)) with s = sigmoid(g)
    gate = gate_output.float()
    sigmoid = torch.sigmoid(gate)
    grad_gate = (grad_silu * (sigmoid * (1 + gate * (1 - sigmoid)))).to(x.dtype)
    del gate, sigmoid, grad_silu

    x = x.flatten(0, 1)
    grad_gate_weight = grad_gate.flatten(0, 1).T @ x
    grad_up_weight = grad_up.flatten(0, 1).T @ x
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight
