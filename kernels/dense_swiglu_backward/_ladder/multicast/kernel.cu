// Persistent products for sm_90a in clusters of two programs that share the right operand.
//
// A cluster computes two tiles of 128 x 256, one below the other. Each program brings its own left operand, and half of
// the right one for both (multicast), so a step of 64 takes 32 KB from the L2 cache instead of 48. Within a
// program one warp loads and two warpgroups multiply, as in `warp_specialized`. All matrices are bfloat16 and come as
// tensor maps with boxes of 64 x 64 and 128-byte swizzle.
//
// Shared memory, stage by stage: right operands as panels [64 rows, 64 columns], left ones as two pieces [64, 64].

#ifndef EMULATED
#include "primitives.cuh"
#endif

constexpr int ROWS = 128, COLUMNS = 256, DEPTH = 64, STAGES = 4, CHUNK = 64;
constexpr int PIECE_BYTES = 64 * 64 * 2;
constexpr int STEP_BYTES = 6 * PIECE_BYTES;  // of a step of a product, and of a chunk of three saved tensors
constexpr int WARPS_THAT_RELEASE = 16;       // four of each warpgroup of both programs

// Byte offsets in shared memory.
constexpr u32 RIGHT = 0, LEFT = RIGHT + STAGES * 4 * PIECE_BYTES, OUT = LEFT + STAGES * 2 * PIECE_BYTES;
constexpr u32 FULL = OUT + 4 * PIECE_BYTES, EMPTY = FULL + 8 * STAGES;
constexpr u32 SHARED_BYTES = EMPTY + 8 * STAGES;

// --- which tiles ------------------------------------------------------------------------------------------

// First row and column of the upper of two tiles. `band` rows of pairs are taken column by column.
struct Place {
    int row, column;
};

DEVICE Place place(int pair, int down, int across, int band) {
    const int of_band = band * across, number = pair / of_band;
    const int left = down - number * band, height = left < band ? left : band;
    const int inside = pair - number * of_band;
    return {(number * band + inside % height) * 2 * ROWS, inside / height * COLUMNS};
}

// The pairs of a cluster: long ones first, then short ones. While some clusters have one long pair more, each of the
// others takes `extra` short ones; neighbours in time are neighbours in number.
struct Schedule {
    int cluster, clusters, longs, shorts, extra, turn;

    DEVICE bool next(bool& is_long, int& number) {
        const int rest = longs % clusters, longs_here = longs / clusters + (cluster < rest);
        int i = turn++;
        is_long = i < longs_here;
        if (is_long) {
            number = cluster + i * clusters;
            return true;
        }
        i -= longs_here;
        const int before = rest ? extra : 0, others = clusters - rest;
        if (rest && cluster >= rest) {
            if (i < before) {
                number = cluster - rest + i * others;
                return number < shorts;
            }
            i -= before;
        }
        number = before * others + cluster + i * clusters;
        return number < shorts;
    }
};

// --- the ring of stages --------------------------------------------------------------------------------------

struct Turn {
    int stage;
    u32 phase;

    DEVICE void go_on() {
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        phase ^= stage == 0;
    }
};

DEVICE void make_barriers() {
    for (int stage = 0; stage < STAGES; stage++) {
        make_barrier(FULL + 8 * stage, 1);
        make_barrier(EMPTY + 8 * stage, WARPS_THAT_RELEASE);
    }
}

DEVICE u32 left_piece(int stage, int part) { return LEFT + (2 * stage + part) * PIECE_BYTES; }
DEVICE u32 right_panel(int stage, int panel) { return RIGHT + (4 * stage + panel) * PIECE_BYTES; }

// Wait for a free stage; returns the barrier that is completed when a step's bytes have come.
DEVICE u32 begin(const Turn& turn) {
    wait_for(EMPTY + 8 * turn.stage, turn.phase);
    const u32 arrived = FULL + 8 * turn.stage;
    expect(arrived, STEP_BYTES);
    return arrived;
}

// The steps of left[row:, :depth] @ right[:depth, column:]; OVER_TOKENS: of left[:depth, row:].T @ the same.
template <bool OVER_TOKENS>
DEVICE void load_product(const Map& left, const Map& right, int row, int column, int depth, Turn& turn) {
    const int mine = 2 * program_in_cluster();
    for (int k = 0; k < depth; k += DEPTH) {
        const u32 arrived = begin(turn);
        for (int part = 0; part < 2; part++) {
            const int its_row = row + 64 * part;
            load(left, OVER_TOKENS ? k : its_row, OVER_TOKENS ? its_row : k, left_piece(turn.stage, part), arrived);
        }
        for (int panel = mine; panel < mine + 2; panel++)
            load_for_both(right, k, column + 64 * panel, right_panel(turn.stage, panel), arrived);
        turn.go_on();
    }
}

