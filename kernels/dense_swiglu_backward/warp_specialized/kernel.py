"""Two persistent launches whose warps have roles, in Gluon: one warp loads, two warpgroups multiply.

The first launch is d with the SwiGLU backward as its epilogue; it writes grad_gate, grad_up and activated_gate *
up_output. The loading warp brings the saved tensors through the same stages as the operands, as four steps more. The
second launch is all that is left: grad_x in one accumulator over both weights, and the three weight gradients. Its
programs take tiles from a counter, the longest first: reading weights, multiplying and writing gradients overlap, and
no product has a tail of its own. No sum goes across programs, so results are repeatable bit for bit.

FLOPs: 12*T*H*I, with T rounded up to 128. Traffic beside the floor of 2*(3TH + 6HI + 3TI) bytes: [grad_gate, grad_up]
is written once and read twice (12TI), activated_gate * up_output written and read (4TI), grad_output read twice (2TH).
"""

from typing import NamedTuple

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
    load_product,
    multiply,
    operands,
    outlet,
    piece,
    place,
    programs,
    put,
    rest,
    wide,
)


class Config(NamedTuple):
    """So many rows of tiles are computed at a time, column after column: of d, grad_x, the weight gradients."""

    d: int = 8
    x: int = 8
    weights: int = 16


# Up to so many tokens (None: any number): benchmarks/dense_crossovers.py on an H200.
CONFIGS: tuple[tuple[int | None, Config], ...] = (
    (192, Config(4, 8, 32)),
    (768, Config(8, 8, 8)),
    (1536, Config(16, 16, 16)),
    (None, Config(8, 8, 16)),
)
# Of a tile: a stage then has room for a chunk of all three saved tensors.
COLUMNS = 256
_COLUMNS, _CHUNK, _DEPTH, _SHARE = (gl.constexpr(value) for value in (COLUMNS, CHUNK, DEPTH, SHARE))


@gluon.jit
def load_d(
    grad_output, down_weight, gate, up, activated, other, a, b, full, empty, down, across, hidden, BAND: gl.constexpr
):  # fmt: skip
    if gl.program_id(0) == 0:
        gl.store(other, 0)
    chunks = by_chunks(b)
    stage, phase = gl.to_tensor(0), gl.to_tensor(1)
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = place(tile, down, across, BAND, _COLUMNS)
        stage, phase = load_product(
            False, grad_output, down_weight, row, column, hidden, a, b, full, empty, stage, phase
        )  # fmt: skip
        for at in range(column, column + _COLUMNS, _CHUNK):
            arrived = begin(full, empty, stage, phase, 3 * CHUNK_BYTES)
            for part in gl.static_range(2):
                its_row = row + part * _SHARE
                tma.async_copy_global_to_shared(gate, [its_row, at], arrived, a.index(2 * stage + part))
                tma.async_copy_global_to_shared(up, [its_row, at], arrived, chunks.index(4 * stage + part))
                tma.async_copy_global_to_shared(activated, [its_row, at], arrived, chunks.index(4 * stage + 2 + part))
            stage, phase = after(stage, phase, b.shape[0])


@gluon.jit
def swiglu_chunk(
    d, grad_gate, grad_up, product, row, column, a, chunks, pieces, full, empty, stage, phase,
    PART: gl.constexpr, ODD: gl.constexpr,
):  # fmt: skip
    """SwiGLU backward of a chunk of d, of which three chunks go out. ODD: an odd number went before."""
    layout: gl.constexpr = d.type.layout
    mbarrier.wait(full.index(stage), phase)
    g = a.index(2 * stage + PART).load(layout).to(gl.float32)
    u = chunks.index(4 * stage + PART).load(layout).to(gl.float32)
    activated = chunks.index(4 * stage + 2 + PART).load(layout).to(gl.float32)
    mbarrier.arrive(empty.index(stage))
    sigmoid = 1 / (1 + gl.exp(-g))
    put(d * u * (sigmoid * (1 + g * (1 - sigmoid))), grad_gate, row, column, pieces.index(ODD))
    put(d * activated, grad_up, row, column, pieces.index(1 - ODD))
    put(activated * u, product, row, column, pieces.index(ODD))
    return after(stage, phase, full.shape[0])


