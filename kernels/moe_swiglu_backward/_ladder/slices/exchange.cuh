// What programs tell each other: through distributed shared memory with a count of what arrived, and through memory.
#pragma once

#include "primitives.cuh"

#define UNROLL_4 _Pragma("unroll 4")

// How often a program looks whether all have come, about a microsecond each time.
constexpr int PATIENCE = 200;

// --- between the programs of a cluster ---------------------------------------------------------------------------

// Make a barrier for so many bytes.
DEVICE void expect(u32 barrier, u32 bytes) {
    if (threadIdx.x == 0) {
        asm volatile(
            "mbarrier.init.shared.b64 [%0], 1;\n"
            "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n"
            "fence.mbarrier_init.release.cluster;" ::"r"(address_of(barrier)), "r"(bytes) : "memory");
    }
}

// Instead of cluster_arrive(), which waits for whatever this program wrote.
DEVICE void tell_that_this_began() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }

// Into another program's shared memory, and counted by the barrier there.
DEVICE void send(int program, u32 offset, Four values, u32 barrier) {
    asm volatile(
        "{\n"
        ".reg .b32 there, counter;\n"
        "mapa.shared::cluster.u32 there, %0, %2;\n"
        "mapa.shared::cluster.u32 counter, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [counter];\n"
        "}\n" ::"r"(address_of(offset)), "r"(address_of(barrier)), "r"(program),
        "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w) : "memory");
}

// Until all expected bytes have come.
DEVICE void wait_for_all_sent(u32 barrier) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(address_of(barrier)) : "memory");
}

// --- between all programs of a launch ----------------------------------------------------------------------------

// What was there before. Whoever sees this, sees all that this program wrote before its last barrier.
DEVICE u64 add(u64* to, u64 value) {
    u64 before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(to), "l"(value) : "memory");
    return before;
}

DEVICE u64 look_at(const u64* at) {
    u64 value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

// In PTX, because the compiler cuts such a store in C++ into two.
DEVICE void put_in_memory(float* to, Two values) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(values.x), "f"(values.y) : "memory");
}

// --- numbers, four at a time -------------------------------------------------------------------------------------

DEVICE u32 get_word(u32 offset) { return *reinterpret_cast<const u32*>(shared_memory + offset); }
DEVICE void put_word(u32 offset, u32 value) { *reinterpret_cast<u32*>(shared_memory + offset) = value; }
DEVICE void put_four(u32 offset, Four values) { *reinterpret_cast<Four*>(shared_memory + offset) = values; }
DEVICE Four times(Four a, Four b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }

template <class Of>
DEVICE Four each(Four a, Four b, Four c, Of of) {
    return {of(a.x, b.x, c.x), of(a.y, b.y, c.y), of(a.z, b.z, c.z), of(a.w, b.w, c.w)};
}

DEVICE void put_rounded(u32 offset, Four v) {
    *reinterpret_cast<uint2*>(shared_memory + offset) = uint2{pack(v.x, v.y), pack(v.z, v.w)};
}
// In PTX, as put_in_memory().
DEVICE void store_4(u16* to, Four v) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(pack(v.x, v.y)), "r"(pack(v.z, v.w)) : "memory");
}

DEVICE Four load_4(const u16* from) {
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(from));
    return {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u), __uint_as_float(words.y << 16),
            __uint_as_float(words.y & 0xffff0000u)};
}
