// The backward pass for at most 16 tokens in two launches of clusters, for sm_90. All matrices are bfloat16, row by row.
//
// Eight programs of a cluster divide the summed axis of a product. What each brings of a weight, it brings at once and
// as early as it can; the sums meet in shared memory of the program that finishes them. Each program also has a tile of
// weight gradients, which needs little but to be written.

#ifndef EMULATED
#include "primitives.cuh"
#endif

constexpr int PROGRAMS = 8, WARPS = 8, THREADS = 256, TOKENS = 16;
// Of the first launch: rows of H and columns of I that a program has; columns that it finishes.
constexpr int D_ROWS = 256, D_COLUMNS = 48, D_OWN = D_COLUMNS / PROGRAMS;
// Of the second: rows of one weight, four programs for each, and columns of H.
constexpr int X_ROWS = 192, X_COLUMNS = 128, X_OWN = X_COLUMNS / PROGRAMS;

// Bytes between rows in shared memory.
constexpr int OUTPUT_PITCH = 2 * D_ROWS + 16, D_PITCH = 2 * D_COLUMNS + 16;
constexpr int BOTH_PITCH = 2 * X_ROWS + 16, X_PITCH = 2 * X_COLUMNS + 16;

struct First {
    const u16 *grad_output, *down_weight, *gate, *sigmoid, *silu, *up, *intermediate;
    u16 *both, *grad_down_weight;
    int tokens, hidden, inner;
};

struct Second {
    const u16 *both, *x, *gate_weight, *up_weight;
    u16 *grad_x, *grad_weights;
    int tokens, hidden, inner;
};

// A tile [height, WIDTH] of a matrix whose rows are `stride` elements apart, of which `rows` x `columns` exist.
template <int WIDTH>
DEVICE void bring(u32 offset, int pitch, int height, const u16* from, long stride, int rows, int columns) {
    constexpr int across = WIDTH / 8;
    FOR_THREADS(t) for (int i = t; i < height * across; i += THREADS) {
        const int row = i / across, column = i % across * 8;
        const bool inside = row < rows && column < columns;
        copy(offset + row * pitch + 2 * column, inside ? from + row * stride + column : from, inside);
    }
}

// both = [grad_gate, grad_up] [T, 2I] and grad_down_weight [H, I].
KERNEL first_launch(First a) {
    constexpr u32 OUTPUT = 0, INTERMEDIATE = OUTPUT + TOKENS * OUTPUT_PITCH;
    constexpr u32 WEIGHT = INTERMEDIATE + TOKENS * D_PITCH, PARTS = WEIGHT + D_ROWS * D_PITCH;
    constexpr u32 FACTORS = PARTS + 4 * PROGRAMS * WARPS * TOKENS * D_OWN;
    cluster_arrive();
    const int rank = program_in_cluster(), row = rank * D_ROWS, column = cluster_number() * D_COLUMNS;
    const long hidden = a.hidden, inner = a.inner;
    bring<D_ROWS>(OUTPUT, OUTPUT_PITCH, TOKENS, a.grad_output + row, hidden, a.tokens, a.hidden - row);
    bring<D_COLUMNS>(INTERMEDIATE, D_PITCH, TOKENS, a.intermediate + column, inner, a.tokens, a.inner - column);
    close_group();
    bring<D_COLUMNS>(WEIGHT, D_PITCH, D_ROWS, a.down_weight + row * inner + column, inner, a.hidden - row, a.inner - column);
    close_group();
    let_the_next_begin();
    FOR_THREADS(t) if (t < TOKENS * D_OWN) {
        const int token = t / D_OWN, i = column + rank * D_OWN + t % D_OWN;
        if (token < a.tokens && i < a.inner) {
            const long at = token * inner + i;
            const float g = as_float(a.gate[at]), s = as_float(a.sigmoid[at]);
            put(FACTORS + 8 * t, as_float(a.up[at]) * s * (1 + g * (1 - s)));
            put(FACTORS + 8 * t + 4, as_float(a.silu[at]));
        }
    }
    wait_for_copies<1>();
    program_barrier();
    FOR_WARPS(w) for (int n = 0; n < D_COLUMNS; n += 16) {
        const Right right = right_tile_dealt(INTERMEDIATE, D_PITCH, 0, n);
        for (int m = 32 * w; m < 32 * w + 32; m += 16) {
            Sums sums;
            multiply(sums, left_tile_of_columns(OUTPUT, OUTPUT_PITCH, 0, m), right);
            for_fours(sums, [&](int r, int c, float s0, float s1, float s2, float s3) {
                const int h = row + m + r, i = column + n + c;
                if (h < a.hidden && i < a.inner) store_4(a.grad_down_weight + h * inner + i, s0, s1, s2, s3);
            });
        }
    }
    wait_for_copies<0>();
    program_barrier();
    cluster_wait();  // until every program has begun, so that its memory may be written
    FOR_WARPS(w) for (int n = 0; n < D_COLUMNS; n += 16) {
        Sums sums;
        for (int k = 32 * w; k < 32 * w + 32; k += 16)
            multiply(sums, left_tile(OUTPUT, OUTPUT_PITCH, 0, k), right_tile(WEIGHT, D_PITCH, k, n));
        for_pairs(sums, [&](int r, int c, float first, float second) {
            const int i = n + c, part = rank * WARPS + w;
            put_there(i / D_OWN, PARTS + 4 * ((part * TOKENS + r) * D_OWN + i % D_OWN), first, second);
        });
    }
    cluster_arrive();
    cluster_wait();
    FOR_THREADS(t) if (t < TOKENS * D_OWN) {
        const int token = t / D_OWN, i = column + rank * D_OWN + t % D_OWN;
        float d = 0;
        for (int part = 0; part < PROGRAMS * WARPS; part++) d += get(PARTS + 4 * (part * TOKENS * D_OWN + t));
        if (token < a.tokens && i < a.inner) {
            u16* to = a.both + token * 2 * inner + i;
            store_1(to, d * get(FACTORS + 8 * t));
            store_1(to + inner, d * get(FACTORS + 8 * t + 4));
        }
    }
}

