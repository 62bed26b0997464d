// What kernel.cu is made of, in PTX for sm_90a. Shared memory is named by byte offsets from its beginning.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define GRID_CONSTANT __grid_constant__
#define KERNEL extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
// A thread does its own part; where all threads of a warpgroup are emulated by one, this is a loop.
#define FOR_THREADS(t) for ([[maybe_unused]] int t = threadIdx.x % 128, once = 1; once; once = 0)
#define AT(values, t) (values)

struct alignas(64) Map {
    u64 opaque[16];
};
// Of a thread: its sums of a tile [64, 256] of its warpgroup, and 32 bfloat16 of a chunk [64, 64].
using Sums = float[128];
using Packed = u32[16];
struct Pair {
    float first, second;
};

extern __shared__ __align__(1024) char shared_memory[];

DEVICE u32 address_of(u32 offset) { return static_cast<u32>(__cvta_generic_to_shared(shared_memory)) + offset; }

// --- where a program is ------------------------------------------------------------------------------------

DEVICE int program_in_cluster() { return blockIdx.x % 2; }
DEVICE int cluster_number() { return blockIdx.x / 2; }
DEVICE int cluster_count() { return gridDim.x / 2; }

// --- barriers ----------------------------------------------------------------------------------------------

DEVICE void make_barrier(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(barrier)), "r"(count) : "memory");
}

DEVICE void wait_for(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(address_of(barrier)), "r"(parity) : "memory");
}

DEVICE void expect(u32 barrier, u32 bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(barrier)), "r"(bytes) : "memory");
}

// One arrival of each warp at the same barrier of both programs.
DEVICE void arrive_in_both(u32 barrier) {
    __syncwarp();
    const u32 lane = threadIdx.x % 32;
    if (lane < 2) {
        asm volatile(
            "{\n"
            ".reg .b32 there;\n"
            "mapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
            "}\n" ::"r"(address_of(barrier)), "r"(lane) : "memory");
    }
}

// The 128 threads of a multiplying warpgroup.
DEVICE void group_barrier(int part) { asm volatile("bar.sync %0, 128;" ::"r"(1 + part) : "memory"); }

DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// --- copies ------------------------------------------------------------------------------------------------

DEVICE void load(const Map& map, int row, int column, u32 offset, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            address_of(offset)),
        "l"(&map), "r"(column), "r"(row), "r"(address_of(barrier)) : "memory");
}

// To the same place of both programs; each one's own barrier hears of it.
DEVICE void load_for_both(const Map& map, int row, int column, u32 offset, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(address_of(offset)),
        "l"(&map), "r"(column), "r"(row), "r"(address_of(barrier)), "h"(static_cast<unsigned short>(3)) : "memory");
}

DEVICE void store(const Map& map, int row, int column, u32 offset, int) {
    if (threadIdx.x % 128 == 0) {
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
            "cp.async.bulk.commit_group;" ::"l"(&map), "r"(column), "r"(row), "r"(address_of(offset)) : "memory");
    }
}

// Until at most COUNT stores of this warpgroup still read shared memory; a barrier must follow.
template <int COUNT>
DEVICE void wait_for_stores(int) {
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(COUNT) : "memory");
}

DEVICE void fence_before_store() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void store_shared(u32 offset, u32 value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address_of(offset)), "r"(value) : "memory");
}

DEVICE u32 load_shared(u32 offset) {
    u32 value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address_of(offset)) : "memory");
    return value;
}

// --- numbers -----------------------------------------------------------------------------------------------

// Two bfloat16 in a word, rounded to the nearest; the first in its lower half.
DEVICE u32 pack(float first, float second) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

DEVICE Pair unpack(u32 word) { return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)}; }

DEVICE float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// --- products ----------------------------------------------------------------------------------------------

// Descriptors of operands with 128-byte swizzle: address, distance of panels along the contiguous axis, distance of 8
// rows (1024 bytes), all in units of 16 bytes. For a left operand of one panel the first distance does not count.
constexpr u64 SWIZZLE_128 = 1ull << 62, EIGHT_ROWS = 64ull << 32, PANELS = 512ull << 16, NO_PANELS = 1ull << 16;
// How far 16 of the summed axis are: rows of a panel, or 32 bytes within the rows.
constexpr u64 SIXTEEN_ROWS = 128, SIXTEEN_COLUMNS = 2;

DEVICE u64 left_operand(u32 offset) { return (address_of(offset) >> 4 & 0x3fff) | NO_PANELS | EIGHT_ROWS | SWIZZLE_128; }
DEVICE u64 right_operand(u32 offset) { return (address_of(offset) >> 4 & 0x3fff) | PANELS | EIGHT_ROWS | SWIZZLE_128; }

#define SUMS_8(i) \
    "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), "+f"(s[i + 6]), "+f"(s[i + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8(i + 8), SUMS_8(i + 16), SUMS_8(i + 24)
#define SUMS_128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// s = a @ b, or s + that, for 16 of the summed axis.
template <bool LEFT_TRANSPOSED>
DEVICE void wgmma(Sums& s, u64 a, u64 b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SUMS_128 "}, %128, %129, add, 1, 1, %131, 1;\n"
        "}\n"
        : SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(LEFT_TRANSPOSED)));
}

// sums = left @ right of one step, or sums + that: left [64, 64], or with OVER_TOKENS its transpose, right [64, 256].
template <bool OVER_TOKENS>
DEVICE void multiply_step(Sums& sums, u32 left, u32 right, bool add) {
    const u64 a = left_operand(left), b = right_operand(right);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    UNROLL for (int k = 0; k < 4; k++)
        wgmma<OVER_TOKENS>(sums, a + k * (OVER_TOKENS ? SIXTEEN_ROWS : SIXTEEN_COLUMNS), b + k * SIXTEEN_ROWS, add || k > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most COUNT steps are on their way. The sums are named so that nothing of them moves across.
template <int COUNT>
DEVICE void wait_for_products(Sums& sums) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
    UNROLL for (int i = 0; i < 128; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// --- roles --------------------------------------------------------------------------------------------------

template <int REGISTERS>
DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// `begins` is called by one thread, `multiplies(0)` and `multiplies(1)` by a warpgroup each, `loads` by one thread.
template <class Begin, class Load, class Multiply>
DEVICE void run_roles(Begin begins, Load loads, Multiply multiplies) {
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        if (address_of(0) % 1024) asm volatile("trap;");  // the swizzle goes by addresses
        begins();
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    cluster_barrier();
    if (group == 2) {
        give_registers<40>();
        if (threadIdx.x == 256) loads();
        __syncwarp();
    } else {
        take_registers<232>();
        multiplies(group);
    }
    // A program stays while the other one may still write to its memory.
    cluster_barrier();
}
