// Where the blocks of a cooperative launch meet.
#pragma once
#include "machine.cuh"

// Every launch that may run beside others has a place of its own.
const int BARRIERS = 4096;
__device__ u32 barriers[BARRIERS];

// All blocks with the same `blockIdx.y` meet. The highest bit turns over when the last one has come,
// so nothing has to be set back.
__device__ __forceinline__ void grid_barrier(u32 place) {
    u32* count = barriers + (place + blockIdx.y) % BARRIERS;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        u32 before = atomicAdd(count, blockIdx.x ? 1u : 0x80000001u - gridDim.x);
        while (!((load_acquire(count) ^ before) >> 31)) spin();
    }
    __syncthreads();
}
