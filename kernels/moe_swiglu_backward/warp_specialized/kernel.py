"""Two persistent launches whose warps have roles, in Gluon: one warp loads, two warpgroups multiply.

The first launch is d with the SwiGLU backward as its epilogue; it writes grad_gate and grad_up. The loading warp brings
the saved tensors through the same stages as the operands, two steps for each 64 columns. The second launch is all that
is left: grad_x in one accumulator over both weights, and the three weight gradients. Programs take tiles from a
counter, the longest first: reading weights, multiplying and writing gradients overlap, and no product has a tail of its
own. grad_down_weight does not wait for d: it may be made beside it in the first launch, where d alone would leave
multiprocessors without a tile. No sum goes across programs, so results are repeatable bit for bit.

FLOPs: 12*T*H*I, with T rounded up to 128. Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes: [grad_gate, grad_up]
is written once and read twice (12TI), grad_output is read once more (2TH). For many tokens: d has 3 tiles of 256
columns or 6 of 128 for each 128 tokens, and there are 132 multiprocessors.
"""

from typing import NamedTuple

import torch
import triton
import triton.experimental.gluon.language as gl
from prepared_launch import Request, in_a_row
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents
from warp_roles import (
    CHUNK,
    CHUNK_BYTES,
    DEPTH,
    ROWS,
    SHARE,
    WARPS,
    after,
    barriers,
    begin,
    by_chunks,
    chunks_of,
    counters,
    hear,
    load_product,
    multiply,
    operands,
    outlet,
    piece,
    place,
    programs,
    put,
    put_all,
    rest,
    tell,
    turns_of_tiles,
    upcoming,
    wide,
)


class Config(NamedTuple):
    """How results are cut.

    first, second: columns of a tile in each launch, 256 or 128. down_first: grad_down_weight is made in the first.
    d, x, weights: so many rows of tiles are computed at a time, column after column, of each kind of result.
    """

    first: int = 256
    second: int = 256
    down_first: bool = False
    d: int = 8
    x: int = 8
    weights: int = 12


# Up to so many tokens (None: any number): benchmarks/moe_crossovers.py on an H200.
CONFIGS: tuple[tuple[int | None, Config], ...] = (
    (2944, Config(128, 128)),
    (3328, Config(128, 256, down_first=True)),
    (None, Config(128, 128, d=4, weights=4)),
)
_CHUNK, _DEPTH, _SHARE = (gl.constexpr(value) for value in (CHUNK, DEPTH, SHARE))


@gluon.jit
def load_pair(first, second, row, column, a, b, full, empty, stage, phase):
    """A step that brings a chunk of two saved tensors, for both warpgroups: one for `a`, one for `b`."""
    chunks, side_by_side = by_chunks(b), b.shape[2] // _CHUNK
    arrived = begin(full, empty, stage, phase, 2 * CHUNK_BYTES)
    for part in gl.static_range(2):
        at = [row + part * _SHARE, column]
        tma.async_copy_global_to_shared(first, at, arrived, a.index(2 * stage + part))
        tma.async_copy_global_to_shared(second, at, arrived, chunks.index(side_by_side * stage + part))
    return after(stage, phase, b.shape[0])


@gluon.jit
def take_pair(PART: gl.constexpr, a, b, full, empty, stage, phase, layout: gl.constexpr):
    """This warpgroup's part of what `load_pair` brought, in float32; then the stage that follows, and its phase."""
    chunks, side_by_side = by_chunks(b), b.shape[2] // _CHUNK
    mbarrier.wait(full.index(stage), phase)
    first = a.index(2 * stage + PART).load(layout).to(gl.float32)
    second = chunks.index(side_by_side * stage + PART).load(layout).to(gl.float32)
    mbarrier.arrive(empty.index(stage))
    stage, phase = after(stage, phase, b.shape[0])
    return first, second, stage, phase


@gluon.jit
def load_first(sources, counter, other, ring, turns, counts, BAND: gl.constexpr):
    grad_output, down_weight, gate, sigmoid, silu, up, intermediate = sources
    a, b, full, empty = ring
    down, across, down_last, begin_d, begin_last, hidden, tokens = counts
    d_tiles = down * across
    stage, phase = gl.to_tensor(0), gl.to_tensor(1)
    slot, slot_phase = gl.to_tensor(0), gl.to_tensor(1)
    tile = gl.program_id(0)
    if tile == 0:
        gl.store(other, 0)
    while tile < d_tiles + down_last * across:
        if (tile >= begin_d) & (tile < begin_d + d_tiles):
            row, column = place(tile - begin_d, down, across, BAND, b.shape[2])
            stage, phase = load_product(
                False, grad_output, down_weight, row, column, hidden, a, b, full, empty, stage, phase
            )  # fmt: skip
            for at in range(column, column + b.shape[2], _CHUNK):
                stage, phase = load_pair(gate, sigmoid, row, at, a, b, full, empty, stage, phase)
                stage, phase = load_pair(silu, up, row, at, a, b, full, empty, stage, phase)
        else:
            row, column = place(tile - begin_last, down_last, across, BAND, b.shape[2])
            stage, phase = load_product(
                True, grad_output, intermediate, row, column, tokens, a, b, full, empty, stage, phase
            )  # fmt: skip
        next_tile = upcoming(counter)
        slot, slot_phase = tell(next_tile, turns, slot, slot_phase)
        tile = next_tile


