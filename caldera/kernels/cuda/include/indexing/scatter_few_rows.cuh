// Adding at computed positions, few rows: a block has one row of the result, looks at all positions
// and lists those that name it, then adds up what is to be added there.
#pragma once
#include "scatter.cuh"

const int LISTING_THREADS = 256, LISTED = 2048, LISTING_WARPS = LISTING_THREADS / 32;
const int LISTING_ROUNDS = LISTED / LISTING_THREADS;

// Numbers from `first` to `last` whose position is this row, in order; how many. `missing` is set if
// one of them is not there.
template <typename Position>
__device__ __forceinline__ u32 block_listed(
    const Position* positions, const StridedAxes<2>& added, u32 first, u32 last, i64 row, i64 length,
    u32* list, bool& missing) {
    __shared__ u32 counts[LISTED / 32];
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, found[LISTING_ROUNDS];
#pragma unroll
    for (int round = 0; round < LISTING_ROUNDS; round++) {
        u32 k = first + round * LISTING_THREADS + thread;
        i64 place = row + 1;
        if (k < last) {
            i64 at[2];
            locate(added, k, at);
            place = place_of(positions[at[1]], length);
        }
        missing |= place < 0;
        found[round] = __ballot_sync(0xffffffffu, place == row && k < last);
        if (lane == 0) counts[round * LISTING_WARPS + warp] = __popc(found[round]);
    }
    __syncthreads();
    // Where the numbers of each round and warp begin: a lane has two of the counts.
    u32 first_count = counts[2 * lane], both = first_count + counts[2 * lane + 1], until = both;
#pragma unroll
    for (u32 apart = 1; apart < 32; apart *= 2) {
        u32 other = __shfl_up_sync(0xffffffffu, until, apart);
        if (lane >= apart) until += other;
    }
    u32 all = __shfl_sync(0xffffffffu, until, 31);
#pragma unroll
    for (int round = 0; round < LISTING_ROUNDS; round++) {
        u32 which = round * LISTING_WARPS + warp;
        u32 before = __shfl_sync(0xffffffffu, until - both, which / 2);
        u32 beside = __shfl_sync(0xffffffffu, first_count, which / 2);
        before += __popc(found[round] & ((1u << lane) - 1u)) + (which % 2 ? beside : 0);
        if (found[round] >> lane & 1u) list[before] = first + round * LISTING_THREADS + thread;
    }
    __syncthreads();
    return all;
}

// One row of the result, `across` times V columns of it; the other threads share the list.
// `rows` leads to a row in out and x, `columns` to V columns in out, updates and x.
template <typename T, typename Position, int V>
__device__ __forceinline__ void block_add_listed(
    T* out, const T* x, const T* updates, const Position* positions, const StridedAxes<2>& rows,
    const StridedAxes<3>& columns, const StridedAxes<2>& added, u32 additions, i64 length, u32 across,
    u32 tiles, u32 column_count) {
    typedef typename Sum<T>::type S;
    const int AHEAD = 4;
    __shared__ u32 list[LISTED];
    __shared__ S kept[LISTING_THREADS][V];
    __shared__ u32 spoilt[LISTING_WARPS];
    i64 row = blockIdx.x / tiles;
    u32 column = blockIdx.x % tiles * across + threadIdx.x % across;
    u32 group = threadIdx.x / across, groups = LISTING_THREADS / across;
    bool inside = column < column_count, missing = false;
    i64 beside[3], start[2];
    locate(columns, inside ? column : 0, beside);
    locate(rows, row, start);
    S sums[V];
#pragma unroll
    for (int v = 0; v < V; v++) sums[v] = (S)0;
    for (u32 first = 0; first < additions; first += LISTED) {
        u32 last = additions - first < LISTED ? additions : first + LISTED;
        u32 all = block_listed(positions, added, first, last, row, length, list, missing);
        for (u32 k = group; inside && k < all; k += AHEAD * groups) {
            // Updates are asked for before any is needed.
            Pack<T, V> values[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                i64 at[2];
                if (k + j * groups >= all) continue;
                locate(added, list[k + j * groups], at);
                values[j] = *(const Pack<T, V>*)(updates + beside[1] + at[0]);
            }
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (k + j * groups < all)
#pragma unroll
                    for (int v = 0; v < V; v++) sums[v] += (S)wide(values[j].each[v]);
        }
        __syncthreads();
    }
    u32 missed = __ballot_sync(0xffffffffu, missing);
    if (threadIdx.x % 32 == 0) spoilt[threadIdx.x / 32] = missed;
#pragma unroll
    for (int v = 0; v < V; v++) kept[threadIdx.x][v] = sums[v];
    __syncthreads();
    if (group || !inside) return;
    bool spoil = false;
    for (int warp = 0; warp < LISTING_WARPS; warp++) spoil |= spoilt[warp] != 0;
    Pack<T, V> old = *(const Pack<T, V>*)(x + start[1] + beside[2]), result;
#pragma unroll
    for (int v = 0; v < V; v++) {
        S total = (S)wide(old.each[v]);
        for (u32 other = 0; other < groups; other++)
            total += kept[other * across + threadIdx.x][v];
        if (spoil) Sum<T>::spoil(total);
        result.each[v] = Stored<T>::from(total);
    }
    *(Pack<T, V>*)(out + start[0] + beside[0]) = result;
}
