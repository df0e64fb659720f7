// Attention and its gradient, a tile of queries by keys at a time: scores never go to memory. A
// block of 16 x 16 threads has M x M numbers of a tile in each thread; what a tile is multiplied
// with waits in shared memory. Sums over keys or queries run in a fixed order in one block.
#pragma once
#include "row_primitives.cuh"

static const int SIDE = 16;  // threads along each side of a tile
static const int THREADS = SIDE * SIDE;

template <typename A> struct Tile {
    static const int M = 16 / sizeof(A), SIZE = SIDE * M, PITCH = SIZE + M;
};

struct AttentionSizes { int queries, keys, depth, width; };

// The strides of several arrays along their last two axes.
template <int A, typename I> struct Steps { I row[A], column[A]; };

template <typename T, typename I> struct Matrix {
    T* first;
    I row, column;
    __device__ __forceinline__ T* at(int r, int c) const {
        return first + r * row + c * column;
    }
};

template <typename T, typename I, int A>
__device__ __forceinline__ Matrix<T, I> matrix(
    T* array, const I* at, const Steps<A, I>& steps, int which) {
    return {array + at[which], steps.row[which], steps.column[which]};
}

// Where a thread stands in a tile.
__device__ __forceinline__ int tile_row() { return threadIdx.x / SIDE; }
__device__ __forceinline__ int tile_column() { return threadIdx.x % SIDE; }

// --- products of tiles

// Part of a matrix into shared memory, times a factor; 0 where the matrix has ended.
template <bool TRANSPOSED, int WIDTH, typename A, typename T, typename I>
__device__ __forceinline__ void stage(
    A* target, int pitch, Matrix<T, I> from, int top, int rows, int left, int columns,
    A factor) {
    for (int i = threadIdx.x; i < Tile<A>::SIZE * WIDTH; i += THREADS) {
        int r = i / WIDTH, c = i % WIDTH;
        A value = (A)0;
        if (top + r < rows && left + c < columns)
            value = (A)wide(*from.at(top + r, left + c)) * factor;
        target[TRANSPOSED ? c * pitch + r : r * pitch + c] = value;
    }
}

// sums += left^T right, where both have `depth` rows in shared memory. A thread has M neighbouring
// columns of the left one, and M of every SIZE columns of the right one.
template <int N, typename A>
__device__ __forceinline__ void multiply(
    const A* left, const A* right, int pitch, int depth, A (&sums)[Tile<A>::M][N]) {
    const int M = Tile<A>::M;
#pragma unroll 4
    for (int k = 0; k < depth; k++) {
        A a[M], b[N];
        load<M>(left + k * Tile<A>::PITCH + tile_row() * M, a);
#pragma unroll
        for (int n = 0; n < N; n += M)
            load<M>(right + k * pitch + n * SIDE + tile_column() * M, b + n);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++) sums[m][n] = fma(a[m], b[n], sums[m][n]);
    }
}

// The column of a tile's product that a thread has as its n-th.
template <typename A> __device__ __forceinline__ int column_of(int n) {
    const int M = Tile<A>::M;
    return n / M * Tile<A>::SIZE + tile_column() * M + n % M;
}

template <int N, typename A> __device__ __forceinline__ void clear(A (&sums)[Tile<A>::M][N]) {
#pragma unroll
    for (int m = 0; m < Tile<A>::M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) sums[m][n] = (A)0;
}

// Every row of a tile of `left` (times a factor) times every row of one of `right`. `first` and
// `second` are places in shared memory; what is in the first stays if it is `there` already.
template <typename A, typename T, typename I>
__device__ __forceinline__ void block_scores(
    Matrix<T, I> left, int top, int lefts, Matrix<T, I> right, int side, int rights, int depth,
    A factor, bool there, A* first, A* second, A (&sums)[Tile<A>::M][Tile<A>::M]) {
    const int SIZE = Tile<A>::SIZE, PITCH = Tile<A>::PITCH;
    clear(sums);
    for (int d = 0; d < depth; d += SIZE) {
        if (!there || depth > SIZE)
            stage<true, SIZE>(first, PITCH, left, top, lefts, d, depth, factor);
        stage<true, SIZE>(second, PITCH, right, side, rights, d, depth, (A)1);
        __syncthreads();
        multiply<Tile<A>::M>(first, second, PITCH, depth - d < SIZE ? depth - d : SIZE, sums);
        __syncthreads();
    }
}

// Numbers of a tile into shared memory: a row of it for each of the tile's rows, or (TURNED) for
// each of its columns.
template <bool TURNED, typename A>
__device__ __forceinline__ void keep(A* target, const A (&values)[Tile<A>::M][Tile<A>::M]) {
    const int M = Tile<A>::M, PITCH = Tile<A>::PITCH;
#pragma unroll
    for (int i = 0; i < M; i++) {
        A line[M];
#pragma unroll
        for (int j = 0; j < M; j++) line[j] = TURNED ? values[j][i] : values[i][j];
        int row = (TURNED ? tile_column() : tile_row()) * M + i;
        store<M>(target + row * PITCH + (TURNED ? tile_row() : tile_column()) * M, line);
    }
}