@gluon.jit
def swiglu_chunk(PART: gl.constexpr, d, grad_gate, grad_up, row, column, pieces, a, b, full, empty, stage, phase):
    """SwiGLU backward of a chunk of d, of which two chunks go out."""
    layout: gl.constexpr = d.type.layout
    g, s, stage, phase = take_pair(PART, a, b, full, empty, stage, phase, layout)
    slope = s * (1 + g * (1 - s))
    silu, u, stage, phase = take_pair(PART, a, b, full, empty, stage, phase, layout)
    put(d * u * slope, grad_gate, row, column, pieces.index(0))
    put(d * silu, grad_up, row, column, pieces.index(1))
    return stage, phase


@gluon.jit
def multiply_first(PART: gl.constexpr, pieces, results, ring, turns, counts, BAND: gl.constexpr):
    grad_gate, grad_up, grad_down_weight = results
    a, b, full, empty = ring
    down, across, down_last, begin_d, begin_last, hidden, tokens = counts
    d_tiles = down * across
    stage, phase = gl.to_tensor(0), gl.to_tensor(0)
    slot, slot_phase = gl.to_tensor(0), gl.to_tensor(0)
    tile = gl.program_id(0)
    while tile < d_tiles + down_last * across:
        if (tile >= begin_d) & (tile < begin_d + d_tiles):
            row, column = place(tile - begin_d, down, across, BAND, b.shape[2])
            row += PART * _SHARE
            d, stage, phase = multiply(PART, False, gl.cdiv(hidden, _DEPTH), a, b, full, empty, stage, phase)
            chunks = chunks_of(d)
            for i in gl.static_range(b.shape[2] // _CHUNK):
                stage, phase = swiglu_chunk(
                    PART, chunks[i], grad_gate, grad_up, row, column + i * _CHUNK, pieces,
                    a, b, full, empty, stage, phase,
                )  # fmt: skip
        else:
            row, column = place(tile - begin_last, down_last, across, BAND, b.shape[2])
            sums, stage, phase = multiply(PART, True, gl.cdiv(tokens, _DEPTH), a, b, full, empty, stage, phase)
            put_all(sums, grad_down_weight, row + PART * _SHARE, column, pieces)
        tile, slot, slot_phase = hear(turns, slot, slot_phase)
    tma.store_wait(0)


_COUNTS = ["down", "across", "down_last", "begin_d", "begin_last", "hidden", "tokens"]


@gluon.jit(do_not_specialize=_COUNTS)
def first_launch(
    grad_output, down_weight, gate, sigmoid, silu, up, grad_gate, grad_up, intermediate, grad_down_weight,
    counter, other, down, across, down_last, begin_d, begin_last, hidden, tokens,
    BAND: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """grad_gate and grad_up [T, I] by tiles of d, and tiles of grad_down_weight; the first ones' numbers: begin_...

    counter: zero when this begins; other: zero when it ends.
    """
    gdc_launch_dependents()  # the second launch may take multiprocessors that have nothing left to do
    a, b = operands(COLUMNS)
    full, empty = barriers(b.shape[0])
    turns = turns_of_tiles()
    out_0, out_1 = outlet(), outlet()
    fence_async_shared()
    ring = (a, b, full, empty)
    counts = (down, across, down_last, begin_d, begin_last, hidden, tokens)
    sources = (grad_output, down_weight, gate, sigmoid, silu, up, intermediate)
    results = (grad_gate, grad_up, grad_down_weight)
    gl.warp_specialize(
        [
            (multiply_first, (0, out_0, results, ring, turns, counts, BAND)),
            (multiply_first, (1, out_1, results, ring, turns, counts, BAND)),
            (load_first, (sources, counter, other, ring, turns, counts, BAND)),
        ],
        [4, 1],
        [240, 24],
    )


def choose(tokens: int) -> Config:
    return next(config for most, config in CONFIGS if most is None or tokens <= most)


def first(
    config, grad_output, down_weight, gate, sigmoid, silu, up, intermediate, both, grad_down_weight, counters
) -> Request:
    """All but the weights [H, I] are [T, columns]; writes both [T, 2I], and grad_down_weight if it is to.

    counters: two int32. Programs take tiles from the first, the longest first, and set the second one back to zero.
    """
    tokens, inner = gate.shape
    hidden, columns = len(down_weight), config.first
    down, across = triton.cdiv(tokens, ROWS), triton.cdiv(inner, columns)
    down_last = triton.cdiv(hidden, ROWS) if config.down_first else 0
    begins = (down_last * across, 0) if tokens > hidden else (0, down * across)
    arguments = (
        piece(grad_output), wide(down_weight, columns), piece(gate), piece(sigmoid), piece(silu), piece(up),
        piece(both[:, :inner]), piece(both[:, inner:]),
        wide(intermediate, columns), piece(grad_down_weight),
        counters[:1], counters[1:], down, across, down_last, *begins, hidden, tokens,
    )  # fmt: skip
    return Request(
        first_launch, programs(gate.device, (down + down_last) * across), arguments, (config.d, columns), WARPS
    )  # fmt: skip


def launch(
    config, grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate
):  # fmt: skip
    inner = len(gate_weight)
    both, grad_weights = x.new_empty(len(x), 2 * inner), x.new_empty(2 * inner, x.shape[1])
    counts = counters(x.device)
    grad_x, grad_down_weight = torch.empty_like(x), torch.empty_like(down_weight)
    in_a_row(
        first(
            config, grad_output, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate, both, grad_down_weight,
            counts,
        ),
        rest(
            grad_output, x, gate_weight, up_weight, both, None if config.down_first else intermediate, counts,
            grad_x, grad_weights, grad_down_weight, config.second, config.x, config.weights,
        ),
    )  # fmt: skip
    grad_gate_weight, grad_up_weight = grad_weights.split(inner)
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    return launch(choose(len(inputs[0])), *inputs)
