// Runs the kernels of `multicast` on a CPU, as unkindly as the device may: what is asynchronous happens as late as it
// may, and in any order. One thread stands for a loading warp, one for each multiplying warpgroup. Compile with
// -DEMULATED -DKERNEL_SOURCE="path of kernel.cu" as a shared library; see cluster_emulator.py.

#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bfloat16.hpp"

using u32 = std::uint32_t;
using u64 = std::uint64_t;

#define DEVICE inline
#define UNROLL
#define GRID_CONSTANT
#define KERNEL static void
#define FOR_THREADS(t) for (int t = 0; t < 128; t++)
#define AT(values, t) (values).of[t]

constexpr double WAIT_S = 3.0;

// As large as a tensor map, so that arguments lie as on the device.
struct alignas(64) Map {
    std::uint16_t* data;
    u64 rows, columns, stride, unused[12];
};

// --- a launch --------------------------------------------------------------------------------------------------

std::mutex error_lock;
std::string error;

bool failed() {
    std::lock_guard guard(error_lock);
    return !error.empty();
}

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

void kept(const std::function<void()>& function) {
    try {
        function();
    } catch (const std::exception& fault) {
        std::lock_guard guard(error_lock);
        if (error.empty()) error = fault.what();
    }
}

void wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, auto ready, const char* what) {
    for (double waited = 0; !ready(); waited += 0.05) {
        changed.wait_for(lock, std::chrono::milliseconds(50));
        if (failed()) fail("another thread failed");
        if (waited > WAIT_S) fail(what);
    }
}

struct Barrier {
    int count = 0, waited_for = 0;
    long bytes = 0;
    u32 phase = 0;
    std::mutex lock;
    std::condition_variable changed;

    void update(int arrivals, long more_bytes) {
        std::lock_guard guard(lock);
        if (!count) fail("a barrier is used before it is made");
        waited_for -= arrivals;
        bytes += more_bytes;
        if (waited_for < 0) fail("more arrivals than a barrier counts");
        if (waited_for == 0 && bytes == 0) {
            phase++;
            waited_for = count;
            changed.notify_all();
        }
    }

    void wait(u32 parity) {
        std::unique_lock guard(lock);
        wait_until(guard, changed, [&] { return phase % 2 != parity; }, "deadlock: a barrier is never completed");
    }
};

// The two programs of a cluster meet here.
struct Meeting {
    int here = 0, turn = 0;
    std::mutex lock;
    std::condition_variable changed;

    void wait() {
        std::unique_lock guard(lock);
        const int mine = turn;
        if (++here == 2) {
            here = 0;
            turn++;
            changed.notify_all();
            return;
        }
        wait_until(guard, changed, [&] { return turn != mine; }, "deadlock: a program does not come to the cluster's end");
    }
};

// Makes copies into shared memory, a little later and in any order.
struct Engine {
    std::deque<std::function<void()>> copies;
    std::mutex lock;
    std::condition_variable changed;
    bool over = false;
    std::mt19937 draw{std::random_device{}()};
    std::thread thread{[this] { run(); }};

    void give(std::function<void()> copy) {
        std::lock_guard guard(lock);
        copies.push_back(std::move(copy));
        changed.notify_one();
    }

    void run() {
        for (;;) {
            std::function<void()> copy;
            {
                std::unique_lock guard(lock);
                changed.wait(guard, [&] { return over || !copies.empty(); });
                if (copies.empty()) return;
                std::swap(copies[draw() % copies.size()], copies.back());
                copy = std::move(copies.back());
                copies.pop_back();
            }
            kept(copy);
        }
    }

    void close() {
        {
            std::lock_guard guard(lock);
            over = true;
        }
        changed.notify_one();
        thread.join();
    }
};

struct Program {
    int number, programs;
    Program* both[2];
    Meeting* meeting;
    Engine* engine;
    std::vector<char> memory = std::vector<char>(MEMORY_BYTES, static_cast<char>(0xff));  // NaN
    std::map<u32, Barrier> barriers;

