"""Computes one weight gradient on a stream of its own, which it joins before it returns."""

import torch

side = torch.cuda.Stream()


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        grad_down_weight = grad_output.T @ intermediate
    grad_down_weight.record_stream(torch.cuda.current_stream())
    grad_intermediate = grad_output @ down_weight
    grad_up = grad_intermediate * gate_silu
    grad_gate = grad_intermediate * up * gate_sigmoid * (1 + gate * (1 - gate_sigmoid))
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    outputs = grad_x, grad_gate.T @ x, grad_up.T @ x, grad_down_weight
    torch.cuda.current_stream().wait_stream(side)
    return outputs
