"""One tile of each product, for those kernels of this folder that are written in Triton; each links to this file.

H and I are known when a kernel is compiled, T is not: one binary serves every T. Where an axis may end inside a tile
the loads are masked with zeros; where it cannot, there are no masks. Offsets inside a tile are 32 bits wide and those
of its first element 64, so that no T is too large.

Operands come by pointer, or as tensor descriptors (TMA) that the host made for the call.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
# Accumulators that a thread keeps at a time while the SwiGLU backward reads four saved tensors: more spill.
LIVE_PER_THREAD = 16


class Tile(NamedTuple):
    """What one program computes at a time of one product.

    rows, columns: of the result. depth: how much of the summed axis a step takes, with `stages` steps in flight.
    split: over how many groups of warps each step's depth is divided, for tiles too small for all of them; their
    sums are added at the end, always in the same order.
    """

    rows: int
    columns: int
    depth: int
    stages: int = 3
    split: int = 1


def operand(matrix: torch.Tensor, rows: int, columns: int, tma: bool) -> torch.Tensor | TensorDescriptor:
    """A matrix as the functions below take it. A descriptor holds an address, so it is made anew in every call."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns]) if tma else matrix


def parts(tile: Tile, warps: int) -> int:
    """In how many column blocks a tile of d goes through the SwiGLU backward."""
    return max(1, tile.rows * tile.columns // (32 * warps * LIVE_PER_THREAD))


@triton.jit
def dot(a, b, acc):
    # The interpreter multiplies bfloat16 by its bits.
    if INTERPRETED:
        product = acc + tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        product = tl.dot(a, b, acc)
    return product


@triton.jit
def prefetch(matrix, row, rows, column, COLUMNS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr):
    """Ask for a tile of a matrix [rows, COLUMNS] to be brought into the L2 cache; where it ends, its end again."""
    if not INTERPRETED:
        lines: tl.constexpr = (TILE_COLUMNS + 63) // 64  # of 128 bytes in a row
        r = tl.minimum(row + tl.arange(0, TILE_ROWS), rows - 1)[:, None].to(tl.int64)
        c = tl.minimum(column + 64 * tl.arange(0, lines), COLUMNS - 1)[None, :]
        address = (matrix + (r * COLUMNS + c)).to(tl.uint64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], tl.int32, is_pure=False, pack=1
        )


@triton.jit
def let_the_next_begin():
    """The launch that follows may begin while this one runs; it waits itself before it reads what this one writes."""
    if not INTERPRETED:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_the_last():
    """Until the launch before this one has ended, and all that it wrote can be read."""
    if not INTERPRETED:
        tl.extra.cuda.gdc_wait()


