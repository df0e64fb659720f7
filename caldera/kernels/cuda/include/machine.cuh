// Instructions of the card that C++ has no words for. Everything else is plain CUDA C++, so a
// machine without a card can run it once it has these.
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
__device__ __forceinline__ u32 bfloat_pair_above(u32 a, u32 b) {
    u32 mask;
    asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
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

// The first 32 bits of the mantissa that a tensor core keeps of a float.
__device__ __forceinline__ u32 tf32_bits(float x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

// The same for a tensor core alone, which does not look at the last 13 bits: one instruction instead
// of four. No nan that arithmetic makes is lost: where adding would carry into the sign, x stays.
__device__ __forceinline__ u32 tf32_near(float x) {
    return (u32)__viaddmax_s32(__float_as_int(x), 0x1000, __float_as_int(x));
}
// What is left of a float without the last 13 bits.
__device__ __forceinline__ u32 tf32_below(float x) { return __float_as_uint(x) & 0xffffe000u; }

// c (16x8) += a (16x8) b (8x8) in tf32, the fragments as the PTX manual spreads them over a warp.
__device__ __forceinline__ void mma_tf32(float* c, const u32* a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c (16x8) += a (16x16) b (16x8) of numbers in 16 bits, two in each register; sums are floats.
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

// A copy to shared memory that nobody waits for until `copies_done`; zeros if not `inside`.
__device__ __forceinline__ void copy_ahead16(void* to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_place(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_ahead4(void* to, const void* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(shared_place(to)), "l"(from), "r"(inside ? 4 : 0) : "memory");
}
// The same of 4 or 16 bytes, of which the first `some` are copied and the rest is zero.
template <int BYTES>
__device__ __forceinline__ void copy_some(void* to, const void* from, int some) {
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(shared_place(to)), "l"(from), "r"(some) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :: "r"(shared_place(to)), "l"(from), "r"(some) : "memory");
}
// Ends a group of copies of this thread; `copies_done` waits for all groups but the last `AFTER`.
__device__ __forceinline__ void copies_begun() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int AFTER> __device__ __forceinline__ void copies_done() {
    asm volatile("cp.async.wait_group %0;" :: "n"(AFTER) : "memory");
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
