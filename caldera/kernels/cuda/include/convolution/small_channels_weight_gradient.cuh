// Gradients of filters of few channels through tensor cores: products of gradients and images,
// summed over pixels. A block adds up the pixels of its tiles in registers, ROWS x 16 results by
// TILES x 8 terms a warp; warps that share these results split the pixels. What blocks found is
// added up in a fixed order by a second kernel.
#pragma once
#include "small_channels_tiles.cuh"

// A tile of gradients, a line for each pixel, zeros beyond the last image, channel and pixel.
template <typename T, typename S>
__device__ __forceinline__ void block_bring_gradients(
    char* stage, const T* gradients, const PixelTiles& tiling, Corner corner, i32 lines) {
    const int SIZE = sizeof(T), WIDE = S::ROWS * 16;
    i32 lane = threadIdx.x % 32, width = tiling.width.divisor, rows = tiling.tile_images *
                                                                     tiling.tile_height;
    for (i32 row = threadIdx.x / 32; row < rows; row += S::THREADS / 32) {
        i32 number = row / tiling.tile_height, y = corner.y + row - number * tiling.tile_height;
        i32 image = corner.image + number;
        bool is_row = image < tiling.images;
        char* line = stage + row * width * S::GRADIENT_PITCH;
        const T* begin = gradients + ((i64)(image * tiling.target_height + y) * tiling.target_width +
                                   corner.x) * S::RESULTS;
        if constexpr (S::RESULTS * SIZE % 16 == 0) {
            const int MANY = WIDE * SIZE / 16, REAL = S::RESULTS * SIZE / 16;
            carry_chunks(
                lane, width * MANY, gradients, [&](i32 i) { return is_row && i % MANY < REAL; },
                [&](i32 i) { return begin + (i / MANY * REAL + i % MANY) * (16 / SIZE); },
                [&](i32 i) { return line + i / MANY * S::GRADIENT_PITCH + i % MANY * 16; });
        } else {
            carry<32, 8, T>(
                lane, width * WIDE,
                [&](i32 i) {
                    T none = {};
                    return is_row && i % WIDE < S::RESULTS ? begin[i / WIDE * S::RESULTS + i % WIDE]
                                                           : none;
                },
                [&](i32 i, T x) { put(line + i / WIDE * S::GRADIENT_PITCH + i % WIDE * SIZE, x); });
        }
    }
    // Pixels that only fill the last step.
    const int WORDS = WIDE * SIZE / 4;
    for (i32 i = threadIdx.x; i < (lines - tiling.pixels) * WORDS; i += S::THREADS)
        ((u32*)(stage + (tiling.pixels + i / WORDS) * S::GRADIENT_PITCH))[i % WORDS] = 0;
}

// Where a term lies from the first that a pixel sees.
template <typename T, typename S> __device__ __forceinline__ i32 term_place(i32 term, i32 pitch) {
    if (term >= S::TERMS) return 0;
    const int LINE = S::TAPS_X * S::CHANNELS;
    i32 row = term / LINE, rest = term - row * LINE;
    return row * pitch + rest / S::CHANNELS * S::PIXEL + rest % S::CHANNELS * (int)sizeof(T);
}

// sums += gradients x images over DEPTH pixels. Numbers of 16 bits in channels by eights: a warp
// reads rows of 16 bytes, turned.
template <typename T, typename S>
__device__ __forceinline__ void warp_turned_step(float (&sums)[S::ROWS][S::TILES][4],
                                                 const char* gradients, const char* seen,
                                                 const i32* places, const i32* terms, i32 first,
                                                 int lane) {
    u32 left[S::ROWS][4], right[4];
    i32 pixel = first + lane % 8 + lane / 16 * 8;
    SharedPlace line = shared_place(gradients) + pixel * S::GRADIENT_PITCH + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < S::ROWS; m++) mma_columns(left[m], line + m * 32);
    SharedPlace from = shared_place(seen) + places[first + lane % 16];
#pragma unroll
    for (int j = 0; j < S::TILES; j += 2) {
        mma_columns(right, from + terms[j / 2]);
#pragma unroll
        for (int m = 0; m < S::ROWS; m++) {
            Core<T>::mma_add(sums[m][j], left[m], right[0], right[1]);
            if (j + 1 < S::TILES) Core<T>::mma_add(sums[m][j + 1], left[m], right[2], right[3]);
        }
    }
}

