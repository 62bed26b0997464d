// What runs kernels for few tokens on a CPU: one thread stands for a program, whose warps and lanes take turns. Copies
// are made as late as they may be.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bfloat16.hpp"

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

#define DEVICE inline
#define UNROLL
#define NO_UNROLL
#define KERNEL static void
#define FOR_THREADS(t) for (int t = 0; t < 256; t++)
#define FOR_WARPS(w) for (int w = 0; w < 8; w++)
#define FOR_LANES(i) for (int i = 0; i < 32; i++)

constexpr int IN_CLUSTER = 8;

struct Copy {
    u32 offset;
    const u16* from;
    bool inside;
};

struct Program {
    int number;
    Program* all;  // of its cluster
    std::barrier<>* meeting;
    std::vector<char> memory = std::vector<char>(MEMORY_BYTES, static_cast<char>(0xff));  // NaN
    std::deque<std::vector<Copy>> groups = std::deque<std::vector<Copy>>(1);
    std::barrier<>::arrival_token* arrived = nullptr;
    bool met = false;
    // What it sends to others and what a barrier of its own still expects; whether it wrote to memory since a barrier.
    std::vector<std::function<void()>> on_its_way;
    std::atomic<int> expected_bytes = 0;
    bool written = false;

    char* at(u32 offset, u32 bytes) {
        if (offset + bytes > MEMORY_BYTES || offset % bytes) throw std::runtime_error("an address outside, or not aligned");
        return memory.data() + offset;
    }
};

thread_local Program* here;
std::mutex error_lock;
std::string error;
std::atomic<bool> failed = false;

inline int program_in_cluster() { return here->number % IN_CLUSTER; }
inline int cluster_number() { return here->number / IN_CLUSTER; }
inline void program_barrier() { here->written = false; }
inline void warp_barrier() {}
inline void cluster_arrive() {
    if (here->arrived) throw std::runtime_error("a second arrival before the first was waited for");
    here->arrived = new std::barrier<>::arrival_token(here->meeting->arrive());
}
inline void cluster_wait() {
    if (!here->arrived) throw std::runtime_error("a wait without an arrival");
    here->meeting->wait(std::move(*here->arrived));
    delete here->arrived;
    here->arrived = nullptr;
    here->met = true;
}
inline void let_the_next_begin() {}
inline void wait_for_the_last() {}

inline void copy(u32 offset, const u16* from, bool inside) {
    if (inside && reinterpret_cast<u64>(from) % 16) throw std::runtime_error("a copy from an odd address");
    here->groups.back().push_back({offset, from, inside});
}
inline void close_group() { here->groups.emplace_back(); }
template <int COUNT>
void wait_for_copies() {
    for (; here->groups.size() > COUNT + 1; here->groups.pop_front())
        for (const Copy& now : here->groups.front()) {
            if (now.inside) std::memcpy(here->at(now.offset, 16), now.from, 16);
            else std::memset(here->at(now.offset, 16), 0, 16);
        }
}

struct Two {
    float x, y;
};
struct Four {
    float x, y, z, w;
};
inline void put(u32 offset, Two values) { std::memcpy(here->at(offset, 8), &values, 8); }
inline float get(u32 offset) {
    float value;
    std::memcpy(&value, here->at(offset, 4), 4);
    return value;
}
inline Four get_four(u32 offset) {
    Four values;
    std::memcpy(&values, here->at(offset, 16), 16);
    return values;
}
inline Four added(Four a, Four b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
inline void put_there(int program, u32 offset, Four values) {
    if (!here->met) throw std::runtime_error("another program may not have begun");
    std::memcpy(here->all[program].at(offset, 16), &values, 16);
}

inline void store_1(u16* to, float value) { *to = as_bfloat16(value); }
inline void store_8(u16* to, const float (&values)[8]) {
    if (reinterpret_cast<u64>(to) % 16) throw std::runtime_error("a store to an odd address");
    for (int i = 0; i < 8; i++) store_1(to + i, values[i]);
}

template <int WIDTH>
struct Tile {
    float of[16][WIDTH] = {};
};
using Left = Tile<16>;
using Right = Tile<16>;
using WideRight = Tile<32>;
struct Sums : Tile<16> {};
struct WideSums : Tile<32> {};

template <int WIDTH>
Tile<WIDTH> tile_at(u32 offset, int pitch, int row, int column) {
    if (pitch % 16 || pitch / 16 % 2 == 0) throw std::runtime_error("rows whose banks collide");
    Tile<WIDTH> tile;
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < WIDTH; c++) {
            u16 bits;
            std::memcpy(&bits, here->at(offset + (row + r) * pitch + 2 * (column + c), 2), 2);
            tile.of[r][c] = as_float(bits);
        }
    return tile;
}
inline Left left_tile(u32 offset, int pitch, int row, int column) { return tile_at<16>(offset, pitch, row, column); }
inline Left left_tile_of_columns(u32 offset, int pitch, int row, int column) {
    const Tile<16> stored = tile_at<16>(offset, pitch, row, column);
    Left tile;
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) tile.of[r][c] = stored.of[c][r];
    return tile;
}
inline Right right_tile(u32 offset, int pitch, int row, int column) { return tile_at<16>(offset, pitch, row, column); }
inline WideRight wide_right_tile(u32 offset, int pitch, int column) { return tile_at<32>(offset, pitch, 0, column); }
template <int WIDTH>
void multiply(Tile<WIDTH>& sums, const Left& a, const Tile<WIDTH>& b) {
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < WIDTH; c++)
            for (int k = 0; k < 16; k++) sums.of[r][c] += a.of[r][k] * b.of[k][c];
}
template <class Use>
void for_pairs(const Sums& sums, Use use) {
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c += 2) use(r, c, sums.of[r][c], sums.of[r][c + 1]);
}
template <class Use>
void for_eights(const WideSums& sums, Use use) {
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 32; c += 8) {
            float eight[8];
            std::memcpy(eight, &sums.of[r][c], sizeof eight);
            use(r, c, eight);
        }
}

template <class Arguments>
void run_one(Program& one, void (*kernel)(Arguments), const Arguments& what) {
    here = &one;
    try {
        kernel(what);
    } catch (const std::exception& fault) {
        std::lock_guard guard(error_lock);
        error = fault.what();
        failed = true;
        one.meeting->arrive_and_drop();
    }
}

// What the device would not have done, or nothing. at_a_time: how many clusters run at the same time; 0: all of them.
template <class Arguments>
const char* emulate(void (*kernel)(Arguments), const Arguments& what, int programs, int at_a_time) {
    error.clear();
    failed = false;
    const int clusters = programs / IN_CLUSTER, together = at_a_time ? at_a_time : clusters;
    for (int first = 0; first < clusters && !failed; first += together) {
        const int count = IN_CLUSTER * std::min(together, clusters - first);
        std::deque<std::barrier<>> meetings;
        std::vector<Program> all(count);
        std::vector<std::thread> threads;
        for (int i = 0; i < count; i++) {
            if (i % IN_CLUSTER == 0) meetings.emplace_back(IN_CLUSTER);
            all[i].number = first * IN_CLUSTER + i;
            all[i].all = &all[i - i % IN_CLUSTER];
            all[i].meeting = &meetings.back();
        }
        for (Program& one : all) threads.emplace_back([&] { run_one(one, kernel, what); });
        for (auto& thread : threads) thread.join();
    }
    return failed ? error.c_str() : nullptr;
}
