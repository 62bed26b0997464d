"""Two persistent launches whose warps have roles, in Gluon: one warp loads, two warpgroups multiply.

The first launch is d with the SwiGLU backward as its epilogue; it writes grad_gate and grad_up. The loading warp
brings the saved tensors through the same stages as the operands, as eight steps more. The second launch is all that
is left: grad_x in one accumulator over both weights, and the three weight gradients. Its programs take tiles from a
counter, the longest first: reading weights, multiplying and writing gradients overlap, and no product has a tail of
its own. No sum goes across programs, so results are repeatable bit for bit.

FLOPs: 12*T*H*I, with T rounded up to 128. Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes: [grad_gate, grad_up]
is written once and read twice (12TI), grad_output is read once more (2TH). For many tokens: there are 3 tiles of d for
each 128 tokens, and 132 multiprocessors.

No GPU has run this yet: it compiles for sm_90 and is right in an emulator.
"""

from typing import NamedTuple

import torch
import triton
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents
from warp_roles import (
    CHUNK,
    CHUNK_BYTES,
    COLUMNS,
    DEPTH,
    ROWS,
    SHARE,
    STAGES,
    after,
    barriers,
    begin,
    by_chunks,
    load_product,
    multiply,
    operands,
    outlet,
    piece,
    place,
    programs,
    put,
    quarters,
    rest,
    wide,
)


class Config(NamedTuple):
    """So many rows of tiles are computed at a time, column after column: of d, grad_x, the weight gradients."""

    d: int = 8
    x: int = 8
    weights: int = 16


# Up to so many tokens (None: any number). Estimates.
CONFIGS: tuple[tuple[int | None, Config], ...] = ((None, Config()),)
_CHUNK, _DEPTH, _SHARE, _STAGES = (gl.constexpr(value) for value in (CHUNK, DEPTH, SHARE, STAGES))


@gluon.jit
def load_pair(first, second, row, column, a, chunks, full, empty, stage, phase):
    """A step that brings a chunk of two saved tensors."""
    arrived = begin(full, empty, stage, phase, 2 * CHUNK_BYTES)
    for part in gl.static_range(2):
        at = [row + part * _SHARE, column]
        tma.async_copy_global_to_shared(first, at, arrived, a.index(2 * stage + part))
        tma.async_copy_global_to_shared(second, at, arrived, chunks.index(4 * stage + part))
    return after(stage, phase)


@gluon.jit
def take_pair(a, chunks, full, empty, stage, phase, PART: gl.constexpr, layout: gl.constexpr):
    """This warpgroup's part of what `load_pair` brought, in float32; then the stage that follows, and its phase."""
    mbarrier.wait(full.index(stage), phase)
    first = a.index(2 * stage + PART).load(layout).to(gl.float32)
    second = chunks.index(4 * stage + PART).load(layout).to(gl.float32)
    mbarrier.arrive(empty.index(stage))
    next_stage, next_phase = after(stage, phase)
    return first, second, next_stage, next_phase


@gluon.jit
def load_d(
    grad_output, down_weight, gate, sigmoid, silu, up, a, b, full, empty, down, across, hidden, BAND: gl.constexpr
):  # fmt: skip
    chunks = by_chunks(b)
    stage, phase = gl.to_tensor(0), gl.to_tensor(1)
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = place(tile, down, across, BAND)
        stage, phase = load_product(
            False, grad_output, down_weight, row, column, hidden, a, b, full, empty, stage, phase
        )  # fmt: skip
        for at in range(column, column + 4 * _CHUNK, _CHUNK):
            stage, phase = load_pair(gate, sigmoid, row, at, a, chunks, full, empty, stage, phase)
            stage, phase = load_pair(silu, up, row, at, a, chunks, full, empty, stage, phase)


