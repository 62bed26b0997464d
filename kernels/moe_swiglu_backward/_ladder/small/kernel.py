"""One launch for few tokens: each program owns a slice of I, so that almost nothing has to wait for anything.

A program with some columns of d has all that its rows of both weight gradients and its columns of grad_down_weight
need: no sum across programs, no intermediate result in memory. A slice's programs share out H; each of them computes
the slice of d for itself, which costs reads from the L2 cache and saves waiting for each other. Only grad_x
sums over all slices. Its programs come last in the same launch: they ask for their columns of the weights, wait until
every slice of [grad_gate, grad_up] is counted in, and then sum over it in one order, so results are repeatable bit for
bit. The last one to leave sets the counters to zero for the next call; calls on different streams have their own.

The waiting ones never hold up the others: programs start in the order of their numbers, and on a device of 112
multiprocessors or more all of them run at once. For more than 128 tokens this hands over to plain PyTorch.

FLOPs: 12*T*H*I plus 2*T*H*I for each further program that shares a slice, with T rounded up to 16, 32, 64 or 128.
Traffic beside the floor of 2*(3TH + 6HI + 5TI) bytes: [grad_gate, grad_up] is written and read once (8TI); it and what
programs read again (grad_output and x for every slice: 96TH bytes times their share) stay in the L2 cache.
"""

from typing import NamedTuple

import portable
import torch
import triton
import triton.language as tl
from tiles import Tile, dot, factors, place, prefetch, product, store


class Config(NamedTuple):
    """How d's slices, and grad_x, are cut.

    Both tiles have as many rows as there may be tokens; d's columns are a slice. shares: programs to a slice.
    width: how many columns of x and grad_output such a program takes at a time, with `stages` steps in flight.
    """

    d: Tile
    x: Tile
    shares: int = 2
    width: int = 256
    stages: int = 3
    warps: int = 8


# Up to so many tokens, how they are cut. Estimates: benchmarks/moe_crossovers.py measures these and others.
CONFIGS: tuple[tuple[int, Config], ...] = (
    (16, Config(Tile(16, 16, 512, 4, split=8), Tile(16, 16, 256, 5, split=8))),
    (32, Config(Tile(32, 16, 256, 5, split=8), Tile(32, 16, 256, 5, split=8))),
    (64, Config(Tile(64, 16, 128, 4), Tile(64, 16, 128, 4), width=128, warps=4)),
    (128, Config(Tile(128, 16, 128, 3), Tile(128, 16, 128, 3), width=64)),
)


