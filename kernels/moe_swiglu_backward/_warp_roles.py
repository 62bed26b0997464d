"""Persistent products whose warps have roles, in Gluon for sm_90; the rungs `warp_specialized` link to this file.

One warp loads, two warpgroups multiply. The loading warp keeps 192 KB of stages on their way (TMA), whatever the others
do, so the loads of the next tile run during the end of this one. Each warpgroup (wgmma) holds 64 rows of a tile, which
leave through shared memory. A tile is 128 x 256, with four stages of 48 KB, or 128 x 128 with six of 32 KB, for results
with few tiles. Three warpgroups, on tiles of 192 x 256, would read a quarter less from the L2 cache, but ptxas compiles
no product with 128 sums for a kernel that begins with 128 registers.

Here is what both workloads have in common: the parts, and the launch that makes grad_x and the weight gradients. The
launch that makes d, with the SwiGLU backward behind it, is each rung's own.
"""

import torch
import triton
import triton.experimental.gluon.language as gl
from prepared_launch import Request
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_wait

ROWS, DEPTH = 128, 64
# Rows that a warpgroup has of a tile, and how many columns of them go through shared memory at a time.
SHARE, CHUNK = 64, 64
WARPS = 4  # of the partition that begins, which is the first warpgroup
SWIZZLED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)

# The same for the compiler.
_ROWS, _DEPTH, _SHARE, _CHUNK, _SWIZZLED = (gl.constexpr(value) for value in (ROWS, DEPTH, SHARE, CHUNK, SWIZZLED))
# Bytes of a chunk of one saved tensor, for both warpgroups.
CHUNK_BYTES = gl.constexpr(2 * ROWS * CHUNK)


# --- where things are ---------------------------------------------------------------------------------


@gluon.jit
def place(tile, down, across, BAND: gl.constexpr, COLUMNS: gl.constexpr):
    """First row and column of a tile, of so many down and across. BAND rows of tiles are taken column by column."""
    of_band = BAND * across
    band = tile // of_band
    height = gl.minimum(down - band * BAND, BAND)
    inside = tile - band * of_band
    return (band * BAND + inside % height) * _ROWS, inside // height * COLUMNS


@gluon.jit
def after(stage, phase, STAGES: gl.constexpr):
    """The stage that follows, and the phase that its barriers are in then."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def operands(COLUMNS: gl.constexpr):
    """Left operands by stage, a piece for each warpgroup, and right ones [stages, DEPTH, COLUMNS]."""
    stages: gl.constexpr = 4 if COLUMNS == 256 else 6
    left = gl.allocate_shared_memory(gl.bfloat16, [2 * stages, _SHARE, _DEPTH], _SWIZZLED)
    right = gl.allocate_shared_memory(gl.bfloat16, [stages, _DEPTH, COLUMNS], _SWIZZLED)
    return left, right


@gluon.jit
def outlet():
    """Where a warpgroup's chunks wait to leave, two at a time."""
    return gl.allocate_shared_memory(gl.bfloat16, [2, _SHARE, _CHUNK], _SWIZZLED)


@gluon.jit
def barriers(COUNT: gl.constexpr):
    """So many pairs of barriers: `full` is completed by one arrival, `empty` by one of each warpgroup."""
    full = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    return full, empty


