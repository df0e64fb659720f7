// Products in a kernel that stays on the card. A block makes a tile of sums on tensor cores; its
// operands are brought to shared memory first, all of a tile's at once if they fit, because what
// counts here is how often one waits for memory. What does not depend on the phase before is
// brought while the blocks meet. Code is kept short: each instruction runs only a few times in a
// step, so that fetching it counts. Sums are added in a fixed order: results do not change from
// run to run.
#pragma once
#include "math.cuh"

// How much of a float a tensor core sees: once, or in two parts that together keep 22 bits.
template <bool EXACT> struct Fragment;

template <> struct Fragment<false> {
    u32 high;
    __device__ __forceinline__ void set(float x) { high = tf32_near(x); }
};

template <> struct Fragment<true> {
    u32 high, low;
    __device__ __forceinline__ void set(float x) {
        high = tf32_below(x);
        low = tf32_near(x - bits_to_float(high));
    }
};

__device__ __forceinline__ void mma_add(float* c, const Fragment<false>* a, Fragment<false> b0,
                                        Fragment<false> b1) {
    u32 rows[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    mma_tf32(c, rows, b0.high, b1.high);
}

// a b = high high + high low + low high, the small terms first; low low is below the last bit. Tensor
// cores cut off what they add: long sums are added outside of them, and rounded.
__device__ __forceinline__ void mma_add(float* c, const Fragment<true>* a, Fragment<true> b0,
                                        Fragment<true> b1) {
    u32 high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    u32 low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
    float sums[4] = {0, 0, 0, 0};
    mma_tf32(sums, low, b0.high, b1.high);
    mma_tf32(sums, high, b0.low, b1.low);
    mma_tf32(sums, high, b0.high, b1.high);
    for (int i = 0; i < 4; i++) c[i] += sums[i];
}

// Lines of so many elements lie apart by 8 or 24 mod 32: fragments find each bank once, and lines
// begin where copies to shared memory are fast, at multiples of 32 bytes.
constexpr int apart(int wide) { return wide / 8 % 2 ? wide : wide + 8; }

// How a block of THREADS threads makes a tile: DOWN x ACROSS places of WARP_M x WARP_N sums, each
// made by PARTS warps that share the inner dimension.
template <int THREADS_, int WARP_M_, int WARP_N_, int DOWN_, int ACROSS_, int PARTS_, bool EXACT_>
struct Tiling {
    static const int THREADS = THREADS_, WARP_M = WARP_M_, WARP_N = WARP_N_, DOWN = DOWN_;
    static const int PARTS = PARTS_, M = WARP_M * DOWN, N = WARP_N * ACROSS_, STRIDE = apart(N);
    static const int WARPS = DOWN * ACROSS_ * PARTS;
    // Floats of a tile in shared memory; sums are PARTS of these.
    static const int FLOATS = M * STRIDE;
    static const bool EXACT = EXACT_;
    // Elements of the tile that a thread ends with.
    static const int EACH = (M * N + THREADS - 1) / THREADS;
    // Lines of the tile that the block ends at the same time.
    static const int TOGETHER = THREADS / N;
};

// An operand in memory, whose lines lie LEAD apart, and a part of it in shared memory: WIDE of its
// COUNT rows (columns) and DEPTH inner indices. ALONG: a line runs along the inner dimension, and
// there is one for each row (column) of the result; else there is a line for each inner index.
// ALIGNED: four neighbours may be read at once. GATHERED: lines have numbers of their own. PAIRED:
// both operands of the product lie along, and are read in pairs of neighbours.
template <int LEAD_, int COUNT_, bool ALONG_, bool ALIGNED_, bool GATHERED_, bool PAIRED_, int WIDE_,
          int DEPTH_>
struct Staged {
    static const int LEAD = LEAD_, COUNT = COUNT_, WIDE = WIDE_, DEPTH = DEPTH_;
    static const bool ALONG = ALONG_, ALIGNED = ALIGNED_, GATHERED = GATHERED_;
    static const bool PAIRED = PAIRED_;
    static const int ROUNDED = (DEPTH + 7) / 8 * 8;
    static const int STRIDE = !ALONG ? apart(WIDE) : PAIRED ? apart(ROUNDED) : ROUNDED + 4;
    static const int LENGTH = ALONG ? ROUNDED : WIDE;
    static const int FLOATS = STRIDE * (ALONG ? WIDE : ROUNDED);
    static const int DOWN = ALONG ? STRIDE : 1, DEEP = ALONG ? 1 : STRIDE;
};

// Start to bring rows from `first` on and inner indices from `begin` on to shared memory; there are
// `depth` of these. Inner indices beyond the edge are zero, and rows beyond it anything: they only
// reach sums that nobody looks at. `numbers` are those of the lines, if they have any.
template <typename S, int THREADS>
__device__ __forceinline__ void stage(float* to, const float* from, int first, int begin, int depth,
                                      const i32* numbers = 0) {
    const int STEP = S::ALIGNED ? 4 : 1, ACROSS = S::LENGTH / STEP;
    const int TOGETHER = ACROSS < THREADS ? THREADS / ACROSS : 1;
    int rows = min(S::COUNT - first, S::WIDE);
    int lines = S::ALONG ? rows : (depth + 7) / 8 * 8, present = S::ALONG ? rows : depth;
    int inside = S::ALONG ? depth : rows, thread = thread_now(), across = thread, top = 0;
    if (ACROSS < THREADS) {
        across = thread % ACROSS;
        top = thread / ACROSS;
        if (top >= TOGETHER) return;
    }
    from += S::ALONG ? begin : first;
    if (!S::GATHERED) from += (S::ALONG ? first : begin) * S::LEAD;
#pragma unroll 1
    for (; across < ACROSS; across += THREADS) {
        int k = across * STEP, some = 4 * max(0, min(inside - k, STEP));
#pragma unroll 2
        for (int line = top; line < lines; line += TOGETHER) {
            bool here = line < present;
            i64 number = S::GATHERED ? (i64)(here ? numbers[line] : 0) : (i64)line;
            copy_some<4 * STEP>(to + line * S::STRIDE + k, from + number * S::LEAD + k,
                                here ? some : 0);
        }
    }
}

// Fragments of one operand for an inner index 8 k: of HALVES times eight rows (columns) from `from`
// on. Where operands are paired, lane t takes inner indices 2 t and 2 t + 1, else t and t + 4.
template <typename S, int HALVES, typename F>
__device__ __forceinline__ void warp_fragments(F (&found)[HALVES][2], const float* from, int k) {
#pragma unroll
    for (int i = 0; i < HALVES; i++) {
        const float* place = from + 8 * i * S::DOWN + k * S::DEEP;
        if (S::PAIRED) {
            float2 pair = *(const float2*)place;
            found[i][0].set(pair.x);
            found[i][1].set(pair.y);
        } else {
            found[i][0].set(place[0]);
            found[i][1].set(place[4 * S::DEEP]);
        }
    }
}

// A warp's share of the products of what lies in shared memory, added to c.
template <typename T, typename L, typename R>
__device__ __forceinline__ void warp_products(float (&c)[T::WARP_M / 16][T::WARP_N / 8][4],
                                              const float* left, const float* right, int depth) {
    int thread = thread_now(), warp = thread >> 5, g = (thread & 31) >> 2, t = thread & 3;
    int place = warp / T::PARTS, part = warp % T::PARTS;
    if (L::PAIRED) t *= 2;
    left += (place % T::DOWN * T::WARP_M + g) * L::DOWN + t * L::DEEP;
    right += (place / T::DOWN * T::WARP_N + g) * R::DOWN + t * R::DEEP;
    if (warp >= T::WARPS) return;
#pragma unroll 1
    for (int k = part * 8; k < depth; k += 8 * T::PARTS) {
        Fragment<T::EXACT> rows[T::WARP_M / 8][2], columns[T::WARP_N / 8][2];
        warp_fragments<L>(rows, left, k);
        warp_fragments<R>(columns, right, k);
#pragma unroll
        for (int i = 0; i < T::WARP_M / 16; i++) {
            Fragment<T::EXACT> a[4] = {rows[2 * i][0], rows[2 * i + 1][0], rows[2 * i][1],
                                       rows[2 * i + 1][1]};
#pragma unroll
            for (int j = 0; j < T::WARP_N / 8; j++)
                mma_add(c[i][j], a, columns[j][0], columns[j][1]);
        }
    }
}

// The sums of a warp to shared memory: PARTS layers of M lines, which `tile_sum` adds up.
template <typename T>
__device__ __forceinline__ void warp_store(const float (&c)[T::WARP_M / 16][T::WARP_N / 8][4],
                                           float* sums) {
    int thread = thread_now(), warp = thread >> 5, g = (thread & 31) >> 2, t = thread & 3;
    int place = warp / T::PARTS, part = warp % T::PARTS;
    if (warp >= T::WARPS) return;
    sums += (part * T::M + place % T::DOWN * T::WARP_M + g) * T::STRIDE +
            place / T::DOWN * T::WARP_N + 2 * t;
#pragma unroll
    for (int i = 0; i < T::WARP_M / 16; i++)
#pragma unroll
        for (int j = 0; j < T::WARP_N / 8; j++) {
            float* to = sums + 16 * i * T::STRIDE + 8 * j;
            *(float2*)to = make_float2(c[i][j][0], c[i][j][1]);
            *(float2*)(to + 8 * T::STRIDE) = make_float2(c[i][j][2], c[i][j][3]);
        }
}

// The sums of one tile, from `row` and `column` on; `a` and `b` are where the operands of the first
// INNER or L::DEPTH indices are on their way to, before what was begun last. `sums` may lie there.
template <typename T, typename L, typename R, int INNER>
__device__ __forceinline__ void block_product(const float* left, const float* right, int row,
                                              int column, float* a, float* b, float* sums,
                                              const i32* numbers) {
    float c[T::WARP_M / 16][T::WARP_N / 8][4] = {};
    copies_done<1>();
#pragma unroll 1
    for (int begin = 0;;) {
        __syncthreads();
        warp_products<T, L, R>(c, a, b, min(L::DEPTH, INNER - begin));
        __syncthreads();
        if (INNER <= L::DEPTH) break;
        begin += L::DEPTH;
        if (begin >= INNER) break;
        int depth = min(L::DEPTH, INNER - begin);
        // Lines along the outer dimension are numbered from the first inner index on.
        const i32* from = L::GATHERED && !L::ALONG ? numbers + begin : numbers;
        stage<L, T::THREADS>(a, left, row, begin, depth, from);
        stage<R, T::THREADS>(b, right, column, begin, depth);
        copies_begun();
        copies_done<0>();
    }
    warp_store<T>(c, sums);
    __syncthreads();
}

// An element of the tile that `block_product` left in shared memory.
template <typename T>
__device__ __forceinline__ float tile_sum(const float* sums, int below, int across) {
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < T::PARTS; part++)
        sum += sums[(part * T::M + below) * T::STRIDE + across];
    return sum;
}
