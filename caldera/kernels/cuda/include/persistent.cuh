// Parts of a whole training step in one kernel: blocks stay, and meet between phases.
// Products go through tensor cores; their operands are brought to shared memory first, all of a
// tile's at once if they fit, because what counts here is how often one waits for memory. Sums are
// added in a fixed order, so results do not change from run to run.
#pragma once
#include "math.cuh"

// How much of a float a tensor core sees: once, or in two parts that together keep 22 bits.
template <bool EXACT> struct Fragment;

template <> struct Fragment<false> {
    u32 high;
    __device__ __forceinline__ void set(float x) { high = tf32_bits(x); }
};

template <> struct Fragment<true> {
    u32 high, low;
    __device__ __forceinline__ void set(float x) {
        high = tf32_bits(x);
        low = tf32_bits(x - bits_to_float(high));
    }
};

__device__ __forceinline__ void mma_add(float* c, const Fragment<false>* a, Fragment<false> b0,
                                        Fragment<false> b1) {
    u32 rows[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    mma_tf32(c, rows, b0.high, b1.high);
}

// a b = high high + high low + low high, the small terms first; low low is below the last bit.
__device__ __forceinline__ void mma_add(float* c, const Fragment<true>* a, Fragment<true> b0,
                                        Fragment<true> b1) {
    u32 high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    u32 low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
    mma_tf32(c, low, b0.high, b1.high);
    mma_tf32(c, high, b0.low, b1.low);
    mma_tf32(c, high, b0.high, b1.high);
}

// How a block of WARPS warps makes a tile of M x N sums: DOWN x ACROSS warps lie over the tile, and
// as many as are left for each place share the inner dimension.
template <int WARPS, int ROWS, int COLUMNS, int DOWN, int ACROSS, bool EXACT_> struct Tiling {
    static const int M = ROWS, N = COLUMNS, PARTS = WARPS / (DOWN * ACROSS), THREADS = 32 * WARPS;
    static const int WARP_M = ROWS / DOWN, WARP_N = COLUMNS / ACROSS, PLACES_DOWN = DOWN;
    static const bool EXACT = EXACT_;
    // Elements of the tile that a thread ends with.
    static const int EACH = (M * N + THREADS - 1) / THREADS;
};

// An operand whose lines lie LEAD apart. ALONG: a line runs along the inner dimension, and there is
// one for each of the COUNT rows (columns) of the result; else there is a line for each inner index.
// ALIGNED: four neighbours may be read at once.
template <int LEAD_, int COUNT_, bool ALONG_, bool ALIGNED_> struct Operand {
    static const int LEAD = LEAD_, COUNT = COUNT_;
    static const bool ALONG = ALONG_, ALIGNED = ALIGNED_;
    const float* place;
};

// A part of an operand in shared memory: WIDE rows (columns), DEPTH inner indices. Lines lie apart
// so that no two lanes of a fragment want the same bank.
template <typename O, int WIDE_, int DEPTH> struct Staged {
    static const int WIDE = WIDE_, ROUNDED = (DEPTH + 7) / 8 * 8;
    static const int STRIDE = O::ALONG ? (DEPTH + 31) / 32 * 32 + 4 : WIDE + 8;
    static const int LINES = O::ALONG ? WIDE : ROUNDED, LENGTH = O::ALONG ? ROUNDED : WIDE;
    static const int ROOM = STRIDE * LINES;
    static const int DOWN = O::ALONG ? STRIDE : 1, DEEP = O::ALONG ? 1 : STRIDE;
};

// Start to bring rows from `first` on and inner indices from `begin` on to shared memory; there are
// `depth` of these, and what lies beyond the edges is zero.
template <typename S, typename T, typename O>
__device__ __forceinline__ void stage(float* to, O from, int first, int begin, int depth) {
    const int step = O::ALIGNED ? 4 : 1, across = S::LENGTH / step;
    const float* start = from.place + (O::ALONG ? first * O::LEAD + begin : begin * O::LEAD + first);
    int rows = min(O::COUNT - first, S::WIDE);
    int lines = O::ALONG ? rows : depth, inside = O::ALONG ? depth : rows;
#pragma unroll 4
    for (int e = threadIdx.x; e < S::LINES * across; e += T::THREADS) {
        int line = e / across, k = e % across * step;
        if (line < lines && k + step <= inside) {
            float* target = to + line * S::STRIDE + k;
            const float* source = start + line * O::LEAD + k;
            if (O::ALIGNED) copy_ahead16(target, source, true);
            else copy_ahead4(target, source, true);
        }
    }
    // Lines that are missing, then the ends of those that are too short.
#pragma unroll 1
    for (int e = lines * S::LENGTH + threadIdx.x; e < S::LINES * S::LENGTH; e += T::THREADS)
        to[e / S::LENGTH * S::STRIDE + e % S::LENGTH] = 0.0f;
    int whole = inside / step * step, rest = S::LENGTH - whole;
#pragma unroll 1
    for (int e = threadIdx.x; e < lines * rest; e += T::THREADS) {
        int line = e / rest, k = whole + e % rest;
        to[line * S::STRIDE + k] = k < inside ? start[line * O::LEAD + k] : 0.0f;
    }
}

// A product of two operands over INNER indices, of which at most DEPTH_ are in shared memory at once.
template <typename T_, typename A_, typename B_, int INNER_, int DEPTH_> struct Multiplication {
    typedef T_ T;
    typedef A_ A;
    typedef B_ B;
    static const int INNER = INNER_, DEPTH = DEPTH_ < INNER_ ? DEPTH_ : INNER_;
    typedef Staged<A, T::M, DEPTH> LEFT;
    typedef Staged<B, T::N, DEPTH> RIGHT;
    A left;
    B right;
};

template <typename P>
__device__ __forceinline__ void block_begin(P product, int begin, int row, int column,
                                            float* shared) {
    int depth = min(P::DEPTH, P::INNER - begin);
    stage<typename P::LEFT, typename P::T>(shared, product.left, row, begin, depth);
    stage<typename P::RIGHT, typename P::T>(shared + P::LEFT::ROOM, product.right, column, begin,
                                            depth);
}

// A warp's share of the products of what lies in shared memory, added to c.
template <typename P, typename T = typename P::T>
__device__ __forceinline__ void warp_products(float (&c)[T::WARP_M / 16][T::WARP_N / 8][4],
                                              const float* shared, int depth) {
    typedef typename P::LEFT L;
    typedef typename P::RIGHT R;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int place = warp / T::PARTS, part = warp % T::PARTS;
    const float* a = shared + (place % T::PLACES_DOWN * T::WARP_M + g) * L::DOWN + t * L::DEEP;
    const float* b = shared + L::ROOM + (place / T::PLACES_DOWN * T::WARP_N + g) * R::DOWN +
                     t * R::DEEP;
#pragma unroll 2
    for (int k = part * 8; k < depth; k += 8 * T::PARTS) {
        Fragment<T::EXACT> left[T::WARP_M / 16][4], right[T::WARP_N / 8][2];
#pragma unroll
        for (int i = 0; i < T::WARP_M / 16; i++)
#pragma unroll
            for (int h = 0; h < 4; h++)
                left[i][h].set(a[(16 * i + h % 2 * 8) * L::DOWN + (k + h / 2 * 4) * L::DEEP]);
#pragma unroll
        for (int j = 0; j < T::WARP_N / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                right[j][h].set(b[8 * j * R::DOWN + (k + h * 4) * R::DEEP]);
#pragma unroll
        for (int i = 0; i < T::WARP_M / 16; i++)
#pragma unroll
            for (int j = 0; j < T::WARP_N / 8; j++)
                mma_add(c[i][j], left[i], right[j][0], right[j][1]);
    }
}

// The sums of one tile, from `row` and `column` on, in shared memory: PARTS layers of M x N, which
// `tile_sum` adds up. The first operands are on their way already, see `block_begin`.
template <typename P, typename T = typename P::T>
__device__ __forceinline__ void block_product(P product, int row, int column, float* shared) {
    float c[T::WARP_M / 16][T::WARP_N / 8][4] = {};
#pragma unroll 1
    for (int begin = 0; begin < P::INNER; begin += P::DEPTH) {
        if (begin) block_begin(product, begin, row, column, shared);
        copies_begun();
        copies_done<0>();
        __syncthreads();
        warp_products<P>(c, shared, min(P::DEPTH, P::INNER - begin));
        __syncthreads();
    }
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int place = warp / T::PARTS, part = warp % T::PARTS;
    float* sums = shared + part * T::M * T::N + (place % T::PLACES_DOWN * T::WARP_M + g) * T::N +
                  place / T::PLACES_DOWN * T::WARP_N + 2 * t;
#pragma unroll
    for (int i = 0; i < T::WARP_M / 16; i++)
#pragma unroll
        for (int j = 0; j < T::WARP_N / 8; j++) {
            *(float2*)(sums + 16 * i * T::N + 8 * j) = make_float2(c[i][j][0], c[i][j][1]);
            *(float2*)(sums + (16 * i + 8) * T::N + 8 * j) = make_float2(c[i][j][2], c[i][j][3]);
        }
    __syncthreads();
}

// Element e of the tile that `block_product` left in shared memory.
template <typename T> __device__ __forceinline__ float tile_sum(const float* shared, int e) {
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < T::PARTS; part++) sum += shared[part * T::M * T::N + e];
    return sum;
}

// Sums within a warp, the same in every lane.
template <typename T> __device__ __forceinline__ T warp_total(T x) {
    for (int mask = 16; mask; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

template <typename T> __device__ __forceinline__ T warp_largest(T x) {
    for (int mask = 16; mask; mask >>= 1) {
        T other = __shfl_xor_sync(0xffffffffu, x, mask);
        // A nan wins over everything.
        x = (other > x || other != other) ? other : x;
    }
    return x;
}

// Whether x at place c goes before the best so far: larger or nan, and among equals the first.
__device__ __forceinline__ bool warp_before(float x, int c, float best, int place) {
    bool x_nan = x != x, best_nan = best != best;
    if (x_nan || best_nan) return x_nan && (!best_nan || c < place);
    return x > best || (x == best && c < place);
}

// x less the largest of its row, and 0 where x is +inf: what softmax takes the exponential of.
__device__ __forceinline__ float below(float x, float largest) {
    return x == bits_to_float(0x7f800000u) ? 0.0f : x - largest;
}

// The last block to leave sets both counters to 0 for the next launch: they never overflow.
__device__ __forceinline__ void grid_leave(u32* counters) {
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(counters + 1, 1u) == gridDim.x - 1) {
        counters[0] = 0;
        counters[1] = 0;
    }
}
