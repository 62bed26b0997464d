// Runs the kernels of `slices` on a CPU. Compile with -DEMULATED -DKERNEL_SOURCE="path of kernel.cu" and -DMEMORY_BYTES
// as a shared library.

#include <chrono>

#include "few_tokens_emulator.hpp"

#define UNROLL_4

// 0: all of them. Where some begin when others have ended, those do not wait long.
extern "C" int clusters_at_a_time;
int clusters_at_a_time = 0;
#define PATIENCE (clusters_at_a_time ? 3 : 1'000'000)

// --- between the programs of a cluster: what is sent comes as late as it may --------------------------------------

inline void expect(u32 barrier, u32 bytes) {
    here->at(barrier, 8);
    here->expected_bytes = static_cast<int>(bytes);
}
inline void tell_that_this_began() { cluster_arrive(); }
inline void send(int program, u32 offset, Four values, u32 barrier) {
    if (!here->met) throw std::runtime_error("another program may not have begun");
    here->on_its_way.push_back([to = &here->all[program], offset, values] {
        std::memcpy(to->at(offset, 16), &values, 16);
        to->expected_bytes -= 16;
    });
}
inline void wait_for_all_sent(u32 barrier) {
    // The last first.
    for (; !here->on_its_way.empty(); here->on_its_way.pop_back()) here->on_its_way.back()();
    for (int looks = 0; here->expected_bytes; looks++) {
        if (failed || looks > 100'000 || here->expected_bytes < 0) throw std::runtime_error("fewer or more bytes came than were expected");
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

// --- between all programs -----------------------------------------------------------------------------------------

inline u64 add(u64* to, u64 value) {
    if (here->written) throw std::runtime_error("counted in before all was written");
    return std::atomic_ref(*to).fetch_add(value);
}
inline u64 look_at(const u64* at) {
    if (failed) throw std::runtime_error("another program failed");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    return std::atomic_ref(*const_cast<u64*>(at)).load();
}
inline void put_in_memory(float* to, Two values) {
    if (reinterpret_cast<u64>(to) % 8) throw std::runtime_error("a store to an odd address");
    std::memcpy(to, &values, 8);
    here->written = true;
}

// --- numbers, four at a time ----------------------------------------------------------------------------------------

inline u32 get_word(u32 offset) {
    u32 value;
    std::memcpy(&value, here->at(offset, 4), 4);
    return value;
}
inline void put_word(u32 offset, u32 value) { std::memcpy(here->at(offset, 4), &value, 4); }
inline void put_four(u32 offset, Four values) { std::memcpy(here->at(offset, 16), &values, 16); }
inline Four times(Four a, Four b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
template <class Of>
Four each(Four a, Four b, Four c, Of of) {
    return {of(a.x, b.x, c.x), of(a.y, b.y, c.y), of(a.z, b.z, c.z), of(a.w, b.w, c.w)};
}
inline void store_4(u16* to, Four v) {
    if (reinterpret_cast<u64>(to) % 8) throw std::runtime_error("a store to an odd address");
    const float values[] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; i++) store_1(to + i, values[i]);
}
inline void put_rounded(u32 offset, Four v) { store_4(reinterpret_cast<u16*>(here->at(offset, 8)), v); }
inline Four load_4(const u16* from) {
    if (reinterpret_cast<u64>(from) % 8) throw std::runtime_error("a load from an odd address");
    return {as_float(from[0]), as_float(from[1]), as_float(from[2]), as_float(from[3])};
}

#include KERNEL_SOURCE

extern "C" const char* emulate_up_to_16_tokens(const Arguments* what, int programs) {
    return emulate(up_to_16_tokens, *what, programs, clusters_at_a_time);
}
extern "C" const char* emulate_up_to_32_tokens(const Arguments* what, int programs) {
    return emulate(up_to_32_tokens, *what, programs, clusters_at_a_time);
}