// A tile of results, as far as it is inside of the matrix.
template <int N, typename A, typename T, typename I>
__device__ __forceinline__ void deliver(
    Matrix<T, I> to, int top, int rows, int left, int columns,
    const A (&values)[Tile<A>::M][N]) {
#pragma unroll
    for (int m = 0; m < Tile<A>::M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            int r = top + tile_row() * Tile<A>::M + m, c = left + column_of<A>(n);
            if (r < rows && c < columns) *to.at(r, c) = Stored<T>::from(values[m][n]);
        }
}

// --- forward

// Sums and maxima over the threads that share the rows of a tile: half a warp.
template <typename Join, typename A> __device__ __forceinline__ A warp_rows_joined(A value) {
#pragma unroll
    for (int lane_mask = SIDE / 2; lane_mask; lane_mask /= 2)
        value = Join::of(value, __shfl_xor_sync(0xffffffffu, value, lane_mask));
    return value;
}

// The largest of two numbers; a nan counts for nothing.
struct Higher {
    template <typename A> static __device__ __forceinline__ A of(A a, A b) { return a > b ? a : b; }
};

template <typename A> __device__ __forceinline__ A finite_or_none(A x) {
    return x == -infinity_like(x) ? (A)0 : x;
}

// N * SIDE columns of the result for a tile of queries, and the logarithms of the sums of
// exponentials. `masked(query, key, score)` says what masks make of a score. The shift of a row is
// its largest score that is finite: infinite ones and nans go on as they are.
template <int N, bool CAUSAL, typename A, typename T, typename I, typename Masked>
__device__ __forceinline__ void block_attention(
    Matrix<const T, I> q, Matrix<const T, I> key, Matrix<const T, I> v, Matrix<T, I> y,
    A* logarithm, I step, AttentionSizes in, A scale, int top, int left, Masked masked) {
    const int M = Tile<A>::M, SIZE = Tile<A>::SIZE, PITCH = Tile<A>::PITCH, WIDTH = N * SIDE;
    DYNAMIC_SHARED(A, shared);
    A* first = shared;
    A* second = first + SIZE * PITCH;
    A* weights = second + SIZE * PITCH;
    A* values = weights + SIZE * PITCH;
    A results[M][N], total[M], highest[M];
    clear(results);
#pragma unroll
    for (int m = 0; m < M; m++) {
        total[m] = (A)0;
        highest[m] = -infinity_like((A)0);
    }
    int past = in.keys - in.queries, end = in.keys;
    if (CAUSAL && top + SIZE + past < end) end = top + SIZE + past;
    for (int side = 0; side < end; side += SIZE) {
        A scores[M][M];
        block_scores(
            q, top, in.queries, key, side, in.keys, in.depth, scale, side > 0, first, second,
            scores);
#pragma unroll
        for (int m = 0; m < M; m++) {
            int query = top + tile_row() * M + m;
            A largest = -infinity_like((A)0);
#pragma unroll
            for (int n = 0; n < M; n++) {
                int at = side + tile_column() * M + n;
                bool seen = at < in.keys && query < in.queries && (!CAUSAL || at <= query + past);
                scores[m][n] = seen ? masked(query, at, scores[m][n]) : -infinity_like((A)0);
                if (scores[m][n] < infinity_like((A)0)) largest = Higher::of(scores[m][n], largest);
            }
            largest = Higher::of(warp_rows_joined<Higher>(largest), highest[m]);
            A shift = finite_or_none(largest), before = highest[m];
            // As long as there was nothing finite, there is nothing to be moved.
            A factor = before == -infinity_like(before) ? (A)1 : op_exp(before - shift);
            highest[m] = largest;
            total[m] *= factor;
#pragma unroll
            for (int n = 0; n < N; n++) results[m][n] *= factor;
#pragma unroll
            for (int n = 0; n < M; n++) {
                scores[m][n] = op_exp(scores[m][n] - shift);
                total[m] += scores[m][n];
            }
        }
        keep<true>(weights, scores);
        stage<false, WIDTH>(values, WIDTH, v, side, in.keys, left, in.width, (A)1);
        __syncthreads();
        multiply<N>(weights, values, WIDTH, SIZE, results);
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        int query = top + tile_row() * M + m;
        A found = warp_rows_joined<Sum>(total[m]);
        // A row that is masked altogether gives 0.
        if (found == (A)0) found = (A)1;
#pragma unroll
        for (int n = 0; n < N; n++) results[m][n] /= found;
        if (left == 0 && tile_column() == 0 && query < in.queries)
            logarithm[query * step] = op_log(found) + finite_or_none(highest[m]);
    }
    deliver<N>(y, top, in.queries, left, in.width, results);
}
