// All steps of a recurrent layer in one launch. Rows of the batch do not know of each other: blocks
// with the same `blockIdx.y` share some rows, and each has 16 units of the layer for them. A block
// keeps its part of the state's weights in registers, and once a step it tells the others something.
//
// A step of a cell is: `before` makes LEFT vectors of its units from the state, they are multiplied
// by the weights, which gives RIGHT vectors, and `after` makes the new state of these.
#pragma once
#include "grid_barrier.cuh"
#include "math.cuh"
#include "recurrent_weights.cuh"
#include "recurrent_words.cuh"

// --- elements

// What a thread keeps of EACH elements: number e of a block is unit e % 16 of row e / 16.
template <typename CELL, int TILES> struct Elements {
    static const int EACH = (TILES * TILE + THREADS - 1) / THREADS;
    // Words of shared memory to which the next step's data are copied: registers that wait for memory
    // would make everything wait that is read meanwhile.
    static const int SLOTS = CELL::AHEAD * EACH * THREADS;
    const CELL& cell;
    u32* slots;
    i32 first_row, first_unit, rows, units;
    typename CELL::Fixed fixed[EACH];
    typename CELL::Carry carry[EACH];
    typename CELL::Given given[EACH];
    typename CELL::Next next[EACH];
    typename CELL::Kept kept[EACH];
    typename CELL::Early early[EACH];
    typename CELL::Late late[EACH];
    typename CELL::Cursor at[EACH];

    // Of the rows from `begin` to `end`.
    __device__ __forceinline__ Elements(const CELL& cell, u32* slots, i32 begin, i32 end, i32 units)
        : cell(cell), slots(slots + threadIdx.x), first_row(begin + (i32)blockIdx.y * 8 * TILES),
          first_unit((i32)blockIdx.x * UNITS), rows(end), units(units) {}

    static __device__ __forceinline__ i32 number(int i) { return threadIdx.x + i * THREADS; }
    // Whether the block has an element of this number, and whether the layer has it too.
    static __device__ __forceinline__ bool has(int i) { return number(i) < TILES * TILE; }
    __device__ __forceinline__ i32 row(int i) const { return first_row + number(i) / UNITS; }
    __device__ __forceinline__ i32 unit(int i) const { return first_unit + number(i) % UNITS; }
    __device__ __forceinline__ bool is_inside(int i) const {
        return has(i) && row(i) < rows && unit(i) < units;
    }

    __device__ __forceinline__ void begin(i32 count) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            fixed[i] = {};
            carry[i] = {};
            given[i] = {};
            next[i] = {};
            if (!is_inside(i)) continue;
            cell.start(at[i], cell.reverse ? count - 1 : 0, row(i), unit(i));
            cell.read_fixed(fixed[i], row(i), unit(i));
            cell.read_first(carry[i], row(i), unit(i));
            ask(i);
        }
        copies_begun();
    }
    __device__ __forceinline__ void ask(int i) {
        cell.read(next[i], at[i], slots + i * CELL::AHEAD * THREADS, THREADS);
    }
    // The vectors of element i that are multiplied.
    __device__ __forceinline__ void before(int i, float* left) {
        if (i == 0) copies_done<0>();
        if (is_inside(i)) cell.take(given[i], next[i], slots + i * CELL::AHEAD * THREADS, THREADS);
        cell.before(fixed[i], carry[i], given[i], kept[i], early[i], left);
#pragma unroll
        for (int k = 0; k < CELL::LEFT; k++) left[k] = is_inside(i) ? left[k] : 0.0f;
    }
    // While others are at work: the next step's data is asked for, and results are written.
    __device__ __forceinline__ void meanwhile(bool is_first, bool is_last) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (!is_inside(i)) continue;
            if (!is_last) ask(i);
            if (!is_first) cell.write_late(late[i], at[i]);
            cell.write_early(early[i], at[i]);
        }
        copies_begun();
    }
    // The new state: `sums` has PARTS sums of each result, for each vector the units of a block, and
    // for each of these its rows.
    template <int PARTS> __device__ __forceinline__ void after(const float* sums) {
        const int RIGHT = CELL::RIGHT, PITCH = 8 * TILES + 2;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (!has(i)) continue;
            float right[RIGHT];
#pragma unroll
            for (int k = 0; k < RIGHT; k++) {
                const float* part =
                    sums + (k * UNITS + number(i) % UNITS) * PITCH + number(i) / UNITS;
                right[k] = part[0];
#pragma unroll
                for (int p = 1; p < PARTS; p++) right[k] += part[p * RIGHT * UNITS * PITCH];
            }
            cell.after(fixed[i], carry[i], given[i], kept[i], late[i], right);
        }
    }
    // Floats of PARTS sums of each result.
    template <int PARTS> static __device__ __forceinline__ int sums() {
        return PARTS * CELL::RIGHT * UNITS * (8 * TILES + 2);
    }
    // A tile of 16 units by 8 rows of results: what a lane has of it after a product.
    static __device__ __forceinline__ void put(float* sums, int part, int vector, int tile,
                                               const float* c) {
        const int PITCH = 8 * TILES + 2;
        i32 g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
        float* to = sums + ((part * CELL::RIGHT + vector) * UNITS + g) * PITCH + tile * 8 + 2 * t;
        *(float2*)to = make_float2(c[0], c[1]);
        *(float2*)(to + 8 * PITCH) = make_float2(c[2], c[3]);
    }
    __device__ __forceinline__ void end() {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (!is_inside(i)) continue;
            cell.write_late(late[i], at[i]);
            cell.write_last(carry[i], row(i), unit(i));
        }
    }
};

