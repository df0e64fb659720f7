// All steps of a recurrent layer in one launch. Rows of the batch do not know of each other: blocks
// with the same `blockIdx.y` share some rows, and each has 16 units of the layer for them. A block
// keeps its part of the state's weights in registers, and once a step it tells the others something.
//
// A step of a cell is: `before` makes LEFT vectors of its units from the state, they are multiplied
// by the weights, which gives RIGHT vectors, and `after` makes the new state of these.
#pragma once
#include "grid_barrier.cuh"
#include "math.cuh"

const int UNITS = 16, WARPS = 8, THREADS = 32 * WARPS, TILE = 8 * UNITS;

// --- words
//
// What blocks tell each other are words that say themselves whether they are there: the last two
// bits of a float tell of which step it is. So nobody waits for more than the words themselves; a
// flag would have to be waited for as well, and so would everything written before it. A word is
// overwritten two steps later, when all who read it have answered.

__device__ __forceinline__ u32 tag_of(i32 step) { return 1u + ((u32)step >> 1 & 1u); }

__device__ __forceinline__ u32 tagged(float x, u32 tag) {
    return ((x != x ? 0x7fc00000u : float_to_bits(x)) & ~3u) | tag;
}

// Words of other blocks as they are now, and words for them: no order among them is kept.
__device__ __forceinline__ uint4 load_words(const u32* from) {
    uint4 words;
#ifdef __CUDA_ARCH__
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(from) : "memory");
#else
    words = *(const uint4*)from;
#endif
    return words;
}
__device__ __forceinline__ void store_words(u32* to, uint4 words) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w) : "memory");
#else
    *(uint4*)to = words;
#endif
}
__device__ __forceinline__ void store_word(u32* to, u32 word) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(to), "r"(word) : "memory");
#else
    *to = word;
#endif
}

__device__ __forceinline__ bool are_of(uint4 words, u32 tag) {
    return !(((words.x ^ tag) | (words.y ^ tag) | (words.z ^ tag) | (words.w ^ tag)) & 3u);
}

// Read four words from each of COUNT places until all are of this step; `place(i)` is 0 where there
// is nothing to read. They come without their tags.
template <int COUNT, typename Place>
__device__ __forceinline__ void await_words(uint4 (&words)[COUNT], u32 tag, Place place) {
    for (bool ready = false; !ready;) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const u32* from = place(i);
            words[i] = from ? load_words(from) : make_uint4(tag, tag, tag, tag);
        }
        ready = true;
#pragma unroll
        for (int i = 0; i < COUNT; i++) ready = ready && are_of(words[i], tag);
        if (!ready) spin();
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        words[i].x &= ~3u;
        words[i].y &= ~3u;
        words[i].z &= ~3u;
        words[i].w &= ~3u;
    }
}

// --- products on tensor cores
//
// A lane's part of 16 x 16 weights, of which the columns are summed over. Lane 4 g + t has columns
// 4 t to 4 t + 3 of rows g and g + 8, and multiplies them by the same four numbers of row g of the
// state: `add(c, x)` adds a tile of 16 units by 8 rows to c.

// Floats, of which a tensor core sees ten bits after the point.
struct __align__(16) Rounded {
    u32 rows[8];
    static __device__ __forceinline__ float kept(float x) {
        return x != x ? x : bits_to_float(tf32_bits(x));
    }
    __device__ __forceinline__ void set(int pair, int side, float first, float second) {
        rows[4 * pair + side] = tf32_bits(first);
        rows[4 * pair + 2 + side] = tf32_bits(second);
    }
    __device__ __forceinline__ void add(float* c, uint4 x) const {
        mma_tf32(c, rows, x.x, x.y);
        mma_tf32(c, rows + 4, x.z, x.w);
    }
};