@gluon.jit
def multiply_d(
    PART: gl.constexpr, grad_gate, grad_up, product, a, b, pieces, full, empty, down, across, steps,
    BAND: gl.constexpr,
):  # fmt: skip
    chunks = by_chunks(b)
    stage, phase = gl.to_tensor(0), gl.to_tensor(0)
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = place(tile, down, across, BAND, _COLUMNS)
        row += PART * _SHARE
        d, stage, phase = multiply(PART, False, steps, a, b, full, empty, stage, phase)
        d_by_chunks = chunks_of(d)
        for i in gl.static_range(_COLUMNS // _CHUNK):
            stage, phase = swiglu_chunk(
                d_by_chunks[i], grad_gate, grad_up, product, row, column + i * _CHUNK, a, chunks, pieces, full, empty,
                stage, phase, PART, i % 2,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["down", "across", "hidden"])
def first_launch(
    grad_output, down_weight, gate, up, activated, grad_gate, grad_up, product, other, down, across, hidden,
    BAND: gl.constexpr,
):  # fmt: skip
    """grad_gate, grad_up and product = activated * up, each [T, I]. other: the second launch's counter, zero then."""
    gdc_launch_dependents()  # the second launch may take multiprocessors that have nothing left to do
    a, b = operands(_COLUMNS)
    full, empty = barriers(b.shape[0])
    out_0, out_1 = outlet(), outlet()
    fence_async_shared()
    steps = gl.cdiv(hidden, _DEPTH)
    gl.warp_specialize(
        [
            (multiply_d, (0, grad_gate, grad_up, product, a, b, out_0, full, empty, down, across, steps, BAND)),
            (multiply_d, (1, grad_gate, grad_up, product, a, b, out_1, full, empty, down, across, steps, BAND)),
            (
                load_d,
                (grad_output, down_weight, gate, up, activated, other, a, b, full, empty, down, across, hidden, BAND),
            ),
        ],
        [4, 1],
        [240, 24],
    )


def choose(tokens: int) -> Config:
    return next(config for most, config in CONFIGS if most is None or tokens <= most)


def first(config, grad_output, down_weight, gate, up, activated, both, product, counters) -> Request:
    """All but down_weight [H, I] are [T, columns]; writes both [T, 2I] and product [T, I], and zero to counters[1]."""
    tokens, inner = gate.shape
    down, across = triton.cdiv(tokens, ROWS), triton.cdiv(inner, COLUMNS)
    arguments = (
        piece(grad_output), wide(down_weight, COLUMNS), piece(gate), piece(up), piece(activated),
        piece(both[:, :inner]), piece(both[:, inner:]), piece(product),
        counters[1:], down, across, grad_output.shape[1],
    )  # fmt: skip
    return Request(first_launch, programs(gate.device, down * across), arguments, (config.d,), WARPS)


def launch(config, grad_output, x, gate_output, up_output, activated_gate, gate_weight, up_weight, down_weight):
    inner, hidden = gate_weight.shape
    output, tokens = grad_output.reshape(-1, hidden), x.reshape(-1, hidden)
    gate, up, activated = (saved.reshape(-1, inner) for saved in (gate_output, up_output, activated_gate))
    both, product = tokens.new_empty(len(tokens), 2 * inner), tokens.new_empty(len(tokens), inner)
    counts = counters(x.device)
    grad_x, grad_weights = tokens.new_empty(len(tokens), hidden), tokens.new_empty(2 * inner, hidden)
    grad_down_weight = tokens.new_empty(hidden, inner)
    in_a_row(
        first(config, output, down_weight, gate, up, activated, both, product, counts),
        rest(
            output, tokens, gate_weight, up_weight, both, product, counts, grad_x, grad_weights, grad_down_weight,
            COLUMNS, config.x, config.weights,
        ),
    )  # fmt: skip
    grad_gate_weight, grad_up_weight = grad_weights.split(inner)
    return grad_x.view(x.shape), grad_gate_weight, grad_up_weight, grad_down_weight


def run(*inputs):
    grad_output, hidden = inputs[0], inputs[0].shape[-1]
    return launch(choose(grad_output.numel() // hidden), *inputs)
