"""`warp_specialized` in CUDA C++, in clusters of two programs that load the right operand for each other.

A step of 64 of a tile of 128 x 256 takes 48 KB from the L2 cache; with half of the right operand brought by the other
program of the cluster (multicast) it takes 32, and what the cache gives and the power that it takes no longer limit
products of many tokens. Two persistent launches: d, whose epilogue is the SwiGLU backward, and all that is left. Which
pairs of tiles a cluster computes follows from its number: the long ones of grad_x first, and while some clusters have
one of them more, the others take gradients. No sum goes across programs: repeatable bit for bit. The source is compiled
by NVRTC, which comes with PyTorch, in the first call.

FLOPs: 12*T*H*I, with T rounded up to 256. Traffic beside the floor of 2*(3TH + 6HI + 3TI) bytes: [grad_gate, grad_up]
is written once and read twice (12TI), activated_gate * up_output written and read (4TI), grad_output read twice (2TH).
"""

from typing import NamedTuple

import nvrtc_launch
import torch
from nvrtc_launch import Map, arguments


class Config(NamedTuple):
    """So many rows of pairs of tiles are computed at a time, column after column: of d, grad_x, weight gradients."""

    d: int = 4
    x: int = 4
    weights: int = 8


# Up to so many tokens (None: any number); on an H200 they hardly differ.
CONFIGS: tuple[tuple[int | None, Config], ...] = ((None, Config()),)

PAIR_ROWS, COLUMNS, DEPTH = 256, 256, 64
THREADS, SHARED_BYTES = 384, 229440
# What beginning and ending a tile takes, in steps of DEPTH.
OVERHEAD_STEPS = 5

First = arguments(
    "First",
    ("grad_output", "down_weight", "gate", "up", "activated", "grad_gate", "grad_up", "product"),
    ("down", "across", "band", "hidden"),
)
Second = arguments(
    "Second",
    (
        "grad_gate", "grad_up", "gate_weight", "up_weight", "grad_x", "both", "x", "grad_weights", "grad_output",
        "product", "grad_down_weight",
    ),
    ("down_x", "across_x", "down_sums", "down_last", "across_last", "inner", "tokens", "extra", "x_band", "band"),
)  # fmt: skip


def device(of: torch.device) -> nvrtc_launch.Device:
    return nvrtc_launch.of_device(__file__, of, THREADS, SHARED_BYTES)


def up(number: int, by: int) -> int:
    """Divided, and rounded up."""
    return -(-number // by)


def choose(tokens: int) -> Config:
    return next(config for most, config in CONFIGS if most is None or tokens <= most)


def first(config, grad_output, down_weight, gate, up_output, activated, both, product):
    """All but down_weight [H, I] are [T, columns]; writes both [T, 2I] and product [T, I]."""
    tokens, inner = gate.shape
    place = device(gate.device)
    down, across = up(tokens, PAIR_ROWS), up(inner, COLUMNS)
    matrices = (
        grad_output, down_weight, gate, up_output, activated, both[:, :inner], both[:, inner:], product
    )  # fmt: skip
    maps: list[Map] = [place.map(matrix) for matrix in matrices]
    what = First(*maps, down, across, config.d, len(down_weight))
    place.launch("first_launch", what, 2 * min(down * across, place.multiprocessors // 2))


def second(config, grad_output, x, gate_weight, up_weight, both, product, grad_x, grad_weights, grad_down_weight):
    """Writes the last three from what `first` wrote."""
    tokens, hidden = x.shape
    inner = len(gate_weight)
    place = device(x.device)
    down_x, across_x = up(tokens, PAIR_ROWS), up(hidden, COLUMNS)
    down_sums, down_last, across_last = up(2 * inner, PAIR_ROWS), up(hidden, PAIR_ROWS), up(inner, COLUMNS)
    long, short = 2 * up(inner, DEPTH) + OVERHEAD_STEPS, up(tokens, DEPTH) + OVERHEAD_STEPS
    matrices = (
        both[:, :inner], both[:, inner:], gate_weight, up_weight, grad_x, both, x, grad_weights, grad_output, product,
        grad_down_weight,
    )  # fmt: skip
    maps: list[Map] = [place.map(matrix) for matrix in matrices]
    counts = (down_x, across_x, down_sums, down_last, across_last, inner, tokens, round(long / short))
    what = Second(*maps, *counts, config.x, config.weights)
    pairs = (down_x + down_sums) * across_x + down_last * across_last
    place.launch("second_launch", what, 2 * min(pairs, place.multiprocessors // 2))


def launch(config, grad_output, x, gate_output, up_output, activated_gate, gate_weight, up_weight, down_weight):
    inner, hidden = gate_weight.shape
    output, rows = grad_output.reshape(-1, hidden), x.reshape(-1, hidden)
    saved = [tensor.reshape(-1, inner) for tensor in (gate_output, up_output, activated_gate)]
    tokens = len(rows)
    both, product = rows.new_empty(tokens, 2 * inner), rows.new_empty(tokens, inner)
    grad_x, grad_weights = rows.new_empty(tokens, hidden), rows.new_empty(2 * inner, hidden)
    grad_down_weight = rows.new_empty(hidden, inner)
    first(config, output, down_weight, *saved, both, product)
    second(config, output, rows, gate_weight, up_weight, both, product, grad_x, grad_weights, grad_down_weight)
    grad_gate_weight, grad_up_weight = grad_weights.split(inner)
    return grad_x.view(x.shape), grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    grad_output, hidden = inputs[0], inputs[0].shape[-1]
    return launch(choose(grad_output.numel() // hidden), *inputs)