    char* at(u32 offset, u32 bytes) {
        if (offset + bytes > MEMORY_BYTES) fail("shared memory ends before");
        return memory.data() + offset;
    }
};

struct Store {
    const Map* map;
    int row, column;
    u32 offset;
};

// Of a thread.
thread_local Program* here;
thread_local std::deque<Store> stores;
thread_local std::set<u32> unfenced;

// --- pieces of 64 x 64, as tensor maps with a 128-byte swizzle lay them ----------------------------------------

u32 swizzled(int row, int column) { return row * 128 + ((column / 8 ^ row % 8) << 4) + column % 8 * 2; }

float element(const char* piece, int row, int column) {
    std::uint16_t bits;
    std::memcpy(&bits, piece + swizzled(row, column), 2);
    return as_float(bits);
}

// --- the primitives -----------------------------------------------------------------------------------------------

inline int program_in_cluster() { return here->number % 2; }
inline int cluster_number() { return here->number / 2; }
inline int cluster_count() { return here->programs / 2; }

inline void make_barrier(u32 barrier, u32 count) {
    Barrier& made = here->barriers[barrier];
    made.count = made.waited_for = static_cast<int>(count);
}

inline void wait_for(u32 barrier, u32 parity) { here->barriers[barrier].wait(parity); }
inline void expect(u32 barrier, u32 bytes) { here->barriers[barrier].update(1, bytes); }

// One arrival of each of the warpgroup's four warps.
inline void arrive_in_both(u32 barrier) {
    for (Program* program : here->both) program->barriers[barrier].update(4, 0);
}

inline void group_barrier(int) {}

void load_to(Program* program, const Map& map, int row, int column, u32 offset, u32 barrier) {
    std::memset(program->at(offset, 8192), 0xff, 8192);
    program->engine->give([=, &map] {
        for (int r = 0; r < 64; r++)
            for (int c = 0; c < 64; c++) {
                const bool inside = row + r < static_cast<long>(map.rows) && column + c < static_cast<long>(map.columns);
                const std::uint16_t bits = inside ? map.data[(row + r) * map.stride + column + c] : 0;
                std::memcpy(program->at(offset, 8192) + swizzled(r, c), &bits, 2);
            }
        program->barriers[barrier].update(0, -8192);
    });
}

inline void load(const Map& map, int row, int column, u32 offset, u32 barrier) {
    load_to(here, map, row, column, offset, barrier);
}

inline void load_for_both(const Map& map, int row, int column, u32 offset, u32 barrier) {
    for (Program* program : here->both) load_to(program, map, row, column, offset, barrier);
}

inline void store(const Map& map, int row, int column, u32 offset, int) {
    if (unfenced.contains(offset / 8192)) fail("a store without a fence behind what it reads");
    stores.push_back({&map, row, column, offset});
}

template <int COUNT>
void wait_for_stores(int) {
    for (; stores.size() > COUNT; stores.pop_front()) {
        const Store& now = stores.front();
        for (int r = 0; r < 64; r++)
            for (int c = 0; c < 64; c++)
                if (now.row + r < static_cast<long>(now.map->rows) && now.column + c < static_cast<long>(now.map->columns))
                    std::memcpy(
                        now.map->data + (now.row + r) * now.map->stride + now.column + c,
                        here->at(now.offset, 8192) + swizzled(r, c), 2);
    }
}

inline void fence_before_store() { unfenced.clear(); }

inline void store_shared(u32 offset, u32 value) {
    std::memcpy(here->at(offset, 4), &value, 4);
    unfenced.insert(offset / 8192);
}

inline u32 load_shared(u32 offset) {
    u32 value;
    std::memcpy(&value, here->at(offset, 4), 4);
    return value;
}

inline u32 pack(float first, float second) {
    return as_bfloat16(first) | static_cast<u32>(as_bfloat16(second)) << 16;
}

