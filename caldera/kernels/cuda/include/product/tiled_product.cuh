// Products of matrices in tiles. A block computes one tile of the result: both operands pass
// through shared memory, DEPTH steps of the sum at a time, the next ones read while these are used.
//
// An operand is a `source`: anything that can say what lies at (line, step of the sum), where a
// line is a row of the left operand or a column of the right one. Beyond its edges it is zero.
#pragma once
#include "strided_index.cuh"

// What sums of an element type are kept in.
template <typename T> struct Sum { typedef float type; };
template <> struct Sum<double> { typedef double type; };

template <typename S> struct __align__(16) Four { S element[4]; };

// A division that is a multiplication, for numbers below 2^31.
struct Divider {
    u32 divisor, magic, shift;
    __device__ __forceinline__ i32 quotient(i32 number) const {
        return (i32)((__umulhi((u32)number, magic) + (u32)number) >> shift);
    }
};

// Elements that lie side by side, as wide as sums are.
template <int N, typename T, typename S>
__device__ __forceinline__ void read_pack(const T* place, S* to) {
    Pack<T, N> found = *(const Pack<T, N>*)place;
    for (int i = 0; i < N; i++) to[i] = (S)wide(found.each[i]);
}

template <int N, typename S> __device__ __forceinline__ void read_nothing(S* to) {
    for (int i = 0; i < N; i++) to[i] = (S)0;
}

// A matrix with any distances between its elements.
template <typename T> struct Matrix {
    const T* start;
    i64 line_step, depth_step;
    i32 lines, depth;

    template <int N, typename S>
    __device__ __forceinline__ void read(i32 line, i32 step, S* to) const {
        if (line < lines && step < depth)
            read_pack<N>(start + line * line_step + step * depth_step, to);
        else
            read_nothing<N>(to);
    }
};

// SIDE x SIDE results of a block, GRID x GRID threads with PER x PER results each.
template <int SIDE_, int PER_, int DEPTH_> struct Tile {
    static const int SIDE = SIDE_, PER = PER_, GRID = SIDE / PER, THREADS = GRID * GRID;
    static const int DEPTH = DEPTH_;
    // Rows of shared memory begin 16 bytes further along the banks than the one before.
    static const int PITCH = SIDE + 4;
    // Which line of the tile a thread's result number i has: they come in fours.
    static __device__ __forceinline__ int line(int thread, int i) {
        return i / 4 * (SIDE / (PER / 4)) + thread * 4 + i % 4;
    }
};

// The part of an operand that one thread carries to shared memory. ALONG says that neighbours in
// memory follow each other along the sum; NEAR of them are read at once.
template <typename TILE, typename S, bool ALONG, int NEAR> struct Carrier {
    static const int PACKS = TILE::SIDE * TILE::DEPTH / NEAR / TILE::THREADS;
    static const int ACROSS = (ALONG ? TILE::DEPTH : TILE::SIDE) / NEAR;
    S held[PACKS * NEAR];

    static __device__ __forceinline__ int first(int pack) {
        return (threadIdx.x + pack * TILE::THREADS) % ACROSS * NEAR;
    }
    static __device__ __forceinline__ int second(int pack) {
        return (threadIdx.x + pack * TILE::THREADS) / ACROSS;
    }
    template <typename SOURCE>
    __device__ __forceinline__ void fetch(const SOURCE& source, i32 line, i32 step) {
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            i32 near = first(i), far = second(i);
            source.template read<NEAR>(line + (ALONG ? far : near), step + (ALONG ? near : far),
                                       held + i * NEAR);
        }
    }
    __device__ __forceinline__ void put(S* shared) const {
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            int near = first(i), far = second(i);
#pragma unroll
            for (int j = 0; j < NEAR; j++) {
                int step = ALONG ? near + j : far, line = ALONG ? far : near + j;
                shared[step * TILE::PITCH + line] = held[i * NEAR + j];
            }
        }
    }
};

// How operands are read: along the sum or across it, and how many elements at once.
template <bool ALONG_, int NEAR_> struct Access {
    static const bool ALONG = ALONG_;
    static const int NEAR = NEAR_;
};

