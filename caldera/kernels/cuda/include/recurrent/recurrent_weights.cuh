// The state's weights of a recurrent layer, and products with them on tensor cores.
#pragma once
#include "types.cuh"

// Units of a block; a tile has eight rows of these.
const int UNITS = 16, WARPS = 8, THREADS = 32 * WARPS, TILE = 8 * UNITS;

// A lane's part of 16 x 16 weights, of which the columns are summed over. Lane 4 g + t has columns
// 4 t to 4 t + 3 of rows g and g + 8, and multiplies them by the same four numbers of row g of the
// state: `add(c, x)` adds a tile of 16 units by 8 rows to c.

// Floats, of which a tensor core sees ten bits after the point.
struct __align__(16) Rounded {
    u32 rows[8];
    static __device__ __forceinline__ float kept(float x) {
        return x != x ? x : bits_to_float(tf32_bits(x));
    }
    __device__ __forceinline__ void set(int pair, int side, float first, float second) {
        rows[4 * pair + side] = tf32_bits(first);
        rows[4 * pair + 2 + side] = tf32_bits(second);
    }
    __device__ __forceinline__ void add(float* c, uint4 x) const {
        mma_tf32(c, rows, x.x, x.y);
        mma_tf32(c, rows + 4, x.z, x.w);
    }
};

// Floats in two parts that together keep 22 bits.
struct __align__(16) Exact {
    float rows[8];
    static __device__ __forceinline__ float kept(float x) { return x; }
    __device__ __forceinline__ void set(int pair, int side, float first, float second) {
        rows[4 * pair + side] = first;
        rows[4 * pair + 2 + side] = second;
    }
    __device__ __forceinline__ void add(float* c, uint4 given) const {
        u32 x[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            u32 high[4], low[4], x_high[2], x_low[2];
#pragma unroll
            for (int i = 0; i < 4; i++) split(as_now(rows[4 * pair + i]), high[i], low[i]);
#pragma unroll
            for (int i = 0; i < 2; i++) split(bits_to_float(x[2 * pair + i]), x_high[i], x_low[i]);
            mma_tf32(c, low, x_high[0], x_high[1]);
            mma_tf32(c, high, x_low[0], x_low[1]);
            mma_tf32(c, high, x_high[0], x_high[1]);
        }
    }
    // A weight as if it had changed: else both its parts would be kept from step to step, in
    // registers that are not there.
    static __device__ __forceinline__ float as_now(float weight) {
#ifdef __CUDA_ARCH__
        asm volatile("" : "+f"(weight));
#endif
        return weight;
    }
    static __device__ __forceinline__ void split(float x, u32& high, u32& low) {
        high = tf32_below(x);
        low = tf32_near(x - bits_to_float(high));
    }
};

// Numbers in 16 bits; what comes as a float was rounded to such a number.
struct __align__(16) Half {
    u32 rows[4];
    static __device__ __forceinline__ float kept(float x) { return x; }
    __device__ __forceinline__ void set(int pair, int side, float first, float second) {
        rows[2 * pair + side] = half_pair(first, second);
    }
    __device__ __forceinline__ void add(float* c, uint4 x) const {
        mma_half(c, rows, half_pair(bits_to_float(x.x), bits_to_float(x.y)),
                 half_pair(bits_to_float(x.z), bits_to_float(x.w)));
    }
};

struct __align__(16) Bfloat {
    u32 rows[4];
    static __device__ __forceinline__ float kept(float x) { return x; }
    __device__ __forceinline__ void set(int pair, int side, float first, float second) {
        rows[2 * pair + side] = bfloat_pair(first, second);
    }
    __device__ __forceinline__ void add(float* c, uint4 x) const {
        mma_bfloat(c, rows, x.x >> 16 | x.y, x.z >> 16 | x.w);
    }
};

// The weights in memory: from vector `left`, unit `from`, to vector `right`, unit `to`.
template <typename T> struct StateWeights {
    const T* start;
    i64 down, across;
    i32 units;

    __device__ __forceinline__ float at(i32 left, i32 from, i32 right, i32 to) const {
        if (from >= units || to >= units) return 0.0f;
        i64 row = (i64)left * units + from, column = (i64)right * units + to;
        return wide(start[row * down + column * across]);
    }
    // Those from units `from` on to units `to` on; none if not `present`.
    template <typename W>
    __device__ __forceinline__ W read(i32 left, i32 from, i32 right, i32 to, bool present) const {
        W weights;
        i32 g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (int pair = 0; pair < 2; pair++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                i32 here = from + 4 * t + 2 * pair, there = to + g + 8 * side;
                weights.set(pair, side, present ? at(left, here, right, there) : 0.0f,
                            present ? at(left, here + 1, right, there) : 0.0f);
            }
        return weights;
    }
};

// The weights of a warp: SHARE pieces for each of VECTORS vectors, KEPT of them in registers and the
// others in shared memory, where a thread finds what it put there itself.
template <typename W, int SHARE, int KEPT, int VECTORS> struct WarpWeights {
    static const int QUADS = sizeof(W) / 16;
    W kept[KEPT][VECTORS];
    uint4* others;

    __device__ __forceinline__ uint4* place(int i, int k, int quad) const {
        return others + (((i - KEPT) * VECTORS + k) * QUADS + quad) * THREADS + threadIdx.x;
    }
    __device__ __forceinline__ void set(int i, int k, const W& weights) {
        if (i < KEPT) {
            kept[i < KEPT ? i : 0][k] = weights;
        } else {
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++)
                *place(i, k, quad) = ((const uint4*)&weights)[quad];
        }
    }
    __device__ __forceinline__ W get(int i, int k) const {
        if (i < KEPT) return kept[i < KEPT ? i : 0][k];
        W weights;
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++) ((uint4*)&weights)[quad] = *place(i, k, quad);
        return weights;
    }
};
