// Normalisation of a small batch in one launch, whose blocks are all on the card: sums of chunks;
// then the last block that comes makes factors of them while the others wait; then all elements.
#pragma once
#include "norm_elements.cuh"

// Blocks that have come, and how often they have been let go. One launch runs at a time.
__device__ u32 norm_counters[2];

// Columns that are added up at a time, and threads whose sums are added up one after the other: the
// order in which block_totals does that.
const int WHOLE_COLUMNS = 128, WHOLE_ROWS = 32;

// All blocks meet; the last one does something alone. `kept`: two numbers of shared memory.
template <typename Action>
__device__ __forceinline__ void grid_once(u32* kept, Action action) {
    int thread = thread_of_block();
    __syncthreads();
    if (thread == 0) {
        __threadfence();
        kept[1] = load_acquire(norm_counters + 1);
        kept[0] = atomicAdd(norm_counters, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (kept[0]) {
        __threadfence();
        action();
        __syncthreads();
        if (thread == 0) {
            norm_counters[0] = 0;
            __threadfence();
            atomicAdd(norm_counters + 1, 1u);
        }
    } else if (thread == 0) {
        while (load_acquire(norm_counters + 1) == kept[1]) spin();
        __threadfence();
    }
    __syncthreads();
}

// `each(channel, both sums)` for all channels, by a block of 256 threads.
template <typename Each, typename I>
__device__ __forceinline__ void block_of_all(
    double* partial, I chunks, I channels, double* kept, const Each& each) {
    const int TILES = WHOLE_COLUMNS / 32, PARTS = WHOLE_ROWS / 8;
    int thread = thread_of_block(), lane = thread % 32, part = thread / 32;
    I columns = 2 * channels;
    for (I first = 0; first < columns; first += WHOLE_COLUMNS) {
        double sums[TILES][PARTS];
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int p = 0; p < PARTS; p++) sums[t][p] = 0.0;
        for (I chunk = part; chunk < chunks; chunk += WHOLE_ROWS) {
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int p = 0; p < PARTS; p++) {
                    I column = first + t * 32 + lane, own = chunk + 8 * p;
                    if (column < columns && own < chunks)
                        sums[t][p] += __ldcg(partial + (i64)own * columns + column);
                }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                kept[(part + 8 * p) * WHOLE_COLUMNS + t * 32 + lane] = sums[t][p];
        __syncthreads();
        if (thread < WHOLE_COLUMNS && first + thread < columns) {
            double total = kept[thread];
            for (int row = 1; row < WHOLE_ROWS; row++) total += kept[row * WHOLE_COLUMNS + thread];
            // All chunks have been read: the first has room for the totals.
            partial[first + thread] = total;
        }
        __syncthreads();
    }
    for (I channel = thread; channel < channels; channel += 256) {
        double both[2] = {partial[channel], partial[channels + channel]};
        each(channel, both);
    }
}

template <bool RELU, bool ADDED, int V, typename T, typename Each, int R, typename I>
__device__ __forceinline__ void grid_normalise(
    const T* x, T* y, const T* more, const Images<R, 1, I>& one,
    const Images<R, 2 + ADDED, I>& in, double* partial, double* kept, const Each& each) {
    block_image_sums<false, V>(x, one, partial, kept);
    grid_once((u32*)(kept + WHOLE_COLUMNS * WHOLE_ROWS), [&]() {
        block_of_all(partial, in.chunks, in.channels, kept, each);
    });
    normalise<RELU, ADDED, false, V>(x, y, more, in, each.factors, (I)0);
}

template <bool RELU, int V, typename T, typename G, typename M, typename Each, int R, typename I>
__device__ __forceinline__ void grid_slopes(
    const T* x, const G* g, T* dx, const Images<R, 2, I>& two, const Images<R, 3, I>& in,
    Means<M, I> means, double* partial, double* kept, const Each& each) {
    block_slope_sums<RELU, false, V>(
        x, g, two, means, each.eps, each.scale, each.shift, each.variance, partial, kept);
    grid_once((u32*)(kept + WHOLE_COLUMNS * WHOLE_ROWS), [&]() {
        block_of_all(partial, in.chunks, in.channels, kept, each);
    });
    slopes<RELU, false, V>(x, g, dx, in, each.factors, (I)0);
}
