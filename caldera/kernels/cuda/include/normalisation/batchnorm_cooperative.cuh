// Normalisation of a small batch in one launch, whose blocks are all on the card: each reads its rows
// once and keeps them in registers; blocks of the same channels meet after their sums, and each adds
// up what all of them found. Channels lie side by side, and a thread takes 16 bytes of a row.
//
// S says how the work is shared: ACROSS pieces of 16 bytes (1 or 2) of a row go to a block of THREADS
// threads, each of which has up to KEPT of them. Block (b, c) has chunk b of the rows of channels c.
#pragma once
#include "grid_barrier.cuh"
#include "norm_statistics.cuh"

// --- rows

template <typename T, typename S> struct Chunk {
    static const int MANY = 16 / sizeof(T), STEP = S::THREADS / S::ACROSS;
    i32 place, apart, left;

    // Of `rows` rows of `pieces` pieces.
    __device__ __forceinline__ Chunk(i32 rows, i32 pieces) {
        i32 row = (i32)blockIdx.x * (STEP * S::KEPT) + (i32)threadIdx.x / S::ACROSS;
        place = row * pieces + (i32)blockIdx.y * S::ACROSS + (i32)threadIdx.x % S::ACROSS;
        apart = STEP * pieces;
        left = rows - row;
    }

    __device__ __forceinline__ bool has(int k) const { return k * STEP < left; }

    __device__ __forceinline__ void read(const T* from, Pack<T, MANY> (&kept)[S::KEPT]) const {
#pragma unroll
        for (int k = 0; k < S::KEPT; k++)
            if (has(k)) kept[k] = packed<MANY>(from + (i64)(place + k * apart) * MANY);
    }

    // Two sums for each channel of a piece: `add(k, v, first, second)` adds value v of piece k.
    template <typename Add>
    __device__ __forceinline__ void sum(float (&sums)[2 * MANY], Add add) const {
#pragma unroll
        for (int i = 0; i < 2 * MANY; i++) sums[i] = 0.0f;
#pragma unroll
        for (int k = 0; k < S::KEPT; k++)
            if (has(k))
#pragma unroll
                for (int v = 0; v < MANY; v++) add(k, v, sums[v], sums[MANY + v]);
    }

    // Value v of piece k is `value(k, v)`.
    template <typename Value> __device__ __forceinline__ void write(T* to, Value value) const {
#pragma unroll
        for (int k = 0; k < S::KEPT; k++)
            if (has(k)) {
                float values[MANY];
#pragma unroll
                for (int v = 0; v < MANY; v++) values[v] = value(k, v);
                store<MANY>(to + (i64)(place + k * apart) * MANY, values);
            }
    }
};

// Rows of chunk number `block`.
template <typename S> __device__ __forceinline__ i32 rows_of(i32 block, i32 rows) {
    const int MOST = S::THREADS / S::ACROSS * S::KEPT;
    return min(MOST, rows - block * MOST);
}

// What a thread needs to know about its channels; one thread of the block finds it out for each.
template <int N> struct Known { float at[N]; };

template <int N, int MANY>
__device__ __forceinline__ void of_piece(const Known<N>* known, int which, float (&values)[MANY],
                                         int across) {
#pragma unroll
    for (int v = 0; v < MANY; v++) values[v] = known[threadIdx.x % across * MANY + v].at[which];
}

// --- sums

// Of the N values that the lanes with the same piece have: lane l is left with number l / (32 / N).
template <int N, int ACROSS>
__device__ __forceinline__ void warp_share_sums(float (&values)[N]) {
    int lane = threadIdx.x % 32, left = N;
#pragma unroll
    for (int lane_mask = 16; lane_mask >= ACROSS; lane_mask /= 2) {
        if (left > 1) {
            left /= 2;
            bool upper = lane & lane_mask;
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                if (i >= left) continue;
                float given = upper ? values[i] : values[i + left];
                float own = upper ? values[i + left] : values[i];
                values[i] = own + __shfl_xor_sync(0xffffffffu, given, lane_mask);
            }
        } else {
            values[0] += __shfl_xor_sync(0xffffffffu, values[0], lane_mask);
        }
    }
}

