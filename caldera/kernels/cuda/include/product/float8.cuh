// Matrices of 8-bit floating-point numbers: rounding to them, as they are and transposed, and back.
#pragma once
#include "types.cuh"
#include "vector_access.cuh"

// A format: digits after the point, the bias of its exponents, and the bits of its largest number.
template <int MANTISSA, int BIAS, u32 LARGEST> struct Float8 {
    static __device__ __forceinline__ u32 rounded(float x) {
        const u32 bits = float_to_bits(x), sign = bits >> 31 << 7, size = bits & 0x7fffffffu;
        if (size > 0x7f800000u) return 0x7fu;
        u32 found;
        if (size >> 23 >= 128u - BIAS) {
            const int dropped = 23 - MANTISSA;
            found = (size + (1u << (dropped - 1)) - 1u + (size >> dropped & 1u)) >> dropped;
            found -= (127u - BIAS) << MANTISSA;
        } else {
            // The sum's last digit is the smallest number's, and sums round to even.
            const float base = bits_to_float((151u - BIAS - MANTISSA) << 23);
            found = float_to_bits(bits_to_float(size) + base) - float_to_bits(base);
        }
        return sign | (found < LARGEST ? found : LARGEST);
    }
    static __device__ __forceinline__ float value(u32 bits) {
        const u32 size = bits & 0x7fu;
        const float above = bits_to_float(size << (23 - MANTISSA));
        // Numbers without a leading one come right with the others.
        const float found = size > LARGEST ? bits_to_float(0x7fffffffu)
                                           : above * bits_to_float((254u - BIAS) << 23);
        return bits & 0x80u ? -found : found;
    }
};
struct E4M3 : Float8<3, 7, 0x7eu> {
#ifdef FLOAT8_PAIRS
    static __device__ __forceinline__ u32 pair(float low, float high) {
        return e4m3_pair(low, high);
    }
#else
    static __device__ __forceinline__ u32 pair(float low, float high) {
        return rounded(high) << 8 | rounded(low);
    }
#endif
};
struct E5M2 : Float8<2, 15, 0x7bu> {
#ifdef FLOAT8_PAIRS
    static __device__ __forceinline__ u32 pair(float low, float high) {
        return e5m2_pair(low, high);
    }
#else
    static __device__ __forceinline__ u32 pair(float low, float high) {
        return rounded(high) << 8 | rounded(low);
    }
#endif
};

// The largest size of the block's numbers, as its bits: those of nan are above all others.
__device__ __forceinline__ u32 block_largest(u32 bits) {
    __shared__ u32 found[8];
#pragma unroll
    for (int lane = 16; lane; lane /= 2) {
        const u32 other = __shfl_xor_sync(0xffffffffu, bits, lane);
        bits = other > bits ? other : bits;
    }
    if (!(threadIdx.x & 31)) found[threadIdx.x >> 5] = bits;
    __syncthreads();
    for (int warp = 0; warp < 8; warp++) bits = found[warp] > bits ? found[warp] : bits;
    return bits;
}
template <typename T> __device__ __forceinline__ u32 size_of(T x, u32 before) {
    const u32 bits = float_to_bits((float)wide(x)) & 0x7fffffffu;
    return bits > before ? bits : before;
}

// Distances in elements between rows and between columns.
struct Steps { i64 row, column; };

// By 256 threads a block: dense numbers, `N` at a time, or single ones wherever they lie.
template <int N, typename T>
__device__ void block_sizes(const T* x, u32* largest, Steps given, i64 columns, i64 count) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    u32 bits = 0;
#pragma unroll 4
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count / N; i += step) {
        if (N == 1) {
            const i64 row = i / columns, column = i - row * columns;
            bits = size_of(x[row * given.row + column * given.column], bits);
            continue;
        }
        const Pack<T, N> pack = dense<N>(x + i * N);
#pragma unroll
        for (int k = 0; k < N; k++) bits = size_of(pack.v[k], bits);
    }
    bits = block_largest(bits);
    if (threadIdx.x == 0) largest[blockIdx.x] = bits;
}
__device__ __forceinline__ void block_factor(const u32* largest, float* factor, i32 count,
                                             float most, float least) {
    u32 bits = float_to_bits(least);
    for (i32 i = threadIdx.x; i < count; i += blockDim.x)
        bits = largest[i] > bits ? largest[i] : bits;
    bits = block_largest(bits);
    if (threadIdx.x == 0) *factor = most / bits_to_float(bits);
}

// A tile of 64 x 64 numbers by 256 threads, each of which rounds 8 of a row at a time. Sides of the
// matrix are multiples of 8. Rows and transposed rows are written where they are wanted.
template <typename F, bool ROWS, bool COLUMNS, typename T>
__device__ void block_to_float8(const T* x, const float* factor, u8* as_is, u8* transposed, i32 rows,
                          i32 columns, i32 across) {
    __shared__ u32 tile[64][17];
    const i32 at_row = (i32)(blockIdx.x / (u32)across) * 64;
    const i32 at_column = (i32)(blockIdx.x % (u32)across) * 64;
    const i32 down = threadIdx.x >> 3, right = (threadIdx.x & 7) * 8;
    const float by = *factor;
#pragma unroll
    for (int half = 0; half < 64; half += 32) {
        const i32 row = at_row + down + half, column = at_column + right;
        if (row >= rows || column >= columns) continue;
        const Pack<T, 8> given = dense<8>(x + (i64)row * columns + column);
        u32 words[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const T* v = given.v + 4 * k;
            words[k] = F::pair((float)wide(v[0]) * by, (float)wide(v[1]) * by) |
                       F::pair((float)wide(v[2]) * by, (float)wide(v[3]) * by) << 16;
        }
        if (ROWS) *(uint2*)(as_is + (i64)row * columns + column) = uint2{words[0], words[1]};
        if (COLUMNS) {
            u8* bytes = (u8*)tile;
#pragma unroll
            for (int k = 0; k < 8; k++)
                bytes[(right + k) * 68 + down + half] = (u8)(words[k >> 2] >> (k & 3) * 8);
        }
    }
    if (!COLUMNS) return;
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 64; half += 32) {
        const i32 row = at_column + down + half, column = at_row + right;
        if (row >= columns || column >= rows) continue;
        const u32* words = &tile[down + half][right >> 2];
        *(uint2*)(transposed + (i64)row * rows + column) = uint2{words[0], words[1]};
    }
}

// One number after the other, wherever they lie.
template <typename F, bool ROWS, bool COLUMNS, typename T>
__device__ void to_float8_each(const T* x, const float* factor, u8* as_is, u8* transposed,
                               Steps given, Steps first, Steps second, i64 columns, i64 count) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const i64 row = i / columns, column = i - row * columns;
        const float value = (float)wide(x[row * given.row + column * given.column]);
        const u32 found = F::pair(value * *factor, 0.0f);
        if (ROWS) as_is[row * first.row + column * first.column] = (u8)found;
        if (COLUMNS) transposed[column * second.row + row * second.column] = (u8)found;
    }
}

// Dense rows of exact values.
template <typename F, typename T>
__device__ void from_float8(const u8* bytes, T* values, Steps given, i64 columns, i64 count) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const i64 row = i / columns, column = i - row * columns;
        values[i] = Stored<T>::from(F::value(bytes[row * given.row + column * given.column]));
    }
}

template <typename T>
__device__ void scaled(const float* terms, const float* scale, T* values, Steps result,
                       i64 columns, i64 count) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const i64 row = i / columns, column = i - row * columns;
        values[row * result.row + column * result.column] = Stored<T>::from(terms[i] * *scale);
    }
}
