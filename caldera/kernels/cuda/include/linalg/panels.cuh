// What factorisations panel by panel launch besides products.
#pragma once
#include "butterfly.cuh"
#include "diagonal_block.cuh"

// Whether columns are orthonormal is seen in what they make of a vector: QᵀQ leaves it as it is.
__device__ __forceinline__ double tried_vector(u32 index) {
    return random_bits(index, LEFT) & 1u ? 1 : -1;
}

__device__ __forceinline__ void write_tried_vector(double* out, u32 n) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < n) out[index] = tried_vector(index);
}

__device__ __forceinline__ void check_tried_vector(
    const double* given, u32 n, double most, i32* failed) {
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < n && !(fabs(given[index] - tried_vector(index)) <= most)) *failed = 1;
}