// Two sums for each channel of the block, to its threads with the numbers of channels. `room` is for
// 2 * 16 / sizeof(T) * ACROSS numbers of each warp.
template <typename T, typename S>
__device__ __forceinline__ void block_add_up(
    float (&values)[32 / sizeof(T)], float* shared, double* both) {
    const int N = 32 / sizeof(T), MANY = N / 2, SLOTS = N * S::ACROSS;
    int lane = threadIdx.x % 32, channel = threadIdx.x;
    warp_share_sums<N, S::ACROSS>(values);
    int slot = lane / (32 / N) * S::ACROSS + lane % S::ACROSS;
    shared[threadIdx.x / 32 * SLOTS + slot] = values[0];
    __syncthreads();
    both[0] = both[1] = 0.0;
    if (channel < MANY * S::ACROSS)
        for (int warp = 0; warp < S::THREADS / 32; warp++) {
            const float* own = shared + warp * SLOTS + channel % MANY * S::ACROSS + channel / MANY;
            both[0] += (double)own[0];
            both[1] += (double)own[MANY * S::ACROSS];
        }
}

// The same over all blocks of these channels: `term(which, values, block)` is what a block's two
// numbers for a channel in `partial` give for sum `which`. `kept`: a double for each thread.
template <typename T, typename S, typename Term>
__device__ __forceinline__ void block_add_all(
    const float* partial, double* kept, double* both, Term term) {
    const int CHANNELS = 16 / sizeof(T) * S::ACROSS, SLOTS = 2 * CHANNELS;
    const int PARTS = S::THREADS / SLOTS;
    int slot = threadIdx.x % SLOTS, channel = threadIdx.x;
    const float2* own = (const float2*)partial + (i64)blockIdx.y * gridDim.x * CHANNELS;
    double total = 0.0;
#pragma unroll 8
    for (i32 block = threadIdx.x / SLOTS; block < (i32)gridDim.x; block += PARTS)
        total += term(slot / CHANNELS, __ldcg(own + block * CHANNELS + slot % CHANNELS), block);
    kept[threadIdx.x] = total;
    __syncthreads();
    both[0] = both[1] = 0.0;
    if (channel < CHANNELS)
        for (int part = 0; part < PARTS; part++) {
            both[0] += kept[part * SLOTS + channel];
            both[1] += kept[part * SLOTS + CHANNELS + channel];
        }
}

// Where a block leaves its two numbers for a channel.
template <int CHANNELS>
__device__ __forceinline__ float2* place_of(float* partial, int channel) {
    return (float2*)partial + ((i64)blockIdx.y * gridDim.x + blockIdx.x) * CHANNELS + channel;
}

// --- forward

// Every block leaves the mean of its rows, and the sum of squares about that: sums of squares about
// anything else would lose what the mean is larger than the deviation.
template <bool RELU, bool ADDED, typename S, typename T, typename P>
__device__ __forceinline__ void grid_batch_norm(
    const T* x, T* y, const T* more, i32 rows, i32 channels, double eps,
    Strided<const P, i32> scale, Strided<const P, i32> shift, Strided<float, i32> mean,
    Strided<float, i32> variance, float* partial, u32 barrier, char* shared) {
    const int MANY = 16 / sizeof(T), OWN = MANY * S::ACROSS;
    double* kept = (double*)shared;
    Known<3>* known = (Known<3>*)(kept + S::THREADS);
    Chunk<T, S> chunk(rows, channels / MANY);
    int own = threadIdx.x;
    i32 channel = (i32)blockIdx.y * OWN + own;
    Pack<T, MANY> held[S::KEPT], beside[S::KEPT];
    chunk.read(x, held);
    if constexpr (ADDED) chunk.read(more, beside);
    // The first row is what values are taken less: that is near enough to their mean.
    i32 first = (i32)blockIdx.x * (S::THREADS / S::ACROSS * S::KEPT);
    double gain = 0.0, offset = 0.0;
    if (own < OWN) {
        known[own].at[0] = finite_or_zero((float)wide(x[(i64)first * channels + channel]));
        // The statistics may be written over these: all blocks have read them when they meet.
        gain = (double)wide(scale[channel]);
        offset = (double)wide(shift[channel]);
    }
    __syncthreads();
    float pivot[MANY], sums[2 * MANY];
    of_piece(known, 0, pivot, S::ACROSS);
    chunk.sum(sums, [&](int k, int v, float& first, float& second) {
        float away = (float)wide(held[k].at[v]) - pivot[v];
        first += away;
        second += away * away;
    });
    double both[2];
    block_add_up<T, S>(sums, (float*)kept, both);
    if (own < OWN) {
        double count = (double)rows_of<S>(blockIdx.x, rows), level = both[0] / count;
        *place_of<OWN>(partial, own) = make_float2(
            (float)((double)known[own].at[0] + level), (float)(both[1] - both[0] * level));
    }
    grid_barrier(barrier);
    block_add_all<T, S>(partial, kept, both, [&](int which, float2 found, i32 block) {
        double count = (double)rows_of<S>(block, rows), middle = (double)found.x;
        return which ? (double)found.y + count * middle * middle : count * middle;
    });
    if (own < OWN) {
        Moments found = moments(both[0], both[1], 0.0, (double)rows);
        known[own] = {(float)found.mean,
                      (float)(gain * inverse_deviation((double)(float)found.variance, eps)),
                      (float)offset};
        if (blockIdx.x == 0) {
            mean[channel] = (float)found.mean;
            variance[channel] = (float)found.variance;
        }
    }
    __syncthreads();
    float middle[MANY], factor[MANY], added[MANY];
    of_piece(known, 0, middle, S::ACROSS);
    of_piece(known, 1, factor, S::ACROSS);
    of_piece(known, 2, added, S::ACROSS);
    chunk.write(y, [&](int k, int v) {
        float value = fma((float)wide(held[k].at[v]) - middle[v], factor[v], added[v]);
        if constexpr (ADDED) value += (float)wide(beside[k].at[v]);
        return RELU ? op_relu(value) : value;
    });
}

