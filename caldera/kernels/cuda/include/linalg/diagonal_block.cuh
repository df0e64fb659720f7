// A block on the diagonal of a matrix that is factorised panel by panel. 256 threads keep all of it
// in their registers, 8 x 8 numbers each, and meet once for each column.
#pragma once
#include "linalg.cuh"

constexpr u32 BLOCK_SIDE = 128;
constexpr u32 THREAD_ROWS = 16;
constexpr u32 THREAD_PART = BLOCK_SIDE / THREAD_ROWS;

__device__ __forceinline__ float inverse_root(float x) { return 1 / sqrtf(x); }
__device__ __forceinline__ double inverse_root(double x) { return 1 / sqrt(x); }

// A thread's numbers: those of rows and columns that are 16 apart.
template <typename C> struct Part {
    C at[THREAD_PART][THREAD_PART];
    u32 row, column;
    __device__ __forceinline__ Part()
        : row(threadIdx.x / THREAD_ROWS), column(threadIdx.x % THREAD_ROWS) {}
    __device__ __forceinline__ u32 i(u32 p) const { return row + THREAD_ROWS * p; }
    __device__ __forceinline__ u32 j(u32 q) const { return column + THREAD_ROWS * q; }
};

// Where a thread puts its numbers of one row and one column of the block, for all to read. They are
// written in turns: while some still read the last ones, others write the next.
template <typename C> struct Pivots {
    C* row;
    C* column;
    __device__ __forceinline__ Pivots(C (&rows)[2][BLOCK_SIDE], C (&columns)[2][BLOCK_SIDE],
                                      const Part<C>& part, u32 k, u32 inner, u32 first)
        : row(rows[inner % 2]), column(columns[inner % 2]) {
        if (part.column == inner) {
#pragma unroll
            for (u32 p = 0; p < THREAD_PART; p++)
                if (p >= first) column[part.i(p)] = part.at[p][k];
        }
        if (part.row == inner) {
#pragma unroll
            for (u32 q = 0; q < THREAD_PART; q++) row[part.j(q)] = part.at[k][q];
        }
        __syncthreads();
    }
};

// L with L Lᵀ = a, whose lower triangle is read, and L^-1, both with zeros above their diagonals.
// Rows from `size` on are those of an identity, which is not there. `inverse` has BLOCK_SIDE
// columns. A pivot that is not above `least` times what it was at first sets `failed`.
//
// Above the diagonal of the columns that are left stands the same as below it, to the last bit.
// Columns that are done have Lᵀ above their pivots, and the inverse on and below them.
template <typename C>
__device__ __forceinline__ void block_cholesky_inverse(
    View<const C> a, View<C> lower, C* inverse, u32 size, C least, i32* failed) {
    __shared__ C rows[2][BLOCK_SIDE], columns[2][BLOCK_SIDE], before[BLOCK_SIDE];
    Part<C> part;
#pragma unroll
    for (u32 p = 0; p < THREAD_PART; p++) {
#pragma unroll
        for (u32 q = 0; q < THREAD_PART; q++) {
            const u32 i = part.i(p), j = part.j(q), high = i < j ? i : j, low = i < j ? j : i;
            part.at[p][q] = low < size ? a(low, high) : i == j ? 1 : 0;
            if (i == j) before[i] = part.at[p][q];
        }
    }
#pragma unroll
    for (u32 k = 0; k < THREAD_PART; k++) {
#pragma unroll 1
        for (u32 inner = 0; inner < THREAD_ROWS; inner++) {
            const u32 step = THREAD_ROWS * k + inner;
            const Pivots<C> pivots(rows, columns, part, k, inner, k);
            const C pivot = pivots.column[step], factor = inverse_root(pivot);
            if (threadIdx.x == 0 && !(pivot > least * before[step])) *failed = 1;
            C beside[THREAD_PART];
#pragma unroll
            for (u32 q = 0; q < THREAD_PART; q++) beside[q] = pivots.row[part.j(q)] * factor;
            if (part.column == inner) beside[k] = factor;
#pragma unroll
            for (u32 p = k; p < THREAD_PART; p++) {
                const u32 i = part.i(p);
                const C multiple = i > step ? pivots.column[i] * factor : 0;
                if (i > step && part.column == inner) part.at[p][k] = 0;
#pragma unroll
                for (u32 q = 0; q < THREAD_PART; q++) part.at[p][q] -= multiple * beside[q];
            }
            if (part.row == inner) {
#pragma unroll
                for (u32 q = 0; q < THREAD_PART; q++) part.at[k][q] = beside[q];
            }
        }
    }
#pragma unroll
    for (u32 p = 0; p < THREAD_PART; p++) {
#pragma unroll
        for (u32 q = 0; q < THREAD_PART; q++) {
            const u32 i = part.i(p), j = part.j(q);
            const C value = part.at[p][q];
            inverse[i * BLOCK_SIDE + j] = j <= i ? value : 0;
            if (i >= size || j >= size) continue;
            if (j >= i) lower(j, i) = j == i ? 1 / value : value;
            if (j > i) lower(i, j) = 0;
        }
    }
}

