// The backward pass for at most 16 tokens in two launches of clusters, for sm_90. All matrices are bfloat16, row by row.
//
// Eight programs of a cluster divide the summed axis of a product. What each brings of a weight, it brings at once and
// as early as it can; the sums meet in shared memory of the program that finishes them. Each program also has a tile of
// weight gradients, which needs little but to be written.

#ifndef EMULATED
#include "primitives.cuh"
#endif

constexpr int PROGRAMS = 8, WARPS = 8, THREADS = 256, TOKENS = 16;
// Of d: rows of H and columns of I that a program has; columns that it finishes.
constexpr int D_ROWS = 256, D_COLUMNS = 48, D_OWN = D_COLUMNS / PROGRAMS;
constexpr int D_SUMS = TOKENS * D_COLUMNS, D_OWNED = TOKENS * D_OWN;
// Of grad_x: rows of one weight, four programs for each, and columns of H; columns that it finishes.
constexpr int X_ROWS = 192, X_COLUMNS = 128, X_OWN = X_COLUMNS / PROGRAMS;
constexpr int X_OWNED = TOKENS * X_OWN;
// Of grad_down_weight: rows of H and columns of I.
constexpr int DOWN_ROWS = 64, DOWN_COLUMNS = 192;

// Bytes between rows of so many columns in shared memory: an odd number of 16, so that eight rows lie in different banks.
DEVICE constexpr int pitch(int columns) { return 2 * columns + 16; }

struct First {
    const u16 *grad_output, *down_weight, *gate, *sigmoid, *silu, *up;
    u16* both;
    int tokens, hidden, inner;
};

struct Second {
    const u16 *both, *x, *gate_weight, *up_weight, *grad_output, *intermediate;
    u16 *grad_x, *grad_weights, *grad_down_weight;
    int tokens, hidden, inner;
};

// A tile [height, WIDTH] of a matrix whose rows are `stride` elements apart, of which `rows` x `columns` exist. A loop
// that is short to read: code comes from memory too, and each line of it is waited for.
template <int WIDTH>
DEVICE void bring(u32 offset, int height, const u16* from, long stride, int rows, int columns) {
    constexpr int across = WIDTH / 8, at_once = THREADS / across;
    FOR_THREADS(t) if (t < at_once * across) {
        const int column = t % across * 8, first = t / across;
        const u16* at = from + first * stride + column;
        NO_UNROLL for (int row = first; row < height; row += at_once, at += at_once * stride) {
            const bool inside = row < rows && column < columns;
            copy(offset + row * pitch(WIDTH) + 2 * column, inside ? at : from, inside);
        }
    }
}

// A tile of left.T @ right into `out`, whose rows are `stride` elements apart and of which `rows` x `columns` exist.
// Left [TOKENS, 16 * `steps`] and right [TOKENS, 32] begin at these columns of what lies in shared memory.
template <int LEFT, int RIGHT>
DEVICE void over_tokens(
    u32 left, int left_column, int steps, u32 right, int right_column, u16* out, long stride, int rows, int columns) {
    const WideRight tile = wide_right_tile(right, pitch(RIGHT), right_column);
    NO_UNROLL for (int m = 0; m < 16 * steps; m += 16) {
        WideSums sums;
        multiply(sums, left_tile_of_columns(left, pitch(LEFT), 0, left_column + m), tile);
        for_eights(sums, [&](int r, int c, const float(&eight)[8]) {
            if (m + r < rows && c < columns) store_8(out + (m + r) * stride + c, eight);
        });
    }
}

// both = [grad_gate, grad_up] [T, 2I].
KERNEL first_launch(First a) {
    constexpr u32 OUTPUT = 0, WEIGHT = OUTPUT + TOKENS * pitch(D_ROWS), PARTS = WEIGHT + D_ROWS * pitch(D_COLUMNS);
    constexpr u32 OWNED = PARTS + 4 * WARPS * D_SUMS, FACTORS = OWNED + 4 * PROGRAMS * D_OWNED;
    cluster_arrive();
    const int rank = program_in_cluster(), row = rank * D_ROWS, column = cluster_number() * D_COLUMNS;
    const long hidden = a.hidden, inner = a.inner;
    bring<D_COLUMNS>(WEIGHT, D_ROWS, a.down_weight + row * inner + column, inner, a.hidden - row, a.inner - column);
    bring<D_ROWS>(OUTPUT, TOKENS, a.grad_output + row, hidden, a.tokens, a.hidden - row);
    close_group();
    FOR_THREADS(t) if (t < D_OWNED) {
        const int token = t / D_OWN, i = column + rank * D_OWN + t % D_OWN;
        if (token < a.tokens && i < a.inner) {
            const long at = token * inner + i;
            const float g = as_float(a.gate[at]), s = as_float(a.sigmoid[at]);
            put(FACTORS + 8 * t, {as_float(a.up[at]) * s * (1 + g * (1 - s)), as_float(a.silu[at])});
        }
    }
    wait_for_copies<0>();
    program_barrier();
    let_the_next_begin();  // and not before: its reads and writes would delay those of this one
    cluster_wait();  // until every program has begun, so that its memory may be written
    FOR_WARPS(w) for (int n = 0; n < D_COLUMNS; n += 16) {
        Sums sums;
        for (int k = 32 * w; k < 32 * w + 32; k += 16)
            multiply(sums, left_tile(OUTPUT, pitch(D_ROWS), 0, k), right_tile(WEIGHT, pitch(D_COLUMNS), k, n));
        for_pairs(sums, [&](int r, int c, float first, float second) {
            const int i = n + c;
            put(PARTS + 4 * (w * D_SUMS + i / D_OWN * D_OWNED + r * D_OWN + i % D_OWN), {first, second});
        });
    }
    program_barrier();
    FOR_THREADS(t) if (t < D_SUMS / 4) {
        Four sum = get_four(PARTS + 16 * t);
        for (int w = 1; w < WARPS; w++) sum = added(sum, get_four(PARTS + 4 * w * D_SUMS + 16 * t));
        const int owner = t / (D_OWNED / 4), place = t % (D_OWNED / 4);
        put_there(owner, OWNED + 4 * rank * D_OWNED + 16 * place, sum);
    }
    cluster_arrive();
    cluster_wait();
    FOR_THREADS(t) if (t < D_OWNED) {
        const int token = t / D_OWN, i = column + rank * D_OWN + t % D_OWN;
        float d = 0;
        for (int program = 0; program < PROGRAMS; program++) d += get(OWNED + 4 * (program * D_OWNED + t));
        if (token < a.tokens && i < a.inner) {
            u16* to = a.both + token * 2 * inner + i;
            store_1(to, d * get(FACTORS + 8 * t));
            store_1(to + inner, d * get(FACTORS + 8 * t + 4));
        }
    }
}

