// Sorting in tiles and merging them. An item is a key and the position it came from, so no two are
// equal: whatever sorts them is stable.
#pragma once
#include "strided_index.cuh"

// --- items

// A key of 32 bits above a position.
typedef u64 Item;
// A key of 64 bits.
struct __align__(16) WideItem { u64 key; u64 position; };

__device__ __forceinline__ bool before(Item a, Item b) { return a < b; }
__device__ __forceinline__ bool before(const WideItem& a, const WideItem& b) {
    return a.key < b.key || (a.key == b.key && a.position < b.position);
}
__device__ __forceinline__ void set_item(Item& item, u32 key, u32 position) {
    item = (u64)key << 32 | position;
}
__device__ __forceinline__ void set_item(WideItem& item, u64 key, u32 position) {
    item = {key, position};
}
__device__ __forceinline__ u32 position_of(Item item) { return (u32)item; }
__device__ __forceinline__ u32 position_of(const WideItem& item) { return (u32)item.position; }
// Behind every item that stands for something.
__device__ __forceinline__ void set_last(Item& item) { item = ~0ull; }
__device__ __forceinline__ void set_last(WideItem& item) { item = {~0ull, ~0ull}; }

// --- keys: unsigned numbers in the order of the values; nan comes last in both directions

template <bool DESCENDING> __device__ __forceinline__ u32 key_of(float x) {
    u32 bits = float_to_bits(DESCENDING ? -x : x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return ~0u;
    if (bits == 0x80000000u) bits = 0;  // zeros of both signs are equal
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
template <bool DESCENDING> __device__ __forceinline__ u64 key_of(double x) {
    const u64 sign = 0x8000000000000000ull;
    u64 bits = (u64)__double_as_longlong(DESCENDING ? -x : x);
    if ((bits & ~sign) > 0x7ff0000000000000ull) return ~0ull;
    if (bits == sign) bits = 0;
    return bits & sign ? ~bits : bits | sign;
}
template <bool DESCENDING> __device__ __forceinline__ u64 key_of(i64 x) {
    u64 key = (u64)x ^ 0x8000000000000000ull;
    return DESCENDING ? ~key : key;
}
template <bool DESCENDING> __device__ __forceinline__ u32 key_of(i32 x) {
    u32 key = (u32)x ^ 0x80000000u;
    return DESCENDING ? ~key : key;
}
template <bool DESCENDING> __device__ __forceinline__ u64 key_of(u64 x) {
    return DESCENDING ? ~x : x;
}
template <bool DESCENDING> __device__ __forceinline__ u32 key_of(u32 x) {
    return DESCENDING ? ~x : x;
}
template <bool DESCENDING> __device__ __forceinline__ u32 key_of(u16 x) {
    return key_of<DESCENDING>((i32)x);
}
template <bool DESCENDING> __device__ __forceinline__ u32 key_of(i16 x) {
    return key_of<DESCENDING>((i32)x);
}
template <bool DESCENDING> __device__ __forceinline__ u32 key_of(i8 x) {
    return key_of<DESCENDING>((i32)x);
}
template <bool DESCENDING> __device__ __forceinline__ u32 key_of(u8 x) {
    return key_of<DESCENDING>((i32)x);
}
template <bool DESCENDING> __device__ __forceinline__ u32 key_of(bool x) {
    return key_of<DESCENDING>((i32)x);
}

// --- a tile

// Sort each segment of `width` items, a power of two, by Batcher's bitonic network.
template <typename I>
__device__ __forceinline__ void block_sort_segments(I* items, u32 count, u32 width) {
    for (u32 size = 2; size <= width; size *= 2) {
        for (u32 apart = size / 2; apart > 0; apart /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < count / 2; pair += blockDim.x) {
                u32 low = 2 * pair - (pair & (apart - 1));
                u32 high = low + apart;
                bool upwards = (low & (width - 1) & size) == 0;
                I a = items[low], b = items[high];
                if (before(b, a) == upwards) {
                    items[low] = b;
                    items[high] = a;
                }
            }
        }
    }
    __syncthreads();
}

// Rows of up to `width` items each, several in a tile; longer rows give several tiles each.
// `take` makes the item of (row, position), `give` takes that of (row, place).
template <typename I, typename Take, typename Give>
__device__ __forceinline__ void block_sort_tile(
    I* items, u32 rows, u32 length, u32 width, u32 rows_in_tile, u32 tiles_in_row,
    const Take& take, const Give& give) {
    u32 first_row = blockIdx.x / tiles_in_row * rows_in_tile;
    u32 start = blockIdx.x % tiles_in_row * width;
    u32 count = rows_in_tile * width;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 row = first_row + i / width, position = start + i % width;
        if (row < rows && position < length) items[i] = take(row, position);
        else set_last(items[i]);
    }
    block_sort_segments(items, count, width);
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 row = first_row + i / width, place = start + i % width;
        if (row < rows && place < length) give(row, place, items[i]);
    }
}