struct Pair {
    float first, second;
};

inline Pair unpack(u32 word) {
    return {as_float(static_cast<std::uint16_t>(word)), as_float(static_cast<std::uint16_t>(word >> 16))};
}

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

struct Packed {
    u32 of[128][16];
};

// Of a warpgroup's 128 threads, and the products that are on their way to them.
struct Step {
    u32 left, right;
    bool add, over_tokens;
};

struct Sums {
    float of[128][128];
    std::deque<Step> waiting;
};

template <bool OVER_TOKENS>
void multiply_step(Sums& sums, u32 left, u32 right, bool add) {
    sums.waiting.push_back({left, right, add, OVER_TOKENS});
}

void make(Sums& sums, const Step& step) {
    static thread_local float a[64][64], b[64][256];
    const char* left = here->at(step.left, 8192);
    for (int m = 0; m < 64; m++)
        for (int k = 0; k < 64; k++) a[m][k] = step.over_tokens ? element(left, k, m) : element(left, m, k);
    for (int k = 0; k < 64; k++)
        for (int n = 0; n < 256; n++) b[k][n] = element(here->at(step.right + n / 64 * 8192, 8192), k, n % 64);
    for (int m = 0; m < 64; m++) {
        float row[256] = {};
        for (int k = 0; k < 64; k++)
            for (int n = 0; n < 256; n++) row[n] += a[m][k] * b[k][n];
        for (int n = 0; n < 256; n++) {
            // Which thread holds it, by the layout of wgmma's results.
            const int thread = m / 16 * 32 + m % 8 * 4 + n % 8 / 2, i = n / 8 * 4 + m % 16 / 8 * 2 + n % 2;
            sums.of[thread][i] = step.add ? sums.of[thread][i] + row[n] : row[n];
        }
    }
}

template <int COUNT>
void wait_for_products(Sums& sums) {
    for (; sums.waiting.size() > COUNT; sums.waiting.pop_front()) make(sums, sums.waiting.front());
}

template <class Begin, class Load, class Multiply>
void run_roles(Begin begins, Load loads, Multiply multiplies) {
    Program* program = here;
    begins();
    program->meeting->wait();
    auto role = [program](auto function) {
        return std::thread([=] {
            kept([&] {
                here = program;
                stores.clear();
                unfenced.clear();
                function();
                if (!stores.empty()) fail("a program ends before its stores have read what they store");
            });
        });
    };
    std::thread threads[] = {
        role([&] { loads(); }), role([&] { multiplies(0); }), role([&] { multiplies(1); })};
    for (std::thread& thread : threads) thread.join();
    program->meeting->wait();
}

#include KERNEL_SOURCE

// --- for the test ----------------------------------------------------------------------------------------------

template <class Arguments>
const char* launched(void (*kernel)(const Arguments), const Arguments* arguments, int programs) {
    error.clear();
    Engine engine;
    std::vector<Meeting> meetings(programs / 2);
    std::vector<Program> all(programs);
    std::vector<std::thread> threads;
    for (int i = 0; i < programs; i++) {
        all[i].number = i;
        all[i].programs = programs;
        all[i].both[0] = &all[i / 2 * 2];
        all[i].both[1] = &all[i / 2 * 2 + 1];
        all[i].meeting = &meetings[i / 2];
        all[i].engine = &engine;
    }
    for (Program& program : all)
        threads.emplace_back([&program, kernel, arguments] {
            kept([&] {
                here = &program;
                kernel(*arguments);
            });
        });
    for (std::thread& thread : threads) thread.join();
    engine.close();
    return error.empty() ? nullptr : error.c_str();
}

extern "C" const char* emulate_first_launch(const First* what, int programs) {
    return launched(first_launch, what, programs);
}
extern "C" const char* emulate_second_launch(const Second* what, int programs) {
    return launched(second_launch, what, programs);
}
