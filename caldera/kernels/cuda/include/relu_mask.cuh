// A relu that keeps in bits where it let something through, and its gradient. A thread has 8
// neighbours in a row, whose bits are a byte; WHOLE: they lie so that all are moved at once.
#pragma once
#include "norm_statistics.cuh"

// A matrix: where its rows and columns begin.
struct MatrixSteps { i64 row, column; };

template <bool WHOLE, typename T, typename A>
__device__ __forceinline__ void load_byte(const T* place, i64 step, i32 left, A* values) {
    if constexpr (WHOLE) {
        load<8>(place, values);
    } else {
#pragma unroll
        for (int v = 0; v < 8; v++) values[v] = v < left ? (A)wide(place[v * step]) : (A)0;
    }
}

template <bool WHOLE, typename T, typename A>
__device__ __forceinline__ void store_byte(T* place, i64 step, i32 left, const A* values) {
    if constexpr (WHOLE) {
        store<8>(place, values);
    } else {
#pragma unroll
        for (int v = 0; v < 8; v++)
            if (v < left) place[v * step] = Stored<T>::from(values[v]);
    }
}

// `total` bytes of the mask.
template <bool WHOLE, typename T, typename I>
__device__ __forceinline__ void relu_bits(
    const T* x, T* y, u8* mask, MatrixSteps of_x, MatrixSteps of_y, MatrixSteps of_mask, I total,
    i32 columns, i32 bytes) {
    typedef typename Computed<T>::type A;
    I step = (I)gridDim.x * blockDim.x;
    for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        i64 row = i / (I)bytes;
        i32 byte = (i32)(i - (I)row * (I)bytes), first = byte * 8, left = columns - first;
        u32 bits = 0;
        if (left > 0) {
            A values[8];
            load_byte<WHOLE>(x + row * of_x.row + first * of_x.column, of_x.column, left, values);
#pragma unroll
            for (int v = 0; v < 8; v++) {
                values[v] = op_relu(values[v]);
                bits |= (u32)(values[v] > (A)0) << v;
            }
            store_byte<WHOLE>(y + row * of_y.row + first * of_y.column, of_y.column, left, values);
        }
        mask[row * of_mask.row + byte * of_mask.column] = (u8)bits;
    }
}

// Blocks of 32 x 8 threads: 256 columns, and a chunk of rows. SUMS: the sums of the columns of a
// chunk are left in partial[chunk][columns].
template <bool WHOLE, bool SUMS, typename T, typename A>
__device__ __forceinline__ void block_masked(
    const T* g, const u8* mask, T* out, MatrixSteps of_g, MatrixSteps of_mask, MatrixSteps of_out,
    i64 rows, i32 columns, i64 chunk, A* partial) {
    i32 byte = blockIdx.x * 32 + threadIdx.x, first = byte * 8, left = columns - first;
    i64 end = (blockIdx.y + 1) * chunk < rows ? (blockIdx.y + 1) * chunk : rows;
    A sums[8];
#pragma unroll
    for (int v = 0; v < 8; v++) sums[v] = (A)0;
    if (left > 0) {
#pragma unroll 4
        for (i64 row = blockIdx.y * chunk + threadIdx.y; row < end; row += 8) {
            A values[8];
            load_byte<WHOLE>(g + row * of_g.row + first * of_g.column, of_g.column, left, values);
            u32 bits = mask[row * of_mask.row + byte * of_mask.column];
#pragma unroll
            for (int v = 0; v < 8; v++) {
                values[v] = bits >> v & 1 ? values[v] : (A)0;
                sums[v] += values[v];
            }
            store_byte<WHOLE>(
                out + row * of_out.row + first * of_out.column, of_out.column, left, values);
        }
    }
    if constexpr (SUMS) {
        __shared__ A kept[8][256];
#pragma unroll
        for (int v = 0; v < 8; v++) kept[threadIdx.y][threadIdx.x * 8 + v] = sums[v];
        __syncthreads();
        i32 own = thread_of_block(), column = blockIdx.x * 256 + own;
        if (column >= columns) return;
        A total = kept[0][own];
#pragma unroll
        for (int row = 1; row < 8; row++) total += kept[row][own];
        partial[(i64)blockIdx.y * columns + column] = total;
    }
}

template <typename S, typename T>
__device__ __forceinline__ void block_column_sums(
    const S* partial, i32 parts, i32 columns, T* sums, i64 step) {
    i32 column = blockIdx.x * blockDim.x + threadIdx.x;
    double found[1];
    block_totals(partial, parts, columns, columns, column, found);
    if (threadIdx.y == 0 && column < columns)
        sums[column * step] = Stored<T>::from((typename Computed<T>::type)found[0]);
}
