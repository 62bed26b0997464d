// What kernel.cu is made of, in PTX for sm_90. Shared memory is named by byte offsets from its beginning.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define KERNEL extern "C" __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(256)
// A thread and a warp do their own part; where a program is emulated by one thread, these are loops.
#define FOR_THREADS(t) for (int t = threadIdx.x, once = 1; once; once = 0)
#define FOR_WARPS(w) for (int w = threadIdx.x / 32, once = 1; once; once = 0)
#define FOR_LANES(i) for (int i = threadIdx.x % 32, once = 1; once; once = 0)

extern __shared__ __align__(128) char shared_memory[];

DEVICE u32 address_of(u32 offset) { return static_cast<u32>(__cvta_generic_to_shared(shared_memory)) + offset; }
DEVICE int lane() { return threadIdx.x % 32; }

// --- where a program is, and with whom ---------------------------------------------------------------------

DEVICE int program_in_cluster() { return blockIdx.x % 8; }
DEVICE int cluster_number() { return blockIdx.x / 8; }

DEVICE void program_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The launch that follows may begin; it waits itself before it reads what this one writes.
DEVICE void let_the_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_for_the_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// --- copies and numbers in shared memory ---------------------------------------------------------------------

// 16 bytes, or zeros where nothing is.
DEVICE void copy(u32 offset, const u16* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(offset)), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}

DEVICE void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most COUNT groups of copies of this thread are on their way; a barrier must follow.
template <int COUNT>
DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

using Two = float2;
using Four = float4;

DEVICE void put(u32 offset, Two values) { *reinterpret_cast<Two*>(shared_memory + offset) = values; }
DEVICE float get(u32 offset) { return *reinterpret_cast<const float*>(shared_memory + offset); }
DEVICE Four get_four(u32 offset) { return *reinterpret_cast<const Four*>(shared_memory + offset); }
DEVICE Four added(Four a, Four b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// Into another program's shared memory.
DEVICE void put_there(int program, u32 offset, Four values) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n"
        "}\n" ::"r"(address_of(offset)),
        "r"(program), "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w) : "memory");
}

DEVICE float as_float(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }

// Two bfloat16 in a word, rounded to the nearest; the first in its lower half.
DEVICE u32 pack(float first, float second) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}

DEVICE void store_1(u16* to, float value) { *to = static_cast<u16>(pack(value, 0.0f)); }

// In PTX, because the compiler cuts such a store in C++ into four.
DEVICE void store_8(u16* to, const float (&v)[8]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(pack(v[0], v[1])), "r"(pack(v[2], v[3])),
                 "r"(pack(v[4], v[5])), "r"(pack(v[6], v[7])) : "memory");
}

// --- tiles of 16 x 16, of which each lane of a warp has a part -------------------------------------------------

struct Left {
    u32 part[4];
};
struct Right {
    u32 part[4];
};
struct WideRight {
    u32 part[8];
};
struct Sums {
    float part[8] = {};
};
struct WideSums {
    float part[16] = {};
};

// From rows `pitch` bytes apart, a multiple of 16 that is odd, so that eight rows lie in different banks.
DEVICE u32 element(u32 offset, int pitch, int row, int column) { return address_of(offset + row * pitch + 2 * column); }

#define LOAD_MATRICES(how, tile, at) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(tile.part[0]), "=r"(tile.part[1]), "=r"(tile.part[2]), "=r"(tile.part[3]) : "r"(at) : "memory")

DEVICE Left left_tile(u32 offset, int pitch, int row, int column) {
    Left tile;
    LOAD_MATRICES("", tile, element(offset, pitch, row + lane() % 16, column + lane() / 16 * 8));
    return tile;
}

// The transpose of what lies there.
DEVICE Left left_tile_of_columns(u32 offset, int pitch, int row, int column) {
    Left tile;
    LOAD_MATRICES(".trans", tile, element(offset, pitch, row + lane() / 16 * 8 + lane() % 8, column + lane() / 8 % 2 * 8));
    return tile;
}

DEVICE Right right_tile(u32 offset, int pitch, int row, int column) {
    Right tile;
    LOAD_MATRICES(".trans", tile, element(offset, pitch, row + lane() % 16, column + lane() / 16 * 8));
    return tile;
}

// [16, 32], from row 0 on. Its columns are dealt to the lanes so that each lane of a product has eight neighbours, which
// it can store at once.
DEVICE WideRight wide_right_tile(u32 offset, int pitch, int column) {
    WideRight tile;
    const int group = lane() / 4, row = lane() % 4 * 2;
    UNROLL for (int i = 0; i < 8; i++) {
        const u32 at = offset + (row + i % 2 * 8) * pitch + 2 * (column + group / 2 * 8 + i / 2 * 2 + group % 2);
        const u32 first = *reinterpret_cast<const u16*>(shared_memory + at);
        const u32 second = *reinterpret_cast<const u16*>(shared_memory + at + pitch);
        tile.part[i] = first | second << 16;
    }
    return tile;
}

template <int COUNT>
DEVICE void multiply_parts(float (&s)[4 * COUNT], const Left& a, const u32 (&b)[2 * COUNT]) {
    UNROLL for (int i = 0; i < COUNT; i++)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(s[4 * i]), "+f"(s[4 * i + 1]), "+f"(s[4 * i + 2]), "+f"(s[4 * i + 3])
            : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(b[2 * i]), "r"(b[2 * i + 1]));
}
DEVICE void multiply(Sums& sums, const Left& a, const Right& b) { multiply_parts<2>(sums.part, a, b.part); }
DEVICE void multiply(WideSums& sums, const Left& a, const WideRight& b) { multiply_parts<4>(sums.part, a, b.part); }

// use(row, column, two sums) for all neighbours of even and odd column.
template <class Use>
DEVICE void for_pairs(const Sums& sums, Use use) {
    UNROLL for (int i = 0; i < 4; i++)
        use(lane() / 4 + i % 2 * 8, lane() % 4 * 2 + i / 2 * 8, sums.part[2 * i], sums.part[2 * i + 1]);
}

// use(row, column, eight sums) for all neighbours from a column that is a multiple of 8.
template <class Use>
DEVICE void for_eights(const WideSums& sums, Use use) {
    const float* s = sums.part;
    UNROLL for (int i = 0; i < 4; i += 2) {
        const float eight[8] = {s[i], s[i + 1], s[i + 4], s[i + 5], s[i + 8], s[i + 9], s[i + 12], s[i + 13]};
        use(lane() / 4 + i * 4, lane() % 4 * 8, eight);
    }
}