@triton.jit
def place(tile, columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """First row and column of a tile. Neighbours share their rows: all of them fit in the L2 cache at once."""
    across: tl.constexpr = (columns + COLUMNS - 1) // COLUMNS
    return tile // across * ROWS, tile % across * COLUMNS


@triton.jit
def load(at, in_rows, in_columns, MASK_ROWS: tl.constexpr, MASK_COLUMNS: tl.constexpr):
    """What is at these addresses, zeros outside; an axis without a mask cannot end inside the tile."""
    if MASK_ROWS and MASK_COLUMNS:
        values = tl.load(at, mask=in_rows & in_columns, other=0.0)
    elif MASK_ROWS:
        values = tl.load(at, mask=in_rows, other=0.0)
    elif MASK_COLUMNS:
        values = tl.load(at, mask=in_columns, other=0.0)
    else:
        values = tl.load(at)
    return values


@triton.jit
def store(result, out, row, rows, column, columns, STRIDE: tl.constexpr, MASK: tl.constexpr):
    """Put a tile into `out` [rows, columns], whose rows are STRIDE apart, at (row, column).

    MASK: whether it may reach over the last column.
    """
    r = tl.arange(0, result.shape[0])[:, None]
    c = column + tl.arange(0, result.shape[1])[None, :]
    inside = r < rows - row
    if MASK:
        inside = inside & (c < columns)
    at = out + row.to(tl.int64) * STRIDE + (r * STRIDE + c)
    tl.store(at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def product(
    left, first, second, rows, row, column, K: tl.constexpr, N: tl.constexpr, HALVES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, SPLIT: tl.constexpr,
    TMA: tl.constexpr, piece=0, PIECES: tl.constexpr = 1,
):  # fmt: skip
    """A tile of left @ [first; second], in float32. left: [rows, HALVES * K]; first and second: [K, N].

    With one half, `second` is not read. With PIECES, only one piece of the sum.
    """
    steps: tl.constexpr = (K + DEPTH - 1) // DEPTH
    width: tl.constexpr = HALVES * K
    # There are rows, but ptxas does not know: it would unroll loops of known length, and code is read cold.
    count = tl.minimum(rows, 1) * (HALVES * steps)
    begin = 0
    end = count
    if PIECES > 1:
        begin = count * piece // PIECES
        end = count * (piece + 1) // PIECES
    if TMA:
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in tl.range(begin, end, num_stages=STAGES):
            # Choosing the descriptor, not the loaded tile, leaves one load that can be pipelined.
            if step < steps:
                right = first
            else:
                right = second
            k = step % steps * DEPTH
            acc = dot(left.load([row, step // steps * K + k]), right.load([k, column]), acc)
        result = acc
    elif SPLIT == 1:
        r = tl.arange(0, ROWS)[:, None]
        c = column + tl.arange(0, COLUMNS)[None, :]
        a_k = tl.arange(0, DEPTH)[None, :]
        b_k = tl.arange(0, DEPTH)[:, None]
        a_at = left + row.to(tl.int64) * width + (r * width + a_k)
        b_offset = b_k * N + c
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in tl.range(begin, end, num_stages=STAGES):
            k = step % steps * DEPTH
            right = first if HALVES == 1 else tl.where(step < steps, first, second)
            a = load(a_at + (step // steps * K + k), r < rows - row, a_k < K - k, True, K % DEPTH != 0)
            b = load(right + k * N + b_offset, b_k < K - k, c < N, K % DEPTH != 0, N % COLUMNS != 0)
            acc = dot(a, b, acc)
        result = acc
    else:
        # Groups of warps each take a part of every step: [SPLIT, ROWS, part] times [SPLIT, part, COLUMNS].
        part: tl.constexpr = DEPTH // SPLIT
        s = tl.arange(0, SPLIT)[:, None, None] * part
        r = tl.arange(0, ROWS)[None, :, None]
        c = column + tl.arange(0, COLUMNS)[None, None, :]
        a_k = s + tl.arange(0, part)[None, None, :]
        b_k = s + tl.arange(0, part)[None, :, None]
        a_at = left + row.to(tl.int64) * width + (r * width + a_k)
        b_offset = b_k * N + c
        acc = tl.zeros((SPLIT, ROWS, COLUMNS), tl.float32)
        for step in tl.range(begin, end, num_stages=STAGES):
            k = step % steps * DEPTH
            right = first if HALVES == 1 else tl.where(step < steps, first, second)
            a = load(a_at + (step // steps * K + k), r < rows - row, a_k < K - k, True, K % DEPTH != 0)
            b = load(right + k * N + b_offset, b_k < K - k, c < N, K % DEPTH != 0, N % COLUMNS != 0)
            acc = dot(a, b, acc)
        result = tl.sum(acc, axis=0)
    return result


@triton.jit
def product_over_tokens(
    left, right, out, tokens, row, column, M: tl.constexpr, N: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """A tile of left.T @ right into out [M, N]. left: [tokens, M]; right: [tokens, N].

    Both are read as they lie; the tensor cores take the left one transposed from shared memory.
    """
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    if TMA:
        for token in tl.range(0, tokens, DEPTH, num_stages=STAGES):
            acc = dot(tl.trans(left.load([token, row])), right.load([token, column]), acc)
    else:
        t = tl.arange(0, DEPTH)[:, None]
        m = row + tl.arange(0, ROWS)[None, :]
        n = column + tl.arange(0, COLUMNS)[None, :]
        left_at = left + (t * M + m)
        right_at = right + (t * N + n)
        for token in tl.range(0, tokens, DEPTH, num_stages=STAGES):
            a = load(left_at, t < tokens - token, m < M, True, M % ROWS != 0)
            b = load(right_at, t < tokens - token, n < N, True, N % COLUMNS != 0)
            acc = dot(tl.trans(a), b, acc)
            left_at += DEPTH * M
            right_at += DEPTH * N
    store(acc, out, row, M, column, N, N, N % COLUMNS != 0)


@triton.jit
def factors(gate, sigmoid, silu, up, at, inside):
    """What d is multiplied by to give grad_gate and grad_up, for the elements at `at`, in float32."""
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sigmoid + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    return u * s * (1 + g * (1 - s)), tl.load(silu + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def swiglu_tile(
    grad_output, down_weight, gate, sigmoid, silu, up, both, tokens, row, column, H: tl.constexpr, I: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, SPLIT: tl.constexpr,
    PARTS: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """A tile of d, and from it one of grad_gate and one of grad_up, into both [tokens, 2 * I].

    The saved tensors are asked for before the product: a small tile of them waits in registers, a large one in
    the L2 cache, and is then taken in PARTS blocks of columns, because all of it does not fit in the registers.
    """
    if PARTS == 1:
        r = tl.arange(0, ROWS)[:, None]
        c = column + tl.arange(0, COLUMNS)[None, :]
        inside = (r < tokens - row) & (c < I)
        for_gate, for_up = factors(gate, sigmoid, silu, up, row.to(tl.int64) * I + (r * I + c), inside)
        d = product(
            grad_output, down_weight, down_weight, tokens, row, column, H, I, 1,
            ROWS, COLUMNS, DEPTH, STAGES, SPLIT, TMA,
        )  # fmt: skip
        store(d * for_gate, both, row, tokens, column, I, 2 * I, I % COLUMNS != 0)
        store(d * for_up, both + I, row, tokens, column, I, 2 * I, I % COLUMNS != 0)
    else:
        prefetch(gate, row, tokens, column, I, ROWS, COLUMNS)
        prefetch(sigmoid, row, tokens, column, I, ROWS, COLUMNS)
        prefetch(silu, row, tokens, column, I, ROWS, COLUMNS)
        prefetch(up, row, tokens, column, I, ROWS, COLUMNS)
        d = product(
            grad_output, down_weight, down_weight, tokens, row, column, H, I, 1,
            ROWS, COLUMNS, DEPTH, STAGES, SPLIT, TMA,
        )  # fmt: skip
        store_gradients(d, gate, sigmoid, silu, up, both, tokens, row, column, I, I % COLUMNS != 0, PARTS)


@triton.jit
def store_gradients(
    d, gate, sigmoid, silu, up, both, tokens, row, column, I: tl.constexpr, MASK: tl.constexpr, PARTS: tl.constexpr
):
    """SwiGLU backward of a tile of d, in PARTS blocks of columns one after another. MASK as in `store`."""
    rows: tl.constexpr = d.shape[0]
    columns: tl.constexpr = d.shape[1]
    if PARTS > 1:
        left, right = tl.split(tl.permute(tl.reshape(d, (rows, 2, columns // 2)), (0, 2, 1)))
        store_gradients(left, gate, sigmoid, silu, up, both, tokens, row, column, I, MASK, PARTS // 2)
        store_gradients(right, gate, sigmoid, silu, up, both, tokens, row, column + columns // 2, I, MASK, PARTS // 2)
    else:
        r = tl.arange(0, rows)[:, None]
        c = column + tl.arange(0, columns)[None, :]
        inside = r < tokens - row
        if MASK:
            inside = inside & (c < I)
        for_gate, for_up = factors(gate, sigmoid, silu, up, row.to(tl.int64) * I + (r * I + c), inside)
        store(d * for_gate, both, row, tokens, column, I, 2 * I, MASK)
        store(d * for_up, both + I, row, tokens, column, I, 2 * I, MASK)


@triton.jit
def stack(first, second, out, block, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """Copy a block of each of two matrices of so many elements into one, the second behind the first."""
    index = block * BLOCK + tl.arange(0, BLOCK)
    if ELEMENTS % BLOCK:
        inside = index < ELEMENTS
        a = tl.load(first + index, mask=inside)
        b = tl.load(second + index, mask=inside)
        tl.store(out + index, a, mask=inside)
        tl.store(out + ELEMENTS + index, b, mask=inside)
    else:
        a = tl.load(first + index)
        b = tl.load(second + index)
        tl.store(out + index, a)
        tl.store(out + ELEMENTS + index, b)
