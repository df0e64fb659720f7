// A block on the diagonal of a matrix that is factorised panel by panel. 256 threads keep all of it
// in their registers: it is made of 8 x 8 tiles of 16 x 16 numbers, and each thread has one number of
// every tile. Tiles on the diagonal are eliminated number by number, all others by small products.
#pragma once
#include "linalg.cuh"

constexpr u32 TILE = 16, TILES = 8, BLOCK_SIDE = TILE * TILES;
// A tile that all threads read; rows are apart by one more, so that columns lie in all banks.
template <typename C> using SharedTile = C[TILE][TILE + 1];

__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ double inverse_root(double x) { return rsqrt(x); }

// A thread's numbers of all tiles.
template <typename C> struct Part {
    C at[TILES][TILES];
    u32 row, column;
    __device__ __forceinline__ Part() : row(threadIdx.x / TILE), column(threadIdx.x % TILE) {}
    __device__ __forceinline__ u32 i(u32 p) const { return row + TILE * p; }
    __device__ __forceinline__ u32 j(u32 q) const { return column + TILE * q; }
};

// The largest magnitude of the block, for all threads.
template <typename C>
__device__ __forceinline__ C block_largest_of(const Part<C>& part, C (&sizes)[TILE * TILE / 32]) {
    C largest = 0;
#pragma unroll
    for (u32 p = 0; p < TILES; p++) {
#pragma unroll
        for (u32 q = 0; q < TILES; q++) {
            const C size = size_of(part.at[p][q]);
            if (size > largest) largest = size;
        }
    }
    largest = warp_largest(largest);
    if (threadIdx.x % 32 == 0) sizes[threadIdx.x / 32] = largest;
    __syncthreads();
    for (u32 warp = 0; warp < TILE * TILE / 32; warp++)
        if (sizes[warp] > largest) largest = sizes[warp];
    return largest;
}

// Elimination without exchanges of rows in one tile, of which each thread has a number. If it is
// SYMMETRIC, with L Lᵀ for it, L^-1 is left on and below the diagonal, and above it Lᵀ; else its
// inverse. There a pivot that is not above `least` times what it was at first sets `failed`; here one
// that is 0 but for rounding is taken for `least`.
template <bool SYMMETRIC, typename C>
__device__ __forceinline__ C block_eliminated_tile(
    C value, const C* before, C least, u32 row, u32 column, i32* failed) {
    // Written in turns: while some still read the last ones, others write the next.
    __shared__ C rows[2][TILE], columns[2][TILE];
    for (u32 step = 0; step < TILE; step++) {
        C* beside = rows[step % 2];
        C* below = columns[step % 2];
        if (row == step) beside[column] = value;
        if (column == step) below[row] = value;
        __syncthreads();
        const C found = below[step];
        if (SYMMETRIC && threadIdx.x == 0 && !(found > least * before[step])) *failed = 1;
        const C nothing = 16 * square_root(Limits<C>::epsilon()) * least;
        const C pivot = !SYMMETRIC && size_of(found) <= nothing ? least : found;
        const C factor = SYMMETRIC ? inverse_root(pivot) : 1 / pivot;
        const C scaled = column == step ? factor : beside[column] * factor;
        const C multiple = SYMMETRIC ? below[row] * factor : below[row];
        if (row == step)
            value = scaled;
        else if (!SYMMETRIC || row > step)
            value = (column == step ? 0 : value) - multiple * scaled;
    }
    return value;
}

// x with x Lᵀ = what was there: a row of 16 numbers, by one thread. `tile` has Lᵀ above its diagonal,
// and one over it on it.
template <typename C>
__device__ __forceinline__ void solve_row(C* row, const SharedTile<C>& tile) {
    C x[TILE];
#pragma unroll
    for (u32 j = 0; j < TILE; j++) x[j] = row[j];
#pragma unroll
    for (u32 s = 0; s < TILE; s++) {
        x[s] *= tile[s][s];
        row[s] = x[s];
#pragma unroll
        for (u32 j = s + 1; j < TILE; j++) x[j] -= x[s] * tile[s][j];
    }
}