// grad_x [T, H] and grad_weights [2I, H].
KERNEL second_launch(Second a) {
    constexpr u32 BOTH = 0, X = BOTH + TOKENS * BOTH_PITCH, WEIGHT = X + TOKENS * X_PITCH;
    constexpr u32 PARTS = WEIGHT + X_ROWS * X_PITCH;
    cluster_arrive();
    const int rank = program_in_cluster(), column = cluster_number() * X_COLUMNS;
    const int half = rank / 4, row = rank % 4 * X_ROWS;
    const long hidden = a.hidden, inner = a.inner;
    const u16* weight = (half ? a.up_weight : a.gate_weight) + row * hidden + column;
    bring<X_COLUMNS>(WEIGHT, X_PITCH, X_ROWS, weight, hidden, a.inner - row, a.hidden - column);
    bring<X_COLUMNS>(X, X_PITCH, TOKENS, a.x + column, hidden, a.tokens, a.hidden - column);
    close_group();
    wait_for_the_last();
    bring<X_ROWS>(BOTH, BOTH_PITCH, TOKENS, a.both + half * inner + row, 2 * inner, a.tokens, a.inner - row);
    close_group();
    wait_for_copies<0>();
    program_barrier();
    cluster_wait();
    FOR_WARPS(w) {
        Sums sums;
        for (int k = 0; k < X_ROWS; k += 16)
            multiply(sums, left_tile(BOTH, BOTH_PITCH, 0, k), right_tile(WEIGHT, X_PITCH, k, 16 * w));
        for_pairs(sums, [&](int r, int c, float first, float second) {
            put_there(w, PARTS + 4 * ((rank * TOKENS + r) * X_OWN + c), first, second);
        });
    }
    cluster_arrive();
    FOR_WARPS(w) {
        const Right right = right_tile_dealt(X, X_PITCH, 0, 16 * w);
        for (int m = 0; m < X_ROWS; m += 16) {
            Sums sums;
            multiply(sums, left_tile_of_columns(BOTH, BOTH_PITCH, 0, m), right);
            for_fours(sums, [&](int r, int c, float s0, float s1, float s2, float s3) {
                const int j = row + m + r, h = column + 16 * w + c;
                if (j < a.inner && h < a.hidden) store_4(a.grad_weights + (half * inner + j) * hidden + h, s0, s1, s2, s3);
            });
        }
    }
    cluster_wait();
    FOR_THREADS(t) {
        const int token = t / X_OWN, h = column + rank * X_OWN + t % X_OWN;
        float sum = 0;
        for (int part = 0; part < PROGRAMS; part++) sum += get(PARTS + 4 * (part * TOKENS * X_OWN + t));
        if (token < a.tokens && h < a.hidden) store_1(a.grad_x + token * hidden + h, sum);
    }
}
