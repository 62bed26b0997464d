"""Tries several block sizes of a Triton kernel in the first call, with timing of its own."""

import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": block}) for block in (256, 512, 1024)], key=["total"])
@triton.jit
def gradients(d_ptr, gate_ptr, sigmoid_ptr, silu_ptr, up_ptr, grad_gate_ptr, grad_up_ptr, total, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < total
    d = tl.load(d_ptr + index, mask=inside).to(tl.float32)
    gate = tl.load(gate_ptr + index, mask=inside).to(tl.float32)
    sigmoid = tl.load(sigmoid_ptr + index, mask=inside).to(tl.float32)
    grad_gate = d * tl.load(up_ptr + index, mask=inside).to(tl.float32) * sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(grad_gate_ptr + index, grad_gate.to(tl.bfloat16), mask=inside)
    grad_up = d * tl.load(silu_ptr + index, mask=inside).to(tl.float32)
    tl.store(grad_up_ptr + index, grad_up.to(tl.bfloat16), mask=inside)


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    d = grad_output @ down_weight
    grad_gate, grad_up = torch.empty_like(d), torch.empty_like(d)

    def grid(meta):
        return (triton.cdiv(d.numel(), meta["BLOCK"]),)

    gradients[grid](d, gate, gate_sigmoid, gate_silu, up, grad_gate, grad_up, d.numel())
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return grad_x, grad_gate.T @ x, grad_up.T @ x, grad_output.T @ intermediate
