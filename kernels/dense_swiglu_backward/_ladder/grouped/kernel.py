"""Few tokens: products that read weights run beside products that write gradients, and memory never waits for either.

With T of 128 the weights are read in 1.1 ms and the gradients written in 1.1 ms, while the tensor cores need 1.4 ms
in all; with 512 tokens the tensor cores are the limit and nothing else may add to it. First launch: d with the
SwiGLU backward as its epilogue, which reads down_weight, and grad_down_weight, which is written. Second: grad_x, whose
one accumulator sums over grad_gate @ gate_weight and grad_up @ up_weight with the weights where they are, and both
weight gradients as one product. A small launch before them makes activated_gate * up_output, because grad_down_weight
must not wait for d.

d has few tiles of depth H and grad_x of depth 2I: they are long, and start first; `at_once` of them at a time, so that
on the multiprocessors they leave short tiles write meanwhile. Where T fits in one step of depth, a program for the
weight gradients keeps its columns of the right operand and walks down over `walk` tiles: for 2 bytes written it reads
1 from the L2 cache, where a lone tile of 128 x 256 reads 3. grad_x of very few tiles is cut into pieces of its depth,
float32 sums that a last small launch adds in a fixed order. Results are repeatable bit for bit.

Three launches, four with pieces. FLOPs: 12*T*H*I, with T rounded up to whole tiles. Traffic beside the floor of
2*(3TH + 6HI + 3TI) bytes: [grad_gate, grad_up] is written once and read twice (12TI), activated_gate * up_output is
written and read once (4TI), activated_gate and up_output are read once more (4TI), grad_output once more (2TH), and
with pieces 8TH for each: at T = 128 2% of the floor in all. The workspace is 6TI bytes, and 4TH for each piece: with
two pieces 1.17 times the activations.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from dense_tiles import place_in_bands, swiglu_tile, turn, walk_over_rows
from tiles import Tile, operand, parts, place, product, product_over_tokens, store

BAND = 16  # tiles of tokens that go through a weight's columns together
BLOCK = 2048  # elements of a program of the small launches


class First(NamedTuple):
    """How d and grad_down_weight are cut.

    walk: over how many tiles a program for grad_down_weight goes, 1 where T does not fit in a tile's depth.
    at_once: how many tiles of d start before tiles of grad_down_weight do; 0 for all.
    """

    d: Tile
    down: Tile
    walk: int = 1
    at_once: int = 0
    warps: int = 8
    tma: bool = True


class Second(NamedTuple):
    """How grad_x and [grad_gate_weight; grad_up_weight] are cut; as in `First`. pieces: of grad_x's depth."""

    x: Tile
    weights: Tile
    walk: int = 1
    at_once: int = 0
    pieces: int = 1
    warps: int = 8
    tma: bool = True


class Config(NamedTuple):
    first: First
    second: Second


WIDE = Tile(128, 256, 64, 4)
# Up to so many tokens (None: any number), how the products are cut.
# benchmarks/dense_crossovers.py measures these and others; on an H200 none beats `warp_specialized`.
CONFIGS: tuple[tuple[int | None, Config], ...] = (
    (
        64,
        Config(
            First(Tile(64, 256, 64, 4), Tile(128, 256, 64, 2), walk=16, at_once=66),
            Second(Tile(64, 256, 64, 4), Tile(128, 256, 64, 2), walk=16, at_once=66, pieces=2),
        ),
    ),
    (
        128,
        Config(
            First(WIDE, Tile(128, 256, 128, 2), walk=16, at_once=66),
            Second(WIDE, Tile(128, 256, 128, 2), walk=16, at_once=66, pieces=2),
        ),
    ),
    (
        256,
        Config(
            First(WIDE, Tile(64, 256, 256, 2), walk=16, at_once=66),
            Second(WIDE, Tile(64, 256, 256, 2), walk=16, at_once=66),
        ),
    ),
    (None, Config(First(WIDE, WIDE, at_once=66), Second(WIDE, WIDE, at_once=66))),
)


