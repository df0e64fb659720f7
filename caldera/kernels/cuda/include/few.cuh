// Convolutions of few channels through tensor cores. A block takes tiles of output pixels: what
// these see of the images lies in shared memory once, as do the filters, in the order in which the
// lanes of a warp need them.
//
// A word is what a lane gives a tensor core of a sum's terms: two numbers of 16 bits, or one float.
// Terms come in the order tap row, tap column, channel; rows of taps begin with a new word.
#pragma once
#include "tile.cuh"

// What a tensor core does with numbers of a type.
template <typename T> struct Core;
template <> struct Core<float> {
    static __device__ __forceinline__ u32 bits(float x) { return tf32_bits(x); }
    static __device__ __forceinline__ void mma_add(float* c, const u32* a, u32 b0, u32 b1) {
        mma_tf32(c, a, b0, b1);
    }
    static __device__ __forceinline__ void stored(u32* words, float x, float y) {
        words[0] = float_to_bits(x);
        words[1] = float_to_bits(y);
    }
};
template <> struct Core<half_t> {
    static __device__ __forceinline__ u32 bits(half_t x) { return x.bits; }
    static __device__ __forceinline__ void mma_add(float* c, const u32* a, u32 b0, u32 b1) {
        mma_half(c, a, b0, b1);
    }
    static __device__ __forceinline__ void stored(u32* words, float x, float y) {
        words[0] = half_pair(x, y);
    }
};
template <> struct Core<bfloat_t> {
    static __device__ __forceinline__ u32 bits(bfloat_t x) { return x.bits; }
    static __device__ __forceinline__ void mma_add(float* c, const u32* a, u32 b0, u32 b1) {
        mma_bfloat(c, a, b0, b1);
    }
    static __device__ __forceinline__ void stored(u32* words, float x, float y) {
        words[0] = bfloat_pair(x, y);
    }
};

// Tiles of output pixels: some rows and columns of some images.
struct Cover {
    Divider across, down;   // tiles of an image: from a tile's number to its place
    Divider width, area;    // of a tile: from a pixel's number to its row and its image
    Divider line, height;   // of what a tile sees: pieces of a row, rows of an image
    i32 tiles, tile_images, tile_height, pixels;
    i32 images, source_height, source_width, target_height, target_width;
    i32 stride_y, stride_x, start_y, start_x;
    i32 pitch, seen;        // bytes of a row of what a tile sees, and of all of it
};

struct Corner { i32 image, y, x; };

// The first output pixel of a tile.
__device__ __forceinline__ Corner corner_of(const Cover& cover, i32 tile) {
    i32 row = cover.across.quotient(tile), group = cover.down.quotient(row);
    Corner found;
    found.x = (tile - row * (i32)cover.across.divisor) * (i32)cover.width.divisor;
    found.y = (row - group * (i32)cover.down.divisor) * cover.tile_height;
    found.image = group * cover.tile_images;
    return found;
}

// Which pixel of a tile has a number, from its corner.
__device__ __forceinline__ Corner pixel_of(const Cover& cover, i32 number) {
    Corner found;
    found.image = cover.area.quotient(number);
    i32 rest = number - found.image * (i32)cover.area.divisor;
    found.y = cover.width.quotient(rest);
    found.x = rest - found.y * (i32)cover.width.divisor;
    return found;
}

// Where the first of what an output pixel sees lies, PIXEL bytes from one image pixel to the next.
template <int PIXEL>
__device__ __forceinline__ i32 seen_from(const Cover& cover, i32 number) {
    Corner pixel = pixel_of(cover, number);
    i32 row = pixel.image * (i32)cover.height.divisor + pixel.y * cover.stride_y;
    return row * cover.pitch + pixel.x * cover.stride_x * PIXEL;
}

// Copies of what lies in `load(i)` for each i of a block's turns, AT_ONCE of them on their way
// before the first is stored.
template <int THREADS, int AT_ONCE, typename V, typename Load, typename Store>
__device__ __forceinline__ void carry(i32 total, Load load, Store store) {
    for (i32 first = threadIdx.x; first < total; first += THREADS * AT_ONCE) {
        V held[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            i32 i = first + u * THREADS;
            if (i < total) held[u] = load(i);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            i32 i = first + u * THREADS;
            if (i < total) store(i, held[u]);
        }
    }
}

// 16 bytes of numbers: at once, or rounded on their way as tensor cores want them.
template <typename T> struct Chunk {
    static const bool IS_AHEAD = true;
};
template <> struct Chunk<float> {
    static const bool IS_AHEAD = false;
    static __device__ __forceinline__ uint4 rounded(float4 x) {
        return make_uint4(tf32_bits(x.x), tf32_bits(x.y), tf32_bits(x.z), tf32_bits(x.w));
    }
};