// --- blocks tell each other their parts of what is multiplied
//
// The right way if the vectors that are multiplied are fewer than the results: the forward pass. The
// warps of a block share the sum, and those who own an element add up what they found.
template <typename CELL, int TILES, int SHARE, int KEPT, typename W, typename T>
__device__ __forceinline__ void grid_gather(const CELL& cell, const StateWeights<T>& from,
                                            u32* exchange, float* shared, i32 begin, i32 end,
                                            i32 count, u32 barrier) {
    const int LEFT = CELL::LEFT, RIGHT = CELL::RIGHT, WORDS = TILES * TILE;
    const int TOGETHER = TILES % 2 ? 1 : 2;
    typedef Elements<CELL, TILES> E;
    i32 warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    i32 block = blockIdx.x, blocks = gridDim.x, chunks = LEFT * blocks;
    float* sums = shared + E::SLOTS;
    WarpWeights<W, SHARE, KEPT, RIGHT> weights;
    weights.others = (uint4*)(sums + E::template sums<WARPS>());
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        i32 chunk = warp + i * WARPS;
#pragma unroll
        for (int k = 0; k < RIGHT; k++)
            weights.set(i, k, from.template read<W>(chunk / blocks, chunk % blocks * UNITS, k,
                                                    block * UNITS, chunk < chunks));
    }
    E own(cell, (u32*)shared, begin, end, from.units);
    own.begin(count);
    // Of each vector a tile of each block, twice.
    u32* first = exchange + (i64)blockIdx.y * chunks * WORDS;
    i64 apart = (i64)gridDim.y * chunks * WORDS;
#pragma unroll
    for (int i = 0; i < E::EACH; i++)
        for (int k = 0; k < LEFT; k++)
            if (E::has(i)) {
                u32* to = first + (k * blocks + block) * WORDS + E::number(i);
                to[0] = to[apart] = 0;
            }
    grid_barrier(barrier);
#pragma unroll 1
    for (i32 step = 0; step < count; step++) {
        u32* turn = first + (step & 1 ? apart : 0);
        u32 tag = tag_of(step);
#pragma unroll
        for (int i = 0; i < E::EACH; i++) {
            float left[LEFT];
            own.before(i, left);
#pragma unroll
            for (int k = 0; k < LEFT; k++)
                if (E::has(i))
                    store_word(turn + (k * blocks + block) * WORDS + E::number(i),
                               tagged(W::kept(left[k]), tag));
        }
        own.meanwhile(step == 0, step + 1 == count);
        // The sums of the step before have been added up.
        __syncthreads();
#pragma unroll
        for (int tile = 0; tile < TILES; tile += TOGETHER) {
            uint4 x[TOGETHER * SHARE];
            float c[TOGETHER][RIGHT][4] = {};
            await_words(x, tag, [&](int i) -> const u32* {
                i32 chunk = warp + i / TOGETHER * WARPS;
                return chunk < chunks
                    ? turn + chunk * WORDS + (tile + i % TOGETHER) * TILE + lane * 4 : 0;
            });
            __syncwarp();
#pragma unroll
            for (int i = 0; i < TOGETHER * SHARE; i++)
#pragma unroll
                for (int k = 0; k < RIGHT; k++)
                    weights.get(i / TOGETHER, k).add(c[i % TOGETHER][k], x[i]);
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
#pragma unroll
                for (int k = 0; k < RIGHT; k++) E::put(sums, warp, k, tile + j, c[j][k]);
        }
        __syncthreads();
        own.template after<WARPS>(sums);
    }
    own.end();
}

