"""d never leaves the chip: the SwiGLU backward is the epilogue of the product that makes it.

A tile of d = grad_output @ down_weight is multiplied by what the saved tensors say while it is still in the registers,
in float32, and goes out as grad_gate and grad_up in one [T, 2I] tensor; activated_gate * up_output goes out beside it,
since both are at hand. The epilogue takes a few columns of the tile at a time, because all of it and the saved tensors
beside it do not fit in the registers. Tiles go in bands of tokens, so that a band reads the weight once. The other
products are the library's: two for grad_x, the second added to the first, and one for both weight gradients.

Five launches. FLOPs: 12*T*H*I. Traffic beside the floor of 2*(3TH + 6HI + 3TI) bytes: [grad_gate, grad_up] is written
once and read twice (12TI), activated_gate * up_output is written and read once (4TI), grad_output is read and grad_x
written and read once more (6TH). Beside `fused_pointwise` it saves d's 4TI and one launch, 0.3% of the time at most:
it pays only while the product in Triton is about as fast as the library's. The workspace is 6TI bytes.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from dense_tiles import place_in_bands, swiglu_tile
from tiles import Tile, operand, parts


class Config(NamedTuple):
    """band: how many tiles of tokens go through a weight's columns together."""

    d: Tile
    warps: int = 8
    band: int = 16
    tma: bool = True


# Up to so many tokens (None: any number), how d is cut.
# benchmarks/dense_crossovers.py measures these and others; on an H200 none beats `warp_specialized` from T of 256 on.
CONFIGS: tuple[tuple[int | None, Config], ...] = (
    (64, Config(Tile(64, 128, 128, 3), warps=4)),
    (None, Config(Tile(128, 256, 64, 4))),
)


@triton.jit(do_not_specialize=["tokens"])
def d_and_swiglu_backward(
    grad_output, down_weight, gate, up, activated, both, intermediate, tokens,
    H: tl.constexpr, I: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr, BAND: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """both = [grad_gate, grad_up], intermediate = activated * up."""
    row, column = place_in_bands(tl.program_id(0), tokens, I, ROWS, COLUMNS, BAND)
    swiglu_tile(
        grad_output, down_weight, gate, up, activated, both, intermediate, tokens, row, column, H, I,
        ROWS, COLUMNS, DEPTH, STAGES, SPLIT, PARTS, TMA, True,
    )  # fmt: skip


def choose(tokens: int) -> Config:
    return next(config for most, config in CONFIGS if most is None or tokens <= most)


def epilogue(config, output, gate_output, up_output, activated_gate, down_weight, both, intermediate):
    """Launch 1 alone. output: [T, H]."""
    tokens, hidden = output.shape
    columns, tile = down_weight.shape[1], config.d
    d_and_swiglu_backward[(triton.cdiv(tokens, tile.rows) * triton.cdiv(columns, tile.columns),)](
        operand(output, tile.rows, tile.depth, config.tma), operand(down_weight, tile.depth, tile.columns, config.tma),
        gate_output, up_output, activated_gate, both, intermediate, tokens,
        hidden, columns, *tile, parts(tile, config.warps), config.band, config.tma, num_warps=config.warps,
    )  # fmt: skip


def launch(config, grad_output, x, gate_output, up_output, activated_gate, gate_weight, up_weight, down_weight):
    columns, hidden = gate_weight.shape
    output, tokens_by_hidden = grad_output.reshape(-1, hidden), x.reshape(-1, hidden)
    both = x.new_empty(len(output), 2 * columns)
    intermediate = x.new_empty(len(output), columns)
    epilogue(config, output, gate_output, up_output, activated_gate, down_weight, both, intermediate)
    grad_down_weight = output.T @ intermediate
    grad_x = torch.mm(both[:, :columns], gate_weight)
    grad_x.addmm_(both[:, columns:], up_weight)
    grad_gate_weight, grad_up_weight = (both.T @ tokens_by_hidden).split(columns)
    return grad_x.view(x.shape), grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    return launch(choose(inputs[1].shape[:-1].numel()), *inputs)
