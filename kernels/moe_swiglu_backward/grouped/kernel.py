"""Two launches in all: products that do not wait for each other share one, and fill the device together.

First launch: d with the SwiGLU backward as its epilogue, and grad_down_weight, which does not need d. Second: grad_x,
whose one accumulator sums over grad_gate @ gate_weight and grad_up @ up_weight with the weights where they are, and
both weight gradients as one product. Each program computes one tile, so the tiles of one product fill the gaps that
the other leaves. How the products are cut depends on T alone: few tokens take small tiles, and where a tile is too
small for its warps they divide its depth. No sum goes across programs, so results are repeatable bit for bit. Where
one tile of grad_down_weight would take longer than all of d, it moves to the second launch. For few tokens the second
launch starts early, asks for its weights to be brought into the L2 cache and then waits for the first one.

FLOPs: 12*T*H*I, with T rounded up to whole tiles. Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes:
[grad_gate, grad_up] is written once and read twice (12TI), grad_output is read once more (2TH). No weight is copied.
Tiles read their operands from the L2 cache: a tile of m x n moves 2*(m + n) bytes for each 2*m*n FLOPs, which is why
large T takes 128 x 256.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from prepared_launch import Request, in_a_row
from tiles import (
    Tile,
    let_the_next_begin,
    operand,
    parts,
    place,
    prefetch,
    product,
    product_over_tokens,
    store,
    swiglu_tile,
    wait_for_the_last,
)


class First(NamedTuple):
    """How d and grad_down_weight are cut; without `down` the latter is left to the second launch.

    sums_first: the product that sums over tokens starts before the other.
    """

    d: Tile
    down: Tile | None
    warps: int = 8
    sums_first: bool = False
    tma: bool = False


class Second(NamedTuple):
    """How grad_x, [grad_gate_weight; grad_up_weight] and, with `down`, grad_down_weight are cut; the last one leads."""

    x: Tile
    weights: Tile
    down: Tile | None = None
    warps: int = 8
    sums_first: bool = False
    tma: bool = False


class Config(NamedTuple):
    """early: the second launch begins while the first one ends (programmatic dependent launch)."""

    first: First
    second: Second
    early: bool = False


# Up to so many tokens (None: any number), how the products are cut: benchmarks/moe_crossovers.py on an H200.
CONFIGS: tuple[tuple[int | None, Config], ...] = (
    (
        16,
        Config(
            First(Tile(16, 16, 256, 5, split=4), Tile(64, 128, 16, 2), warps=4),
            Second(Tile(16, 16, 256, 5, split=4), Tile(64, 128, 16, 2), warps=4),
            early=True,
        ),
    ),
    (
        32,
        Config(
            First(Tile(64, 16, 128, 5), None, warps=4),
            Second(Tile(64, 32, 128, 4), Tile(64, 128, 64, 2), Tile(64, 128, 64, 2), warps=4),
            early=True,
        ),
    ),
    (
        64,
        Config(
            First(Tile(64, 16, 128, 5), Tile(64, 128, 64, 2), warps=4),
            Second(Tile(64, 32, 128, 4), Tile(64, 128, 64, 2), warps=4),
            early=True,
        ),
    ),
    (
        192,
        Config(
            First(Tile(64, 32, 128, 4), Tile(64, 128, 64, 3), warps=4),
            Second(Tile(64, 32, 128, 4), Tile(128, 128, 64, 3), warps=4),
            early=True,
        ),
    ),
    (
        384,
        Config(
            First(Tile(64, 32, 128, 4), Tile(128, 128, 64, 3), warps=4),
            Second(Tile(64, 64, 128, 3), Tile(128, 128, 64, 3), warps=4),
            early=True,
        ),
    ),
    (
        640,
        Config(
            First(Tile(64, 64, 128, 3), Tile(128, 128, 64, 3), tma=True),
            Second(Tile(128, 64, 64, 3), Tile(128, 128, 64, 3), tma=True),
            early=True,
        ),
    ),
    (
        960,
        Config(
            First(Tile(64, 64, 128, 3), Tile(128, 128, 64, 3), tma=True),
            Second(Tile(128, 128, 64, 3), Tile(128, 128, 64, 3), tma=True),
            early=True,
        ),
    ),
    (
        1280,
        Config(
            First(Tile(64, 128, 64, 3), Tile(128, 128, 64, 3), tma=True),
            Second(Tile(128, 128, 64, 3), Tile(128, 128, 64, 3), tma=True),
        ),
    ),
    (
        2048,
        Config(
            First(Tile(64, 128, 64, 3), Tile(128, 128, 64, 3), sums_first=True, tma=True),
            Second(Tile(128, 128, 64, 3), Tile(128, 128, 64, 3), sums_first=True, tma=True),
            early=True,
        ),
    ),
    (
        3584,
        Config(
            First(Tile(128, 128, 64, 3), Tile(128, 128, 64, 3), tma=True),
            Second(Tile(128, 256, 64, 4), Tile(128, 256, 64, 4), sums_first=True, tma=True),
        ),
    ),
    (
        None,
        Config(
            First(Tile(128, 128, 64, 3), Tile(128, 128, 64, 3), sums_first=True, tma=True),
            Second(Tile(128, 256, 64, 4), Tile(128, 256, 64, 4), sums_first=True, tma=True),
        ),
    ),
)


@triton.jit(do_not_specialize=["tokens", "sums"])
def first_launch(
    d_left, d_right, gate, sigmoid, silu, up, both, sum_left, sum_right, grad_down_weight, tokens, sums,
    H: tl.constexpr, I: tl.constexpr,
    D_ROWS: tl.constexpr, D_COLUMNS: tl.constexpr, D_DEPTH: tl.constexpr, D_STAGES: tl.constexpr,
    D_SPLIT: tl.constexpr, D_PARTS: tl.constexpr,
    S_ROWS: tl.constexpr, S_COLUMNS: tl.constexpr, S_DEPTH: tl.constexpr, S_STAGES: tl.constexpr,
    DOWN: tl.constexpr, SUMS_FIRST: tl.constexpr, TMA: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """both = [grad_gate, grad_up], and with DOWN grad_down_weight, by `sums` programs."""
    if EARLY:
        let_the_next_begin()
    program = tl.program_id(0)
    if SUMS_FIRST:
        sum_number, d_number = program, program - sums
    else:
        sum_number, d_number = program - (tl.num_programs(0) - sums), program
    # Branches and no early return: the branches then share one piece of shared memory.
    if DOWN & (sum_number >= 0) & (sum_number < sums):
        row, column = place(sum_number, I, S_ROWS, S_COLUMNS)
        product_over_tokens(
            sum_left, sum_right, grad_down_weight, tokens, row, column, H, I,
            S_ROWS, S_COLUMNS, S_DEPTH, S_STAGES, TMA,
        )  # fmt: skip
    else:
        row, column = place(d_number, I, D_ROWS, D_COLUMNS)
        swiglu_tile(
            d_left, d_right, gate, sigmoid, silu, up, both, tokens, row, column, H, I,
            D_ROWS, D_COLUMNS, D_DEPTH, D_STAGES, D_SPLIT, D_PARTS, TMA,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "downs", "sums"])
def second_launch(
    x_left, gate_weight, up_weight, grad_x, sum_left, sum_right, grad_weights,
    down_left, down_right, grad_down_weight, tokens, downs, sums,
    H: tl.constexpr, I: tl.constexpr,
    X_ROWS: tl.constexpr, X_COLUMNS: tl.constexpr, X_DEPTH: tl.constexpr, X_STAGES: tl.constexpr,
    X_SPLIT: tl.constexpr,
    S_ROWS: tl.constexpr, S_COLUMNS: tl.constexpr, S_DEPTH: tl.constexpr, S_STAGES: tl.constexpr,
    DOWN_ROWS: tl.constexpr, DOWN_COLUMNS: tl.constexpr, DOWN_DEPTH: tl.constexpr, DOWN_STAGES: tl.constexpr,
    DOWN: tl.constexpr, SUMS_FIRST: tl.constexpr, TMA: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """grad_x, [grad_gate_weight; grad_up_weight] by `sums` programs, and with DOWN grad_down_weight by `downs`."""
    program = tl.program_id(0) - downs
    if SUMS_FIRST:
        sum_number, x_number = program, program - sums
    else:
        sum_number, x_number = program - (tl.num_programs(0) - downs - sums), program
    if DOWN & (program < 0):
        row, column = place(program + downs, I, DOWN_ROWS, DOWN_COLUMNS)
        product_over_tokens(
            down_left, down_right, grad_down_weight, tokens, row, column, H, I,
            DOWN_ROWS, DOWN_COLUMNS, DOWN_DEPTH, DOWN_STAGES, TMA,
        )  # fmt: skip
    elif (sum_number >= 0) & (sum_number < sums):
        row, column = place(sum_number, H, S_ROWS, S_COLUMNS)
        if EARLY:
            if not TMA:
                prefetch(sum_right, 0, tokens, column, H, S_DEPTH, S_COLUMNS)
            wait_for_the_last()
        product_over_tokens(
            sum_left, sum_right, grad_weights, tokens, row, column, 2 * I, H,
            S_ROWS, S_COLUMNS, S_DEPTH, S_STAGES, TMA,
        )  # fmt: skip
    else:
        row, column = place(x_number, H, X_ROWS, X_COLUMNS)
        if EARLY:
            if not TMA:
                for k in tl.static_range(0, I, 256):
                    prefetch(gate_weight, k, I, column, H, 256, X_COLUMNS)
                    prefetch(up_weight, k, I, column, H, 256, X_COLUMNS)
            wait_for_the_last()
        result = product(
            x_left, gate_weight, up_weight, tokens, row, column, I, H, 2,
            X_ROWS, X_COLUMNS, X_DEPTH, X_STAGES, X_SPLIT, TMA,
        )  # fmt: skip
        store(result, grad_x, row, tokens, column, H, H, H % X_COLUMNS != 0)


def choose(tokens: int) -> Config:
    return next(config for most, config in CONFIGS if most is None or tokens <= most)


def tiles(tile: Tile, rows: int, columns: int) -> int:
    return triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns)


def first(
    config, early, grad_output, down_weight, gate, sigmoid, silu, up, intermediate, both, grad_down_weight
) -> Request:
    tokens, columns = gate.shape
    hidden = grad_output.shape[1]
    d, tma = config.d, config.tma
    down = config.down or d  # of no meaning where there is none
    programs = tiles(down, hidden, columns) if config.down else 0
    arguments = (
        operand(grad_output, d.rows, d.depth, tma), operand(down_weight, d.depth, d.columns, tma),
        gate, sigmoid, silu, up, both,
        operand(grad_output, down.depth, down.rows, tma), operand(intermediate, down.depth, down.columns, tma),
        grad_down_weight, tokens, programs,
    )  # fmt: skip
    cut = (hidden, columns, *d, parts(d, config.warps), *down[:4], config.down is not None)
    constants = (*cut, config.sums_first, tma, early)
    return Request(first_launch, programs + tiles(d, tokens, columns), arguments, constants, config.warps)


def second(
    config, early, grad_output, x, gate_weight, up_weight, intermediate, both, grad_x, grad_weights, grad_down_weight
) -> Request:
    tokens, hidden = x.shape
    columns = len(gate_weight)
    by_x, sums, tma = config.x, config.weights, config.tma
    down = config.down or sums  # of no meaning where there is none
    downs = tiles(down, hidden, columns) if config.down else 0
    programs = tiles(sums, 2 * columns, hidden)
    arguments = (
        operand(both, by_x.rows, by_x.depth, tma),
        operand(gate_weight, by_x.depth, by_x.columns, tma), operand(up_weight, by_x.depth, by_x.columns, tma),
        grad_x, operand(both, sums.depth, sums.rows, tma), operand(x, sums.depth, sums.columns, tma), grad_weights,
        operand(grad_output, down.depth, down.rows, tma), operand(intermediate, down.depth, down.columns, tma),
        grad_down_weight, tokens, downs, programs,
    )  # fmt: skip
    cut = (hidden, columns, *by_x, *sums[:4], *down[:4], config.down is not None)
    constants = (*cut, config.sums_first, tma, early)
    programs += downs + tiles(by_x, tokens, hidden)
    return Request(second_launch, programs, arguments, constants, config.warps, early)


def launch(config, grad_output, x, gate_weight, up_weight, down_weight, gate, sigmoid, silu, up, intermediate):
    tokens, columns = gate.shape
    both, grad_weights = x.new_empty(tokens, 2 * columns), x.new_empty(2 * columns, x.shape[1])
    grad_x, grad_down_weight = torch.empty_like(x), torch.empty_like(down_weight)
    saved = (gate, sigmoid, silu, up, intermediate)
    results = (both, grad_x, grad_weights, grad_down_weight)
    in_a_row(
        first(config.first, config.early, grad_output, down_weight, *saved, both, grad_down_weight),
        second(config.second, config.early, grad_output, x, gate_weight, up_weight, intermediate, *results),
    )
    grad_gate_weight, grad_up_weight = grad_weights.split(columns)
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    return launch(choose(len(inputs[0])), *inputs)