@triton.jit(do_not_specialize=["tokens"])
def slices_and_sum(
    grad_output, x, gate_weight, up_weight, down_weight, gate, sigmoid, silu, up, intermediate,
    both, grad_x, grad_weights, grad_down_weight, counters, tokens,
    H: tl.constexpr, I: tl.constexpr,
    ROWS: tl.constexpr, SLICE: tl.constexpr, D_DEPTH: tl.constexpr, D_STAGES: tl.constexpr, D_SPLIT: tl.constexpr,
    X_ROWS: tl.constexpr, X_COLUMNS: tl.constexpr, X_DEPTH: tl.constexpr, X_STAGES: tl.constexpr,
    X_SPLIT: tl.constexpr, SHARES: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All of it. `both` holds [grad_gate, grad_up] in between; `counters` are two zeros, and are so afterwards."""
    slices: tl.constexpr = (I + SLICE - 1) // SLICE
    summing: tl.constexpr = (H + X_COLUMNS - 1) // X_COLUMNS
    program = tl.program_id(0)
    if program < slices * SHARES:
        column = program // SHARES * SLICE
        share = program % SHARES
        row = program * 0
        t = tl.arange(0, ROWS)[:, None]
        i = column + tl.arange(0, SLICE)[None, :]
        inside = (t < tokens) & (i < I)
        # All of this is on its way while the product is made.
        for_gate, for_up = factors(gate, sigmoid, silu, up, t * I + i, inside)
        saved = tl.load(intermediate + (t * I + i), mask=inside, other=0.0)
        blocks: tl.constexpr = (H + SHARES * WIDTH - 1) // (SHARES * WIDTH)
        for block in tl.static_range(blocks):
            prefetch(x, row, tokens, (share * blocks + block) * WIDTH, H, ROWS, WIDTH)
        d = product(
            grad_output, down_weight, down_weight, tokens, row, column, H, I, 1,
            ROWS, SLICE, D_DEPTH, D_STAGES, D_SPLIT, False,
        )  # fmt: skip
        grad_gate = (d * for_gate).to(both.dtype.element_ty)
        grad_up = (d * for_up).to(both.dtype.element_ty)
        if share == 0:
            store(grad_gate, both, row, tokens, column, I, 2 * I, True)
            store(grad_up, both + I, row, tokens, column, I, 2 * I, True)
            tl.debug_barrier()  # all threads have written when one of them counts the slice in
            tl.atomic_add(counters, 1, sem="release", scope="gpu")
        gate_rows = tl.trans(grad_gate)
        up_rows = tl.trans(grad_up)
        for block in tl.range(0, tl.minimum(tokens, 1) * blocks, num_stages=STAGES):
            h = (share * blocks + block) * WIDTH
            c = h + tl.arange(0, WIDTH)[None, :]
            wanted = (t < tokens) & (c < H)
            x_block = tl.load(x + t * H + c, mask=wanted, other=0.0)
            output_block = tl.load(grad_output + t * H + c, mask=wanted, other=0.0)
            nothing = tl.zeros((SLICE, WIDTH), tl.float32)
            over: tl.constexpr = H % (SHARES * WIDTH) != 0
            store(dot(gate_rows, x_block, nothing), grad_weights, column, I, h, H, H, over)
            store(dot(up_rows, x_block, nothing), grad_weights + I * H, column, I, h, H, H, over)
            nothing = tl.zeros((WIDTH, SLICE), tl.float32)
            store(dot(tl.trans(output_block), saved, nothing), grad_down_weight, h, H, column, I, I, I % SLICE != 0)
    else:
        row, column = place(program - slices * SHARES, H, X_ROWS, X_COLUMNS)
        for k in tl.static_range(0, I, 256):
            prefetch(gate_weight, k, I, column, H, 256, X_COLUMNS)
            prefetch(up_weight, k, I, column, H, 256, X_COLUMNS)
        while tl.atomic_add(counters, 0, sem="acquire", scope="gpu") < slices:
            pass
        result = product(
            both, gate_weight, up_weight, tokens, row, column, I, H, 2,
            X_ROWS, X_COLUMNS, X_DEPTH, X_STAGES, X_SPLIT, False,
        )  # fmt: skip
        store(result, grad_x, row, tokens, column, H, H, H % X_COLUMNS != 0)
        if tl.atomic_add(counters + 1, 1, sem="acq_rel", scope="gpu") == summing - 1:
            tl.atomic_xchg(counters, 0, sem="relaxed", scope="gpu")
            tl.atomic_xchg(counters + 1, 0, sem="relaxed", scope="gpu")


def choose(tokens: int) -> Config | None:
    return next((config for most, config in CONFIGS if tokens <= most), None)


_counters: dict[tuple[torch.device, int], torch.Tensor] = {}


def counters(device: torch.device) -> torch.Tensor:
    """Two zeros that calls on the current stream take turns with."""
    key = (device, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0)
    if key not in _counters:
        _counters[key] = torch.zeros(2, dtype=torch.int32, device=device)
    return _counters[key]


def launch(config, *inputs):
    x, gate = inputs[1], inputs[5]
    tokens, columns = gate.shape
    hidden = x.shape[1]
    both, grad_weights = x.new_empty(tokens, 2 * columns), x.new_empty(2 * columns, hidden)
    grad_x, grad_down_weight = torch.empty_like(x), torch.empty_like(inputs[4])
    programs = triton.cdiv(columns, config.d.columns) * config.shares + triton.cdiv(hidden, config.x.columns)
    slices_and_sum[(programs,)](
        *inputs, both, grad_x, grad_weights, grad_down_weight, counters(x.device), tokens,
        hidden, columns, *config.d, *config.x, config.shares, config.width, config.stages, num_warps=config.warps,
    )  # fmt: skip
    grad_gate_weight, grad_up_weight = grad_weights.split(columns)
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    config = choose(len(inputs[0]))
    return launch(config, *inputs) if config else portable.run(*inputs)