// L with L Lᵀ = a, whose lower triangle is read, and L^-1, both with zeros above their diagonals.
// Rows from `size` on are those of an identity, which is not there. `inverse` has BLOCK_SIDE
// columns. A pivot that is not above `least` times what it was at first sets `failed`.
//
// Rows of tiles that are done have L^-1 on and below the diagonal, and Lᵀ above it.
template <typename C>
__device__ __forceinline__ void block_cholesky_inverse(
    View<const C> a, View<C> lower, C* inverse, u32 size, C least, i32* failed) {
    __shared__ SharedTile<C> tiles[TILES], own;
    __shared__ C before[BLOCK_SIDE];
    Part<C> part;
    const u32 row = part.row, column = part.column;
#pragma unroll
    for (u32 p = 0; p < TILES; p++) {
#pragma unroll
        for (u32 q = 0; q < TILES; q++) {
            const u32 i = part.i(p), j = part.j(q), high = i < j ? i : j, low = i < j ? j : i;
            part.at[p][q] = low < size ? a(low, high) : i == j ? 1 : 0;
            if (i == j) before[i] = part.at[p][q];
        }
    }
#pragma unroll
    for (u32 k = 0; k < TILES; k++) {
        // What is beside the tile on the diagonal: the inverse so far; below it: what is left of a.
#pragma unroll
        for (u32 x = 0; x < TILES; x++)
            if (x != k) tiles[x][row][column] = x < k ? part.at[k][x] : part.at[x][k];
        const C value = block_eliminated_tile<true>(
            part.at[k][k], before + TILE * k, least, row, column, failed);
        own[row][column] = value;
        __syncthreads();
        const u32 below = TILE * (k + 1) + threadIdx.x;
        if (below < BLOCK_SIDE) solve_row(tiles[below / TILE][below % TILE], own);
        C made[TILES];
#pragma unroll
        for (u32 q = 0; q < k; q++) made[q] = 0;
        if (k > 0) {
#pragma unroll 4
            for (u32 s = 0; s < TILE; s++) {
                const C left = s <= row ? own[row][s] : 0;
#pragma unroll
                for (u32 q = 0; q < k; q++) made[q] += left * tiles[q][s][column];
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 q = 0; q < k; q++) tiles[q][row][column] = made[q];
        __syncthreads();
#pragma unroll
        for (u32 p = k + 1; p < TILES; p++) part.at[p][k] = 0;
#pragma unroll 2
        for (u32 s = 0; s < TILE; s++) {
            C beside[TILES];
#pragma unroll
            for (u32 q = 0; q < TILES; q++)
                beside[q] = q < k    ? tiles[q][s][column]
                            : q == k ? (column <= s ? own[s][column] : 0)
                                     : tiles[q][column][s];
#pragma unroll
            for (u32 p = k + 1; p < TILES; p++) {
                const C multiple = tiles[p][row][s];
#pragma unroll
                for (u32 q = 0; q <= p; q++) part.at[p][q] -= multiple * beside[q];
            }
        }
        part.at[k][k] = value;
#pragma unroll
        for (u32 q = 0; q < TILES; q++)
            if (q != k) part.at[k][q] = q < k ? made[q] : tiles[q][column][row];
        __syncthreads();
    }
#pragma unroll
    for (u32 p = 0; p < TILES; p++) {
#pragma unroll
        for (u32 q = 0; q < TILES; q++) {
            const u32 i = part.i(p), j = part.j(q);
            const C value = part.at[p][q];
            inverse[i * BLOCK_SIDE + j] = j <= i ? value : 0;
            if (i >= size || j >= size) continue;
            if (j >= i) lower(j, i) = j == i ? 1 / value : value;
            if (j > i) lower(i, j) = 0;
        }
    }
}

// The inverse of a block by elimination without exchanges of rows. A pivot of 0 is taken for one that
// takes half of the digits of the rest: refinement gives them back.
template <typename C>
__device__ __forceinline__ void block_inverse(View<const C> a, C* inverse, u32 size) {
    __shared__ SharedTile<C> below[TILES], beside[TILES], own;
    __shared__ C sizes[TILE * TILE / 32];
    Part<C> part;
    const u32 row = part.row, column = part.column;
#pragma unroll
    for (u32 p = 0; p < TILES; p++) {
#pragma unroll
        for (u32 q = 0; q < TILES; q++) {
            const u32 i = part.i(p), j = part.j(q);
            part.at[p][q] = i < size && j < size ? a(i, j) : i == j ? 1 : 0;
        }
    }
    const C least = block_largest_of(part, sizes) * square_root(Limits<C>::epsilon());
#pragma unroll
    for (u32 k = 0; k < TILES; k++) {
#pragma unroll
        for (u32 x = 0; x < TILES; x++) {
            below[x][row][column] = part.at[x][k];
            beside[x][row][column] = part.at[k][x];
        }
        const C value = block_eliminated_tile<false, C>(
            part.at[k][k], nullptr, least, row, column, nullptr);
        own[row][column] = value;
        __syncthreads();
        // The row of tiles times the inverse of the one on the diagonal.
#pragma unroll
        for (u32 q = 0; q < TILES; q++) part.at[k][q] = 0;
#pragma unroll 4
        for (u32 s = 0; s < TILE; s++) {
            const C left = own[row][s];
#pragma unroll
            for (u32 q = 0; q < TILES; q++) part.at[k][q] += left * beside[q][s][column];
        }
        part.at[k][k] = value;
        __syncthreads();
#pragma unroll
        for (u32 q = 0; q < TILES; q++) beside[q][row][column] = part.at[k][q];
        __syncthreads();
#pragma unroll
        for (u32 p = 0; p < TILES; p++)
            if (p != k) part.at[p][k] = 0;
#pragma unroll 2
        for (u32 s = 0; s < TILE; s++) {
            C factor[TILES];
#pragma unroll
            for (u32 q = 0; q < TILES; q++) factor[q] = beside[q][s][column];
#pragma unroll
            for (u32 p = 0; p < TILES; p++) {
                if (p == k) continue;
                const C multiple = below[p][row][s];
#pragma unroll
                for (u32 q = 0; q < TILES; q++) part.at[p][q] -= multiple * factor[q];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 p = 0; p < TILES; p++) {
#pragma unroll
        for (u32 q = 0; q < TILES; q++)
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
