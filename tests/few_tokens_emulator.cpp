// Runs the kernels of `clusters` on a CPU: one thread stands for a program, whose warps and lanes take turns. Copies are
// made as late as they may be. Compile with -DEMULATED -DKERNEL_SOURCE="path of kernel.cu" as a shared library.

#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
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
    Program* all;
    std::barrier<>* meeting;
    std::vector<char> memory = std::vector<char>(MEMORY_BYTES, static_cast<char>(0xff));  // NaN
    std::deque<std::vector<Copy>> groups = std::deque<std::vector<Copy>>(1);
    std::barrier<>::arrival_token* arrived = nullptr;
    bool met = false;

    char* at(u32 offset, u32 bytes) {
        if (offset + bytes > MEMORY_BYTES || offset % bytes) throw std::runtime_error("an address outside, or not aligned");
        return memory.data() + offset;
    }
};

thread_local Program* here;
std::mutex error_lock;
std::string error;

inline int program_in_cluster() { return here->number % IN_CLUSTER; }
inline int cluster_number() { return here->number / IN_CLUSTER; }
inline void program_barrier() {}
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

#include KERNEL_SOURCE

template <class Arguments>
const char* emulate(void (*kernel)(Arguments), const Arguments& what, int programs) {
    error.clear();
    for (int first = 0; first < programs; first += IN_CLUSTER) {
        std::barrier<> meeting(IN_CLUSTER);
        std::vector<Program> all(IN_CLUSTER);
        std::vector<std::thread> threads;
        for (int i = 0; i < IN_CLUSTER; i++) {
            all[i].number = first + i;
            all[i].all = all.data();
            all[i].meeting = &meeting;
            threads.emplace_back([&, i] {
                here = &all[i];
                try {
                    kernel(what);
                } catch (const std::exception& fault) {
                    std::lock_guard guard(error_lock);
                    error = fault.what();
                    meeting.arrive_and_drop();
                }
            });
        }
        for (auto& thread : threads) thread.join();
        if (!error.empty()) return error.c_str();
    }
    return nullptr;
}

extern "C" const char* emulate_first_launch(const First* what, int programs) { return emulate(first_launch, *what, programs); }
extern "C" const char* emulate_second_launch(const Second* what, int programs) { return emulate(second_launch, *what, programs); }
