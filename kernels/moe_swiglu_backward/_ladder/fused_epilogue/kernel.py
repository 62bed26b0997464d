"""d never leaves the chip: the SwiGLU backward is the epilogue of the product that makes it.

A tile of d = grad_output @ down_weight is multiplied by the saved tensors while it is still in the registers, in
float32, and goes out as grad_gate and grad_up in one [T, 2I] tensor. The epilogue takes a few columns of the tile at a
time, because all of it and four saved tensors beside it do not fit in the registers. The same launch copies the two
weights behind each other, as `joined_products` does, whose three other products follow.

Four launches. FLOPs: 12*T*H*I. Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes: [grad_gate, grad_up] is written
once and read twice (12TI), grad_output is read once more (2TH), the weights are written and read once more (8HI).
d's own 4TI and one launch are what this saves. It pays while the product in Triton is not slower than the library's
by more than that.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from tiles import Tile, operand, parts, place, stack, swiglu_tile

COPIED = 4096  # elements of each weight that one program copies


class Config(NamedTuple):
    d: Tile
    warps: int = 8
    tma: bool = False


# Up to so many tokens (None: any number), how d is cut. 128 x 256 moves the least between L2 cache and shared memory
# and needs enough tiles for 132 multiprocessors; below, tiles are made so small that there are about that many.
# benchmarks/moe_crossovers.py measures these and others; on an H200 none beats `grouped`.
CONFIGS: tuple[tuple[int | None, Config], ...] = (
    (16, Config(Tile(16, 16, 512, 4, split=8))),
    (32, Config(Tile(32, 16, 256, 5, split=8))),
    (128, Config(Tile(64, 16, 128, 6), warps=4)),
    (256, Config(Tile(64, 32, 128, 5), warps=4)),
    (768, Config(Tile(64, 64, 128, 4), warps=4)),
    (1536, Config(Tile(64, 128, 64, 4), warps=4)),
    (2560, Config(Tile(128, 128, 64, 3), tma=True)),
    (None, Config(Tile(128, 256, 64, 4), tma=True)),
)


@triton.jit(do_not_specialize=["tokens"])
def d_and_swiglu_backward(
    grad_output, down_weight, gate, sigmoid, silu, up, both, gate_weight, up_weight, weights, tokens,
    H: tl.constexpr, I: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr, TMA: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    """both = [grad_gate, grad_up], weights = [gate_weight; up_weight]."""
    program = tl.program_id(0)
    tiles = tl.cdiv(tokens, ROWS) * tl.cdiv(I, COLUMNS)
    if program < tiles:
        row, column = place(program, I, ROWS, COLUMNS)
        swiglu_tile(
            grad_output, down_weight, gate, sigmoid, silu, up, both, tokens, row, column, H, I,
            ROWS, COLUMNS, DEPTH, STAGES, SPLIT, PARTS, TMA,
        )  # fmt: skip
    else:
        stack(gate_weight, up_weight, weights, program - tiles, H * I, COPIED)


def choose(tokens: int) -> Config:
    return next(config for most, config in CONFIGS if most is None or tokens <= most)


def launch(config, grad_output, x, gate_weight, up_weight, down_weight, gate, sigmoid, silu, up, intermediate):
    tokens, columns = gate.shape
    hidden = x.shape[1]
    tile = config.d
    both = torch.empty(tokens, 2 * columns, dtype=x.dtype, device=x.device)
    weights = torch.empty(2 * columns, hidden, dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(tokens, tile.rows) * triton.cdiv(columns, tile.columns)
    grid = (tiles + triton.cdiv(columns * hidden, COPIED),)
    d_and_swiglu_backward[grid](
        operand(grad_output, tile.rows, tile.depth, config.tma),
        operand(down_weight, tile.depth, tile.columns, config.tma),
        gate, sigmoid, silu, up, both, gate_weight, up_weight, weights, tokens,
        hidden, columns, *tile, parts(tile, config.warps), config.tma, COPIED, num_warps=config.warps,
    )  # fmt: skip
    grad_down_weight = torch.mm(grad_output.T, intermediate)
    grad_gate_weight, grad_up_weight = torch.mm(both.T, x).split(columns)
    return torch.mm(both, weights), grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    return launch(choose(len(inputs[0])), *inputs)