// Floats in two parts that together keep 22 bits.
struct __align__(16) Exact {
    float rows[8];
    static __device__ __forceinline__ float kept(float x) { return x; }
    __device__ __forceinline__ void set(int pair, int side, float first, float second) {
        rows[4 * pair + side] = first;
        rows[4 * pair + 2 + side] = second;
    }
    __device__ __forceinline__ void add(float* c, uint4 given) const {
        u32 x[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            u32 high[4], low[4], x_high[2], x_low[2];
#pragma unroll
            for (int i = 0; i < 4; i++) split(as_now(rows[4 * pair + i]), high[i], low[i]);
#pragma unroll
            for (int i = 0; i < 2; i++) split(bits_to_float(x[2 * pair + i]), x_high[i], x_low[i]);
            mma_tf32(c, low, x_high[0], x_high[1]);
            mma_tf32(c, high, x_low[0], x_low[1]);
            mma_tf32(c, high, x_high[0], x_high[1]);
        }
    }
    // A weight as if it had changed: else both its parts would be kept from step to step, in
    // registers that are not there.
    static __device__ __forceinline__ float as_now(float weight) {
#ifdef __CUDA_ARCH__
        asm volatile("" : "+f"(weight));
#endif
        return weight;
    }
    static __device__ __forceinline__ void split(float x, u32& high, u32& low) {
        high = tf32_below(x);
        low = tf32_near(x - bits_to_float(high));
    }
};

// Numbers in 16 bits; what comes as a float was rounded to such a number.
struct __align__(16) Half {
    u32 rows[4];
    static __device__ __forceinline__ float kept(float x) { return x; }
    __device__ __forceinline__ void set(int pair, int side, float first, float second) {
        rows[2 * pair + side] = half_pair(first, second);
    }
    __device__ __forceinline__ void add(float* c, uint4 x) const {
        mma_half(c, rows, half_pair(bits_to_float(x.x), bits_to_float(x.y)),
                 half_pair(bits_to_float(x.z), bits_to_float(x.w)));
    }
};

struct __align__(16) Bfloat {
    u32 rows[4];
    static __device__ __forceinline__ float kept(float x) { return x; }
    __device__ __forceinline__ void set(int pair, int side, float first, float second) {
        rows[2 * pair + side] = bfloat_pair(first, second);
    }
    __device__ __forceinline__ void add(float* c, uint4 x) const {
        mma_bfloat(c, rows, x.x >> 16 | x.y, x.z >> 16 | x.w);
    }
};

// The weights in memory: from vector `left`, unit `from`, to vector `right`, unit `to`.
template <typename T> struct StateWeights {
    const T* start;
    i64 down, across;
    i32 units;

    __device__ __forceinline__ float at(i32 left, i32 from, i32 right, i32 to) const {
        if (from >= units || to >= units) return 0.0f;
        i64 row = (i64)left * units + from, column = (i64)right * units + to;
        return wide(start[row * down + column * across]);
    }
    // Those from units `from` on to units `to` on; none if not `present`.
    template <typename W>
    __device__ __forceinline__ W read(i32 left, i32 from, i32 right, i32 to, bool present) const {
        W weights;
        i32 g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (int pair = 0; pair < 2; pair++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                i32 here = from + 4 * t + 2 * pair, there = to + g + 8 * side;
                weights.set(pair, side, present ? at(left, here, right, there) : 0.0f,
                            present ? at(left, here + 1, right, there) : 0.0f);
            }
        return weights;
    }
};

// The weights of a warp: SHARE pieces for each of VECTORS vectors, KEPT of them in registers and the
// others in shared memory, where a thread finds what it put there itself.
template <typename W, int SHARE, int KEPT, int VECTORS> struct WarpWeights {
    static const int QUADS = sizeof(W) / 16;
    W kept[KEPT][VECTORS];
    uint4* others;

    __device__ __forceinline__ uint4* place(int i, int k, int quad) const {
        return others + (((i - KEPT) * VECTORS + k) * QUADS + quad) * THREADS + threadIdx.x;
    }
    __device__ __forceinline__ void set(int i, int k, const W& weights) {
        if (i < KEPT) {
            kept[i < KEPT ? i : 0][k] = weights;
        } else {
#pragma unroll
            for (int quad = 0; quad < QUADS; quad++)
                *place(i, k, quad) = ((const uint4*)&weights)[quad];
        }
    }
    __device__ __forceinline__ W get(int i, int k) const {
        if (i < KEPT) return kept[i < KEPT ? i : 0][k];
        W weights;
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++) ((uint4*)&weights)[quad] = *place(i, k, quad);
        return weights;
    }
};

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
