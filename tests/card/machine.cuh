// CUDA for a machine without a card: every thread of a block is a fiber, and a fiber that has to
// wait for others lets them run. Blocks run one after the other, or all at once for kernels in
// which the whole grid meets.
//
// Every source is compiled with this header: what is not a template is only declared here and
// defined in machine.cpp, which is compiled once, and C's headers are read without C++'s.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

// What a kernel sees of the thread that runs it.
struct Thread {
    uint3 index;
    unsigned rank;
    Block* block;
};

extern dim3 grid_size, block_size;
extern Thread* current;

// Runs the fibers that `current` waits for.
void give_way();
void meet_warp();
// What a lane of the warp has given.
u64 exchanged_bits(u64 mine, unsigned lane);

template <typename T> T exchanged(T value, unsigned lane) {
    static_assert(sizeof(T) <= 8, "registers are exchanged");
    u64 packed = 0;
    memcpy(&packed, &value, sizeof(T));
    packed = exchanged_bits(packed, lane);
    memcpy(&value, &packed, sizeof(T));
    return value;
}

// The kernel with its parameters taken from pointers: those in braces are taken in their order.
struct Call {
    template <typename... P> Call(void (*kernel)(P...), P... given) { kernel(given...); }
};
template <typename... P> void call(void (*kernel)(P...), void** given) {
    Call{kernel, *(P*)*given++...};
}
// Not 0 if a block has written beside its shared memory. `stacks` gives memory for fibers.
int run(void (*call)(void**), const unsigned* sizes, unsigned long shared, void** arguments,
        int meeting, char* (*stacks)(size_t));
}  // namespace emulated

#define threadIdx (emulated::current->index)
#define blockIdx (emulated::current->block->index)
#define blockDim (emulated::block_size)
#define gridDim (emulated::grid_size)
#define warpSize 32

void __syncthreads();
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
unsigned __ballot_sync(unsigned, int predicate);

template <typename T> T atomicAdd(T* place, T value) { T old = *place; *place = old + value; return old; }
template <typename T> T atomicMax(T* place, T value) { T old = *place; if (value > old) *place = value; return old; }
template <typename T> T atomicMin(T* place, T value) { T old = *place; if (value < old) *place = value; return old; }
template <typename T> T atomicExch(T* place, T value) { T old = *place; *place = value; return old; }
template <typename T> T atomicCAS(T* place, T expected, T value) {
    T old = *place;
    if (old == expected) *place = value;
    return old;
}

// As in CUDA, and in C++'s header: a function of a float is computed with floats.
#define OF_FLOATS(name) inline float name(float x) { return name##f(x); }
OF_FLOATS(fabs)
OF_FLOATS(exp)
OF_FLOATS(exp2)
OF_FLOATS(expm1)
OF_FLOATS(log)
OF_FLOATS(log2)
OF_FLOATS(log1p)
OF_FLOATS(sqrt)
OF_FLOATS(sin)
OF_FLOATS(cos)
OF_FLOATS(tan)
OF_FLOATS(tanh)
OF_FLOATS(erf)
OF_FLOATS(erfc)
OF_FLOATS(lgamma)
OF_FLOATS(log10)
OF_FLOATS(asin)
OF_FLOATS(acos)
OF_FLOATS(atan)
OF_FLOATS(sinh)
OF_FLOATS(cosh)
OF_FLOATS(asinh)
OF_FLOATS(acosh)
OF_FLOATS(atanh)
OF_FLOATS(floor)
OF_FLOATS(ceil)
OF_FLOATS(rint)
OF_FLOATS(round)
OF_FLOATS(trunc)
inline float pow(float x, float y) { return powf(x, y); }
inline float fmod(float x, float y) { return fmodf(x, y); }
inline float fmax(float x, float y) { return fmaxf(x, y); }
inline float fmin(float x, float y) { return fminf(x, y); }
inline float copysign(float x, float y) { return copysignf(x, y); }
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }

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
void sincospif(float x, float* sine, float* cosine);
void sincospi(double x, double* sine, double* cosine);
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

float half_bits_to_float(u16 bits);
u16 double_to_half_bits(double x);
inline u16 float_to_half_bits(float x) { return double_to_half_bits(x); }
inline u16 float_to_bfloat_bits(float x) {
    u32 bits = float_to_bits(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
inline u32 bfloat_pair(float low, float high) {
    return float_to_bfloat_bits(low) | (u32)float_to_bfloat_bits(high) << 16;
}
inline u32 half_pair(float low, float high) {
    return (u32)float_to_half_bits(high) << 16 | float_to_half_bits(low);
}
u32 half_pair_above(u32 a, u32 b);
u32 bfloat_pair_above(u32 a, u32 b);
u32 half_pair_max(u32 a, u32 b);
u32 bfloat_pair_max(u32 a, u32 b);
inline i32 thread_now() { return (i32)threadIdx.x; }
inline u32 tf32_below(float x) { return float_to_bits(x) & 0xffffe000u; }
inline u32 tf32_near(float x) {
    u32 bits = float_to_bits(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}
inline u32 tf32_bits(float x) { return (float_to_bits(x) + 0x1000u) & ~0x1fffu; }

void mma_tf32(float* c, const u32* a, u32 b0, u32 b1);
void mma_half(float* c, const u32* a, u32 b0, u32 b1);
void mma_bfloat(float* c, const u32* a, u32 b0, u32 b1);

typedef u64 SharedPlace;
inline SharedPlace shared_place(const void* pointer) { return (SharedPlace)pointer; }
void mma_rows(u32* words, SharedPlace row);
void mma_columns(u32* words, SharedPlace row);
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
