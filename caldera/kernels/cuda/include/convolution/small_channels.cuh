// Convolutions of few channels through tensor cores. A block takes tiles of output pixels: what
// these see of the images lies in shared memory once, as do the filters, in the order in which the
// lanes of a warp need them.
//
// A word is what a lane gives a tensor core of a sum's terms: two numbers of 16 bits, or one float.
// Terms come in the order tap row, tap column, channel; rows of taps begin with a new word.
#pragma once
#include "small_channels_tiles.cuh"

// --- filters

// Which channel of a block's results a column of its tile number `tile` is: SIDE tiles together
// give a lane neighbours that it stores at once.
template <int SIDE> __device__ __forceinline__ int channel_of(int tile, int column) {
    return tile / SIDE * SIDE * 8 + column / 2 * 2 * SIDE + tile % SIDE * 2 + column % 2;
}

// The filters as they lie in memory, LINES of them, of which a block wants LENGTH numbers.
template <typename T, typename S>
__device__ __forceinline__ void block_bring_filters(char* raw, const T* filters, i32 first) {
    const int SIZE = sizeof(T), STEP = S::RAW_STEP / SIZE;
    const int MANY = S::LENGTH / STEP;
    const T* begin = filters + (i64)first * (S::TURNED ? S::TAPS_Y * S::TAPS_X : S::STRIDE);
    i32 lines = S::TURNED ? S::LINES : min(S::LINES, S::RESULTS - first);
    auto from = [&](i32 i) { return begin + (i64)(i / MANY) * S::STRIDE + i % MANY * STEP; };
    auto to = [&](i32 i) { return raw + i / MANY * S::RAW_PITCH + i % MANY * S::RAW_STEP; };
    for (i32 i = threadIdx.x; i < lines * MANY; i += S::THREADS) {
        if constexpr (S::RAW_STEP == 16) copy_ahead16(to(i), from(i), true);
        else if constexpr (S::RAW_STEP == 4) copy_ahead4(to(i), from(i), true);
        else *(T*)to(i) = *from(i);
    }
}

// Number j of a word of a filter's terms: which row of taps it lies in, and where in that.
struct Term { int row, column, channel; };
template <typename T, typename S>
__device__ __forceinline__ Term term_of(int step, int word, int j) {
    const int MANY = 4 / (int)sizeof(T), STEPS = S::CHANNELS / (8 * MANY);
    Term found;
    if constexpr (S::LIST_BYTES == 0) {
        int tap = step / STEPS;
        found.row = tap / S::TAPS_X;
        found.column = tap % S::TAPS_X;
        found.channel = (step % STEPS * 8 + word) * MANY + j;
    } else {
        int all = step * 8 + word, number = all % S::LINE_WORDS * MANY + j;
        found.row = all / S::LINE_WORDS;
        found.column = number / S::CHANNELS;
        found.channel = number % S::CHANNELS;
    }
    return found;
}

// The filters in the order of the lanes: for each step of 8 words and each tile of 8 results, lane
// by lane the words that it multiplies by; of two tiles together if their number is even.
template <typename T, typename S>
__device__ __forceinline__ void block_order_filters(u32* ordered, const char* raw, i32 first) {
    const int SIZE = sizeof(T), MANY = 4 / SIZE, TAPS = S::TAPS_Y * S::TAPS_X;
    const int TOGETHER = S::ACROSS % 2 ? 1 : 2, SPAN = 64 * TOGETHER, GROUPS = S::ACROSS / TOGETHER;
    const int APART = S::THREADS > SPAN ? S::THREADS / SPAN : 1;
    // What a thread writes of each span is always the same place of it.
    for (int place = threadIdx.x % SPAN; place < SPAN; place += S::THREADS) {
        int lane = place / (2 * TOGETHER), word = lane % 4 + place % 2 * 4;
#pragma unroll 4
        for (int span = threadIdx.x / SPAN; span < S::STEPS * GROUPS; span += APART) {
            int tile = span % GROUPS * TOGETHER + place / 2 % TOGETHER;
            int result = channel_of<S::SIDE>(tile, lane / 4);
            u32 value = 0;
#pragma unroll
            for (int j = 0; j < MANY; j++) {
                Term term = term_of<T, S>(span / GROUPS, word, j);
                if (term.row >= S::TAPS_Y || term.column >= S::TAPS_X ||
                    first + result >= S::RESULTS)
                    continue;
                int tap = term.row * S::TAPS_X + term.column;
                int line = S::TURNED ? term.channel : result;
                int number = S::TURNED ? result * TAPS + TAPS - 1 - tap : term.channel * TAPS + tap;
                int from = line * S::RAW_PITCH + number * SIZE;
                value |= Core<T>::bits(*(const T*)(raw + from)) << (j * 16);
            }
            ordered[span * SPAN + place] = value;
        }
    }
}

