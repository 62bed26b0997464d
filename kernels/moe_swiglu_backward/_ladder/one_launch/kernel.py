"""Everything in one persistent launch of `warp_specialized`'s warps: what depends on d waits for it tile by tile.

Between two launches, multiprocessors that have no tile of d left wait for the last of them; and a host that is slow to
launch leaves a gap. Here tiles of all products are taken from one counter: those of d first, then grad_down_weight,
which needs nothing of d, then grad_x and the two other weight gradients, the longer ones first. A warpgroup that has
written its rows of a tile of d counts them in for its row of tiles and for all. The loading warp of a tile of grad_x
waits for its row of tiles, that of a weight gradient for all of them. Tiles of d are taken before any that waits, and
all programs run at the same time, so somebody is always at work on what is waited for. The last program to leave sets
the counters back to zero; calls on different streams have their own. No sum goes across programs, so results are
repeatable bit for bit.

FLOPs: 12*T*H*I, with T rounded up to 128. Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes: [grad_gate, grad_up]
is written once and read twice (12TI), grad_output is read once more (2TH).
"""

from typing import NamedTuple

import torch
import triton
import triton.experimental.gluon.language as gl
from prepared_launch import Request, in_a_row
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from warp_roles import (
    CHUNK,
    DEPTH,
    ROWS,
    SHARE,
    WARPS,
    barriers,
    chunks_of,
    hear,
    load_product,
    multiply,
    operands,
    outlet,
    piece,
    place,
    programs,
    put_all,
    tell,
    turns_of_tiles,
    upcoming,
    wide,
)
from warp_specialized import load_pair, swiglu_chunk


class Config(NamedTuple):
    """How results are cut.

    columns: of a tile, 256 or 128. d, x, weights: so many rows of tiles are computed at a time, column after column, of
    each kind of result.
    """

    columns: int = 128
    d: int = 8
    x: int = 8
    weights: int = 12


# Up to so many tokens (None: any number). Not measured yet: what `warp_specialized` found.
CONFIGS: tuple[tuple[int | None, Config], ...] = (
    (3328, Config()),
    (None, Config(d=4, weights=4)),
)
_CHUNK, _DEPTH, _SHARE, _ROWS = (gl.constexpr(value) for value in (CHUNK, DEPTH, SHARE, ROWS))
# Where a call's counters are: the tile that is next, programs that have left, what is written of d, the same by row.
COUNTERS_BEFORE_ROWS = 3
NEXT, LEFT, WRITTEN, BY_ROW = (gl.constexpr(value) for value in (0, 1, 2, COUNTERS_BEFORE_ROWS))

# Of a partition's threads; it has had both names.
meet = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


# --- from one program to another ------------------------------------------------------------------------


@gluon.jit
def between_proxies(WAIT_FOR_STORES: gl.constexpr):
    """Order what the copy engine and other instructions do in global memory; before that, have all stores written.

    `tma.store_wait` only says that a store has read what it stores.
    """
    if WAIT_FOR_STORES:
        gl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; fence.proxy.async; mov.u32 $0, 0;", "=r", [],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        gl.inline_asm_elementwise(
            "fence.proxy.async; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )  # fmt: skip


@gluon.jit
def count_in(state, row):
    """This warpgroup's rows of a tile of d are written, in this row of tiles."""
    between_proxies(True)
    meet()
    gl.atomic_add(state + BY_ROW + row, 1, sem="release")
    gl.atomic_add(state + WRITTEN, 1, sem="release")


@gluon.jit
def wait_for(counter, count):
    seen = gl.atomic_add(counter, 0, sem="acquire")
    while seen < count:
        seen = gl.atomic_add(counter, 0, sem="acquire")
    between_proxies(False)


@gluon.jit
def leave(state, down):
    """The last program leaves zeros. By then all have seen that d is written, or seen one that had."""
    if gl.atomic_add(state + LEFT, 1, sem="acq_rel") == gl.num_programs(0) - 1:
        for i in range(BY_ROW + down):
            gl.store(state + i, 0)


# --- the loading warp -----------------------------------------------------------------------------------


