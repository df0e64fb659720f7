// Where an element lies in each of several arrays that are walked together.
#pragma once
#include "types.cuh"

template <int ARRAYS> struct StridedAxes {
    i64 length[8];
    i64 stride[ARRAYS][8];
    i32 rank;
};

// Offsets of element `i` along these axes, the last axis running fastest.
template <int ARRAYS, typename Index>
__device__ __forceinline__ void locate(const StridedAxes<ARRAYS>& along, Index i, i64* offsets) {
    for (int a = 0; a < ARRAYS; a++) offsets[a] = 0;
    for (int axis = along.rank - 1; axis > 0; axis--) {
        Index length = (Index)along.length[axis];
        Index rest = i / length;
        Index here = i - rest * length;
        for (int a = 0; a < ARRAYS; a++) offsets[a] += (i64)here * along.stride[a][axis];
        i = rest;
    }
    // The first axis needs no division.
    if (along.rank > 0)
        for (int a = 0; a < ARRAYS; a++) offsets[a] += (i64)i * along.stride[a][0];
}

// The turns of a thread in a loop over `count` that the whole grid shares.
template <typename Index> __device__ __forceinline__ Index grid_index() {
    return (Index)blockIdx.x * blockDim.x + threadIdx.x;
}
template <typename Index> __device__ __forceinline__ Index grid_stride() {
    return (Index)gridDim.x * blockDim.x;
}

// Several neighbours that are read and written at once.
template <typename T, int N> struct __align__(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T each[N];
};