@triton.jit
def multiply(a_ptr, b_ptr, out_ptr, total, BLOCK: tl.constexpr):
    """out = a * b, elementwise over `total` elements."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < total
    a = tl.load(a_ptr + index, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + index, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + index, (a * b).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_pieces(pieces_ptr, out_ptr, total, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    """out = the sum of pieces [PIECES, total], always in the same order."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < total
    result = tl.zeros((BLOCK,), tl.float32)
    for piece in tl.static_range(PIECES):
        result += tl.load(pieces_ptr + piece * total + index, mask=inside, other=0.0)
    tl.store(out_ptr + index, result.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def short_tiles(
    left, right, out, tokens, number, M: tl.constexpr, N: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, WALK: tl.constexpr,
    BAND: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """A short program's part of left.T @ right into out [M, N]: one tile, or WALK of them."""
    if WALK > 1:
        # Neighbours write whole rows of the result together.
        row, column = place(number, N, ROWS * WALK, COLUMNS)
        walk_over_rows(left, right, out, tokens, row, column, M, N, ROWS, COLUMNS, DEPTH, STAGES, WALK, TMA)
    else:
        row, column = place_in_bands(number, M, N, ROWS, COLUMNS, BAND)
        product_over_tokens(left, right, out, tokens, row, column, M, N, ROWS, COLUMNS, DEPTH, STAGES, TMA)


@triton.jit(do_not_specialize=["tokens", "longs", "shorts", "at_once"])
def first_launch(
    d_left, d_right, gate, up, activated, both, down_left, down_right, grad_down_weight, tokens, longs, shorts, at_once,
    H: tl.constexpr, I: tl.constexpr,
    D_ROWS: tl.constexpr, D_COLUMNS: tl.constexpr, D_DEPTH: tl.constexpr, D_STAGES: tl.constexpr,
    D_SPLIT: tl.constexpr, D_PARTS: tl.constexpr,
    S_ROWS: tl.constexpr, S_COLUMNS: tl.constexpr, S_DEPTH: tl.constexpr, S_STAGES: tl.constexpr,
    WALK: tl.constexpr, BAND: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """both = [grad_gate, grad_up] and grad_down_weight. The left and right operands are those of each product."""
    long, short = turn(tl.program_id(0), longs, shorts, at_once)
    # Branches and no early return: the branches then share one piece of shared memory.
    if long < longs:
        row, column = place_in_bands(long, tokens, I, D_ROWS, D_COLUMNS, BAND)
        swiglu_tile(
            d_left, d_right, gate, up, activated, both, both, tokens, row, column, H, I,
            D_ROWS, D_COLUMNS, D_DEPTH, D_STAGES, D_SPLIT, D_PARTS, TMA, False,
        )  # fmt: skip
    elif short < shorts:
        short_tiles(
            down_left, down_right, grad_down_weight, tokens, short, H, I,
            S_ROWS, S_COLUMNS, S_DEPTH, S_STAGES, WALK, BAND, TMA,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "longs", "shorts", "at_once"])
def second_launch(
    x_left, gate_weight, up_weight, grad_x, sum_left, sum_right, grad_weights, tokens, longs, shorts, at_once,
    H: tl.constexpr, I: tl.constexpr,
    X_ROWS: tl.constexpr, X_COLUMNS: tl.constexpr, X_DEPTH: tl.constexpr, X_STAGES: tl.constexpr,
    X_SPLIT: tl.constexpr, PIECES: tl.constexpr,
    S_ROWS: tl.constexpr, S_COLUMNS: tl.constexpr, S_DEPTH: tl.constexpr, S_STAGES: tl.constexpr,
    WALK: tl.constexpr, BAND: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """grad_x [PIECES, tokens, H] in pieces of its sum, and [grad_gate_weight; grad_up_weight]."""
    long, short = turn(tl.program_id(0), longs, shorts, at_once)
    if long < longs:
        piece = long % PIECES
        row, column = place_in_bands(long // PIECES, tokens, H, X_ROWS, X_COLUMNS, BAND)
        result = product(
            x_left, gate_weight, up_weight, tokens, row, column, I, H, 2,
            X_ROWS, X_COLUMNS, X_DEPTH, X_STAGES, X_SPLIT, TMA, piece, PIECES,
        )  # fmt: skip
        out = grad_x + piece.to(tl.int64) * tokens * H
        store(result, out, row, tokens, column, H, H, H % X_COLUMNS != 0)
    elif short < shorts:
        short_tiles(
            sum_left, sum_right, grad_weights, tokens, short, 2 * I, H,
            S_ROWS, S_COLUMNS, S_DEPTH, S_STAGES, WALK, BAND, TMA,
        )  # fmt: skip


def choose(tokens: int) -> Config:
    return next(config for most, config in CONFIGS if most is None or tokens <= most)


def tiles(tile: Tile, rows: int, columns: int) -> int:
    return triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns)


def steps(tile: Tile, walk: int, tokens: int) -> int:
    """Over how many tiles a program may go: it keeps one step of depth, so all tokens must be in it."""
    return walk if tokens <= tile.depth else 1


def programs(longs: int, shorts: int, at_once: int) -> int:
    """How many `turn` shares the tiles out to; some of the last get none."""
    rounds = triton.cdiv(longs, at_once)
    return rounds * (at_once + triton.cdiv(shorts, rounds))


def first(config, output, gate_output, up_output, activated_gate, down_weight, intermediate, both, grad_down_weight):
    """The first of the two large launches. output: [T, H]; intermediate: [T, I]."""
    tokens, hidden = output.shape
    columns = down_weight.shape[1]
    d, down, tma = config.d, config.down, config.tma
    walk = steps(down, config.walk, tokens)
    longs = tiles(d, tokens, columns)
    shorts = tiles(down._replace(rows=down.rows * walk), hidden, columns)
    at_once = min(config.at_once or longs, longs)
    first_launch[(programs(longs, shorts, at_once),)](
        operand(output, d.rows, d.depth, tma), operand(down_weight, d.depth, d.columns, tma),
        gate_output, up_output, activated_gate, both,
        operand(output, down.depth, down.rows, tma), operand(intermediate, down.depth, down.columns, tma),
        grad_down_weight, tokens, longs, shorts, at_once,
        hidden, columns, *d, parts(d, config.warps), *down[:4], walk, BAND, tma, num_warps=config.warps,
    )  # fmt: skip


def second(config, x, gate_weight, up_weight, both, grad_x, grad_weights):
    """The second, and the sum of grad_x's pieces. x, grad_x: [T, H]; both: [T, 2I]; grad_weights: [2I, H]."""
    tokens, hidden = x.shape
    columns = len(gate_weight)
    by_x, sums, tma, pieces = config.x, config.weights, config.tma, config.pieces
    walk = steps(sums, config.walk, tokens)
    longs = tiles(by_x, tokens, hidden) * pieces
    shorts = tiles(sums._replace(rows=sums.rows * walk), 2 * columns, hidden)
    at_once = min(config.at_once or longs, longs)
    out = grad_x if pieces == 1 else x.new_empty(pieces, tokens, hidden, dtype=torch.float32)
    second_launch[(programs(longs, shorts, at_once),)](
        operand(both, by_x.rows, by_x.depth, tma),
        operand(gate_weight, by_x.depth, by_x.columns, tma), operand(up_weight, by_x.depth, by_x.columns, tma),
        out, operand(both, sums.depth, sums.rows, tma), operand(x, sums.depth, sums.columns, tma), grad_weights,
        tokens, longs, shorts, at_once,
        hidden, columns, *by_x, pieces, *sums[:4], walk, BAND, tma, num_warps=config.warps,
    )  # fmt: skip
    if pieces > 1:
        total = grad_x.numel()
        add_pieces[(triton.cdiv(total, BLOCK),)](out, grad_x, total, pieces, BLOCK)


def launch(config, grad_output, x, gate_output, up_output, activated_gate, gate_weight, up_weight, down_weight):
    columns, hidden = gate_weight.shape
    output, tokens_by_hidden = grad_output.reshape(-1, hidden), x.reshape(-1, hidden)
    tokens = len(output)
    both, intermediate = x.new_empty(tokens, 2 * columns), x.new_empty(tokens, columns)
    grad_x, grad_weights = x.new_empty(tokens, hidden), x.new_empty(2 * columns, hidden)
    grad_down_weight = x.new_empty(hidden, columns)
    total = intermediate.numel()
    multiply[(triton.cdiv(total, BLOCK),)](activated_gate, up_output, intermediate, total, BLOCK)
    saved = (gate_output, up_output, activated_gate)
    first(config.first, output, *saved, down_weight, intermediate, both, grad_down_weight)
    second(config.second, tokens_by_hidden, gate_weight, up_weight, both, grad_x, grad_weights)
    grad_gate_weight, grad_up_weight = grad_weights.split(columns)
    return grad_x.view(x.shape), grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    return launch(choose(inputs[1].shape[:-1].numel()), *inputs)