// grad_x [T, H], grad_weights [2I, H] and, before the first launch has ended, grad_down_weight [H, I].
KERNEL second_launch(Second a) {
    constexpr u32 BOTH = 0, X = BOTH + TOKENS * pitch(X_ROWS), WEIGHT = X + TOKENS * pitch(X_COLUMNS);
    constexpr u32 PARTS = WEIGHT + X_ROWS * pitch(X_COLUMNS), OWNED = PARTS + 4 * WARPS * X_OWNED;
    constexpr u32 OUTPUT = OWNED + 4 * PROGRAMS * X_OWNED, INTERMEDIATE = OUTPUT + TOKENS * pitch(DOWN_ROWS);
    cluster_arrive();
    const int rank = program_in_cluster(), column = cluster_number() * X_COLUMNS;
    const int half = rank / 4, row = rank % 4 * X_ROWS;
    const long hidden = a.hidden, inner = a.inner;
    const int tiles_across = (a.inner + DOWN_COLUMNS - 1) / DOWN_COLUMNS, number = cluster_number() * PROGRAMS + rank;
    const int down_row = number / tiles_across * DOWN_ROWS, down_column = number % tiles_across * DOWN_COLUMNS;
    const int down_rows = a.hidden - down_row, down_columns = a.inner - down_column;
    bring<DOWN_ROWS>(OUTPUT, TOKENS, a.grad_output + down_row, hidden, a.tokens, down_rows);
    bring<DOWN_COLUMNS>(INTERMEDIATE, TOKENS, a.intermediate + down_column, inner, a.tokens, down_columns);
    close_group();
    const u16* weight = (half ? a.up_weight : a.gate_weight) + row * hidden + column;
    bring<X_COLUMNS>(WEIGHT, X_ROWS, weight, hidden, a.inner - row, a.hidden - column);
    bring<X_COLUMNS>(X, TOKENS, a.x + column, hidden, a.tokens, a.hidden - column);
    close_group();
    wait_for_copies<1>();
    program_barrier();
    FOR_WARPS(w) for (int n = 32 * (w / 2); n < DOWN_COLUMNS; n += 32 * WARPS / 2) {
        const int m = w % 2 * 32;
        u16* out = a.grad_down_weight + (down_row + m) * inner + down_column + n;
        over_tokens<DOWN_ROWS, DOWN_COLUMNS>(
            OUTPUT, m, 2, INTERMEDIATE, n, out, inner, down_rows - m, down_columns - n);
    }
    wait_for_the_last();
    bring<X_ROWS>(BOTH, TOKENS, a.both + half * inner + row, 2 * inner, a.tokens, a.inner - row);
    close_group();
    wait_for_copies<0>();
    program_barrier();
    cluster_wait();
    FOR_WARPS(w) {
        Sums sums;
        for (int k = 0; k < X_ROWS; k += 16)
            multiply(sums, left_tile(BOTH, pitch(X_ROWS), 0, k), right_tile(WEIGHT, pitch(X_COLUMNS), k, 16 * w));
        for_pairs(sums, [&](int r, int c, float first, float second) {
            put(PARTS + 4 * (w * X_OWNED + r * X_OWN + c), {first, second});
        });
        warp_barrier();
        FOR_LANES(i) for (int at = 16 * i; at < 4 * X_OWNED; at += 512)
            put_there(w, OWNED + 4 * rank * X_OWNED + at, get_four(PARTS + 4 * w * X_OWNED + at));
    }
    cluster_arrive();
    FOR_WARPS(w) {
        const int n = w % 4 * 32, m = w / 4 * (X_ROWS / 2);
        u16* out = a.grad_weights + (half * inner + row + m) * hidden + column + n;
        over_tokens<X_ROWS, X_COLUMNS>(
            BOTH, m, X_ROWS / 32, X, n, out, hidden, a.inner - row - m, a.hidden - column - n);
    }
    cluster_wait();
    FOR_THREADS(t) {
        const int token = t / X_OWN, h = column + rank * X_OWN + t % X_OWN;
        float sum = 0;
        for (int program = 0; program < PROGRAMS; program++) sum += get(OWNED + 4 * (program * X_OWNED + t));
        if (token < a.tokens && h < a.hidden) store_1(a.grad_x + token * hidden + h, sum);
    }
}