// Chunks of 16 bytes to shared memory; `find(i, to, from)` says whether chunk i is inside.
template <typename T, int THREADS, typename Find>
__device__ __forceinline__ void carry_chunks(i32 total, const T* anywhere, Find find) {
    if constexpr (Chunk<T>::IS_AHEAD) {
        for (i32 i = threadIdx.x; i < total; i += THREADS) {
            char* to;
            const T* from = anywhere;
            bool inside = find(i, to, from);
            copy_ahead16(to, from, inside);
        }
    } else {
        carry<THREADS, 4, float4>(
            total,
            [&](i32 i) {
                char* to;
                const T* from = anywhere;
                return find(i, to, from) ? __ldg((const float4*)from) : make_float4(0, 0, 0, 0);
            },
            [&](i32 i, float4 x) {
                char* to;
                const T* from;
                find(i, to, from);
                *(uint4*)to = Chunk<T>::rounded(x);
            });
    }
}

// One number to shared memory, rounded as tensor cores want it.
template <typename T> __device__ __forceinline__ void put(char* to, T x) {
    if constexpr (sizeof(T) == 4) *(u32*)to = Core<T>::bits(x);
    else *(u16*)to = (u16)Core<T>::bits(x);
}

// What a tile sees of the images, zeros beyond their edges.
template <typename T, int CHANNELS, int PIXEL, int THREADS>
__device__ __forceinline__ void block_see(char* stage, const T* images, const Cover& cover,
                                          Corner corner) {
    const int SIZE = sizeof(T);
    i32 top = corner.y * cover.stride_y + cover.start_y;
    i32 left = corner.x * cover.stride_x + cover.start_x;
    i32 line = cover.line.divisor, height = cover.height.divisor;
    i32 total = cover.tile_images * height * line;
    if constexpr (CHANNELS * SIZE % 16 == 0) {
        const int MANY = CHANNELS * SIZE / 16;
        carry_chunks<T, THREADS>(total, images, [&](i32 i, char*& to, const T*& from) {
            i32 row = cover.line.quotient(i), rest = i - row * line;
            i32 number = cover.height.quotient(row), image = corner.image + number;
            i32 x = rest / MANY, part = rest - x * MANY, y = top + row - number * height;
            to = stage + row * cover.pitch + x * PIXEL + part * 16;
            x += left;
            bool inside = image < cover.images && (u32)y < (u32)cover.source_height &&
                          (u32)x < (u32)cover.source_width;
            if (inside)
                from = images + ((i64)(image * cover.source_height + y) * cover.source_width + x) *
                                    CHANNELS + part * (16 / SIZE);
            return inside;
        });
    } else {
        i32 length = cover.source_width * CHANNELS;
        carry<THREADS, 8, T>(
            total,
            [&](i32 i) {
                i32 row = cover.line.quotient(i), at = left * CHANNELS + i - row * line;
                i32 number = cover.height.quotient(row), image = corner.image + number;
                i32 y = top + row - number * height;
                bool inside = image < cover.images && (u32)y < (u32)cover.source_height &&
                              (u32)at < (u32)length;
                T none = {};
                return inside ? images[(i64)(image * cover.source_height + y) * length + at] : none;
            },
            [&](i32 i, T x) {
                i32 row = cover.line.quotient(i);
                put(stage + row * cover.pitch + (i - row * line) * SIZE, x);
            });
    }
}

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