@gluon.jit
def swiglu_chunk(
    d, grad_gate, grad_up, row, column, a, chunks, pieces, full, empty, stage, phase, PART: gl.constexpr
):  # fmt: skip
    """SwiGLU backward of a chunk of d, of which two chunks go out."""
    layout: gl.constexpr = d.type.layout
    g, s, stage, phase = take_pair(a, chunks, full, empty, stage, phase, PART, layout)
    slope = s * (1 + g * (1 - s))
    silu, u, stage, phase = take_pair(a, chunks, full, empty, stage, phase, PART, layout)
    put(d * u * slope, grad_gate, row, column, pieces.index(0))
    put(d * silu, grad_up, row, column, pieces.index(1))
    return stage, phase


@gluon.jit
def multiply_d(
    PART: gl.constexpr, grad_gate, grad_up, a, b, pieces, full, empty, down, across, steps, BAND: gl.constexpr
):  # fmt: skip
    chunks = by_chunks(b)
    stage, phase = gl.to_tensor(0), gl.to_tensor(0)
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = place(tile, down, across, BAND)
        row += PART * _SHARE
        d, stage, phase = multiply(PART, False, steps, a, b, full, empty, stage, phase)
        d_by_chunks = quarters(d)
        for i in gl.static_range(4):
            stage, phase = swiglu_chunk(
                d_by_chunks[i], grad_gate, grad_up, row, column + i * _CHUNK, a, chunks, pieces, full, empty,
                stage, phase, PART,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["down", "across", "hidden"])
def first_launch(
    grad_output, down_weight, gate, sigmoid, silu, up, grad_gate, grad_up, down, across, hidden,
    BAND: gl.constexpr,
):  # fmt: skip
    """grad_gate and grad_up, each [T, I]."""
    gdc_launch_dependents()  # the second launch may take multiprocessors that have nothing left to do
    a, b = operands()
    full, empty = barriers(_STAGES)
    out_0, out_1 = outlet(), outlet()
    fence_async_shared()
    steps = gl.cdiv(hidden, _DEPTH)
    gl.warp_specialize(
        [
            (multiply_d, (0, grad_gate, grad_up, a, b, out_0, full, empty, down, across, steps, BAND)),
            (multiply_d, (1, grad_gate, grad_up, a, b, out_1, full, empty, down, across, steps, BAND)),
            (
                load_d,
                (grad_output, down_weight, gate, sigmoid, silu, up, a, b, full, empty, down, across, hidden, BAND),
            ),
        ],
        [4, 1],
        [240, 24],
    )


def choose(tokens: int) -> Config:
    return next(config for most, config in CONFIGS if most is None or tokens <= most)


def first(config, grad_output, down_weight, gate, sigmoid, silu, up, both):
    """All but down_weight [H, I] are [T, columns]; writes both [T, 2I]."""
    tokens, inner = gate.shape
    down, across = triton.cdiv(tokens, ROWS), triton.cdiv(inner, COLUMNS)
    first_launch[(programs(gate.device, down * across),)](
        piece(grad_output), wide(down_weight), piece(gate), piece(sigmoid), piece(silu), piece(up),
        piece(both[:, :inner]), piece(both[:, inner:]),
        down, across, grad_output.shape[1], config.d, num_warps=4,
    )  # fmt: skip


def launch(
    config, grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate
):  # fmt: skip
    inner = len(gate_weight)
    both, grad_weights = x.new_empty(len(x), 2 * inner), x.new_empty(2 * inner, x.shape[1])
    counter = torch.zeros(1, dtype=torch.int32, device=x.device)
    grad_x, grad_down_weight = torch.empty_like(x), torch.empty_like(down_weight)
    first(config, grad_output, down_weight, gate, gate_sigmoid, gate_silu, up, both)
    rest(
        grad_output, x, gate_weight, up_weight, both, intermediate, counter, grad_x, grad_weights, grad_down_weight,
        config.x, config.weights,
    )  # fmt: skip
    grad_gate_weight, grad_up_weight = grad_weights.split(inner)
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    return launch(choose(len(inputs[0])), *inputs)
