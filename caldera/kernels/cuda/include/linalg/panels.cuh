// What factorisations panel by panel launch besides products.
#pragma once
#include "butterfly.cuh"
#include "diagonal_block.cuh"

// A vector of 1 and -1. Whether columns are orthonormal is seen in what they make of it: QᵀQ leaves it
// as it is. Whether a matrix is singular is seen in the solution for it.
__device__ __forceinline__ double tried_vector(u32 index) {
    return random_bits(index, LEFT) & 1u ? 1 : -1;
}

__device__ __forceinline__ void write_tried_vector(double* out, u32 n, u32 apart) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < n) out[(u64)index * apart] = tried_vector(index);
}

__device__ __forceinline__ void check_tried_vector(
    const double* given, u32 n, double most, i32* failed) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < n && !(fabs(given[index] - tried_vector(index)) <= most)) *failed = 1;
}
