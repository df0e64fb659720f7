// The gradients of attention: probabilities are found again from the logarithms, a tile at a time.
// Queries' gradients are sums over keys, those of keys and values sums over queries, and those of
// added masks sums over whatever these are broadcast along.
#pragma once
#include "attention.cuh"

// What all of them read: `common` and `logarithm` have a number for each query.
template <typename T, typename W, typename I> struct Attended {
    Matrix<const T, I> g, q, key, v;
    const W *common, *logarithm;
    I common_step, logarithm_step;
};

// The sum of the products of two rows; one warp.
template <typename A, typename T, typename I>
__device__ __forceinline__ void warp_row_product(
    A* to, const T* one, I step, const T* other, I other_step, int length) {
    typedef typename Computed<T>::type S;
    S sum = (S)0;
    for (int c = threadIdx.x % 32; c < length; c += 32)
        sum += (S)wide(one[c * step]) * (S)wide(other[c * other_step]);
#pragma unroll
    for (int lane_mask = 16; lane_mask; lane_mask /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lane_mask);
    if (threadIdx.x % 32 == 0) *to = Stored<A>::from(sum);
}

// A tile's probabilities, and the gradients of its scores.
template <bool CAUSAL, typename A, typename T, typename W, typename I, typename Masked>
__device__ __forceinline__ void block_tile_gradients(
    const Attended<T, W, I>& of, AttentionSizes in, A scale, int top, int side, A* first,
    A* second, Masked masked, A (&shares)[Tile<A>::M][Tile<A>::M],
    A (&gradients)[Tile<A>::M][Tile<A>::M]) {
    const int M = Tile<A>::M;
    int past = in.keys - in.queries;
    block_scores(
        of.q, top, in.queries, of.key, side, in.keys, in.depth, scale, false, first, second,
        shares);
    block_scores(
        of.g, top, in.queries, of.v, side, in.keys, in.width, (A)1, false, first, second, gradients);
#pragma unroll
    for (int m = 0; m < M; m++) {
        int query = top + tile_row() * M + m;
        A level = (A)0, common = (A)0;
        if (query < in.queries) {
            level = (A)wide(of.logarithm[query * of.logarithm_step]);
            common = (A)wide(of.common[query * of.common_step]);
        }
#pragma unroll
        for (int n = 0; n < M; n++) {
            int at = side + tile_column() * M + n;
            bool inside = at < in.keys && query < in.queries;
            bool seen = inside && (!CAUSAL || at <= query + past);
            A score = seen ? masked(query, at, shares[m][n]) : -infinity_like((A)0);
            shares[m][n] = inside ? op_exp(score - level) : (A)0;
            gradients[m][n] = inside ? shares[m][n] * (gradients[m][n] - common) : (A)0;
        }
    }
}

// Places in shared memory: two for operands, one for a tile, one for what that is multiplied with.
template <typename A> struct Places { A *first, *second, *tile, *other; };

template <typename A> __device__ __forceinline__ Places<A> places_in(A* shared) {
    const int EACH = Tile<A>::SIZE * Tile<A>::PITCH;
    return {shared, shared + EACH, shared + 2 * EACH, shared + 3 * EACH};
}

// N * SIDE columns of the gradients of a tile of queries, for one head.
template <int N, bool CAUSAL, typename A, typename T, typename W, typename I, typename Masked>
__device__ __forceinline__ void block_query_gradients(
    const Attended<T, W, I>& of, AttentionSizes in, A scale, int top, int left, Places<A> shared,
    Masked masked, A (&results)[Tile<A>::M][N]) {
    const int M = Tile<A>::M, SIZE = Tile<A>::SIZE, WIDTH = N * SIDE;
    int past = in.keys - in.queries, end = in.keys;
    if (CAUSAL && top + SIZE + past < end) end = top + SIZE + past;
    for (int side = 0; side < end; side += SIZE) {
        A shares[M][M], gradients[M][M];
        block_tile_gradients<CAUSAL>(
            of, in, scale, top, side, shared.first, shared.second, masked, shares, gradients);
        keep<true>(shared.tile, gradients);
        stage<false, WIDTH>(shared.other, WIDTH, of.key, side, in.keys, left, in.depth, (A)1);
        __syncthreads();
        multiply<N>(shared.tile, shared.other, WIDTH, SIZE, results);
        __syncthreads();
    }
}

