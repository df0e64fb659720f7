// Reading at computed positions. A position that an array does not have reads as `missing`.
#pragma once
#include "strided_index.cuh"

__device__ __forceinline__ void repeat(u8& unit, u32 byte) { unit = (u8)byte; }
__device__ __forceinline__ void repeat(u16& unit, u32 byte) { unit = (u16)(byte * 0x0101u); }
__device__ __forceinline__ void repeat(u32& unit, u32 byte) { unit = byte * 0x01010101u; }
__device__ __forceinline__ void repeat(u64& unit, u32 byte) {
    unit = byte * 0x0101010101010101ull;
}
__device__ __forceinline__ void repeat(uint4& unit, u32 byte) {
    repeat(unit.x, byte);
    unit.y = unit.z = unit.w = unit.x;
}

// A position from 0 on; negative ones count from the end. -1 for one that is not there, as none
// above 2^63 is.
template <typename Position>
__device__ __forceinline__ i64 place_of(Position position, i64 length) {
    i64 place = (i64)position;
    if (place < 0 && position < (Position)1) place += length;
    return place >= 0 && place < length ? place : -1;
}

// Lines of `units` each: `lines` walks out, x and positions, `step` leads to the next place in x.
template <typename Unit, typename Position, typename Index>
__device__ __forceinline__ void gather_lines(
    Unit* __restrict__ out, const Unit* __restrict__ x, const Position* __restrict__ positions,
    const StridedAxes<3>& lines, i64 step, i64 length, Index units, Index count, u32 missing_byte) {
    Unit missing;
    repeat(missing, missing_byte);
#pragma unroll 4
    for (Index i = grid_index<Index>(); i < count; i += grid_stride<Index>()) {
        Index line = i / units;
        Index unit = i - line * units;
        i64 at[3];
        locate(lines, line, at);
        i64 place = place_of(positions[at[2]], length);
        Unit value = missing;
        if (place >= 0) value = x[at[1] + place * step + (i64)unit];
        out[at[0] + (i64)unit] = value;
    }
}