// Where each word of a pixel's terms lies from the first, and which of its bits count.
template <typename T, typename S>
__device__ __forceinline__ void block_list_words(uint2* words, i32 pitch) {
    const int SIZE = sizeof(T), MANY = 4 / SIZE;
    for (i32 i = threadIdx.x; i < S::STEPS * 8; i += S::THREADS) {
        int row = i / S::LINE_WORDS, term = i % S::LINE_WORDS * MANY;
        bool inside = row < S::TAPS_Y;
        uint2 word;
        word.x = inside ? row * pitch + term * SIZE : 0;
        word.y = !inside ? 0 : term + MANY > S::TAPS_X * S::CHANNELS ? 0xffffu : 0xffffffffu;
        words[i] = word;
    }
}

// --- products

// sums += terms of PER x 16 pixels times filters, for one step of 8 words.
template <typename T, typename S>
__device__ __forceinline__ void mma_step(float (&sums)[S::PER][S::ACROSS][4],
                                         const u32 (&terms)[S::PER][4], const u32* ordered,
                                         int step, int lane) {
    if constexpr (S::ACROSS % 2) {
        const uint2* place = (const uint2*)ordered + step * S::ACROSS * 32 + lane;
#pragma unroll
        for (int j = 0; j < S::ACROSS; j++) {
            uint2 b = place[j * 32];
#pragma unroll
            for (int m = 0; m < S::PER; m++) Core<T>::mma_add(sums[m][j], terms[m], b.x, b.y);
        }
    } else {
        const uint4* place = (const uint4*)ordered + step * (S::ACROSS / 2) * 32 + lane;
#pragma unroll
        for (int j = 0; j < S::ACROSS; j += 2) {
            uint4 b = place[j / 2 * 32];
#pragma unroll
            for (int m = 0; m < S::PER; m++) {
                Core<T>::mma_add(sums[m][j], terms[m], b.x, b.y);
                Core<T>::mma_add(sums[m][j + 1], terms[m], b.z, b.w);
            }
        }
    }
}

// Channels that fill whole steps: a warp reads rows of 16 bytes, one for each pixel.
template <typename T, typename S>
__device__ __forceinline__ void warp_whole_steps(float (&sums)[S::PER][S::ACROSS][4],
                                                 const char* stage, const u32* ordered,
                                                 const PixelTiles& tiling, i32 first, int lane) {
    const int STEPS = S::CHANNELS * (int)sizeof(T) / 32;
    SharedPlace from[S::PER];
#pragma unroll
    for (int m = 0; m < S::PER; m++) {
        i32 number = min(first + m * 16 + lane % 16, tiling.pixels - 1);
        from[m] = shared_place(stage) + seen_from<S::PIXEL>(tiling, number) + lane / 16 * 16;
    }
#pragma unroll(S::STEPS <= 18 ? S::TAPS_Y : 1)
    for (int row = 0; row < S::TAPS_Y; row++) {
#pragma unroll
        for (int i = 0; i < S::TAPS_X * STEPS; i++) {
            u32 terms[S::PER][4];
#pragma unroll
            for (int m = 0; m < S::PER; m++)
                mma_rows(terms[m], from[m] + row * tiling.pitch + i / STEPS * S::PIXEL +
                                       i % STEPS * 32);
            mma_step<T, S>(sums, terms, ordered, row * S::TAPS_X * STEPS + i, lane);
        }
    }
}

template <typename S> __device__ __forceinline__ u32 word_at(const char* place) {
    if constexpr (S::IS_EVEN) return *(const u32*)place;
    else return *(const u16*)place | (u32)*(const u16*)(place + 2) << 16;
}

// Any channels: rows of taps are lines of neighbours, and a list says where each word lies.
template <typename T, typename S>
__device__ __forceinline__ void warp_listed_steps(float (&sums)[S::PER][S::ACROSS][4],
                                                  const char* stage, const u32* ordered,
                                                  const uint2* words, const PixelTiles& tiling,
                                                  i32 first, int lane) {
    const char* from[S::PER][2];
#pragma unroll
    for (int m = 0; m < S::PER; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i32 number = min(first + m * 16 + h * 8 + lane / 4, tiling.pixels - 1);
            from[m][h] = stage + seen_from<S::PIXEL>(tiling, number);
        }
#pragma unroll(S::STEPS <= 12 ? S::STEPS : 4)
    for (int step = 0; step < S::STEPS; step++) {
        uint2 low = words[step * 8 + lane % 4], high = words[step * 8 + 4 + lane % 4];
        u32 terms[S::PER][4];
#pragma unroll
        for (int m = 0; m < S::PER; m++) {
            terms[m][0] = word_at<S>(from[m][0] + low.x) & low.y;
            terms[m][1] = word_at<S>(from[m][1] + low.x) & low.y;
            terms[m][2] = word_at<S>(from[m][0] + high.x) & high.y;
            terms[m][3] = word_at<S>(from[m][1] + high.x) & high.y;
        }
        mma_step<T, S>(sums, terms, ordered, step, lane);
    }
}