// The same of numbers of 16 bits in any channels: terms are read one by one.
template <typename T, typename S>
__device__ __forceinline__ void warp_listed_step(float (&sums)[S::ROWS][S::TILES][4],
                                                 const char* gradients, const char* seen,
                                                 const i32* places, const i32* terms, i32 first,
                                                 int lane) {
    u32 left[S::ROWS][4];
    i32 pixel = first + lane % 8 + lane / 16 * 8;
    SharedPlace line = shared_place(gradients) + pixel * S::GRADIENT_PITCH + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < S::ROWS; m++) mma_columns(left[m], line + m * 32);
    const char* from[4];
#pragma unroll
    for (int i = 0; i < 4; i++) from[i] = seen + places[first + lane % 4 * 2 + i % 2 + i / 2 * 8];
#pragma unroll
    for (int j = 0; j < S::TILES; j++) {
        u32 right[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            right[i] = *(const u16*)(from[2 * i] + terms[j]) |
                       (u32)*(const u16*)(from[2 * i + 1] + terms[j]) << 16;
#pragma unroll
        for (int m = 0; m < S::ROWS; m++)
            Core<T>::mma_add(sums[m][j], left[m], right[0], right[1]);
    }
}

// The same of floats.
template <typename T, typename S>
__device__ __forceinline__ void warp_float_step(float (&sums)[S::ROWS][S::TILES][4],
                                                const char* gradients, const char* seen,
                                                const i32* places, const i32* terms, i32 first,
                                                int lane) {
    u32 left[S::ROWS][4];
    const char* from[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i32 pixel = first + lane % 4 + h * 4;
        const u32* line = (const u32*)(gradients + pixel * S::GRADIENT_PITCH) + lane / 4;
        from[h] = seen + places[pixel];
#pragma unroll
        for (int m = 0; m < S::ROWS; m++) {
            left[m][2 * h] = line[m * 16];
            left[m][2 * h + 1] = line[m * 16 + 8];
        }
    }
#pragma unroll
    for (int j = 0; j < S::TILES; j++) {
        u32 low = *(const u32*)(from[0] + terms[j]), high = *(const u32*)(from[1] + terms[j]);
#pragma unroll
        for (int m = 0; m < S::ROWS; m++) Core<T>::mma_add(sums[m][j], left[m], low, high);
    }
}

