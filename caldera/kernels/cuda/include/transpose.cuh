// Copies between arrays that lie across each other: tiles pass through shared memory, so that both
// are walked along their rows.
#pragma once
#include "types.cuh"

// A tile of SIDE x SIDE elements from (row, column) on, by a block of SIDE x ROWS threads. Rows lie
// side by side in the source, columns in the target; source columns are `apart` elements apart,
// target rows `between`.
template <int SIDE, int ROWS, typename T, typename O>
__device__ __forceinline__ void block_transposed(T* target, const T* source, O row, O column,
                                                 O rows, O columns, O apart, O between) {
    __shared__ T tile[SIDE][SIDE + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    T held[SIDE / ROWS];
    // All are read before one is used: a thread waits once.
#pragma unroll
    for (int k = 0; k < SIDE / ROWS; k++) {
        O r = row + x, c = column + y + k * ROWS;
        if (r < rows && c < columns) held[k] = source[r + c * apart];
    }
#pragma unroll
    for (int k = 0; k < SIDE / ROWS; k++) tile[y + k * ROWS][x] = held[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SIDE / ROWS; k++) {
        O r = row + y + k * ROWS, c = column + x;
        if (r < rows && c < columns) target[r * between + c] = tile[x][y + k * ROWS];
    }
}