// Sums of PER x 16 pixels to the results.
template <typename T, typename S>
__device__ __forceinline__ void store_sums(const float (&sums)[S::PER][S::ACROSS][4], T* out,
                                           const PixelTiles& tiling, Corner corner, i32 first,
                                           i32 result,
                                           int lane) {
#pragma unroll
    for (int m = 0; m < S::PER; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i32 number = first + m * 16 + h * 8 + lane / 4;
            Corner pixel = pixel_of(tiling, number);
            i32 image = corner.image + pixel.image;
            if (number >= tiling.pixels || image >= tiling.images) continue;
            i64 row = (i64)image * tiling.target_height + corner.y + pixel.y;
            T* to = out + (row * tiling.target_width + corner.x + pixel.x) * S::RESULTS + result;
#pragma unroll
            for (int j = 0; j < S::ACROSS; j += S::SIDE) {
                const int SIZE = sizeof(T), MANY = 4 / SIZE;
                Pack<u32, 2 * S::SIDE / MANY> pack;
#pragma unroll
                for (int i = 0; i < S::SIDE; i++)
                    Core<T>::stored(pack.each + 2 * i / MANY, sums[m][j + i][2 * h],
                                    sums[m][j + i][2 * h + 1]);
                int channel = j * 8 + lane % 4 * 2 * S::SIDE;
                if constexpr (S::IS_FULL) {
                    *(Pack<u32, 2 * S::SIDE / MANY>*)(to + channel) = pack;
                } else {
#pragma unroll
                    for (int i = 0; i < 2 * S::SIDE; i++) {
                        if (result + channel + i >= S::RESULTS) continue;
                        u32 word = pack.each[i / MANY];
                        if constexpr (SIZE == 4) *(u32*)(to + channel + i) = word;
                        else *(u16*)(to + channel + i) = (u16)(word >> i % 2 * 16);
                    }
                }
            }
        }
}

// A correlation of stride and start as `tiling` says: block (x, y) takes tiles x, x + gridDim.x...
// and results from y ACROSS 8 on.
template <typename T, typename S>
__device__ __forceinline__ void block_correlate_small_channels(
    char* shared, T* out, const T* images, const T* filters, const PixelTiles& tiling) {
    u32* ordered = (u32*)shared;
    uint2* words = (uint2*)(shared + S::ORDERED_BYTES);
    char* raw = shared + S::ORDERED_BYTES + S::LIST_BYTES;
    char* stage = raw + S::RAW_BYTES;
    i32 result = (i32)blockIdx.y * S::ACROSS * 8;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto see = [&](i32 tile, int buffer) {
        block_see<T, S::CHANNELS, S::PIXEL, S::THREADS>(stage + buffer * tiling.seen, images, tiling,
                                                        corner_of(tiling, tile));
        copies_begun();
    };
    block_bring_filters<T, S>(raw, filters, result);
    copies_begun();
    see(blockIdx.x, 0);
    if constexpr (S::LIST_BYTES > 0) block_list_words<T, S>(words, tiling.pitch);
    copies_done<1>();
    __syncthreads();
    block_order_filters<T, S>(ordered, raw, result);
    int now = 0;
    for (i32 tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
        bool more = tile + (i32)gridDim.x < tiling.tiles;
        if (S::BUFFERS == 2 && more) {
            see(tile + gridDim.x, 1 - now);
            copies_done<1>();
        } else {
            copies_done<0>();
        }
        __syncthreads();
        const char* seen = stage + now * tiling.seen;
        Corner corner = corner_of(tiling, tile);
        for (i32 first = warp * S::PER * 16; first < tiling.pixels;
             first += S::THREADS / 32 * S::PER * 16) {
            float sums[S::PER][S::ACROSS][4];
#pragma unroll
            for (int i = 0; i < S::PER * S::ACROSS * 4; i++)
                sums[i / 4 / S::ACROSS][i / 4 % S::ACROSS][i % 4] = 0.0f;
            if constexpr (S::LIST_BYTES > 0)
                warp_listed_steps<T, S>(sums, seen, ordered, words, tiling, first, lane);
            else
                warp_whole_steps<T, S>(sums, seen, ordered, tiling, first, lane);
            store_sums<T, S>(sums, out, tiling, corner, first, result, lane);
        }
        if (more) {
            __syncthreads();
            if (S::BUFFERS == 1) see(tile + gridDim.x, 0);
            else now = 1 - now;
        }
    }
}
