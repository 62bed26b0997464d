"""What the dense ladder's kernels add to the tiles: the SwiGLU backward of this workload, orders of tiles, long walks.

The weights are far larger than the L2 cache here, so the order of the tiles decides how often they are read. Offsets
are as in `tiles.py`: those of a tile's first element 64 bits wide; a weight's own fit in 32, with 0.9e9 elements.
"""

import triton
import triton.language as tl
from tiles import dot, load, prefetch, product, store


@triton.jit
def place_in_bands(tile, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BAND: tl.constexpr):
    """First row and column of a tile of a result [rows, columns].

    A band is BAND tiles high and is walked column by column, so what runs at a time is about as high as it is wide,
    and a weight's columns are read once for all tokens of the band.
    """
    band_tiles = BAND * tl.cdiv(columns, COLUMNS)
    band = tile // band_tiles
    height = tl.minimum(tl.cdiv(rows, ROWS) - band * BAND, BAND)
    within = tile % band_tiles
    return (band * BAND + within % height) * ROWS, within // height * COLUMNS


@triton.jit
def turn(program, longs, shorts, at_once):
    """Which of `longs` long tiles a program takes, or which of `shorts` short ones; a number too large is none.

    Rounds of `at_once` long ones, each followed by its share of the short ones: those run beside them.
    """
    rounds = tl.cdiv(longs, at_once)
    share = tl.cdiv(shorts, rounds)
    number = program // (at_once + share)
    within = program % (at_once + share)
    long = tl.where(within < at_once, number * at_once + within, longs)
    short = tl.where(within < at_once, shorts, number * share + within - at_once)
    return long, short


@triton.jit
def factors(gate, up, activated, at, inside):
    """What d is multiplied by to give grad_gate and grad_up, and up itself, at the elements `at`, in float32."""
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    return u * s * (1 + g * (1 - s)), tl.load(activated + at, mask=inside, other=0.0).to(tl.float32), u


@triton.jit
def swiglu_tile(
    grad_output, down_weight, gate, up, activated, both, intermediate, tokens, row, column,
    H: tl.constexpr, I: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, SPLIT: tl.constexpr,
    PARTS: tl.constexpr, TMA: tl.constexpr, INTERMEDIATE: tl.constexpr,
):  # fmt: skip
    """A tile of d, and from it one of grad_gate and one of grad_up, into both [tokens, 2 * I].

    With INTERMEDIATE also activated * up into intermediate [tokens, I]. The saved tensors are brought into the L2
    cache while the product is made, and taken in PARTS blocks of columns, because all of it does not fit in the
    registers.
    """
    prefetch(gate, row, tokens, column, I, ROWS, COLUMNS)
    prefetch(up, row, tokens, column, I, ROWS, COLUMNS)
    prefetch(activated, row, tokens, column, I, ROWS, COLUMNS)
    d = product(
        grad_output, down_weight, down_weight, tokens, row, column, H, I, 1,
        ROWS, COLUMNS, DEPTH, STAGES, SPLIT, TMA,
    )  # fmt: skip
    store_gradients(
        d, gate, up, activated, both, intermediate, tokens, row, column, I, I % COLUMNS != 0, PARTS, INTERMEDIATE
    )


@triton.jit
def store_gradients(
    d, gate, up, activated, both, intermediate, tokens, row, column, I: tl.constexpr, MASK: tl.constexpr,
    PARTS: tl.constexpr, INTERMEDIATE: tl.constexpr,
):  # fmt: skip
    """SwiGLU backward of a tile of d, in PARTS blocks of columns one after another. MASK as in `store`."""
    rows: tl.constexpr = d.shape[0]
    columns: tl.constexpr = d.shape[1]
    if PARTS > 1:
        half: tl.constexpr = columns // 2
        left, right = tl.split(tl.permute(tl.reshape(d, (rows, 2, half)), (0, 2, 1)))
        store_gradients(
            left, gate, up, activated, both, intermediate, tokens, row, column, I, MASK, PARTS // 2, INTERMEDIATE
        )
        store_gradients(
            right, gate, up, activated, both, intermediate, tokens, row, column + half, I, MASK, PARTS // 2,
            INTERMEDIATE,
        )  # fmt: skip
    else:
        r = tl.arange(0, rows)[:, None]
        c = column + tl.arange(0, columns)[None, :]
        inside = r < tokens - row
        if MASK:
            inside = inside & (c < I)
        at = row.to(tl.int64) * I + (r * I + c)
        for_gate, for_up, u = factors(gate, up, activated, at, inside)
        store(d * for_gate, both, row, tokens, column, I, 2 * I, MASK)
        store(d * for_up, both + I, row, tokens, column, I, 2 * I, MASK)
        if INTERMEDIATE:
            store(for_up * u, intermediate, row, tokens, column, I, I, MASK)


@triton.jit
def walk_over_rows(
    left, right, out, tokens, row, column, M: tl.constexpr, N: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, KEPT: tl.constexpr, STAGES: tl.constexpr, WALK: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """WALK tiles of left.T @ right, one below the other, into out [M, N]. left: [tokens, M]; right: [tokens, N].

    For at most KEPT tokens: the tile of `right` is read once and kept in shared memory.
    """
    t = tl.arange(0, KEPT)[:, None]
    if TMA:
        b = right.load([0, column])
    else:
        n = column + tl.arange(0, COLUMNS)[None, :]
        b = load(right + (t * N + n), t < tokens, n < N, True, N % COLUMNS != 0)
    # There are tokens, but ptxas does not know, as in `product`.
    for i in tl.range(0, tl.minimum(tokens, 1) * WALK, num_stages=STAGES):
        at = row + i * ROWS
        if TMA:
            a = left.load([0, at])
        else:
            m = at + tl.arange(0, ROWS)[None, :]
            a = load(left + (t * M + m), t < tokens, m < M, True, M % (WALK * ROWS) != 0)
        result = dot(tl.trans(a), b, tl.zeros((ROWS, COLUMNS), tl.float32))
        store(result, out, at, M, column, N, N, N % COLUMNS != 0)
