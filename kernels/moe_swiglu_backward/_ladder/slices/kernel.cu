// The backward pass for a few tokens in one launch of clusters, for sm_90. All matrices are bfloat16, row by row.
//
// A cluster owns 48 columns of I for everything that needs them: d, both weight gradients and its part of grad_x. Each of
// its eight programs has 256 rows of H of them. Parts of d go from every program of a cluster to every other one. Parts
// of grad_x meet in memory, where each program sums its share when all clusters have put theirs there. Meanwhile it
// writes weight gradients, so there is little left to wait for.

#ifndef EMULATED
#include "exchange.cuh"
#include "primitives.cuh"
#endif

constexpr int PROGRAMS = 8, WARPS = 8, THREADS = 256;
// Of d: rows of H that a program sums over, columns of I that a cluster owns.
constexpr int ROWS = 256, COLUMNS = 48;
// Of grad_down_weight: two neighbouring clusters divide the rows of their columns, so that a tile is 32 columns wide.
constexpr int DOWN_ROWS = ROWS / 2, DOWN_COLUMNS = 2 * COLUMNS;

// Bytes between rows of so many columns in shared memory: an odd number of 16, so that eight rows lie in different banks.
DEVICE constexpr int pitch(int columns) { return 2 * columns + 16; }

struct Arguments {
    const u16 *grad_output, *x, *gate_weight, *up_weight, *down_weight, *gate, *sigmoid, *silu, *up, *intermediate;
    u16 *grad_x, *grad_weights, *grad_down_weight;
    float* parts;   // of grad_x: [clusters, T, H]
    u64* meetings;  // for each program of a cluster: with the same one of the other clusters
    int tokens, hidden, inner, clusters;
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
template <int TOKENS, int LEFT, int RIGHT>
DEVICE void over_tokens(
    u32 left, int left_column, int steps, u32 right, int right_column, u16* out, long stride, int rows, int columns) {
    WideRight tiles[TOKENS / 16];
    UNROLL for (int k = 0; k < TOKENS; k += 16)
        tiles[k / 16] = wide_right_tile(right + k * pitch(RIGHT), pitch(RIGHT), right_column);
    NO_UNROLL for (int m = 0; m < 16 * steps; m += 16) {
        WideSums sums;
        UNROLL for (int k = 0; k < TOKENS; k += 16)
            multiply(sums, left_tile_of_columns(left, pitch(LEFT), k, left_column + m), tiles[k / 16]);
        for_eights(sums, [&](int r, int c, const float(&eight)[8]) {
            if (m + r < rows && c < columns) store_8(out + (m + r) * stride + c, eight);
        });
    }
}

// --- a meeting of the clusters ---------------------------------------------------------------------------------

// What a meeting holds: which programs left before all had come (a bit for each cluster), how many came, and how often
// it has been held. All but the last is zero in between, so nobody has to make it zero before a launch.
constexpr u64 ARRIVAL = 1ull << 32, HELD = 1ull << 48;

DEVICE int arrivals(u64 meeting) { return static_cast<int>(meeting / ARRIVAL % (HELD / ARRIVAL)); }
DEVICE bool all_came(u64 now, u64 then, int clusters) { return now / HELD != then / HELD || arrivals(now) == clusters; }

// Whose shares this program sums: its own, and as the last one those of programs that left. Nobody waits without end for
// a cluster that cannot begin, as may be where kernels of several streams share the device. then: what arriving found.
DEVICE u32 shares_to_sum(u64* meeting, u64 then, int cluster, int clusters) {
    const u32 own = 1u << cluster;
    if (arrivals(then) == clusters - 1) {
        const u32 left = static_cast<u32>(then);
        add(meeting, HELD - clusters * ARRIVAL - left);
        return own | left;
    }
    NO_UNROLL for (int looks = 0; looks < PATIENCE; looks++)
        if (all_came(look_at(meeting), then, clusters)) return own;
    if (!all_came(add(meeting, own), then, clusters)) return 0;
    add(meeting, 0 - static_cast<u64>(own));  // the last one came in between, and saw no reason to do it
    return own;
}

// --- all of it, for up to TOKENS tokens ------------------------------------------------------------------------

template <int TOKENS>
DEVICE void backward(const Arguments& a) {
    // d of a cluster, into how many parts the warps of a program divide its rows, and where things lie.
    constexpr int D_SUMS = TOKENS * COLUMNS, D_PARTS = 16 * WARPS / TOKENS;
    constexpr u32 ARRIVED = 0, SHARES = 8, OUTPUT = 16, DOWN_WEIGHT = OUTPUT + TOKENS * pitch(ROWS);
    constexpr u32 X = DOWN_WEIGHT + ROWS * pitch(COLUMNS), WEIGHTS = X + TOKENS * pitch(ROWS);
    constexpr u32 INTERMEDIATE = WEIGHTS + 2 * COLUMNS * pitch(ROWS);
    constexpr u32 FACTORS = INTERMEDIATE + TOKENS * pitch(DOWN_COLUMNS), PARTS = FACTORS + 8 * D_SUMS;
    constexpr u32 RECEIVED = PARTS + 4 * D_PARTS * D_SUMS, BOTH = RECEIVED + 4 * PROGRAMS * D_SUMS;

    const int rank = program_in_cluster(), cluster = cluster_number(), row = rank * ROWS, column = cluster * COLUMNS;
    const long hidden = a.hidden, inner = a.inner;
    const int rows = a.hidden - row, columns = a.inner - column;
    const int down_row = cluster % 2 * DOWN_ROWS, down_column = cluster / 2 * DOWN_COLUMNS;

    expect(ARRIVED, 4 * PROGRAMS * D_SUMS);
    tell_that_this_began();
    bring<COLUMNS>(DOWN_WEIGHT, ROWS, a.down_weight + row * inner + column, inner, rows, columns);
    bring<ROWS>(OUTPUT, TOKENS, a.grad_output + row, hidden, a.tokens, rows);
    close_group();
    bring<DOWN_COLUMNS>(INTERMEDIATE, TOKENS, a.intermediate + down_column, inner, a.tokens, a.inner - down_column);
    close_group();
    bring<ROWS>(WEIGHTS, COLUMNS, a.gate_weight + column * hidden + row, hidden, columns, rows);
    bring<ROWS>(WEIGHTS + COLUMNS * pitch(ROWS), COLUMNS, a.up_weight + column * hidden + row, hidden, columns, rows);
    bring<ROWS>(X, TOKENS, a.x + row, hidden, a.tokens, rows);
    close_group();
    FOR_THREADS(t) NO_UNROLL for (int at = 4 * t; at < D_SUMS; at += 4 * THREADS) {
        const int token = at / COLUMNS, i = at % COLUMNS;
        Four for_gate = {}, for_up = {};
        if (token < a.tokens && i < columns) {
            const long from = token * inner + column + i;
            const Four g = load_4(a.gate + from), s = load_4(a.sigmoid + from), up = load_4(a.up + from);
            for_gate = each(g, s, up, [](float g, float s, float up) { return up * s * (1 + g * (1 - s)); });
            for_up = load_4(a.silu + from);
        }
        put_four(FACTORS + 8 * at, for_gate);
        put_four(FACTORS + 8 * at + 16, for_up);
    }
    wait_for_copies<2>();
    program_barrier();

    // d, of this program's rows, to all programs.
    FOR_WARPS(w) {
        const int m = w % (TOKENS / 16) * 16, part = w / (TOKENS / 16), first = part * (ROWS / D_PARTS);
        NO_UNROLL for (int n = 0; n < COLUMNS; n += 16) {
            Sums sums;
            UNROLL for (int k = first; k < first + ROWS / D_PARTS; k += 16)
                multiply(sums, left_tile(OUTPUT, pitch(ROWS), m, k), right_tile(DOWN_WEIGHT, pitch(COLUMNS), k, n));
            for_pairs(sums, [&](int r, int c, float one, float next) {
                put(PARTS + 4 * (part * D_SUMS + (m + r) * COLUMNS + n + c), {one, next});
            });
        }
    }
    program_barrier();
    cluster_wait();  // until every program has begun, so that its memory may be written
    FOR_THREADS(t) NO_UNROLL for (int at = 4 * t; at < D_SUMS; at += 4 * THREADS) {
        Four sum = get_four(PARTS + 4 * at);
        for (int part = 1; part < D_PARTS; part++) sum = added(sum, get_four(PARTS + 4 * (part * D_SUMS + at)));
        for (int program = 0; program < PROGRAMS; program++)
            send(program, RECEIVED + 4 * (rank * D_SUMS + at), sum, ARRIVED);
    }

    // grad_down_weight, while those are on their way.
    wait_for_copies<1>();
    program_barrier();
    FOR_WARPS(w) {
        const int m = down_row + 16 * w;
        NO_UNROLL for (int n = 0; n < DOWN_COLUMNS; n += 32) {
            u16* out = a.grad_down_weight + (row + m) * inner + down_column + n;
            over_tokens<TOKENS, ROWS, DOWN_COLUMNS>(
                OUTPUT, m, 1, INTERMEDIATE, n, out, inner, rows - m, a.inner - down_column - n);
        }
    }

    // [grad_gate, grad_up] of the cluster's columns, in every program.
    wait_for_all_sent(ARRIVED);
    FOR_THREADS(t) NO_UNROLL for (int at = 4 * t; at < D_SUMS; at += 4 * THREADS) {
        Four d = get_four(RECEIVED + 4 * at);
        for (int program = 1; program < PROGRAMS; program++)
            d = added(d, get_four(RECEIVED + 4 * (program * D_SUMS + at)));
        const u32 to = BOTH + at / COLUMNS * pitch(2 * COLUMNS) + 2 * (at % COLUMNS);
        put_rounded(to, times(d, get_four(FACTORS + 8 * at)));
        put_rounded(to + 2 * COLUMNS, times(d, get_four(FACTORS + 8 * at + 16)));
    }
    wait_for_copies<0>();
    program_barrier();

    // The part of grad_x that these columns make.
    FOR_WARPS(w) NO_UNROLL for (int m = 0; m < TOKENS; m += 16)
        NO_UNROLL for (int n = 32 * w; n < 32 * w + 32; n += 16) {
            Sums sums;
            UNROLL for (int k = 0; k < 2 * COLUMNS; k += 16)
                multiply(sums, left_tile(BOTH, pitch(2 * COLUMNS), m, k), right_tile(WEIGHTS, pitch(ROWS), k, n));
            float* part = a.parts + static_cast<long>(cluster) * a.tokens * hidden + row;
            for_pairs(sums, [&](int r, int c, float one, float next) {
                if (m + r < a.tokens && n + c < rows) put_in_memory(part + (m + r) * hidden + n + c, {one, next});
            });
        }
    program_barrier();
    u64* meeting = a.meetings + rank;
    u64 then = 0;
    FOR_THREADS(t) if (t == 0) then = add(meeting, ARRIVAL);

    // Both weight gradients, while the other clusters arrive.
    FOR_WARPS(w) NO_UNROLL for (int half = 0; half < 2; half++) {
        u16* out = a.grad_weights + (half * inner + column) * hidden + row + 32 * w;
        over_tokens<TOKENS, 2 * COLUMNS, ROWS>(
            BOTH, half * COLUMNS, COLUMNS / 16, X, 32 * w, out, hidden, columns, rows - 32 * w);
    }

    // grad_x: a share of its elements from all parts, always in the same order.
    FOR_THREADS(t) if (t == 0) put_word(SHARES, shares_to_sum(meeting, then, cluster, a.clusters));
    program_barrier();
    const int fours = a.tokens * ROWS / 4, share = (fours + a.clusters - 1) / a.clusters;
    u32 shares = get_word(SHARES);
    NO_UNROLL for (int begin = 0; shares; begin += share, shares >>= 1) if (shares & 1) {
        const auto place = [&](int four) { return four / (ROWS / 4) * hidden + row + four % (ROWS / 4) * 4; };
        const auto exists = [&](int four) { return four < fours && four % (ROWS / 4) * 4 < rows; };
        FOR_THREADS(t) NO_UNROLL for (int i = t; i < a.clusters * share; i += THREADS) {
            const int four = begin + i % share;
            const float* part = a.parts + i / share * (a.tokens * hidden);
            copy(RECEIVED + 16 * i, reinterpret_cast<const u16*>(exists(four) ? part + place(four) : part), exists(four));
        }
        close_group();
        wait_for_copies<0>();
        program_barrier();
        FOR_THREADS(t) NO_UNROLL for (int i = t; i < share; i += THREADS) {
            Four sum = get_four(RECEIVED + 16 * i);
            UNROLL_4 for (int part = 1; part < a.clusters; part++)
                sum = added(sum, get_four(RECEIVED + 16 * (part * share + i)));
            if (exists(begin + i)) store_4(a.grad_x + place(begin + i), sum);
        }
        program_barrier();
    }
}

KERNEL up_to_16_tokens(Arguments a) { backward<16>(a); }
KERNEL up_to_32_tokens(Arguments a) { backward<32>(a); }
