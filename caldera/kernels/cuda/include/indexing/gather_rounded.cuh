// Reading numbers at computed positions into a result of another type.
#pragma once
#include "gather.cuh"
#include "math.cuh"

// `gather_lines` by V numbers at a time, each rounded; a position that is not there reads as nan.
template <int V, typename T, typename To, typename Position, typename Index>
__device__ __forceinline__ void gather_rounded(
    To* __restrict__ out, const T* __restrict__ x, const Position* __restrict__ positions,
    const StridedAxes<3>& lines, i64 step, i64 length, Index units, Index count) {
    auto infinity = infinity_like(wide(T()));
#pragma unroll 4
    for (Index i = grid_index<Index>(); i < count; i += grid_stride<Index>()) {
        Index line = i / units;
        i64 unit = (i64)(i - line * units) * V, at[3];
        locate(lines, line, at);
        i64 place = place_of(positions[at[2]], length);
        Pack<T, V> read;
        Pack<To, V> rounded;
        if (place >= 0) read = *(const Pack<T, V>*)(x + at[1] + place * step + unit);
#pragma unroll
        for (int v = 0; v < V; v++)
            rounded.each[v] = Stored<To>::from(
                place >= 0 ? wide(read.each[v]) : infinity - infinity);
        *(Pack<To, V>*)(out + at[0] + unit) = rounded;
    }
}
