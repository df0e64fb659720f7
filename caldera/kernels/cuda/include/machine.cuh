// Instructions of the card that C++ has no words for. Everything else is plain CUDA C++, so a
// machine without a card can run it once it has these. What a card is too old for is made of what it
// has: compute capability 7.5 knows neither bfloat16 nor tf32, nor copies that nobody waits for.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

__device__ __forceinline__ float bits_to_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ u32 float_to_bits(float x) { return __float_as_uint(x); }

__device__ __forceinline__ float half_bits_to_float(u16 bits) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}

__device__ __forceinline__ u16 float_to_half_bits(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// To half from double without rounding twice.
__device__ __forceinline__ u16 double_to_half_bits(double x) {
    u16 bits;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x));
    return bits;
}

// Two floats as numbers in 16 bits, side by side.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ u32 half_pair(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ u32 bfloat_pair(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#else
__device__ __forceinline__ u32 half_pair(float low, float high) {
    return (u32)float_to_half_bits(high) << 16 | float_to_half_bits(low);
}
// To the nearest, and to an even one of two that are as near; a nan is 0x7fff.
__device__ __forceinline__ u32 nearest_bfloat(float x) {
    u32 bits = __float_as_uint(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
__device__ __forceinline__ u32 bfloat_pair(float low, float high) {
    return nearest_bfloat(high) << 16 | nearest_bfloat(low);
}
#endif
// Two floats as numbers of 8 bits, side by side; what is too large becomes the largest number.
#if __CUDA_ARCH__ >= 890
#define FLOAT8_PAIRS
__device__ __forceinline__ u32 e4m3_pair(float low, float high) {
    u16 both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ u32 e5m2_pair(float low, float high) {
    u16 both;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return both;
}
#endif
// As one of a pair: the card converts single numbers at an eighth of the speed, and plain
// arithmetic would take ten instructions.
__device__ __forceinline__ u16 float_to_bfloat_bits(float x) { return (u16)bfloat_pair(x, 0.0f); }

// Pairs of 16-bit floats. `above`: all bits set in the halves in which a > b, none where a nan is.
// `max`: the larger one in each half, 0x7fff if one of them is a nan.
__device__ __forceinline__ u32 half_pair_above(u32 a, u32 b) {
    u32 mask;
    asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 bfloat_pair_above(u32 a, u32 b) {
    u32 mask;
    asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
#else
__device__ __forceinline__ u32 bfloat_pair_above(u32 a, u32 b) {
    bool low = __uint_as_float(a << 16) > __uint_as_float(b << 16);
    bool high = __uint_as_float(a & 0xffff0000u) > __uint_as_float(b & 0xffff0000u);
    return (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u);
}
#endif
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ u32 half_pair_max(u32 a, u32 b) {
    u32 larger;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}
__device__ __forceinline__ u32 bfloat_pair_max(u32 a, u32 b) {
    u32 larger;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}
#else
// Half by half; numbers beyond `largest`, the bits of infinity, are nans, and 0 is above -0.
__device__ __forceinline__ u32 pair_max(u32 a, u32 b, u32 above, u32 largest) {
    u32 found = 0;
#pragma unroll
    for (int shift = 0; shift < 32; shift += 16) {
        u32 x = a >> shift & 0xffffu, y = b >> shift & 0xffffu;
        u32 larger = above >> shift & 1u ? x : y;
        if (((x | y) & 0x7fffu) == 0) larger = x & y;
        if ((x & 0x7fffu) > largest || (y & 0x7fffu) > largest) larger = 0x7fffu;
        found |= larger << shift;
    }
    return found;
}
__device__ __forceinline__ u32 half_pair_max(u32 a, u32 b) {
    return pair_max(a, b, half_pair_above(a, b), 0x7c00u);
}
__device__ __forceinline__ u32 bfloat_pair_max(u32 a, u32 b) {
    return pair_max(a, b, bfloat_pair_above(a, b), 0x7f80u);
}
#endif

// The first 32 bits of the mantissa that a tensor core keeps of a float.
__device__ __forceinline__ u32 tf32_bits(float x) {
#if __CUDA_ARCH__ >= 800
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
#else
    u32 bits = __float_as_uint(x);
    bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    return finite ? bits + 0x1000u & 0xffffe000u : x != x ? 0x7fffffffu : bits;
#endif
}

// The same for a tensor core alone, which does not look at the last 13 bits: one instruction instead
// of four. No nan that arithmetic makes is lost: where adding would carry into the sign, x stays.
__device__ __forceinline__ u32 tf32_near(float x) {
    return (u32)__viaddmax_s32(__float_as_int(x), 0x1000, __float_as_int(x));
}
// What is left of a float without the last 13 bits.
__device__ __forceinline__ u32 tf32_below(float x) { return __float_as_uint(x) & 0xffffe000u; }

// c (16x8) += a (16x8) b (8x8) in tf32, the fragments as the PTX manual spreads them over a warp; of
// numbers in 16 bits, two in each register, a is 16x16 and b 16x8. Sums are floats.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void mma_tf32(float* c, const u32* a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_half(float* c, const u32* a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bfloat(float* c, const u32* a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
__device__ __forceinline__ void mma_half8(float* c, u32 a0, u32 a1, u32 b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ void mma_half(float* c, const u32* a, u32 b0, u32 b1) {
    mma_half8(c, a[0], a[1], b0);
    mma_half8(c, a[2], a[3], b1);
}
__device__ __forceinline__ u32 lane_now() {
    u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
// Without tensor cores for these types: words go from lane to lane, and `add(c, x, y)` adds what the
// words x of a and y of b give. Lane 4 g + t ends with columns 2 t and 2 t + 1 of rows g and g + 8.
template <typename Add>
__device__ __forceinline__ void warp_mma(float* c, const u32* a, u32 b0, u32 b1, Add add) {
    u32 lane = lane_now();
#pragma unroll
    for (u32 k = 0; k < 8; k++) {
        u32 from = k % 4, row = lane / 4 * 4 + from, column = lane % 4 * 8 + from;
        u32 x0 = __shfl_sync(~0u, a[k < 4 ? 0 : 2], row), x1 = __shfl_sync(~0u, a[k < 4 ? 1 : 3], row);
        u32 y0 = __shfl_sync(~0u, k < 4 ? b0 : b1, column);
        u32 y1 = __shfl_sync(~0u, k < 4 ? b0 : b1, column + 4);
        add(c[0], x0, y0);
        add(c[1], x0, y1);
        add(c[2], x1, y0);
        add(c[3], x1, y1);
    }
}
__device__ __forceinline__ void mma_tf32(float* c, const u32* a, u32 b0, u32 b1) {
    warp_mma(c, a, b0, b1, [](float& sum, u32 x, u32 y) {
        sum += __uint_as_float(x & 0xffffe000u) * __uint_as_float(y & 0xffffe000u);
    });
}
__device__ __forceinline__ void mma_bfloat(float* c, const u32* a, u32 b0, u32 b1) {
    warp_mma(c, a, b0, b1, [](float& sum, u32 x, u32 y) {
        sum += __uint_as_float(x << 16) * __uint_as_float(y << 16);
        sum += __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
    });
}
#endif

// The number of this thread, asked for anew: what is computed from it is not kept in registers for
// later turns of a loop, as what is computed from `threadIdx` is.
__device__ __forceinline__ i32 thread_now() {
    i32 number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

// Where something lies in shared memory: instructions that read it by warps want it so.
typedef u32 SharedPlace;
__device__ __forceinline__ SharedPlace shared_place(const void* pointer) {
    return (SharedPlace)__cvta_generic_to_shared(pointer);
}

// Four matrices of 8 rows of 16 bytes: lane 8 m + i says where row i of matrix m begins, and lane
// 4 i + w is given word w of row i of each of them.
__device__ __forceinline__ void mma_rows(u32* words, SharedPlace row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row));
}
// The same of numbers in 16 bits, transposed: lane 4 i + w is given number i of rows 2 w, 2 w + 1.
__device__ __forceinline__ void mma_columns(u32* words, SharedPlace row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row));
}

// A copy to shared memory of 4 or 16 bytes, of which the first `some` are copied and the rest is zero;
// nobody waits for it until `copies_done`.
template <int BYTES>
__device__ __forceinline__ void copy_some(void* to, const void* from, int some) {
#if __CUDA_ARCH__ >= 800
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(shared_place(to)), "l"(from), "r"(some) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :: "r"(shared_place(to)), "l"(from), "r"(some) : "memory");
#else
    if (BYTES == 16 && some == 16) {
        *(uint4*)to = *(const uint4*)from;
        return;
    }
#pragma unroll
    for (int i = 0; i < BYTES / 2; i++) ((u16*)to)[i] = 2 * i < some ? ((const u16*)from)[i] : 0;
#endif
}
// The same of all bytes, or zeros if not `inside`.
__device__ __forceinline__ void copy_ahead16(void* to, const void* from, bool inside) {
    copy_some<16>(to, from, inside ? 16 : 0);
}
__device__ __forceinline__ void copy_ahead4(void* to, const void* from, bool inside) {
    copy_some<4>(to, from, inside ? 4 : 0);
}
// Ends a group of copies of this thread; `copies_done` waits for all groups but the last `AFTER`.
__device__ __forceinline__ void copies_begun() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int AFTER> __device__ __forceinline__ void copies_done() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(AFTER) : "memory");
#endif
}

// A read that sees what other blocks wrote before their release.
__device__ __forceinline__ u32 load_acquire(const u32* place) {
    u32 value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(place) : "memory");
    return value;
}

// What a thread does while it waits for another block.
__device__ __forceinline__ void spin() {}

// Blocks of a cooperative launch meet: each arrives once, after its threads have met, and waits until
// `barrier` has grown to `target`. What was written before is seen after that.
__device__ __forceinline__ void grid_arrive(u32* barrier) {
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(barrier) : "memory");
}
__device__ __forceinline__ void grid_wait(u32* barrier, u32 target) {
    if (threadIdx.x == 0)
        while ((i32)(load_acquire(barrier) - target) < 0) spin();
    __syncthreads();
}

// Shared memory whose size is given at the launch.
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
