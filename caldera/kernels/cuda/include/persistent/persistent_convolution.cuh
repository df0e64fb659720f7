// Convolutions in a kernel that stays on the card: a block takes one image, which lies in shared
// memory with its border, and multiplies windows by filters on tensor cores. The sum for a filter
// runs over the taps of a window, that for a gradient of the filters over the windows.
#pragma once
#include "persistent_product.cuh"

// Windows of TAPS_Y x TAPS_X taps at DOWN x ACROSS places of an image of C channels, whose pixels
// lie CP apart, WP of them in a row.
template <int C_, int CP_, int WP_, int TAPS_Y_, int TAPS_X_, int DOWN_, int ACROSS_>
struct Windows {
    static const int C = C_, CP = CP_, WP = WP_, TAPS_X = TAPS_X_, ACROSS = ACROSS_;
    static const int TAPS = TAPS_Y_ * TAPS_X * C, PLACES = DOWN_ * ACROSS;
    // Tables are read in sixteens.
    static const int TAPS_ROOM = (TAPS + 15) / 16 * 16, PLACES_ROOM = (PLACES + 15) / 16 * 16;
};

// Where windows begin, and where taps lie from there; what is beyond the last is the last.
template <typename W, int THREADS>
__device__ __forceinline__ void block_list_windows(i32* places, i32* taps) {
#pragma unroll 1
    for (i32 i = threadIdx.x; i < W::PLACES_ROOM; i += THREADS) {
        i32 p = min(i, W::PLACES - 1);
        places[i] = (p / W::ACROSS * W::WP + p % W::ACROSS) * W::CP;
    }
#pragma unroll 1
    for (i32 i = threadIdx.x; i < W::TAPS_ROOM; i += THREADS) {
        i32 k = min(i, W::TAPS - 1);
        taps[i] = (k / (W::TAPS_X * W::C) * W::WP + k / W::C % W::TAPS_X) * W::CP + k % W::C;
    }
}

// Start to bring an image of C channels to shared memory, with zeros around it: TOP and LEFT before
// its first pixel, HP x WP pixels in all. SC, SY and SX are its strides.
template <int C, int CP, int H, int W, int TOP, int LEFT, int HP, int WP, int SC, int SY, int SX,
          int THREADS>
__device__ __forceinline__ void block_bring_image(float* to, const float* from) {
#pragma unroll 1
    for (i32 e = thread_now(); e < HP * WP * C; e += THREADS) {
        // Neighbouring threads take what lies side by side.
        i32 c = SC <= SX ? e % C : e / (HP * WP), pixel = SC <= SX ? e / C : e % (HP * WP);
        i32 y = pixel / WP - TOP, x = pixel % WP - LEFT;
        bool inside = y >= 0 && y < H && x >= 0 && x < W;
        copy_some<4>(to + pixel * CP + c, inside ? from + y * SY + x * SX + c * SC : from,
                     inside ? 4 : 0);
    }
}

// Start to bring filters: a line of NP for each tap, with a number for each result. TURNED: those
// that make the gradient of an image from that of its results.
template <int O, int C, int TAPS_Y, int TAPS_X, int SO, int SC, int SY, int SX, int NP, bool TURNED,
          int THREADS>
__device__ __forceinline__ void block_bring_taps(float* to, const float* from) {
#pragma unroll 1
    for (i32 e = thread_now(); e < O * C * TAPS_Y * TAPS_X; e += THREADS) {
        i32 x = e % TAPS_X, y = e / TAPS_X % TAPS_Y, c = e / (TAPS_X * TAPS_Y) % C;
        i32 o = e / (TAPS_X * TAPS_Y * C), tap = y * TAPS_X + x;
        i32 place = TURNED ? ((TAPS_Y * TAPS_X - 1 - tap) * O + o) * NP + c : (tap * C + c) * NP + o;
        copy_some<4>(to + place, from + o * SO + c * SC + y * SY + x * SX, 4);
    }
}

// sums[m][n] = sum over r of a[rows[m] + inner[r]] b[r][n], in SPLITS layers to be added up. Lines
// of b and of the sums are NP long.
template <int M, int N, int R, int NP, int SPLITS, int WARPS, bool EXACT>
__device__ __forceinline__ void block_windows(const float* a, const i32* rows, const i32* inner,
                                              const float* b, float* sums) {
    const int DOWN = (M + 15) / 16, ACROSS = (N + 7) / 8, STEPS = (R + 7) / 8;
    i32 thread = thread_now(), warp = thread >> 5, g = (thread & 31) >> 2, t = thread & 3;
    i32 split = warp % SPLITS;
#pragma unroll 1
    for (i32 tile = warp / SPLITS; tile < DOWN * ACROSS; tile += WARPS / SPLITS) {
        i32 m = tile % DOWN * 16 + g, n = tile / DOWN * 8;
        const float *top = a + rows[m], *low = a + rows[m + 8];
        float c[4] = {};
#pragma unroll 4
        for (i32 step = split; step < STEPS; step += SPLITS) {
            i32 r = step * 8 + t, one = inner[r], other = inner[r + 4];
            const float* column = b + r * NP + n + g;
            // A nan beyond the edge must not count either.
            bool in = R % 8 == 0 || r < R, also = R % 8 == 0 || r + 4 < R;
            Fragment<EXACT> left[4], right[2];
            left[0].set(in ? top[one] : 0.0f);
            left[1].set(in ? low[one] : 0.0f);
            left[2].set(also ? top[other] : 0.0f);
            left[3].set(also ? low[other] : 0.0f);
            right[0].set(in ? column[0] : 0.0f);
            right[1].set(also ? column[4 * NP] : 0.0f);
            mma_add(c, left, right[0], right[1]);
        }
        float* to = sums + (split * DOWN * 16 + m) * NP + n + 2 * t;
        *(float2*)to = make_float2(c[0], c[1]);
        *(float2*)(to + 8 * NP) = make_float2(c[2], c[3]);
    }
}

// An element of these sums.
template <int M, int NP, int SPLITS>
__device__ __forceinline__ float window_sum(const float* sums, i32 m, i32 n) {
    float sum = 0.0f;
#pragma unroll
    for (i32 split = 0; split < SPLITS; split++)
        sum += sums[(split * ((M + 15) / 16 * 16) + m) * NP + n];
    return sum;
}