// sums = the tile's part of left x right, from step `begin` of the sum to `end`.
template <typename TILE, typename LEFT_ACCESS, typename RIGHT_ACCESS, typename S, typename LEFT,
          typename RIGHT>
__device__ __forceinline__ void block_product(const LEFT& left, const RIGHT& right, i32 row,
                                              i32 column, i32 begin, i32 end,
                                              S (&sums)[TILE::PER][TILE::PER]) {
    const int PER = TILE::PER;
    __shared__ __align__(16) S rows[2][TILE::DEPTH * TILE::PITCH];
    __shared__ __align__(16) S columns[2][TILE::DEPTH * TILE::PITCH];
    Carrier<TILE, S, LEFT_ACCESS::ALONG, LEFT_ACCESS::NEAR> from_left;
    Carrier<TILE, S, RIGHT_ACCESS::ALONG, RIGHT_ACCESS::NEAR> from_right;
    int down = threadIdx.x / TILE::GRID, across = threadIdx.x % TILE::GRID;
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) sums[i][j] = (S)0;
    if (begin < end) {
        from_left.fetch(left, row, begin);
        from_right.fetch(right, column, begin);
        from_left.put(rows[0]);
        from_right.put(columns[0]);
    }
    __syncthreads();
    int now = 0;
    for (i32 step = begin; step < end; step += TILE::DEPTH, now = 1 - now) {
        bool more = step + TILE::DEPTH < end;
        if (more) {
            from_left.fetch(left, row, step + TILE::DEPTH);
            from_right.fetch(right, column, step + TILE::DEPTH);
        }
#pragma unroll
        for (int k = 0; k < TILE::DEPTH; k++) {
            Four<S> mine[PER / 4], theirs[PER / 4];
            const S* a = rows[now] + k * TILE::PITCH;
            const S* b = columns[now] + k * TILE::PITCH;
#pragma unroll
            for (int i = 0; i < PER / 4; i++) {
                mine[i] = *(const Four<S>*)(a + TILE::line(down, i * 4));
                theirs[i] = *(const Four<S>*)(b + TILE::line(across, i * 4));
            }
#pragma unroll
            for (int i = 0; i < PER; i++)
#pragma unroll
                for (int j = 0; j < PER; j++)
                    sums[i][j] += mine[i / 4].element[i % 4] * theirs[j / 4].element[j % 4];
        }
        if (more) {
            from_left.put(rows[1 - now]);
            from_right.put(columns[1 - now]);
        }
        __syncthreads();
    }
}

// Which tile of which product a block computes, and which steps of the sum.
struct WorkTile {
    i32 row, column, begin, end, split, product;
};

// A grid over products: `across` x `down` tiles each, every sum split into `splits` of `span` steps.
struct TileScheduler {
    i32 across, down, splits, span, length;

    __device__ __forceinline__ WorkTile of(u32 block, i32 side) const {
        WorkTile found;
        found.row = (i32)(block % (u32)down) * side;
        block /= (u32)down;
        found.column = (i32)(block % (u32)across) * side;
        block /= (u32)across;
        found.split = (i32)(block % (u32)splits);
        found.product = (i32)(block / (u32)splits);
        found.begin = found.split * span;
        found.end = min(found.begin + span, length);
        return found;
    }
};

// The axes before the matrices', the last one first, with the distance between neighbours in the
// left operand, the right one and the result.
struct Batch {
    i64 size[4], left[4], right[4], out[4];

    __device__ __forceinline__ void locate(i32 product, i64& of_left, i64& of_right,
                                           i64& of_out) const {
        i64 rest = product;
        of_left = of_right = of_out = 0;
#pragma unroll
        for (int axis = 0; axis < 4; axis++) {
            if (size[axis] == 1) continue;
            i64 index = rest % size[axis];
            rest /= size[axis];
            of_left += index * left[axis];
            of_right += index * right[axis];
            of_out += index * out[axis];
        }
    }
};
