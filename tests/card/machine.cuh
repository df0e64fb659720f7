// CUDA for a machine without a card: every thread of a block is a fiber, and a fiber that has to
// wait for others lets them run. Blocks run one after the other, or all at once for kernels in
// which the whole grid meets.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Blocks of kernels with memory of this kind run one after the other, so one place serves all.
#define __shared__ static
#define __constant__ static const
#define __grid_constant__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

struct dim3 { unsigned x, y, z; };
struct uint3 { unsigned x, y, z; };
struct float2 { float x, y; } __attribute__((aligned(8)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
struct uint2 { u32 x, y; } __attribute__((aligned(8)));
struct uint4 { u32 x, y, z, w; } __attribute__((aligned(16)));
struct int4 { i32 x, y, z, w; } __attribute__((aligned(16)));
struct double2 { double x, y; } __attribute__((aligned(16)));
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

namespace emulated {
struct Barrier { unsigned arrived, generation; };

struct Block {
    uint3 index;
    unsigned alive;
    Barrier meeting;
    Barrier warps[32];
    unsigned alive_in_warp[32];
    u64 exchange[1024];
    u32 fragments[1024][6];
    char* shared;
};

struct Fiber {
    ucontext_t start;
    jmp_buf place;
    bool started;
    uint3 thread;
    unsigned rank;
    Block* block;
    bool done;
    // The barrier it waits for, and how often that had been passed when it came.
    const Barrier* awaited;
    unsigned since;
};

static dim3 grid_size, block_size;
static Fiber* current;
static jmp_buf scheduler;

static bool alone;

// Jumps instead of switches of context: those ask the system to do what is not needed here.
__attribute__((noinline)) static void give_way() {
    if (alone) abort();  // taken for a kernel whose threads never meet
    if (_setjmp(current->place) == 0) _longjmp(scheduler, 1);
}

__attribute__((noinline)) static void resume(Fiber* fiber) {
    current = fiber;
    if (_setjmp(scheduler)) return;
    if (fiber->started) _longjmp(fiber->place, 1);
    fiber->started = true;
    setcontext(&fiber->start);
}

inline void meet(Barrier& barrier, unsigned& alive) {
    unsigned mine = barrier.generation;
    barrier.arrived++;
    current->awaited = &barrier;
    current->since = mine;
    while (barrier.generation == mine) {
        // Threads that have ended do not come.
        if (barrier.arrived >= alive) {
            barrier.arrived = 0;
            barrier.generation++;
            break;
        }
        give_way();
    }
    current->awaited = 0;
}

inline void meet_warp() {
    Block& block = *current->block;
    unsigned warp = current->rank / 32;
    meet(block.warps[warp], block.alive_in_warp[warp]);
}

template <typename T> T exchanged(T value, unsigned lane) {
    static_assert(sizeof(T) <= 8, "registers are exchanged");
    Block& block = *current->block;
    u64 packed = 0;
    memcpy(&packed, &value, sizeof(T));
    block.exchange[current->rank] = packed;
    meet_warp();
    u64 theirs = block.exchange[(current->rank & ~31u) + lane];
    meet_warp();
    memcpy(&value, &theirs, sizeof(T));
    return value;
}
}  // namespace emulated

#define threadIdx (emulated::current->thread)
#define blockIdx (emulated::current->block->index)
#define blockDim (emulated::block_size)
#define gridDim (emulated::grid_size)
#define warpSize 32

inline void __syncthreads() {
    emulated::Block& block = *emulated::current->block;
    emulated::meet(block.meeting, block.alive);
}
inline void __syncwarp(unsigned = 0xffffffffu) { emulated::meet_warp(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline unsigned lane_of() { return emulated::current->rank & 31u; }

template <typename T> T __shfl_sync(unsigned, T value, int lane, int width = 32) {
    unsigned base = lane_of() & ~(unsigned)(width - 1);
    return emulated::exchanged(value, base + ((unsigned)lane & (width - 1)));
}
template <typename T> T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
    unsigned other = lane_of() ^ (unsigned)mask;
    unsigned end = (lane_of() & ~(unsigned)(width - 1)) + width;
    return emulated::exchanged(value, other < end ? other : lane_of());
}
template <typename T> T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32) {
    unsigned end = (lane_of() & ~(unsigned)(width - 1)) + width;
    unsigned other = lane_of() + delta;
    return emulated::exchanged(value, other < end ? other : lane_of());
}
template <typename T> T __shfl_up_sync(unsigned, T value, unsigned delta, int width = 32) {
    unsigned base = lane_of() & ~(unsigned)(width - 1);
    unsigned other = lane_of() >= base + delta ? lane_of() - delta : lane_of();
    return emulated::exchanged(value, other);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
    emulated::Block& block = *emulated::current->block;
    block.exchange[emulated::current->rank] = predicate ? 1 : 0;
    emulated::meet_warp();
    unsigned found = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (block.exchange[(emulated::current->rank & ~31u) + lane]) found |= 1u << lane;
    emulated::meet_warp();
    return found;
}

template <typename T> T atomicAdd(T* place, T value) { T old = *place; *place = old + value; return old; }
template <typename T> T atomicMax(T* place, T value) { T old = *place; if (value > old) *place = value; return old; }
template <typename T> T atomicMin(T* place, T value) { T old = *place; if (value < old) *place = value; return old; }
template <typename T> T atomicExch(T* place, T value) { T old = *place; *place = value; return old; }
template <typename T> T atomicCAS(T* place, T expected, T value) {
    T old = *place;
    if (old == expected) *place = value;
    return old;
}

inline u32 __umulhi(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline void sincospif(float x, float* sine, float* cosine) {
    *sine = (float)sin(M_PI * (double)x);
    *cosine = (float)cos(M_PI * (double)x);
}
inline void sincospi(double x, double* sine, double* cosine) {
    *sine = sin(M_PI * x);
    *cosine = cos(M_PI * x);
}
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __uint_as_float(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
inline u32 __float_as_uint(float x) { u32 bits; memcpy(&bits, &x, 4); return bits; }
inline int __float_as_int(float x) { int bits; memcpy(&bits, &x, 4); return bits; }
inline float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
inline long long __double_as_longlong(double x) { long long bits; memcpy(&bits, &x, 8); return bits; }
inline double __longlong_as_double(long long bits) { double x; memcpy(&x, &bits, 8); return x; }
inline int __popc(u32 x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <typename T> T __ldg(const T* place) { return *place; }
template <typename T> T __ldcg(const T* place) { return *place; }
template <typename T> void __stcg(T* place, T value) { *place = value; }
template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }

inline float bits_to_float(u32 bits) { return __uint_as_float(bits); }
inline u32 float_to_bits(float x) { return __float_as_uint(x); }

inline float half_bits_to_float(u16 bits) {
    u32 sign = (u32)(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
    if (exponent) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
    float small = ldexpf((float)mantissa, -24);
    return sign ? -small : small;
}
inline u16 double_to_half_bits(double x) {
    u16 sign = signbit(x) ? 0x8000u : 0;
    double size = fabs(x);
    if (size != size) return 0x7fffu;
    if (size >= 65520.0) return sign | 0x7c00u;
    int exponent;
    frexp(size, &exponent);
    // The unit in the last place: fixed below the smallest normal number.
    double unit = ldexp(1.0, exponent - 11 < -24 ? -24 : exponent - 11);
    double rounded = nearbyint(size / unit) * unit;
    if (rounded < ldexp(1.0, -14)) return sign | (u16)(rounded / ldexp(1.0, -24));
    double fraction = frexp(rounded, &exponent);
    return sign | (u16)((exponent + 14) << 10) | (u16)(ldexp(fraction, 11) - 1024.0);
}
inline u16 float_to_half_bits(float x) { return double_to_half_bits(x); }
inline u16 float_to_bfloat_bits(float x) {
    u32 bits = float_to_bits(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
inline u32 bfloat_pair(float low, float high) {
    return float_to_bfloat_bits(low) | (u32)float_to_bfloat_bits(high) << 16;
}

inline float bfloat_bits_to_float(u16 bits) { return bits_to_float((u32)bits << 16); }
template <float (*WIDE)(u16)> u32 two_above(u32 a, u32 b) {
    u32 low = WIDE((u16)a) > WIDE((u16)b), high = WIDE((u16)(a >> 16)) > WIDE((u16)(b >> 16));
    return low * 0xffffu | high * 0xffff0000u;
}
template <float (*WIDE)(u16)> u32 larger_bits(u16 a, u16 b) {
    float x = WIDE(a), y = WIDE(b);
    return x != x || y != y ? 0x7fffu : x > y || (x == y && !signbit(x)) ? a : b;
}
template <float (*WIDE)(u16)> u32 two_max(u32 a, u32 b) {
    return larger_bits<WIDE>((u16)a, (u16)b) |
           larger_bits<WIDE>((u16)(a >> 16), (u16)(b >> 16)) << 16;
}
inline u32 half_pair_above(u32 a, u32 b) { return two_above<half_bits_to_float>(a, b); }
inline u32 bfloat_pair_above(u32 a, u32 b) { return two_above<bfloat_bits_to_float>(a, b); }
inline u32 half_pair_max(u32 a, u32 b) { return two_max<half_bits_to_float>(a, b); }
inline u32 bfloat_pair_max(u32 a, u32 b) { return two_max<bfloat_bits_to_float>(a, b); }
inline i32 thread_now() { return (i32)threadIdx.x; }
inline u32 tf32_below(float x) { return float_to_bits(x) & 0xffffe000u; }
inline u32 tf32_near(float x) {
    u32 bits = float_to_bits(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}
inline u32 tf32_bits(float x) { return (float_to_bits(x) + 0x1000u) & ~0x1fffu; }

// The fragments are spread over the lanes as on the card: put together, multiplied, spread again. A
// word holds MANY numbers; `product` multiplies those of two words with the same place in them.
template <int MANY, typename Product>
void mma_of(float* c, const u32* a, u32 b0, u32 b1, Product product) {
    emulated::Block& block = *emulated::current->block;
    unsigned g = lane_of() / 4, t = lane_of() % 4, first = emulated::current->rank & ~31u;
    u32* mine = block.fragments[emulated::current->rank];
    for (unsigned i = 0; i < 4; i++) mine[i] = a[i];
    mine[4] = b0;
    mine[5] = b1;
    emulated::meet_warp();
    for (unsigned i = 0; i < 2; i++)
        for (unsigned j = 0; j < 2; j++)
            for (unsigned k = 0; k < 8 * MANY; k++) {
                unsigned lane = k % (4 * MANY) / MANY, word = k / (4 * MANY);
                u32 left = block.fragments[first + g * 4 + lane][i + word * 2];
                u32 right = block.fragments[first + (2 * t + j) * 4 + lane][4 + word];
                c[2 * i + j] += product(left, right, k % MANY);
            }
    emulated::meet_warp();
}
inline void mma_tf32(float* c, const u32* a, u32 b0, u32 b1) {
    mma_of<1>(c, a, b0, b1, [](u32 left, u32 right, unsigned) {
        return bits_to_float(left) * bits_to_float(right);
    });
}
template <typename Wide> void mma_of_16_bits(float* c, const u32* a, u32 b0, u32 b1, Wide wide) {
    mma_of<2>(c, a, b0, b1, [&](u32 left, u32 right, unsigned place) {
        return wide((u16)(left >> place * 16)) * wide((u16)(right >> place * 16));
    });
}
inline void mma_half(float* c, const u32* a, u32 b0, u32 b1) {
    mma_of_16_bits(c, a, b0, b1, half_bits_to_float);
}
inline void mma_bfloat(float* c, const u32* a, u32 b0, u32 b1) {
    mma_of_16_bits(c, a, b0, b1, [](u16 bits) { return bits_to_float((u32)bits << 16); });
}

inline u32 half_pair(float low, float high) {
    return (u32)float_to_half_bits(high) << 16 | float_to_half_bits(low);
}

typedef u64 SharedPlace;
inline SharedPlace shared_place(const void* pointer) { return (SharedPlace)pointer; }
// Matrix m of those whose rows the lanes say: where its row begins.
inline const char* row_of(unsigned m, unsigned row) {
    const emulated::Block& block = *emulated::current->block;
    u64 place = block.exchange[(emulated::current->rank & ~31u) + m * 8 + row];
    if (place % 16) abort();
    return (const char*)place;
}
inline void mma_rows(u32* words, SharedPlace row) {
    emulated::current->block->exchange[emulated::current->rank] = row;
    emulated::meet_warp();
    for (unsigned m = 0; m < 4; m++)
        memcpy(words + m, row_of(m, lane_of() / 4) + lane_of() % 4 * 4, 4);
    emulated::meet_warp();
}
inline void mma_columns(u32* words, SharedPlace row) {
    emulated::current->block->exchange[emulated::current->rank] = row;
    emulated::meet_warp();
    for (unsigned m = 0; m < 4; m++) {
        u16 both[2];
        for (unsigned i = 0; i < 2; i++)
            memcpy(both + i, row_of(m, lane_of() % 4 * 2 + i) + lane_of() / 4 * 2, 2);
        memcpy(words + m, both, 4);
    }
    emulated::meet_warp();
}
template <int BYTES> void copy_now(void* to, const void* from, bool inside) {
    if ((u64)to % BYTES || (inside && (u64)from % BYTES)) abort();
    if (inside) memcpy(to, from, BYTES);
    else memset(to, 0, BYTES);
}
inline void copy_ahead16(void* to, const void* from, bool inside) {
    copy_now<16>(to, from, inside);
}
inline void copy_ahead4(void* to, const void* from, bool inside) { copy_now<4>(to, from, inside); }
template <int BYTES> void copy_some(void* to, const void* from, int some) {
    if (some < 0 || some > BYTES) abort();
    if ((u64)to % BYTES || (some && (u64)from % BYTES)) abort();
    memset(to, 0, BYTES);
    memcpy(to, from, some);
}
inline void copies_begun() {}
template <int AFTER> void copies_done() {}

inline u32 load_acquire(const u32* place) { return *(volatile const u32*)place; }
inline void spin() { emulated::give_way(); }
inline void grid_arrive(u32* barrier) {
    if (emulated::current->rank == 0) atomicAdd(barrier, 1u);
}
inline void grid_wait(u32* barrier, u32 target) {
    if (emulated::current->rank == 0)
        while ((i32)(load_acquire(barrier) - target) < 0) spin();
    __syncthreads();
}
#define DYNAMIC_SHARED(type, name) type* name = (type*)emulated::current->block->shared
