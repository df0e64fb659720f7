// Random butterflies: a matrix is multiplied from both sides by matrices that mix its quarters, after
// which elimination need not exchange rows but for very unlucky matrices (Parker, Random butterfly
// transformations, 1995; Baboulin, Dongarra, Herrmann and Tomov, Accelerating linear system solutions
// using randomization techniques, 2013). Rows and columns beyond a multiple of 4 are left as they are.
#pragma once
#include "linalg.cuh"

constexpr u32 LEFT = 0x243f6a88u, RIGHT = 0x85a308d3u;

// Bits that look random (the last step of MurmurHash3).
__device__ __forceinline__ u32 random_bits(u32 index, u32 side) {
    u32 x = index * 0x9e3779b1u ^ side;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

// A number near 1.
template <typename C> __device__ __forceinline__ C butterfly_weight(u32 index, u32 side) {
    return (C)1 + ((C)random_bits(index, side) * (C)0x1p-32 - (C)0.5) * (C)0.1;
}

// Four numbers mixed: an orthogonal matrix that is its own inverse.
template <typename C> __device__ __forceinline__ void butterfly(C& a, C& b, C& c, C& d) {
    const C even = a + c, odd = b + d, rest = a - c, other = b - d;
    a = (even + odd) / 2;
    b = (even - odd) / 2;
    c = (rest + other) / 2;
    d = (rest - other) / 2;
}

// Which rows (or columns) belong together: the four at the same place of each quarter, or one of the
// few beyond.
struct Quartet {
    u32 first, apart, count;
    __device__ __forceinline__ Quartet(u32 number, u32 n)
        : first(number < n / 4 ? number : number - n / 4 + n / 4 * 4), apart(n / 4),
          count(number < n / 4 ? 4 : 1) {}
    __device__ __forceinline__ u32 operator[](u32 k) const { return first + k * apart; }
};

// Both sides of a matrix; threads have a quartet of rows and one of columns each.
template <typename T, typename C>
__device__ __forceinline__ void butterfly_matrix(View<const T> a, View<C> out, u32 n) {
    const u32 groups = n / 4 + n % 4, number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= groups) return;
    const Quartet rows(blockIdx.y, n), columns(number, n);
    C at[4][4];
#pragma unroll
    for (u32 p = 0; p < 4; p++) {
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            if (p >= rows.count || q >= columns.count) continue;
            at[p][q] = (C)a(rows[p], columns[q]) * butterfly_weight<C>(rows[p], LEFT) *
                       butterfly_weight<C>(columns[q], RIGHT);
        }
    }
#pragma unroll
    for (u32 p = 0; p < 4; p++)
        if (columns.count == 4) butterfly(at[p][0], at[p][1], at[p][2], at[p][3]);
#pragma unroll
    for (u32 q = 0; q < 4; q++)
        if (rows.count == 4) butterfly(at[0][q], at[1][q], at[2][q], at[3][q]);
#pragma unroll
    for (u32 p = 0; p < 4; p++) {
#pragma unroll
        for (u32 q = 0; q < 4; q++)
            if (p < rows.count && q < columns.count) out(rows[p], columns[q]) = at[p][q];
    }
}

// The left side of right sides of an equation, or what the right side makes of its solution, which is
// added to `out` if that is asked for. Threads have a quartet each, of the column blockIdx.y.
template <bool SOLUTION, typename T, typename C>
__device__ __forceinline__ void butterfly_columns(View<const T> given, View<C> out, u32 n, u32 adds) {
    const u32 groups = n / 4 + n % 4, number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= groups) return;
    const Quartet rows(number, n);
    const u32 column = blockIdx.y;
    C at[4];
#pragma unroll
    for (u32 p = 0; p < 4; p++)
        if (p < rows.count)
            at[p] = (C)given(rows[p], column) *
                    (SOLUTION ? (C)1 : butterfly_weight<C>(rows[p], LEFT));
    if (rows.count == 4) butterfly(at[0], at[1], at[2], at[3]);
#pragma unroll
    for (u32 p = 0; p < 4; p++) {
        if (p >= rows.count) continue;
        const C value = at[p] * (SOLUTION ? butterfly_weight<C>(rows[p], RIGHT) : (C)1);
        out(rows[p], column) = adds ? out(rows[p], column) + value : value;
    }
}

// b - a x, and for each row the sum of the magnitudes of a; a warp has a row, and two columns at once.
template <typename T>
__device__ __forceinline__ void warp_residual(View<const T> a, View<const double> b,
                                              View<const double> x, View<double> residual,
                                              double* sizes, u32 n, u32 columns) {
    const u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    for (u32 column = 0; column < columns; column += 2) {
        const u32 next = column + 1 < columns ? column + 1 : column;
        double sum = 0, other = 0, size = 0;
        for (u32 k = lane; k < n; k += 32) {
            const double value = (double)a(row, k);
            sum += value * x(k, column);
            other += value * x(k, next);
            size += fabs(value);
        }
        sum = warp_total(sum);
        other = warp_total(other);
        size = warp_total(size);
        if (lane) continue;
        residual(row, column) = b(row, column) - sum;
        residual(row, next) = b(row, next) - other;
        sizes[row] = size;
    }
}
