// Whole training steps in one kernel: blocks stay, and meet between phases. What a step does is a
// table of parts in order of their phases; equal code is there once, and finds its arrays by numbers.
#pragma once
#include "persistent_convolution.cuh"

// `units` units of code number `body`, done in `phase` by `span` blocks from number `first` on; its
// arrays are those from number `base` on. `soon`: what it brings ahead of its phase may be brought
// while the phase before is still at work, because it goes where nobody is.
struct Task {
    i32 body, phase, first, span, units, base, soon;
};

// The first unit of a part that this block does, or -1. It goes on in steps of `span`.
__device__ __forceinline__ i32 first_unit(const Task& part) {
    i32 place = (i32)blockIdx.x - part.first;
    if (place < 0) place += gridDim.x;
    return place < part.span ? place : -1;
}

// A bit for each part that this block has units of.
__device__ __forceinline__ void block_tasks(u32* masks, const Task* parts, i32 count) {
    i32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (i32 word = warp; word * 32 < count; word += blockDim.x >> 5) {
        i32 part = word * 32 + lane;
        u32 found = __ballot_sync(~0u, part < count && first_unit(parts[part]) >= 0);
        if (lane == 0) masks[word] = found;
    }
}

// The first such part from `part` on, or `count`.
__device__ __forceinline__ i32 next_task(const u32* masks, i32 part, i32 count) {
    while (part < count) {
        u32 rest = masks[part >> 5] >> (part & 31);
        if (rest) return part + __ffs(rest) - 1;
        part = (part | 31) + 1;
    }
    return count;
}

// Sums within a warp, the same in every lane.
template <typename T> __device__ __forceinline__ T warp_total(T x) {
    for (int mask = 16; mask; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

template <typename T> __device__ __forceinline__ T warp_largest(T x) {
    for (int mask = 16; mask; mask >>= 1) {
        T other = __shfl_xor_sync(0xffffffffu, x, mask);
        // A nan wins over everything.
        x = (other > x || other != other) ? other : x;
    }
    return x;
}

// Whether x at place c goes before the best so far: larger or nan, and among equals the first.
__device__ __forceinline__ bool warp_before(float x, int c, float best, int place) {
    bool x_nan = x != x, best_nan = best != best;
    if (x_nan || best_nan) return x_nan && (!best_nan || c < place);
    return x > best || (x == best && c < place);
}

// x less the largest of its row, and 0 where x is +inf: what softmax takes the exponential of.
__device__ __forceinline__ float below(float x, float largest) {
    return x == bits_to_float(0x7f800000u) ? 0.0f : x - largest;
}

// Where a block is, and what it does next.
struct PhaseScheduler {
    const Task* parts;
    i32 count, phases, steps;
    const u32* masks;
    u32* counters;
    i32 step, phase, part, unit, span, units;
    // The part after this one, found before it is needed, and its phase.
    i32 next, to;
    // What the first counter will be when all blocks have ended the phase before.
    u32 met;
    // Whether this block has still to wait for the others.
    bool waits;

    __device__ __forceinline__ PhaseScheduler(
        const Task* parts, i32 count, i32 phases, i32 steps, u32* masks, u32* counters)
        : parts(parts), count(count), phases(phases), steps(steps), masks(masks),
          counters(counters), step(0), phase(0), part(0), unit(0), span(0), units(0), met(0),
          waits(false) {
        block_tasks(masks, parts, count);
        __syncthreads();
        look(0);
    }

    __device__ __forceinline__ void look(i32 from) {
        next = next_task(masks, from, count);
        to = next < count ? parts[next].phase : phases;
    }

    // Go to the block's next unit; false if there is none. Phases that end on the way are left.
    __device__ __forceinline__ bool go() {
        __syncthreads();
        unit += span;
        if (unit < units) return true;
        for (;;) {
            for (; phase < to && (phase < phases - 1 || step < steps - 1); phase++) {
                wait();
                grid_arrive(counters);
                met += gridDim.x;
                waits = true;
            }
            if (next < count) break;
            if (++step >= steps) return false;
            phase = 0;
            look(0);
        }
        part = next;
        unit = first_unit(parts[part]);
        span = parts[part].span;
        units = parts[part].units;
        look(part + 1);
        return true;
    }

    // Whether the next part may be begun during this unit.
    __device__ __forceinline__ bool can_begin_next() const {
        return unit + span >= units && next < count && to == phase + 1 && parts[next].soon;
    }

    // All blocks have ended the phase before.
    __device__ __forceinline__ void wait() {
        if (waits) grid_wait(counters, met);
        waits = false;
    }
};

// The last block to leave sets both counters to 0 for the next launch: they never overflow.
__device__ __forceinline__ void grid_leave(u32* counters) {
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(counters + 1, 1u) == gridDim.x - 1) {
        counters[0] = 0;
        counters[1] = 0;
    }
}