// The filters in the order of the lanes: for each step of 8 words and each tile of 8 results, lane
// by lane the words that it multiplies by; of two tiles together if their number is even.
template <typename T, typename S>
__device__ __forceinline__ void block_order_filters(u32* ordered, const char* raw, i32 first) {
    const int SIZE = sizeof(T), MANY = 4 / SIZE, TOGETHER = S::ACROSS % 2 ? 1 : 2;
    const int TAPS = S::TAPS_Y * S::TAPS_X;
    for (i32 i = threadIdx.x; i < S::STEPS * S::ACROSS * 64; i += S::THREADS) {
        int lane = i / (2 * TOGETHER) % 32, step = i / (64 * S::ACROSS);
        int tile = i / (64 * TOGETHER) % (S::ACROSS / TOGETHER) * TOGETHER + i / 2 % TOGETHER;
        int result = channel_of<S::SIDE>(tile, lane / 4);
        int word = step * 8 + lane % 4 + i % 2 * 4;
        int row = word / S::LINE_WORDS, term = word % S::LINE_WORDS * MANY;
        u32 value = 0;
#pragma unroll
        for (int j = 0; j < MANY; j++) {
            int tap = row * S::TAPS_X + (term + j) / S::CHANNELS, channel = (term + j) % S::CHANNELS;
            if (row < S::TAPS_Y && term + j < S::TAPS_X * S::CHANNELS &&
                first + result < S::RESULTS) {
                int place = S::TURNED ? channel * S::RAW_PITCH +
                                            (result * TAPS + TAPS - 1 - tap) * SIZE
                                      : result * S::RAW_PITCH + (channel * TAPS + tap) * SIZE;
                value |= Core<T>::bits(*(const T*)(raw + place)) << (j * 16);
            }
        }
        ordered[i] = value;
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
                                                 const Cover& cover, i32 first, int lane) {
    const int STEPS = S::CHANNELS * (int)sizeof(T) / 32;
    SharedPlace from[S::PER];
#pragma unroll
    for (int m = 0; m < S::PER; m++) {
        i32 number = min(first + m * 16 + lane % 16, cover.pixels - 1);
        from[m] = shared_place(stage) + seen_from<S::PIXEL>(cover, number) + lane / 16 * 16;
    }
#pragma unroll(S::STEPS <= 18 ? S::TAPS_Y : 1)
    for (int row = 0; row < S::TAPS_Y; row++) {
#pragma unroll
        for (int i = 0; i < S::TAPS_X * STEPS; i++) {
            u32 terms[S::PER][4];
#pragma unroll
            for (int m = 0; m < S::PER; m++)
                mma_rows(terms[m], from[m] + row * cover.pitch + i / STEPS * S::PIXEL +
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
                                                  const uint2* words, const Cover& cover,
                                                  i32 first, int lane) {
    const char* from[S::PER][2];
#pragma unroll
    for (int m = 0; m < S::PER; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i32 number = min(first + m * 16 + h * 8 + lane / 4, cover.pixels - 1);
            from[m][h] = stage + seen_from<S::PIXEL>(cover, number);
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
                                           const Cover& cover, Corner corner, i32 first, i32 result,
                                           int lane) {
#pragma unroll
    for (int m = 0; m < S::PER; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i32 number = first + m * 16 + h * 8 + lane / 4;
            Corner pixel = pixel_of(cover, number);
            i32 image = corner.image + pixel.image;
            if (number >= cover.pixels || image >= cover.images) continue;
            i64 row = (i64)image * cover.target_height + corner.y + pixel.y;
            T* to = out + (row * cover.target_width + corner.x + pixel.x) * S::RESULTS + result;
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

// A correlation of stride and start as the cover says: block (x, y) takes tiles x, x + gridDim.x...
// and results from y ACROSS 8 on.
template <typename T, typename S>
__device__ __forceinline__ void block_correlate_few(char* shared, T* out, const T* images,
                                                    const T* filters, const Cover& cover) {
    u32* ordered = (u32*)shared;
    uint2* words = (uint2*)(shared + S::ORDERED_BYTES);
    char* raw = shared + S::ORDERED_BYTES + S::LIST_BYTES;
    char* stage = raw + S::RAW_BYTES;
    i32 result = (i32)blockIdx.y * S::ACROSS * 8;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto see = [&](i32 tile, int buffer) {
        block_see<T, S::CHANNELS, S::PIXEL, S::THREADS>(stage + buffer * cover.seen, images, cover,
                                                        corner_of(cover, tile));
        copies_begun();
    };
    block_bring_filters<T, S>(raw, filters, result);
    copies_begun();
    see(blockIdx.x, 0);
    if constexpr (S::LIST_BYTES > 0) block_list_words<T, S>(words, cover.pitch);
    copies_done<1>();
    __syncthreads();
    block_order_filters<T, S>(ordered, raw, result);
    int now = 0;
    for (i32 tile = blockIdx.x; tile < cover.tiles; tile += gridDim.x) {
        bool more = tile + (i32)gridDim.x < cover.tiles;
        if (S::BUFFERS == 2 && more) {
            see(tile + gridDim.x, 1 - now);
            copies_done<1>();
        } else {
            copies_done<0>();
        }
        __syncthreads();
        const char* seen = stage + now * cover.seen;
        Corner corner = corner_of(cover, tile);
        for (i32 first = warp * S::PER * 16; first < cover.pixels;
             first += S::THREADS / 32 * S::PER * 16) {
            float sums[S::PER][S::ACROSS][4];
#pragma unroll
            for (int i = 0; i < S::PER * S::ACROSS * 4; i++)
                sums[i / 4 / S::ACROSS][i / 4 % S::ACROSS][i % 4] = 0.0f;
            if constexpr (S::LIST_BYTES > 0)
                warp_listed_steps<T, S>(sums, seen, ordered, words, cover, first, lane);
            else
                warp_whole_steps<T, S>(sums, seen, ordered, cover, first, lane);
            store_sums<T, S>(sums, out, cover, corner, first, result, lane);
        }
        if (more) {
            __syncthreads();
            if (S::BUFFERS == 1) see(tile + gridDim.x, 0);
            else now = 1 - now;
        }
    }
}
