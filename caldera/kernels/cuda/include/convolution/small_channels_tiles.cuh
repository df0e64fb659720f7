// What convolutions of few channels and their gradients have in common: tensor cores, tiles of
// output pixels, and what these see of the images, which lies in shared memory once.
#pragma once
#include "tiled_product.cuh"

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
struct PixelTiles {
    Divider across, down;   // tiles of an image: from a tile's number to its place
    Divider width, area;    // of a tile: from a pixel's number to its row and its image
    Divider height;         // rows of an image that a tile sees
    i32 tiles, tile_images, tile_height, pixels;
    i32 images, source_height, source_width, target_height, target_width;
    i32 stride_y, stride_x, start_y, start_x;
    i32 pieces;             // of a row of what a tile sees: chunks, or numbers
    i32 pitch, seen;        // bytes of such a row, and of all that a tile sees
};

struct Corner { i32 image, y, x; };

// The first output pixel of a tile.
__device__ __forceinline__ Corner corner_of(const PixelTiles& tiling, i32 tile) {
    i32 row = tiling.across.quotient(tile), group = tiling.down.quotient(row);
    Corner found;
    found.x = (tile - row * (i32)tiling.across.divisor) * (i32)tiling.width.divisor;
    found.y = (row - group * (i32)tiling.down.divisor) * tiling.tile_height;
    found.image = group * tiling.tile_images;
    return found;
}

// Which pixel of a tile has a number, from its corner.
__device__ __forceinline__ Corner pixel_of(const PixelTiles& tiling, i32 number) {
    Corner found;
    found.image = tiling.area.quotient(number);
    i32 rest = number - found.image * (i32)tiling.area.divisor;
    found.y = tiling.width.quotient(rest);
    found.x = rest - found.y * (i32)tiling.width.divisor;
    return found;
}

// Where the first of what an output pixel sees lies, PIXEL bytes from one image pixel to the next.
template <int PIXEL>
__device__ __forceinline__ i32 seen_from(const PixelTiles& tiling, i32 number) {
    Corner pixel = pixel_of(tiling, number);
    i32 row = pixel.image * (i32)tiling.height.divisor + pixel.y * tiling.stride_y;
    return row * tiling.pitch + pixel.x * tiling.stride_x * PIXEL;
}

// `store(i, load(i))` for i = first, first + STEP... below `end`, AT_ONCE of them on their way
// before the first is stored.
template <int STEP, int AT_ONCE, typename V, typename Load, typename Store>
__device__ __forceinline__ void carry(i32 first, i32 end, Load load, Store store) {
    for (; first < end; first += STEP * AT_ONCE) {
        V held[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (first + u * STEP < end) held[u] = load(first + u * STEP);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (first + u * STEP < end) store(first + u * STEP, held[u]);
    }
}

// Chunks of 16 bytes to shared memory, chunk i from `from(i)` to `to(i)` if it is `inside(i)`, else
// zeros. Floats are rounded on their way, as tensor cores want them.
template <typename T, typename Inside, typename From, typename To>
__device__ __forceinline__ void carry_chunks(i32 first, i32 end, const T* anywhere, Inside inside,
                                             From from, To to) {
    if constexpr (sizeof(T) == 2) {
        for (i32 i = first; i < end; i += 32) {
            bool is_inside = inside(i);
            copy_ahead16(to(i), is_inside ? from(i) : anywhere, is_inside);
        }
    } else {
        carry<32, 4, float4>(
            first, end,
            [&](i32 i) {
                return inside(i) ? __ldg((const float4*)from(i)) : make_float4(0, 0, 0, 0);
            },
            [&](i32 i, float4 x) {
                *(uint4*)to(i) = make_uint4(tf32_bits(x.x), tf32_bits(x.y), tf32_bits(x.z),
                                            tf32_bits(x.w));
            });
    }
}

// One number to shared memory, rounded as tensor cores want it.
template <typename T> __device__ __forceinline__ void put(char* to, T x) {
    if constexpr (sizeof(T) == 4) *(u32*)to = Core<T>::bits(x);
    else *(u16*)to = (u16)Core<T>::bits(x);
}

// What a tile sees of the images, zeros beyond their edges: a warp for each row.
template <typename T, int CHANNELS, int PIXEL, int THREADS>
__device__ __forceinline__ void block_see(char* stage, const T* images, const PixelTiles& tiling,
                                          Corner corner) {
    const int SIZE = sizeof(T);
    i32 left = corner.x * tiling.stride_x + tiling.start_x, height = tiling.height.divisor;
    i32 lane = threadIdx.x % 32, pieces = tiling.pieces;
    for (i32 row = threadIdx.x / 32; row < tiling.tile_images * height; row += THREADS / 32) {
        i32 number = tiling.height.quotient(row), image = corner.image + number;
        i32 y = corner.y * tiling.stride_y + tiling.start_y + row - number * height;
        bool is_row = image < tiling.images && (u32)y < (u32)tiling.source_height;
        char* line = stage + row * tiling.pitch;
        const T* begin = images + ((i64)(image * tiling.source_height + y) * tiling.source_width +
                                   left) * CHANNELS;
        if constexpr (CHANNELS * SIZE % 16 == 0) {
            const int MANY = CHANNELS * SIZE / 16;
            carry_chunks(
                lane, pieces, images,
                [&](i32 i) { return is_row && (u32)(left + i / MANY) < (u32)tiling.source_width; },
                [&](i32 i) { return begin + i * (16 / SIZE); },
                [&](i32 i) { return line + i / MANY * PIXEL + i % MANY * 16; });
        } else {
            i32 before = left * CHANNELS;
            u32 length = tiling.source_width * CHANNELS;
            carry<32, 8, T>(
                lane, pieces,
                [&](i32 i) {
                    T none = {};
                    return is_row && (u32)(before + i) < length ? begin[i] : none;
                },
                [&](i32 i, T x) { put(line + i * SIZE, x); });
        }
    }
}