// --- the gradient

// dx = f * g - a - (x - mean) * b, see norm_statistics.cuh.
template <bool RELU, typename S, typename T, typename P>
__device__ __forceinline__ void grid_batch_gradients(
    const T* x, const T* g, T* dx, i32 rows, i32 channels, double eps,
    Strided<const P, i32> scale, Strided<const P, i32> shift, Strided<const float, i32> mean,
    Strided<const float, i32> variance, Strided<P, i32> for_scale, Strided<P, i32> for_shift,
    float* partial, u32 barrier, char* shared) {
    const int MANY = 16 / sizeof(T), OWN = MANY * S::ACROSS;
    double* kept = (double*)shared;
    Known<5>* known = (Known<5>*)(kept + S::THREADS);
    Chunk<T, S> chunk(rows, channels / MANY);
    int own = threadIdx.x;
    i32 channel = (i32)blockIdx.y * OWN + own;
    Pack<T, MANY> held[S::KEPT], gradients[S::KEPT];
    chunk.read(x, held);
    chunk.read(g, gradients);
    double inverse = 0.0, gain = 0.0;
    if (own < OWN) {
        // The gradients may be written over these: all blocks have read them when they meet.
        inverse = inverse_deviation((double)variance[channel], eps);
        gain = (double)wide(scale[channel]) * inverse;
        known[own].at[0] = mean[channel];
        known[own].at[1] = (float)gain;
        known[own].at[2] = RELU ? (float)wide(shift[channel]) : 0.0f;
    }
    __syncthreads();
    float middle[MANY], factor[MANY], offset[MANY], sums[2 * MANY];
    of_piece(known, 0, middle, S::ACROSS);
    of_piece(known, 1, factor, S::ACROSS);
    of_piece(known, 2, offset, S::ACROSS);
    auto centred = [&](int k, int v) { return (float)wide(held[k].at[v]) - middle[v]; };
    auto gradient = [&](int k, int v, float away) {
        float found = (float)wide(gradients[k].at[v]);
        return RELU && !(fma(away, factor[v], offset[v]) > 0.0f) ? 0.0f : found;
    };
    chunk.sum(sums, [&](int k, int v, float& first, float& second) {
        float away = centred(k, v), found = gradient(k, v, away);
        first += found;
        second += found * away;
    });
    double both[2];
    block_add_up<T, S>(sums, (float*)kept, both);
    if (own < OWN) *place_of<OWN>(partial, own) = make_float2((float)both[0], (float)both[1]);
    grid_barrier(barrier);
    block_add_all<T, S>(partial, kept, both, [&](int which, float2 found, i32 block) {
        return (double)(which ? found.y : found.x);
    });
    if (own < OWN) {
        double share = gain / (double)rows;
        known[own].at[3] = (float)(share * both[0]);
        known[own].at[4] = (float)(share * both[1] * inverse * inverse);
        if (blockIdx.x == 0) {
            for_scale[channel] = Stored<P>::from((typename Computed<P>::type)(both[1] * inverse));
            for_shift[channel] = Stored<P>::from((typename Computed<P>::type)both[0]);
        }
    }
    __syncthreads();
    float level[MANY], slant[MANY];
    of_piece(known, 3, level, S::ACROSS);
    of_piece(known, 4, slant, S::ACROSS);
    chunk.write(dx, [&](int k, int v) {
        float away = centred(k, v);
        return fma(gradient(k, v, away), factor[v], -fma(away, slant[v], level[v]));
    });
}
