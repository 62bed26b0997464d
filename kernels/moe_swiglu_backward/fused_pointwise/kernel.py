"""One Triton kernel for the SwiGLU backward, and both weight gradients of gate and up as one product.

The elementwise steps read the five [T, I] tensors once and write [grad_gate, grad_up] side by side as one
[T, 2I] tensor, so that [grad_gate, grad_up].T @ x reads x once and fills more of the device. grad_x adds its
second product in the accumulator instead of in a kernel of its own. Six launches: five products and this.

Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes: d is written and read (4TI), [grad_gate, grad_up] is
written once and read twice (12TI), and grad_output, grad_x are moved once more (6TH).
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def swiglu_backward(d_ptr, gate_ptr, sigmoid_ptr, silu_ptr, up_ptr, out_ptr, columns, total, BLOCK: tl.constexpr):
    """out[t, :I] = grad_gate and out[t, I:] = grad_up, in float32 between loads and stores."""
    # 64-bit, because 2 * total passes 2^31 for large T and I.
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < total
    d = tl.load(d_ptr + index, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + index, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.load(sigmoid_ptr + index, mask=inside, other=0.0).to(tl.float32)
    silu = tl.load(silu_ptr + index, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + index, mask=inside, other=0.0).to(tl.float32)
    grad_up = d * silu
    grad_gate = d * up * sigmoid * (1 + gate * (1 - sigmoid))
    row = index // columns
    place = row * columns + index  # row * 2I + column
    tl.store(out_ptr + place, grad_gate.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(out_ptr + place + columns, grad_up.to(out_ptr.dtype.element_ty), mask=inside)


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    tokens, columns = gate.shape
    grad_down_weight = grad_output.T @ intermediate
    d = grad_output @ down_weight
    both = torch.empty(tokens, 2 * columns, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(d.numel(), BLOCK),)
    swiglu_backward[grid](d, gate, gate_sigmoid, gate_silu, up, both, columns, d.numel(), BLOCK=BLOCK)
    grad_x = torch.mm(both[:, :columns], gate_weight)
    grad_x.addmm_(both[:, columns:], up_weight)
    grad_gate_weight, grad_up_weight = (both.T @ x).split(columns)
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight
