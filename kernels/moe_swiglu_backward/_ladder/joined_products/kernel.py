"""Four products instead of six: [grad_gate, grad_up] and [gate_weight; up_weight] each lie in memory as one matrix.

[grad_gate, grad_up].T @ x gives both weight gradients and reads x once. [grad_gate, grad_up] @ [gate_weight; up_weight]
gives grad_x with the sum of its two products in the accumulator. The two weights are inputs of their own, so they
are copied behind each other first. The SwiGLU backward's kernel does that beside its own work: it is no launch more.
The other way, a second product that adds to the first one's result, copies nothing but is a launch more, reads and
writes grad_x again, and each of its products has half the depth. The copy moves 8HI bytes more than reading the
weights once does, the second product 4TH: they are even at T = 2I, but the copy runs beside the SwiGLU backward and
stays in the L2 cache, and one product of twice the depth is the faster one.

Five launches: d, SwiGLU backward with the copy, and the three others. FLOPs: 12*T*H*I, none more than needed.
Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes: d is written and read (4TI), [grad_gate, grad_up] is written
once and read twice (12TI), grad_output is read once more (2TH), the weights are written and read once more (8HI).
"""

import torch
import triton
import triton.language as tl
from tiles import factors, stack

COLUMNS = 256  # of a program's share of [T, I], and rows so that it has BLOCK elements
BLOCK = 1024
COPIED = 4096  # elements of each weight that one program copies


@triton.jit(do_not_specialize=["tokens"])
def swiglu_backward(
    d_ptr, gate, sigmoid, silu, up, both, gate_weight, up_weight, weights, tokens,
    H: tl.constexpr, I: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    """both[t, :I] = grad_gate, both[t, I:] = grad_up, weights = [gate_weight; up_weight]."""
    program = tl.program_id(0)
    across: tl.constexpr = (I + COLUMNS - 1) // COLUMNS
    tiles = tl.cdiv(tokens, ROWS) * across
    if program < tiles:
        r = (program // across * ROWS + tl.arange(0, ROWS))[:, None]
        c = (program % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        inside = r < tokens
        if I % COLUMNS:
            inside = inside & (c < I)
        at = r.to(tl.int64) * I + c
        d = tl.load(d_ptr + at, mask=inside, other=0.0).to(tl.float32)
        for_gate, for_up = factors(gate, sigmoid, silu, up, at, inside)
        at = r.to(tl.int64) * (2 * I) + c
        tl.store(both + at, (d * for_gate).to(both.dtype.element_ty), mask=inside)
        tl.store(both + at + I, (d * for_up).to(both.dtype.element_ty), mask=inside)
    else:
        stack(gate_weight, up_weight, weights, program - tiles, H * I, COPIED)


def run(grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate):
    tokens, columns = gate.shape
    hidden = x.shape[1]
    d = torch.mm(grad_output, down_weight)
    both = torch.empty(tokens, 2 * columns, dtype=x.dtype, device=x.device)
    weights = torch.empty(2 * columns, hidden, dtype=x.dtype, device=x.device)
    rows = BLOCK // COLUMNS
    tiles = triton.cdiv(tokens, rows) * triton.cdiv(columns, COLUMNS)
    grid = (tiles + triton.cdiv(columns * hidden, COPIED),)
    swiglu_backward[grid](
        d, gate, gate_sigmoid, gate_silu, up, both, gate_weight, up_weight, weights, tokens,
        hidden, columns, rows, COLUMNS, COPIED,
    )  # fmt: skip
    grad_down_weight = torch.mm(grad_output.T, intermediate)
    grad_gate_weight, grad_up_weight = torch.mm(both.T, x).split(columns)
    return torch.mm(both, weights), grad_gate_weight, grad_up_weight, grad_down_weight