// `visit(m, j, h, result, term)` for pairs of neighbouring sums of a lane.
template <typename S, typename Visit>
__device__ __forceinline__ void each_pair(i32 tile, int lane, Visit visit) {
#pragma unroll
    for (int m = 0; m < S::ROWS; m++)
#pragma unroll
        for (int j = 0; j < S::TILES; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                visit(m, j, h, m * 16 + h * 8 + lane / 4, (tile + j) * 8 + lane % 4 * 2);
}

// What block (x, y) found goes to parts[x]: RESULTS x WIDTH sums, from term y SHARE TILES 8 on.
template <typename T, typename S>
__device__ __forceinline__ void block_weight_gradient(char* shared, float* parts, const T* images,
                                                const T* gradients, const PixelTiles& tiling) {
    i32 lines = (tiling.pixels + S::DEPTH - 1) / S::DEPTH * S::DEPTH;
    i32* places = (i32*)shared;
    char* stage = shared + (lines * 4 + 15) / 16 * 16;
    i32 both = lines * S::GRADIENT_PITCH + tiling.seen;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int share = warp % S::SHARE, split = warp / S::SHARE;
    i32 tile_of_terms = ((i32)blockIdx.y * S::SHARE + share) * S::TILES;
    auto bring = [&](i32 tile, int buffer) {
        Corner corner = corner_of(tiling, tile);
        char* begin = stage + buffer * both;
        block_bring_gradients<T, S>(begin, gradients, tiling, corner, lines);
        block_see<T, S::CHANNELS, S::PIXEL, S::THREADS>(begin + lines * S::GRADIENT_PITCH, images,
                                                        tiling, corner);
        copies_begun();
    };
    bring(blockIdx.x, 0);
    for (i32 i = threadIdx.x; i < lines; i += S::THREADS)
        places[i] = i < tiling.pixels ? seen_from<S::PIXEL>(tiling, i) : 0;
    // A pair of tiles that a warp reads together: the second half of its lanes says the second.
    const int LISTED = S::IS_TURNED ? (S::TILES + 1) / 2 : S::TILES;
    i32 terms[LISTED];
#pragma unroll
    for (int j = 0; j < LISTED; j++) {
        i32 tile = S::IS_TURNED ? tile_of_terms + min(2 * j + lane / 16, S::TILES - 1)
                                : tile_of_terms + j;
        terms[j] = term_place<T, S>(tile * 8 + (S::IS_TURNED ? 0 : lane / 4), tiling.pitch);
    }
    float sums[S::ROWS][S::TILES][4];
#pragma unroll
    for (int i = 0; i < S::ROWS * S::TILES * 4; i++)
        sums[i / 4 / S::TILES][i / 4 % S::TILES][i % 4] = 0.0f;
    int now = 0;
    for (i32 tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
        bool more = tile + (i32)gridDim.x < tiling.tiles;
        if (S::BUFFERS == 2 && more) {
            bring(tile + gridDim.x, 1 - now);
            copies_done<1>();
        } else {
            copies_done<0>();
        }
        __syncthreads();
        const char* begin = stage + now * both;
        const char* seen = begin + lines * S::GRADIENT_PITCH;
        for (i32 first = split * S::DEPTH; first < lines; first += S::SPLIT * S::DEPTH) {
            if constexpr (S::IS_TURNED)
                warp_turned_step<T, S>(sums, begin, seen, places, terms, first, lane);
            else if constexpr (sizeof(T) == 2)
                warp_listed_step<T, S>(sums, begin, seen, places, terms, first, lane);
            else
                warp_float_step<T, S>(sums, begin, seen, places, terms, first, lane);
        }
        __syncthreads();
        if (more && S::BUFFERS == 1) bring(tile + gridDim.x, 0);
        if (S::BUFFERS == 2) now = 1 - now;
    }
    // Warps that split pixels add up their sums one after the other; the last writes them.
    float* total = (float*)stage;
    const int PITCH = S::SHARE * S::TILES * 8 + 8;
    i32 begin = (i32)blockIdx.y * S::SHARE * S::TILES * 8;
    float* part = parts + (i64)blockIdx.x * S::RESULTS * S::WIDTH;
#pragma unroll 1
    for (int turn = 0; turn < S::SPLIT; turn++) {
        if (turn == split)
            each_pair<S>(tile_of_terms, lane, [&](int m, int j, int h, i32 result, i32 term) {
                float2* place = (float2*)(total + result * PITCH + term - begin);
                float2 sum = make_float2(sums[m][j][2 * h], sums[m][j][2 * h + 1]);
                if (turn > 0) {
                    sum.x += place->x;
                    sum.y += place->y;
                }
                if (turn < S::SPLIT - 1) *place = sum;
                else if (result < S::RESULTS && term < S::WIDTH)
                    *(float2*)(part + result * S::WIDTH + term) = sum;
            });
        __syncthreads();
    }
}

// A filter in parts and in memory: `width` sums of which `terms` count, in the order tap, channel.
struct Filter { i32 results, width, terms, channels, taps; };

// 32 results of a block: each warp adds up some of the parts, then all warps are added.
template <typename T, int WARPS>
__device__ __forceinline__ void block_reduce_weight_gradient(T* out, const float* parts, i32 count,
                                                Filter filter) {
    __shared__ float sums[WARPS][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i32 place = (i32)blockIdx.x * 32 + lane, all = filter.results * filter.width;
    float sum = 0.0f;
    if (place < all) {
#pragma unroll 8
        for (i32 part = warp; part < count; part += WARPS) sum += parts[(i64)part * all + place];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    i32 result = place / filter.width, term = place - result * filter.width;
    if (warp > 0 || place >= all || term >= filter.terms) return;
    for (int i = 1; i < WARPS; i++) sum += sums[i][lane];
    i32 tap = term / filter.channels, channel = term - tap * filter.channels;
    out[(result * filter.channels + channel) * filter.taps + tap] = Stored<T>::from(sum);
}