// --- merging

// How many of the first `diagonal` items of the merged run come from a: a warp tries 32 places at
// a time.
template <typename I>
__device__ __forceinline__ u32 warp_split(
    const I* a, u32 count_a, const I* b, u32 count_b, u32 diagonal) {
    u32 low = diagonal > count_b ? diagonal - count_b : 0;
    u32 high = diagonal < count_a ? diagonal : count_a;
    u32 lane = threadIdx.x & 31;
    while (low < high) {
        u32 step = (high - low + 31) / 32;
        u32 tried = low + lane * step;
        bool from_a = tried < high && before(a[tried], b[diagonal - 1 - tried]);
        u32 found = (u32)__popc(__ballot_sync(~0u, from_a));
        if (found == 0) return low;
        u32 end = low + found * step;
        low += (found - 1) * step + 1;
        if (end < high) high = end;
    }
    return low;
}

// The same for a thread alone.
template <typename I>
__device__ __forceinline__ u32 split(
    const I* a, u32 count_a, const I* b, u32 count_b, u32 diagonal) {
    u32 low = diagonal > count_b ? diagonal - count_b : 0;
    u32 high = diagonal < count_a ? diagonal : count_a;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (before(a[middle], b[diagonal - 1 - middle])) low = middle + 1;
        else high = middle;
    }
    return low;
}

// One tile of a pass that merges runs of `run` items two by two. `run` is a multiple of `tile`.
template <typename I, typename Give>
__device__ __forceinline__ void block_merge_tile(
    I* items, const I* from, u32 length, u32 run, u32 tile, u32 tiles_in_row, const Give& give) {
    __shared__ u32 splits[2];
    u32 row = blockIdx.x / tiles_in_row;
    u32 begin = blockIdx.x % tiles_in_row * tile;
    u32 end = length - begin < tile ? length : begin + tile;
    u32 first = begin / run / 2 * run * 2;
    u32 middle = length - first < run ? length : first + run;
    u32 last = length - middle < run ? length : middle + run;
    const I* a = from + (u64)row * length + first;
    const I* b = from + (u64)row * length + middle;
    u32 count_a = middle - first, count_b = last - middle;
    if (threadIdx.x < 64) {
        u32 which = threadIdx.x / 32;
        u32 found = warp_split(a, count_a, b, count_b, (which ? end : begin) - first);
        if (threadIdx.x % 32 == 0) splits[which] = found;
    }
    __syncthreads();
    u32 begin_a = splits[0], end_a = splits[1];
    u32 begin_b = begin - first - begin_a, end_b = end - first - end_a;
    u32 here_a = end_a - begin_a, here_b = end_b - begin_b;
    for (u32 i = threadIdx.x; i < here_a + here_b; i += blockDim.x)
        items[i] = i < here_a ? a[begin_a + i] : b[begin_b + i - here_a];
    __syncthreads();
    const I* tile_a = items;
    const I* tile_b = items + here_a;
    u32 each = (tile + blockDim.x - 1) / blockDim.x;
    u32 place = threadIdx.x * each;
    if (place >= end - begin) return;
    u32 stop = place + each < end - begin ? place + each : end - begin;
    u32 i = split(tile_a, here_a, tile_b, here_b, place);
    u32 j = place - i;
    for (; place < stop; place++) {
        bool from_a = i < here_a && (j >= here_b || before(tile_a[i], tile_b[j]));
        give(row, begin + place, from_a ? tile_a[i++] : tile_b[j++]);
    }
}

// --- what is done with items in their places

template <typename I> struct Keep {
    I* items;
    u32 length;
    __device__ __forceinline__ void operator()(u32 row, u32 place, const I& item) const {
        items[(u64)row * length + place] = item;
    }
};

// Rows of an array: where it lies, and its strides from row to row and along a row.
template <typename T, typename I, bool DESCENDING> struct Rows {
    const T* x;
    const StridedAxes<3>* rows;
    i64 step;
    __device__ __forceinline__ I operator()(u32 row, u32 position) const {
        i64 at[3];
        locate(*rows, row, at);
        I item;
        set_item(item, key_of<DESCENDING>(wide(x[at[0] + (i64)position * step])), position);
        return item;
    }
};

// Values in order, and where each came from. The values are read again: a key does not say which
// zero or which nan it stands for.
template <typename T, typename I> struct Deliver {
    const T* x;
    T* values;
    i64* positions;
    const StridedAxes<3>* rows;
    i64 step, values_step, positions_step;
    __device__ __forceinline__ void operator()(u32 row, u32 place, const I& item) const {
        i64 at[3];
        locate(*rows, row, at);
        u32 position = position_of(item);
        values[at[1] + (i64)place * values_step] = x[at[0] + (i64)position * step];
        positions[at[2] + (i64)place * positions_step] = (i64)position;
    }
};