// --- a multiplying warpgroup -----------------------------------------------------------------------------------

// Give a stage back to the loading warps of both programs.
DEVICE void release(int stage) { arrive_in_both(EMPTY + 8 * stage); }

// The sums over so many steps of this warpgroup's 64 rows. A step's stage is given back when the next one's product
// is on its way.
template <bool OVER_TOKENS>
DEVICE void multiply(Sums& sums, int part, int steps, Turn& turn) {
    int last = turn.stage;
    for (int step = 0; step < steps; step++) {
        wait_for(FULL + 8 * turn.stage, turn.phase);
        multiply_step<OVER_TOKENS>(sums, left_piece(turn.stage, part), right_panel(turn.stage, 0), step > 0);
        wait_for_products<1>(sums);
        if (step > 0) release(last);
        last = turn.stage;
        turn.go_on();
    }
    wait_for_products<0>(sums);
    release(last);
}

// Byte offset in a piece of the two elements that a thread holds of its `half` (upper or lower 8 rows) of a block of
// 8 columns: the layout of wgmma's results, with the swizzle of the tensor maps.
DEVICE u32 offset_of(int thread, int block, int half) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    return row * 128 + ((block ^ (row & 7)) << 4) + thread % 4 * 4;
}

// Write a chunk by way of one of two pieces that take turns.
DEVICE void put(const Packed& values, const Map& out, int row, int column, int part, int number) {
    const u32 piece = OUT + (2 * part + number % 2) * PIECE_BYTES;
    wait_for_stores<1>(part);
    group_barrier(part);
    FOR_THREADS(t) {
        UNROLL for (int block = 0; block < 8; block++) {
            UNROLL for (int half = 0; half < 2; half++)
                store_shared(piece + offset_of(t, block, half), AT(values, t)[2 * block + half]);
        }
    }
    fence_before_store();
    group_barrier(part);
    store(out, row, column, piece, part);
}

template <int I>
DEVICE void put_sums(const Sums& sums, const Map& out, int row, int column, int part) {
    Packed packed;
    FOR_THREADS(t) {
        UNROLL for (int i = 0; i < 16; i++)
            AT(packed, t)[i] = pack(AT(sums, t)[32 * I + 2 * i], AT(sums, t)[32 * I + 2 * i + 1]);
    }
    put(packed, out, row, column + I * CHUNK, part, I);
    if constexpr (I < 3) put_sums<I + 1>(sums, out, row, column, part);
}

// --- first launch: d and the SwiGLU backward -----------------------------------------------------------------------

struct First {
    Map grad_output, down_weight, gate, up, activated, grad_gate, grad_up, product;
    int down, across, band, hidden;
};

DEVICE void load_first(const First& what) {
    Turn turn{0, 1};
    for (int pair = cluster_number(); pair < what.down * what.across; pair += cluster_count()) {
        Place at = place(pair, what.down, what.across, what.band);
        const int row = at.row + ROWS * program_in_cluster();
        load_product<false>(what.grad_output, what.down_weight, row, at.column, what.hidden, turn);
        for (int column = at.column; column < at.column + COLUMNS; column += CHUNK) {
            const u32 arrived = begin(turn);
            for (int part = 0; part < 2; part++) {
                load(what.gate, row + 64 * part, column, left_piece(turn.stage, part), arrived);
                load(what.up, row + 64 * part, column, right_panel(turn.stage, part), arrived);
                load(what.activated, row + 64 * part, column, right_panel(turn.stage, 2 + part), arrived);
            }
            turn.go_on();
        }
    }
}