@gluon.jit
def load_all(
    sources, state, ring, turns, counts, D_BAND: gl.constexpr, X_BAND: gl.constexpr, BAND: gl.constexpr
):  # fmt: skip
    grad_output, down_weight, gate, sigmoid, silu, up, grad_gate, grad_up, gate_weight, up_weight, both, x, product = (
        sources
    )
    a, b, full, empty = ring
    down, across, across_x, down_sums, down_last, begin_x, begin_sums, hidden, inner, tokens = counts
    d_tiles, last_tiles, x_tiles, sum_tiles = down * across, down_last * across, down * across_x, down_sums * across_x
    stage, phase = gl.to_tensor(0), gl.to_tensor(1)
    slot, slot_phase = gl.to_tensor(0), gl.to_tensor(1)
    all_there = gl.to_tensor(0)
    tile = gl.program_id(0)
    while tile < d_tiles + last_tiles + x_tiles + sum_tiles:
        if tile < d_tiles:
            row, column = place(tile, down, across, D_BAND, b.shape[2])
            stage, phase = load_product(
                False, grad_output, down_weight, row, column, hidden, a, b, full, empty, stage, phase
            )  # fmt: skip
            for at in range(column, column + b.shape[2], _CHUNK):
                stage, phase = load_pair(gate, sigmoid, row, at, a, b, full, empty, stage, phase)
                stage, phase = load_pair(silu, up, row, at, a, b, full, empty, stage, phase)
        elif tile < d_tiles + last_tiles:
            row, column = place(tile - d_tiles, down_last, across, BAND, b.shape[2])
            stage, phase = load_product(
                True, grad_output, product, row, column, tokens, a, b, full, empty, stage, phase
            )  # fmt: skip
        elif (tile >= begin_x) & (tile < begin_x + x_tiles):
            row, column = place(tile - begin_x, down, across_x, X_BAND, b.shape[2])
            if all_there == 0:
                wait_for(state + BY_ROW + row // _ROWS, 2 * across)
            stage, phase = load_product(
                False, grad_gate, gate_weight, row, column, inner, a, b, full, empty, stage, phase
            )  # fmt: skip
            stage, phase = load_product(False, grad_up, up_weight, row, column, inner, a, b, full, empty, stage, phase)
        else:
            row, column = place(tile - begin_sums, down_sums, across_x, BAND, b.shape[2])
            if all_there == 0:
                wait_for(state + WRITTEN, 2 * d_tiles)
            all_there = gl.to_tensor(1)
            stage, phase = load_product(True, both, x, row, column, tokens, a, b, full, empty, stage, phase)
        next_tile = upcoming(state + NEXT)
        slot, slot_phase = tell(next_tile, turns, slot, slot_phase)
        tile = next_tile
    leave(state, down)


# --- a multiplying warpgroup ------------------------------------------------------------------------------


@gluon.jit
def multiply_all(
    PART: gl.constexpr, pieces, results, state, ring, turns, counts,
    D_BAND: gl.constexpr, X_BAND: gl.constexpr, BAND: gl.constexpr,
):  # fmt: skip
    grad_gate, grad_up, grad_x, grad_weights, grad_down_weight = results
    a, b, full, empty = ring
    down, across, across_x, down_sums, down_last, begin_x, begin_sums, hidden, inner, tokens = counts
    d_tiles, last_tiles, x_tiles, sum_tiles = down * across, down_last * across, down * across_x, down_sums * across_x
    stage, phase = gl.to_tensor(0), gl.to_tensor(0)
    slot, slot_phase = gl.to_tensor(0), gl.to_tensor(0)
    tile = gl.program_id(0)
    while tile < d_tiles + last_tiles + x_tiles + sum_tiles:
        is_x = (tile >= begin_x) & (tile < begin_x + x_tiles)
        if (tile < d_tiles) | is_x:
            steps = gl.where(is_x, 2 * gl.cdiv(inner, _DEPTH), gl.cdiv(hidden, _DEPTH))
            sums, stage, phase = multiply(PART, False, steps, a, b, full, empty, stage, phase)
            if is_x:
                row, column = place(tile - begin_x, down, across_x, X_BAND, b.shape[2])
                put_all(sums, grad_x, row + PART * _SHARE, column, pieces)
            else:
                row, column = place(tile, down, across, D_BAND, b.shape[2])
                chunks = chunks_of(sums)
                for i in gl.static_range(b.shape[2] // _CHUNK):
                    stage, phase = swiglu_chunk(
                        PART, chunks[i], grad_gate, grad_up, row + PART * _SHARE, column + i * _CHUNK, pieces,
                        a, b, full, empty, stage, phase,
                    )  # fmt: skip
                count_in(state, row // _ROWS)
        else:
            sums, stage, phase = multiply(PART, True, gl.cdiv(tokens, _DEPTH), a, b, full, empty, stage, phase)
            if tile < d_tiles + last_tiles:
                row, column = place(tile - d_tiles, down_last, across, BAND, b.shape[2])
                put_all(sums, grad_down_weight, row + PART * _SHARE, column, pieces)
            else:
                row, column = place(tile - begin_sums, down_sums, across_x, BAND, b.shape[2])
                put_all(sums, grad_weights, row + PART * _SHARE, column, pieces)
        tile, slot, slot_phase = hear(turns, slot, slot_phase)
    tma.store_wait(0)


_COUNTS = [
    "down", "across", "across_x", "down_sums", "down_last", "begin_x", "begin_sums", "hidden", "inner", "tokens",
]  # fmt: skip


@gluon.jit(do_not_specialize=_COUNTS)
def all_in_one(
    grad_output, down_weight, gate, sigmoid, silu, up, grad_gate, grad_up, gate_weight, up_weight, both, x, product,
    grad_x, grad_weights, grad_down_weight, state,
    down, across, across_x, down_sums, down_last, begin_x, begin_sums, hidden, inner, tokens,
    D_BAND: gl.constexpr, X_BAND: gl.constexpr, BAND: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """All four results, by tiles: so many down and across of d and grad_down_weight, and of the others.

    The first tiles of grad_x and of [grad_gate_weight; grad_up_weight] have the numbers begin_x and begin_sums. state:
    zeros when this begins and when it ends.
    """
    a, b = operands(COLUMNS)
    full, empty = barriers(b.shape[0])
    turns = turns_of_tiles()
    out_0, out_1 = outlet(), outlet()
    fence_async_shared()
    ring = (a, b, full, empty)
    counts = (down, across, across_x, down_sums, down_last, begin_x, begin_sums, hidden, inner, tokens)
    sources = (
        grad_output, down_weight, gate, sigmoid, silu, up, grad_gate, grad_up, gate_weight, up_weight, both, x, product,
    )  # fmt: skip
    results = (grad_gate, grad_up, grad_x, grad_weights, grad_down_weight)
    gl.warp_specialize(
        [
            (multiply_all, (0, out_0, results, state, ring, turns, counts, D_BAND, X_BAND, BAND)),
            (multiply_all, (1, out_1, results, state, ring, turns, counts, D_BAND, X_BAND, BAND)),
            (load_all, (sources, state, ring, turns, counts, D_BAND, X_BAND, BAND)),
        ],
        [4, 1],
        [232, 40],
    )


# --- on the host ----------------------------------------------------------------------------------------

_states: dict[tuple[torch.device, int, int], torch.Tensor] = {}


def state_of(device: torch.device, rows: int) -> torch.Tensor:
    """Zeros for the calls on the current stream with so many rows of tiles; each call leaves zeros."""
    key = (device, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0, rows)
    if key not in _states:
        _states[key] = torch.zeros(COUNTERS_BEFORE_ROWS + rows, dtype=torch.int32, device=device)
    return _states[key]


def choose(tokens: int) -> Config:
    return next(config for most, config in CONFIGS if most is None or tokens <= most)


def launch(
    config, grad_output, x, gate_weight, up_weight, down_weight, gate, gate_sigmoid, gate_silu, up, intermediate
):  # fmt: skip
    tokens, hidden = x.shape
    inner, columns = len(gate_weight), config.columns
    both, grad_weights = x.new_empty(tokens, 2 * inner), x.new_empty(2 * inner, hidden)
    grad_x, grad_down_weight = torch.empty_like(x), torch.empty_like(down_weight)
    down, across, across_x = triton.cdiv(tokens, ROWS), triton.cdiv(inner, columns), triton.cdiv(hidden, columns)
    down_sums, down_last = triton.cdiv(2 * inner, ROWS), triton.cdiv(hidden, ROWS)
    before, x_tiles, sum_tiles = (down + down_last) * across, down * across_x, down_sums * across_x
    begins = (before, before + x_tiles) if 2 * inner >= tokens else (before + sum_tiles, before)
    grad_gate, grad_up = piece(both[:, :inner]), piece(both[:, inner:])
    arguments = (
        piece(grad_output), wide(down_weight, columns), piece(gate), piece(gate_sigmoid), piece(gate_silu), piece(up),
        grad_gate, grad_up, wide(gate_weight, columns), wide(up_weight, columns), piece(both), wide(x, columns),
        wide(intermediate, columns), piece(grad_x), piece(grad_weights), piece(grad_down_weight),
        state_of(x.device, down), down, across, across_x, down_sums, down_last, *begins, hidden, inner, tokens,
    )  # fmt: skip
    count, constants = programs(x.device, before + x_tiles + sum_tiles), (config.d, config.x, config.weights, columns)
    in_a_row(Request(all_in_one, count, arguments, constants, WARPS))
    grad_gate_weight, grad_up_weight = grad_weights.split(inner)
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    return launch(choose(len(inputs[0])), *inputs)