@gluon.jit
def by_chunks(b):
    """The right operands as pieces of 64 x 64, of which a stage has as many as fit side by side."""
    return b._reinterpret(gl.bfloat16, [b.shape[0] * (b.shape[2] // _CHUNK), _DEPTH, _CHUNK], _SWIZZLED)


# --- the loading warp -----------------------------------------------------------------------------------


@gluon.jit
def begin(full, empty, stage, phase, BYTES: gl.constexpr):
    """Wait until a stage is free; returns the barrier that is completed when so many bytes have come."""
    mbarrier.wait(empty.index(stage), phase)
    arrived = full.index(stage)
    mbarrier.expect(arrived, BYTES)
    return arrived


@gluon.jit
def load_product(
    OVER_TOKENS: gl.constexpr, left, right, row, column, depth, a, b, full, empty, stage, phase
):  # fmt: skip
    """The steps of left[row:, :depth] @ right[:depth, column:]; OVER_TOKENS: of left[:depth, row:].T @ the same."""
    for k in range(0, depth, _DEPTH):
        arrived = begin(full, empty, stage, phase, 2 * _DEPTH * (_ROWS + b.shape[2]))
        for part in gl.static_range(2):
            its_row = row + part * _SHARE
            at = [k, its_row] if OVER_TOKENS else [its_row, k]
            tma.async_copy_global_to_shared(left, at, arrived, a.index(2 * stage + part))
        tma.async_copy_global_to_shared(right, [k, column], arrived, b.index(stage))
        stage, phase = after(stage, phase, b.shape[0])
    return stage, phase


# --- a multiplying warpgroup ------------------------------------------------------------------------------


@gluon.jit
def multiply(
    PART: gl.constexpr, OVER_TOKENS: gl.constexpr, steps, a, b, full, empty, stage, phase
):  # fmt: skip
    """The sum over so many steps of this warpgroup's rows of a tile, in float32.

    OVER_TOKENS: the left pieces lie transposed. A step's stage is given back when the next step's product is on
    its way, so the tensor cores always have one to work on.
    """
    columns: gl.constexpr = b.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    sums = gl.zeros((_SHARE, columns), gl.float32, layout)
    last = gl.to_tensor(0)  # not `stage`: Triton takes two names of one value for one that no loop changes
    for step in range(steps):
        mbarrier.wait(full.index(stage), phase)
        left = a.index(2 * stage + PART)
        if OVER_TOKENS:
            left = left.permute((1, 0))
        sums = warpgroup_mma(left, b.index(stage), sums, use_acc=step > 0, is_async=True)
        sums = warpgroup_mma_wait(1, deps=[sums])
        mbarrier.arrive(empty.index(last), pred=step > 0)
        last = stage
        stage, phase = after(stage, phase, b.shape[0])
    sums = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(empty.index(last))
    return sums, stage, phase


@gluon.jit
def halves(x):
    """Left and right half of the columns."""
    return x.reshape((x.shape[0], 2, x.shape[1] // 2)).permute(0, 2, 1).split()


@gluon.jit
def chunks_of(sums):
    """Two or four chunks, from left to right."""
    left, right = halves(sums)
    if sums.shape[1] == 4 * _CHUNK:
        first, second = halves(left)
        third, fourth = halves(right)
        chunks = (first, second, third, fourth)
    else:
        chunks = (left, right)
    return chunks


@gluon.jit
def put(x, out, row, column, piece):
    """Write a chunk by way of `piece`, one of two that take turns."""
    tma.store_wait(1)
    piece.store(x.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [row, column], piece)


@gluon.jit
def put_all(sums, out, row, column, pieces):
    chunks = chunks_of(sums)
    for i in gl.static_range(sums.shape[1] // _CHUNK):
        put(chunks[i], out, row, column + i * _CHUNK, pieces.index(i % 2))


# --- which tile is next -----------------------------------------------------------------------------------


@gluon.jit
def turns_of_tiles():
    """Numbers of tiles that the loading warp hands to the warpgroups, two at a time, with their barriers."""
    numbers = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full, empty = barriers(2)
    return numbers, full, empty


@gluon.jit
def upcoming(counter):
    """The tile after those that any program has taken.

    A program asks when it has asked for all that its own tile needs: a stage or more of that is still to come, so that
    the answer is there in time, and no program holds a tile that another one is free for.
    """
    return gl.num_programs(0) + gl.atomic_add(counter, 1, sem="relaxed")


@gluon.jit
def tell(tile, turns, slot, phase):
    """The loading warp says which tile comes next."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    numbers, full, empty = turns
    mbarrier.wait(empty.index(slot), phase)
    numbers.index(slot).store(gl.full([1], tile, gl.int32, one))
    mbarrier.arrive(full.index(slot))
    return slot ^ 1, phase ^ slot


@gluon.jit
def hear(turns, slot, phase):
    """A warpgroup learns which tile comes next."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    numbers, full, empty = turns
    mbarrier.wait(full.index(slot), phase)
    tile = gl.sum(numbers.index(slot).load(one), axis=0)
    mbarrier.arrive(empty.index(slot))
    return tile, slot ^ 1, phase ^ slot


# --- grad_x and the weight gradients ----------------------------------------------------------------------


@gluon.jit
def load_rest(
    sources, counter, other, ring, turns, counts, X_BAND: gl.constexpr, BAND: gl.constexpr
):  # fmt: skip
    grad_gate, grad_up, gate_weight, up_weight, both, x, grad_output, product = sources
    a, b, full, empty = ring
    down_x, across_x, down_sums, down_last, across_last, begin_x, begin_sums, begin_last, inner, tokens = counts
    x_tiles, sum_tiles = down_x * across_x, down_sums * across_x
    tiles = x_tiles + sum_tiles + down_last * across_last
    stage, phase = gl.to_tensor(0), gl.to_tensor(1)
    slot, slot_phase = gl.to_tensor(0), gl.to_tensor(1)
    gdc_wait()  # for the launch before this one, which may still run, and for all that it wrote
    if gl.program_id(0) == 0:
        gl.store(other, 0)
    tile = gl.program_id(0)
    while tile < tiles:
        if (tile >= begin_x) & (tile < begin_x + x_tiles):
            row, column = place(tile - begin_x, down_x, across_x, X_BAND, b.shape[2])
            stage, phase = load_product(
                False, grad_gate, gate_weight, row, column, inner, a, b, full, empty, stage, phase
            )  # fmt: skip
            stage, phase = load_product(False, grad_up, up_weight, row, column, inner, a, b, full, empty, stage, phase)
        elif (tile >= begin_sums) & (tile < begin_sums + sum_tiles):
            row, column = place(tile - begin_sums, down_sums, across_x, BAND, b.shape[2])
            stage, phase = load_product(True, both, x, row, column, tokens, a, b, full, empty, stage, phase)
        else:
            row, column = place(tile - begin_last, down_last, across_last, BAND, b.shape[2])
            stage, phase = load_product(
                True, grad_output, product, row, column, tokens, a, b, full, empty, stage, phase
            )
        next_tile = upcoming(counter)
        slot, slot_phase = tell(next_tile, turns, slot, slot_phase)
        tile = next_tile


@gluon.jit
def multiply_rest(
    PART: gl.constexpr, pieces, results, ring, turns, counts,
    X_BAND: gl.constexpr, BAND: gl.constexpr,
):  # fmt: skip
    grad_x, grad_weights, grad_down_weight = results
    a, b, full, empty = ring
    down_x, across_x, down_sums, down_last, across_last, begin_x, begin_sums, begin_last, inner, tokens = counts
    x_tiles, sum_tiles = down_x * across_x, down_sums * across_x
    tiles = x_tiles + sum_tiles + down_last * across_last
    stage, phase = gl.to_tensor(0), gl.to_tensor(0)
    slot, slot_phase = gl.to_tensor(0), gl.to_tensor(0)
    tile = gl.program_id(0)
    while tile < tiles:
        if (tile >= begin_x) & (tile < begin_x + x_tiles):
            row, column = place(tile - begin_x, down_x, across_x, X_BAND, b.shape[2])
            steps = 2 * gl.cdiv(inner, _DEPTH)
            sums, stage, phase = multiply(PART, False, steps, a, b, full, empty, stage, phase)
            put_all(sums, grad_x, row + PART * _SHARE, column, pieces)
        else:
            steps = gl.cdiv(tokens, _DEPTH)
            sums, stage, phase = multiply(PART, True, steps, a, b, full, empty, stage, phase)
            if (tile >= begin_sums) & (tile < begin_sums + sum_tiles):
                row, column = place(tile - begin_sums, down_sums, across_x, BAND, b.shape[2])
                put_all(sums, grad_weights, row + PART * _SHARE, column, pieces)
            else:
                row, column = place(tile - begin_last, down_last, across_last, BAND, b.shape[2])
                put_all(sums, grad_down_weight, row + PART * _SHARE, column, pieces)
        tile, slot, slot_phase = hear(turns, slot, slot_phase)
    tma.store_wait(0)


_COUNTS = ["down_x", "across_x", "down_sums", "down_last", "across_last", "begin_x", "begin_sums", "begin_last"]


@gluon.jit(do_not_specialize=[*_COUNTS, "inner", "tokens"])
def rest_launch(
    grad_gate, grad_up, gate_weight, up_weight, grad_x, both, x, grad_weights, grad_output, product, grad_down_weight,
    counter, other, down_x, across_x, down_sums, down_last, across_last, begin_x, begin_sums, begin_last, inner, tokens,
    X_BAND: gl.constexpr, BAND: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """grad_x, [grad_gate_weight; grad_up_weight] and grad_down_weight.

    Of each product, so many tiles down and across, of which the first one has the number begin_... counter: zero when
    this begins; other: zero when it ends.
    """
    a, b = operands(COLUMNS)
    full, empty = barriers(b.shape[0])
    turns = turns_of_tiles()
    fence_async_shared()
    ring = (a, b, full, empty)
    counts = (down_x, across_x, down_sums, down_last, across_last, begin_x, begin_sums, begin_last, inner, tokens)
    results = (grad_x, grad_weights, grad_down_weight)
    sources = (grad_gate, grad_up, gate_weight, up_weight, both, x, grad_output, product)
    out_0, out_1 = outlet(), outlet()
    gl.warp_specialize(
        [
            (multiply_rest, (0, out_0, results, ring, turns, counts, X_BAND, BAND)),
            (multiply_rest, (1, out_1, results, ring, turns, counts, X_BAND, BAND)),
            (load_rest, (sources, counter, other, ring, turns, counts, X_BAND, BAND)),
        ],
        [4, 1],
        [240, 24],
    )


# --- on the host ----------------------------------------------------------------------------------------


def piece(matrix: torch.Tensor) -> TensorDescriptor:
    """A matrix that is read or written 64 x 64 at a time. It may be some columns of a wider one."""
    return TensorDescriptor.from_tensor(matrix, [SHARE, CHUNK], SWIZZLED)


def wide(matrix: torch.Tensor, columns: int) -> TensorDescriptor:
    """A matrix that is the right operand of tiles with so many columns."""
    return TensorDescriptor.from_tensor(matrix, [DEPTH, columns], SWIZZLED)


_counters: dict[tuple[torch.device, int], torch.Tensor] = {}


def counters(device: torch.device) -> torch.Tensor:
    """Two zeros for the calls on the current stream. Each of two launches sets the other one's counter back to zero."""
    key = (device, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0)
    if key not in _counters:
        _counters[key] = torch.zeros(2, dtype=torch.int32, device=device)
    return _counters[key]


def programs(device: torch.device, tiles: int) -> int:
    """One for each multiprocessor, as there is shared memory for one."""
    of_device = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return min(tiles, of_device)


def rest(
    grad_output, x, gate_weight, up_weight, both, product, counters, grad_x, grad_weights, grad_down_weight,
    columns, x_band, band,
) -> Request:  # fmt: skip
    """grad_x [T, H], grad_weights [2I, H] and grad_down_weight [H, I] from both [T, 2I] and product [T, I].

    product: what grad_output.T is multiplied by; None where grad_down_weight is there already. counters: two int32;
    programs take tiles from the second, the longest first, and set the first one back to zero. columns: of a tile, 256
    or 128. x_band, band: so many rows of tiles are computed at a time, column after column, so that programs which
    run at the same time share what they read; of grad_x, and of the weight gradients.
    """
    tokens, hidden = x.shape
    inner = len(gate_weight)
    down_x, across_x = triton.cdiv(tokens, ROWS), triton.cdiv(hidden, columns)
    down_sums = triton.cdiv(2 * inner, ROWS)
    down_last, across_last = triton.cdiv(hidden, ROWS) if product is not None else 0, triton.cdiv(inner, columns)
    tiles_x, tiles_sums, tiles_last = down_x * across_x, down_sums * across_x, down_last * across_last
    if 2 * inner >= tokens:
        begins = (0, tiles_x, tiles_x + tiles_sums)
    else:
        begins = (tiles_sums + tiles_last, 0, tiles_sums)
    arguments = (
        piece(both[:, :inner]), piece(both[:, inner:]), wide(gate_weight, columns), wide(up_weight, columns),
        piece(grad_x), piece(both), wide(x, columns), piece(grad_weights),
        piece(grad_output), wide(x if product is None else product, columns), piece(grad_down_weight),
        counters[1:], counters[:1], down_x, across_x, down_sums, down_last, across_last, *begins, inner, tokens,
    )  # fmt: skip
    count = programs(x.device, tiles_x + tiles_sums + tiles_last)
    return Request(rest_launch, count, arguments, (x_band, band, columns), WARPS, early=True)
