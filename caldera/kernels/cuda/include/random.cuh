// Arrays of random numbers. Elements are numbered row by row from `offset` on, however they lie.
#pragma once
#include "philox.cuh"
#include "strided_index.cuh"

template <typename T, typename Distribution, bool DENSE>
__device__ __forceinline__ void draw_elements(
    T* out, const i64* state, i64 apart, const i64* offset, u32 stream, u64 count,
    const StridedAxes<1>& places) {
    const int each = Distribution::count;
    Philox generator = philox_of(state[0], state[apart], stream);
    u64 first = (u64)offset[0];
    u64 block = first / each + grid_index<u64>();
    u64 end = (first + count + each - 1) / each;
    for (; block < end; block += grid_stride<u64>()) {
        Pack<T, each> drawn;
        Distribution::draw(generator.words(block), drawn.each);
        // The first and the last block may reach beyond what is wanted.
        i64 place = (i64)(block * each - first);
        bool whole = place >= 0 && place + each <= (i64)count;
        if (DENSE && whole && (u64)(out + place) % sizeof(drawn) == 0) {
            *(Pack<T, each>*)(out + place) = drawn;
            continue;
        }
        for (int i = 0; i < each; i++) {
            if (place + i < 0 || place + i >= (i64)count) continue;
            i64 at[1] = {place + i};
            if (!DENSE) locate(places, (u64)(place + i), at);
            out[at[0]] = drawn.each[i];
        }
    }
}