// The inverse of a block by elimination without exchanges of rows; a pivot of 0 sets `failed`.
template <typename C>
__device__ __forceinline__ void block_inverse(View<const C> a, C* inverse, u32 size, i32* failed) {
    __shared__ C rows[2][BLOCK_SIDE], columns[2][BLOCK_SIDE];
    Part<C> part;
#pragma unroll
    for (u32 p = 0; p < THREAD_PART; p++) {
#pragma unroll
        for (u32 q = 0; q < THREAD_PART; q++) {
            const u32 i = part.i(p), j = part.j(q);
            part.at[p][q] = i < size && j < size ? a(i, j) : i == j ? 1 : 0;
        }
    }
#pragma unroll
    for (u32 k = 0; k < THREAD_PART; k++) {
#pragma unroll 1
        for (u32 inner = 0; inner < THREAD_ROWS; inner++) {
            const u32 step = THREAD_ROWS * k + inner;
            const Pivots<C> pivots(rows, columns, part, k, inner, 0);
            const C pivot = pivots.column[step], factor = 1 / pivot;
            if (threadIdx.x == 0 && pivot == 0) *failed = 1;
            C beside[THREAD_PART];
#pragma unroll
            for (u32 q = 0; q < THREAD_PART; q++) beside[q] = pivots.row[part.j(q)] * factor;
            if (part.column == inner) beside[k] = factor;
#pragma unroll
            for (u32 p = 0; p < THREAD_PART; p++) {
                const u32 i = part.i(p);
                const C multiple = i != step ? pivots.column[i] : 0;
                if (i != step && part.column == inner) part.at[p][k] = 0;
#pragma unroll
                for (u32 q = 0; q < THREAD_PART; q++) part.at[p][q] -= multiple * beside[q];
            }
            if (part.row == inner) {
#pragma unroll
                for (u32 q = 0; q < THREAD_PART; q++) part.at[k][q] = beside[q];
            }
        }
    }
#pragma unroll
    for (u32 p = 0; p < THREAD_PART; p++) {
#pragma unroll
        for (u32 q = 0; q < THREAD_PART; q++)
            inverse[part.i(p) * BLOCK_SIDE + part.j(q)] = part.at[p][q];
    }
}

// Tiles of 32 x 32 of the symmetric part of a matrix, (a + aᵀ) / 2, on and below the diagonal; where
// they would lie above it, zeros go to `out`. A block has 32 x 8 threads.
template <typename C>
__device__ __forceinline__ void block_symmetric_part(
    View<const C> a, View<C> lower, View<C> out, u32 n) {
    __shared__ C tile[32][33];
    const u32 row = 32 * blockIdx.y, column = 32 * blockIdx.x, x = threadIdx.x;
    if (column > row) {
        for (u32 y = threadIdx.y; y < 32; y += 8)
            if (row + y < n && column + x < n) out(row + y, column + x) = 0;
        return;
    }
    for (u32 y = threadIdx.y; y < 32; y += 8)
        if (column + y < n && row + x < n) tile[y][x] = a(column + y, row + x);
    __syncthreads();
    for (u32 y = threadIdx.y; y < 32; y += 8)
        if (row + y < n && column + x < n)
            lower(row + y, column + x) = (a(row + y, column + x) + tile[x][y]) / 2;
}
