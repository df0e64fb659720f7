// Parts of a whole training step in one kernel: blocks stay, and meet between phases.
// Products go through tensor cores in tiles of 16 x 16 whose inner dimension is shared out among
// the warps of a group; sums are added in a fixed order, so results do not change from run to run.
#pragma once
#include "math.cuh"

#define TILE 16

// How much of a float a tensor core sees: once, or in two parts that together keep 22 bits.
template <bool EXACT> struct Fragment;

template <> struct Fragment<false> {
    u32 high;
    __device__ __forceinline__ void set(float x) { high = tf32_bits(x); }
};

template <> struct Fragment<true> {
    u32 high, low;
    __device__ __forceinline__ void set(float x) {
        high = tf32_bits(x);
        low = tf32_bits(x - bits_to_float(high));
    }
};

__device__ __forceinline__ void mma_add(float* c, const Fragment<false>* a, Fragment<false> b0,
                                        Fragment<false> b1) {
    u32 rows[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    mma_tf32(c, rows, b0.high, b1.high);
}

// a b = high high + high low + low high, the small terms first; low low is below the last bit.
__device__ __forceinline__ void mma_add(float* c, const Fragment<true>* a, Fragment<true> b0,
                                        Fragment<true> b1) {
    u32 high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    u32 low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
    mma_tf32(c, low, b0.high, b1.high);
    mma_tf32(c, high, b0.low, b1.low);
    mma_tf32(c, high, b0.high, b1.high);
}

// A matrix of ROWS x COLUMNS whose rows (or, transposed, columns) lie LEAD apart. Beyond its edges
// it is zero. Four neighbours along the inner dimension are read at once where they lie together.
template <int ROWS, int COLUMNS, int LEAD, bool TRANSPOSED, bool ALIGNED> struct Matrix {
    const float* place;

    __device__ __forceinline__ float at(int row, int column) const {
        if (row >= ROWS || column >= COLUMNS) return 0.0f;
        return place[TRANSPOSED ? column * LEAD + row : row * LEAD + column];
    }
    // Elements (row, column) to (row, column + 3).
    __device__ __forceinline__ float4 along(int row, int column) const {
        if (ALIGNED && !TRANSPOSED && row < ROWS && column + 3 < COLUMNS)
            return *(const float4*)(place + row * LEAD + column);
        return make_float4(at(row, column), at(row, column + 1), at(row, column + 2),
                           at(row, column + 3));
    }
    // Elements (row, column) to (row + 3, column).
    __device__ __forceinline__ float4 down(int row, int column) const {
        if (ALIGNED && TRANSPOSED && column < COLUMNS && row + 3 < ROWS)
            return *(const float4*)(place + column * LEAD + row);
        return make_float4(at(row, column), at(row + 1, column), at(row + 2, column),
                           at(row + 3, column));
    }
};

// c (16 x 16 at row, column) += A B over inner indices from first to last: a lane of a quad takes
// four neighbours, and pairs of them feed two products of depth 8.
template <bool EXACT, typename A, typename B>
__device__ __forceinline__ void warp_tile(float* c, A a, B b, int row, int column, int first,
                                          int last) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    for (int k = first; k < last; k += 16) {
        float4 a0 = a.along(row + g, k + 4 * t), a1 = a.along(row + g + 8, k + 4 * t);
        float4 b0 = b.down(k + 4 * t, column + g), b1 = b.down(k + 4 * t, column + 8 + g);
        Fragment<EXACT> rows[4], left0, left1, right0, right1;
        rows[0].set(a0.x); rows[1].set(a1.x); rows[2].set(a0.y); rows[3].set(a1.y);
        left0.set(b0.x); left1.set(b0.y); right0.set(b1.x); right1.set(b1.y);
        mma_add(c, rows, left0, left1);
        mma_add(c + 4, rows, right0, right1);
        rows[0].set(a0.z); rows[1].set(a1.z); rows[2].set(a0.w); rows[3].set(a1.w);
        left0.set(b0.z); left1.set(b0.w); right0.set(b1.z); right1.set(b1.w);
        mma_add(c, rows, left0, left1);
        mma_add(c + 4, rows, right0, right1);
    }
}

// One unit of a product for a block of WARPS warps: WARPS / SPLIT tiles side by side, each by SPLIT
// warps. `finish(row, column, sum)` is called once for each element inside the matrix.
template <int WARPS, int SPLIT, bool EXACT, int M, int N, int K, typename A, typename B, typename F>
__device__ void block_product(A a, B b, int unit, float* shared, F finish) {
    const int down = (M + TILE - 1) / TILE, across = (N + TILE - 1) / TILE;
    const int part_length = ((K + TILE - 1) / TILE + SPLIT - 1) / SPLIT * TILE;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int group = warp / SPLIT, part = warp % SPLIT;
    int tile = unit * (WARPS / SPLIT) + group;
    bool inside = tile < down * across;
    int row = tile % down * TILE, column = tile / down * TILE;
    float c[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (inside) {
        int first = part * part_length;
        warp_tile<EXACT>(c, a, b, row, column, first, min(K, first + part_length));
    }
    float* sums = shared + (group * SPLIT + part) * TILE * TILE;
    for (int half = 0; half < 2; half++) {
        float* place = sums + half * 8 + 2 * t;
        place[g * TILE] = c[half * 4];
        place[g * TILE + 1] = c[half * 4 + 1];
        place[(g + 8) * TILE] = c[half * 4 + 2];
        place[(g + 8) * TILE + 1] = c[half * 4 + 3];
    }
    __syncthreads();
    if (inside) {
        for (int e = part * 32 + lane; e < TILE * TILE; e += SPLIT * 32) {
            int i = row + e / TILE, j = column + e % TILE;
            if (i < M && j < N) {
                float sum = 0.0f;
                for (int p = 0; p < SPLIT; p++)
                    sum += shared[(group * SPLIT + p) * TILE * TILE + e];
                finish(i, j, sum);
            }
        }
    }
    __syncthreads();
}

// Sums within a warp, the same in every lane.
template <typename T> __device__ __forceinline__ T warp_total(T x) {
    for (int mask = 16; mask; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

template <typename T> __device__ __forceinline__ T warp_largest(T x) {
    for (int mask = 16; mask; mask >>= 1) {
        T other = __shfl_xor_sync(0xffffffffu, x, mask);
        // A nan wins over everything.
        x = (other > x || other != other) ? other : x;
    }
    return x;
}

// Whether x at place c goes before the best so far: larger or nan, and among equals the first.
__device__ __forceinline__ bool warp_before(float x, int c, float best, int place) {
    bool x_nan = x != x, best_nan = best != best;
    if (x_nan || best_nan) return x_nan && (!best_nan || c < place);
    return x > best || (x == best && c < place);
}

// x less the largest of its row, and 0 where x is +inf: what softmax takes the exponential of.
__device__ __forceinline__ float below(float x, float largest) {
    return x == bits_to_float(0x7f800000u) ? 0.0f : x - largest;
}

// The last block to leave sets both counters to 0 for the next launch: they never overflow.
__device__ __forceinline__ void grid_leave(u32* counters) {
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(counters + 1, 1u) == gridDim.x - 1) {
        counters[0] = 0;
        counters[1] = 0;
    }
}