// SwiGLU backward of a chunk of d, of which three chunks go out.
template <int I>
DEVICE void swiglu_chunks(const Sums& d, const First& what, int row, int column, int part, Turn& turn) {
    Packed grad_gate, grad_up, product;
    wait_for(FULL + 8 * turn.stage, turn.phase);
    FOR_THREADS(t) {
        UNROLL for (int block = 0; block < 8; block++) {
            UNROLL for (int half = 0; half < 2; half++) {
                const u32 offset = offset_of(t, block, half);
                const Pair g = unpack(load_shared(left_piece(turn.stage, part) + offset));
                const Pair u = unpack(load_shared(right_panel(turn.stage, part) + offset));
                const Pair a = unpack(load_shared(right_panel(turn.stage, 2 + part) + offset));
                const int i = 2 * block + half;
                const float first = AT(d, t)[32 * I + 2 * i], second = AT(d, t)[32 * I + 2 * i + 1];
                const float s = sigmoid(g.first), z = sigmoid(g.second);
                AT(grad_gate, t)[i] = pack(
                    first * u.first * (s * (1 + g.first * (1 - s))), second * u.second * (z * (1 + g.second * (1 - z))));
                AT(grad_up, t)[i] = pack(first * a.first, second * a.second);
                AT(product, t)[i] = pack(a.first * u.first, a.second * u.second);
            }
        }
    }
    release(turn.stage);
    turn.go_on();
    put(grad_gate, what.grad_gate, row, column + I * CHUNK, part, 3 * I);
    put(grad_up, what.grad_up, row, column + I * CHUNK, part, 3 * I + 1);
    put(product, what.product, row, column + I * CHUNK, part, 3 * I + 2);
    if constexpr (I < 3) swiglu_chunks<I + 1>(d, what, row, column, part, turn);
}

DEVICE void multiply_first(const First& what, int part) {
    Turn turn{0, 0};
    for (int pair = cluster_number(); pair < what.down * what.across; pair += cluster_count()) {
        Place at = place(pair, what.down, what.across, what.band);
        Sums d;
        multiply<false>(d, part, (what.hidden + DEPTH - 1) / DEPTH, turn);
        swiglu_chunks<0>(d, what, at.row + ROWS * program_in_cluster() + 64 * part, at.column, part, turn);
    }
    wait_for_stores<0>(part);
}

KERNEL first_launch(GRID_CONSTANT const First what) {
    run_roles(make_barriers, [&] { load_first(what); }, [&](int part) { multiply_first(what, part); });
}

// --- second launch: grad_x and the weight gradients ------------------------------------------------------------------

struct Second {
    Map grad_gate, grad_up, gate_weight, up_weight, grad_x, both, x, grad_weights, grad_output, product, grad_down_weight;
    int down_x, across_x, down_sums, down_last, across_last, inner, tokens, extra, x_band, band;
};

DEVICE Schedule schedule(const Second& what) {
    const int shorts = what.down_sums * what.across_x + what.down_last * what.across_last;
    return {cluster_number(), cluster_count(), what.down_x * what.across_x, shorts, what.extra, 0};
}

DEVICE void load_second(const Second& what) {
    Turn turn{0, 1};
    Schedule pairs = schedule(what);
    const int lower = ROWS * program_in_cluster(), sums = what.down_sums * what.across_x;
    bool is_long;
    for (int pair; pairs.next(is_long, pair);) {
        if (is_long) {
            const Place at = place(pair, what.down_x, what.across_x, what.x_band);
            load_product<false>(what.grad_gate, what.gate_weight, at.row + lower, at.column, what.inner, turn);
            load_product<false>(what.grad_up, what.up_weight, at.row + lower, at.column, what.inner, turn);
        } else if (pair < sums) {
            const Place at = place(pair, what.down_sums, what.across_x, what.band);
            load_product<true>(what.both, what.x, at.row + lower, at.column, what.tokens, turn);
        } else {
            const Place at = place(pair - sums, what.down_last, what.across_last, what.band);
            load_product<true>(what.grad_output, what.product, at.row + lower, at.column, what.tokens, turn);
        }
    }
}

DEVICE void multiply_second(const Second& what, int part) {
    Turn turn{0, 0};
    Schedule pairs = schedule(what);
    const int lower = ROWS * program_in_cluster() + 64 * part, sums = what.down_sums * what.across_x;
    bool is_long;
    for (int pair; pairs.next(is_long, pair);) {
        Sums result;
        if (is_long) {
            const Place at = place(pair, what.down_x, what.across_x, what.x_band);
            multiply<false>(result, part, 2 * ((what.inner + DEPTH - 1) / DEPTH), turn);
            put_sums<0>(result, what.grad_x, at.row + lower, at.column, part);
        } else {
            multiply<true>(result, part, (what.tokens + DEPTH - 1) / DEPTH, turn);
            const bool is_sum = pair < sums;
            const Place at = is_sum ? place(pair, what.down_sums, what.across_x, what.band)
                                    : place(pair - sums, what.down_last, what.across_last, what.band);
            put_sums<0>(result, is_sum ? what.grad_weights : what.grad_down_weight, at.row + lower, at.column, part);
        }
    }
    wait_for_stores<0>(part);
}

KERNEL second_launch(GRID_CONSTANT const Second what) {
    run_roles(make_barriers, [&] { load_second(what); }, [&](int part) { multiply_second(what, part); });
}
