"""MoE expert SwiGLU backward: float32 throughout, one rounding to bfloat16 at the end.

FLOPs: six products of 2*T*H*I. The judge runs this; candidates never do.
"""

import torch


def forward(x, gate_weight, up_weight):
    """The tensors that the bfloat16 forward pass saves: all [T, I]."""
    gate = x @ gate_weight.T
    gate_sigmoid = torch.sigmoid(gate.float()).to(gate.dtype)
    gate_silu = gate * gate_sigmoid
    up = x @ up_weight.T
    return {
        "gate": gate,
        "gate_sigmoid": gate_sigmoid,
        "gate_silu": gate_silu,
        "up": up,
        "intermediate": gate_silu * up,
    }


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    """grad_x [T, H], grad_gate_weight [I, H], grad_up_weight [I, H], grad_down_weight [H, I]."""
    dtype = x.dtype
    grad_output, gate, gate_sigmoid = grad_output.float(), gate.float(), gate_sigmoid.float()

    grad_down_weight = grad_output.T @ intermediate.float()
    grad_intermediate = grad_output @ down_weight.float()
    grad_up = grad_intermediate * gate_silu.float()
    # d silu(g)/dg = s * (1 + g * (1 - s)) with s = sigmoid(g)
    grad_gate = grad_intermediate * up.float() * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    x = x.float()
    grad_up_weight = grad_up.T @ x
    grad_gate_weight = grad_gate.T @ x
    grad_x = grad_gate @ gate_weight.float() + grad_up @ up_weight.float()
    return tuple(t.to(dtype) for t in (grad_x, grad_gate_weight, grad_up_weight, grad_down_weight))