// The same for a tile of keys (KEYS) and of values (VALUES).
template <int N, bool KEYS, bool VALUES, bool CAUSAL, typename A, typename T, typename W,
          typename I, typename Masked>
__device__ __forceinline__ void block_key_gradients(
    const Attended<T, W, I>& of, AttentionSizes in, A scale, int side, int left, Places<A> shared,
    Masked masked, A (&for_keys)[Tile<A>::M][N], A (&for_values)[Tile<A>::M][N]) {
    const int M = Tile<A>::M, SIZE = Tile<A>::SIZE, WIDTH = N * SIDE;
    int past = in.keys - in.queries;
    int begin = CAUSAL && side - past > 0 ? (side - past) / SIZE * SIZE : 0;
    for (int top = begin; top < in.queries; top += SIZE) {
        A shares[M][M], gradients[M][M];
        block_tile_gradients<CAUSAL>(
            of, in, scale, top, side, shared.first, shared.second, masked, shares, gradients);
        if constexpr (VALUES) {
            keep<false>(shared.tile, shares);
            stage<false, WIDTH>(shared.other, WIDTH, of.g, top, in.queries, left, in.width, (A)1);
            __syncthreads();
            multiply<N>(shared.tile, shared.other, WIDTH, SIZE, for_values);
            __syncthreads();
        }
        if constexpr (KEYS) {
            keep<false>(shared.tile, gradients);
            stage<false, WIDTH>(shared.other, WIDTH, of.q, top, in.queries, left, in.depth, scale);
            __syncthreads();
            multiply<N>(shared.tile, shared.other, WIDTH, SIZE, for_keys);
            __syncthreads();
        }
    }
}

// A tile of the gradients of scores, added to what other heads and tiles gave.
template <bool CAUSAL, typename A, typename T, typename W, typename I, typename Masked>
__device__ __forceinline__ void block_mask_gradients(
    const Attended<T, W, I>& of, AttentionSizes in, A scale, int top, int side, Places<A> shared,
    Masked masked, A (&results)[Tile<A>::M][Tile<A>::M]) {
    const int M = Tile<A>::M;
    A shares[M][M], gradients[M][M];
    block_tile_gradients<CAUSAL>(
        of, in, scale, top, side, shared.first, shared.second, masked, shares, gradients);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < M; n++) results[m][n] += gradients[m][n];
}

// Sums of a tile over the axes that a mask does not have, to where the mask has its gradient.
template <bool ROWS, bool COLUMNS, typename A, typename T, typename I>
__device__ __forceinline__ void block_deliver_mask(
    Matrix<T, I> to, AttentionSizes in, int top, int side, A* tile,
    const A (&results)[Tile<A>::M][Tile<A>::M]) {
    const int SIZE = Tile<A>::SIZE, PITCH = Tile<A>::PITCH;
    keep<false>(tile, results);
    __syncthreads();
    const int ACROSS = COLUMNS ? SIZE : 1, DOWN = ROWS ? SIZE : 1;
    for (int i = threadIdx.x; i < ACROSS * DOWN; i += THREADS) {
        int row = i / ACROSS, column = i % ACROSS;
        A total = (A)0;
        for (int r = ROWS ? row : 0; r < (ROWS ? row + 1 : SIZE); r++)
            for (int c = COLUMNS ? column : 0; c < (COLUMNS ? column + 1 : SIZE); c++)
                total += tile[r * PITCH + c];
        bool inside = (!ROWS || top + row < in.queries) && (!COLUMNS || side + column < in.keys);
        if (inside)
            *to.at(ROWS ? top + row : 0, COLUMNS ? side + column : 0) = Stored<T>::from(total);
    }
}