// --- blocks tell each other their parts of the results
//
// The right way if the results are fewer than what is multiplied: the backward pass. A block's sum
// goes over its own units, and all its threads add up what the blocks found for its elements: PARTS
// warps read tiles of the same rows, BATCH of them at once, each from other blocks.
template <typename CELL, int TILES, int SHARE, int KEPT, int PARTS, int BATCH, typename W, typename T>
__device__ __forceinline__ void grid_scatter(const CELL& cell, const StateWeights<T>& from,
                                             u32* exchange, float* shared, i32 begin, i32 end,
                                             i32 count, u32 barrier) {
    const int LEFT = CELL::LEFT, RIGHT = CELL::RIGHT, WORDS = TILES * TILE;
    const int PITCH = LEFT * UNITS + 4;
    typedef Elements<CELL, TILES> E;
    i32 warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    i32 block = blockIdx.x, blocks = gridDim.x, targets = RIGHT * blocks;
    float* lines = shared + E::SLOTS;
    float* sums = lines + 8 * TILES * PITCH;
    WarpWeights<W, SHARE, KEPT, LEFT> weights;
    weights.others = (uint4*)(sums + E::template sums<PARTS>());
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        i32 target = warp + i * WARPS;
#pragma unroll
        for (int k = 0; k < LEFT; k++)
            weights.set(i, k, from.template read<W>(k, block * UNITS, target / blocks,
                                                    target % blocks * UNITS, target < targets));
    }
    E own(cell, (u32*)shared, begin, end, from.units);
    own.begin(count);
    // For each target a tile of each block, twice.
    u32* first = exchange + (i64)blockIdx.y * targets * blocks * WORDS;
    i64 apart = (i64)gridDim.y * targets * blocks * WORDS;
    for (i32 target = 0; target < targets; target++)
        for (i32 e = threadIdx.x; e < WORDS; e += THREADS) {
            u32* to = first + ((i64)target * blocks + block) * WORDS + e;
            to[0] = to[apart] = 0;
        }
    grid_barrier(barrier);
#pragma unroll 1
    for (i32 step = 0; step < count; step++) {
        u32* turn = first + (step & 1 ? apart : 0);
        u32 tag = tag_of(step);
#pragma unroll
        for (int i = 0; i < E::EACH; i++) {
            float left[LEFT];
            own.before(i, left);
#pragma unroll
            for (int k = 0; k < LEFT; k++)
                if (E::has(i))
                    lines[E::number(i) / UNITS * PITCH + k * UNITS + E::number(i) % UNITS] =
                        W::kept(left[k]);
        }
        __syncthreads();
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            uint4 x[LEFT];
#pragma unroll
            for (int k = 0; k < LEFT; k++)
                x[k] = *(const uint4*)(lines + (tile * 8 + g) * PITCH + k * UNITS + 4 * t);
#pragma unroll
            for (int i = 0; i < SHARE; i++) {
                i32 target = warp + i * WARPS;
                if (target >= targets) continue;
                float c[4] = {};
#pragma unroll
                for (int k = 0; k < LEFT; k++) weights.get(i, k).add(c, x[k]);
                store_words(turn + ((i64)target * blocks + block) * WORDS + tile * TILE + lane * 4,
                            make_uint4(tagged(c[0], tag), tagged(c[1], tag), tagged(c[2], tag),
                                       tagged(c[3], tag)));
            }
        }
        own.meanwhile(step == 0, step + 1 == count);
#pragma unroll
        for (int k = 0; k < RIGHT; k++) {
            const u32* mine = turn + ((i64)k * blocks + block) * blocks * WORDS + lane * 4;
            for (int job = warp; job < TILES * PARTS; job += WARPS) {
                int tile = job % TILES, part = job / TILES;
                float c[4] = {};
                for (i32 next = part; next < blocks; next += PARTS * BATCH) {
                    uint4 x[BATCH];
                    await_words(x, tag, [&](int i) -> const u32* {
                        i32 other = next + i * PARTS;
                        return other < blocks ? mine + (i64)other * WORDS + tile * TILE : 0;
                    });
#pragma unroll
                    for (int i = 0; i < BATCH; i++) {
                        c[0] += bits_to_float(x[i].x);
                        c[1] += bits_to_float(x[i].y);
                        c[2] += bits_to_float(x[i].z);
                        c[3] += bits_to_float(x[i].w);
                    }
                }
                E::put(sums, part, k, tile, c);
            }
        }
        __syncthreads();
        own.template after<PARTS>(sums);
    }
    own.end();
}
