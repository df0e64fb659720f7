// Normalisation of images, all elements: with factors that are there already, and the gradient.
#pragma once
#include "norm_statistics.cuh"

const int ROWS = 4;

// `read(places, values)` and `write(places, values)` for all rows of a thread, ROWS at a time: the
// others are on their way while the first is waited for.
template <int N, typename A, bool PLANES, int V, int R, int B, typename I, typename Read,
          typename Write>
__device__ __forceinline__ void over_rows(
    const Share<PLANES, V, R, B, I>& here, Read read, Write write) {
    I row = here.row, places[ROWS][B];
    A values[ROWS][N];
    for (; row + (ROWS - 1) * here.step < here.end; row += ROWS * here.step) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            here.places(row + r * here.step, places[r]);
            read(places[r], values[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) write(places[r], values[r]);
    }
    for (; row < here.end; row += here.step) {
        here.places(row, places[0]);
        read(places[0], values[0]);
        write(places[0], values[0]);
    }
}

// y = (x - mean) * factor + shift, with `more` added to it, through a relu.
template <bool RELU, bool ADDED, bool PLANES, int V, typename T, typename A, int R, typename I>
__device__ __forceinline__ void normalised(
    const Share<PLANES, V, R, 2 + ADDED, I>& here, const T* x, T* y, const T* more, const A* mean,
    const A* factor, const A* shift) {
    over_rows<V * (1 + ADDED), A>(
        here,
        [&](const I* places, A* values) {
            load<V>(x + places[0], values);
            if constexpr (ADDED) load<V>(more + places[2], values + V);
        },
        [&](const I* places, A* values) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                A value = fma(values[v] - mean[v], factor[v], shift[v]);
                if constexpr (ADDED) value += values[V + v];
                values[v] = RELU ? op_relu(value) : value;
            }
            store<V>(y + places[1], values);
        });
}

// By factors in memory: means, factors and shifts, one a channel (and an image, if `apart`).
template <bool RELU, bool ADDED, bool PLANES, int V, typename T, typename A, int R, typename I>
__device__ __forceinline__ void normalise(
    const T* x, T* y, const T* more, const Images<R, 2 + ADDED, I>& in, const A* factors,
    I apart) {
    Share<PLANES, V, R, 2 + ADDED, I> here(in);
    const A* own = factors + (i64)here.image * apart;
    A mean[V], factor[V], shift[V];
    here.of_channels(own, (I)1, mean);
    here.of_channels(own + in.channels, (I)1, factor);
    here.of_channels(own + 2 * in.channels, (I)1, shift);
    normalised<RELU, ADDED>(here, x, y, more, mean, factor, shift);
}

// scale / sqrt(variance + eps) for the channels of a thread.
template <typename Place, int V, typename P, typename M, typename A, typename I>
__device__ __forceinline__ void given_factors(
    const Place& here, Strided<const P, I> scale, Strided<const M, I> variance, double eps,
    A (&factor)[V]) {
    double gain[V], spread[V];
    here.of_channels(scale.first, scale.step, gain);
    here.of_channels(variance.first, variance.step, spread);
#pragma unroll
    for (int v = 0; v < V; v++) factor[v] = (A)(gain[v] * inverse_deviation(spread[v], eps));
}

// The same where threads of a block share channels: each finds one factor, if there are as many.
template <typename Place, int V, typename P, typename M, typename A, typename I>
__device__ __forceinline__ void block_factors(
    const Place& here, Strided<const P, I> scale, Strided<const M, I> variance, double eps,
    double* kept, A (&factor)[V]) {
    int thread = thread_of_block();
    I channel = here.channel - threadIdx.x * V + thread;
    if (thread < blockDim.x * V && channel < here.in.channels) {
        double inverse = inverse_deviation((double)wide(variance[channel]), eps);
        kept[thread] = (double)wide(scale[channel]) * inverse;
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; v++) factor[v] = (A)kept[threadIdx.x * V + v];
    __syncthreads();
}

// By a mean and a variance that are given.
template <bool RELU, bool ADDED, bool PLANES, int V, typename T, typename P, typename M, int R,
          typename I>
__device__ __forceinline__ void normalise_given(
    const T* x, T* y, const T* more, const Images<R, 2 + ADDED, I>& in, double eps,
    Strided<const P, I> scale, Strided<const P, I> shift, Strided<const M, I> mean,
    Strided<const M, I> variance) {
    typedef typename Computed<T>::type A;
    Share<PLANES, V, R, 2 + ADDED, I> here(in);
    A centre[V], factor[V], offset[V];
    here.of_channels(mean.first, mean.step, centre);
    here.of_channels(shift.first, shift.step, offset);
    given_factors(here, scale, variance, eps, factor);
    normalised<RELU, ADDED>(here, x, y, more, centre, factor, offset);
}

// --- the gradient

// Where a mean lies for each of the channels: one a group of an image.
template <typename M, typename I> struct Means {
    const M* first;
    I image, group, each;
};

// Sums of the gradient, and of its product with x less the mean. With RELU the gradient counts
// where what the relu was given was positive: that is computed again.
template <bool RELU, bool PLANES, int V, typename T, typename G, typename P, typename M, int R,
          typename I>
__device__ __forceinline__ void block_gradient_sums(
    const T* x, const G* g, const Images<R, 2, I>& in, Means<M, I> means, double eps,
    Strided<const P, I> scale, Strided<const P, I> shift, Strided<const M, I> variance,
    double* partial, double* kept) {
    typedef typename Computed<T>::type A;
    Share<PLANES, V, R, 2, I> here(in);
    A mean[V], factor[V], offset[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        I group = (here.channel + (PLANES ? 0 : v)) / means.each;
        I place = here.image * means.image + group * means.group;
        mean[v] = here.channel < in.channels ? (A)wide(means.first[place]) : (A)0;
    }
    if constexpr (RELU) {
        here.of_channels(shift.first, shift.step, offset);
        if constexpr (PLANES) given_factors(here, scale, variance, eps, factor);
        else block_factors(here, scale, variance, eps, kept, factor);
    }
    block_sums<A, PLANES, V>(here, partial, kept, [&](I row, A* one, A* two) {
        I places[2];
        A gradient[V], centred[V];
        here.places(row, places);
        load<V>(x + places[0], centred);
        load<V>(g + places[1], gradient);
#pragma unroll
        for (int v = 0; v < V; v++) {
            centred[v] -= mean[v];
            if (RELU && !(fma(centred[v], factor[v], offset[v]) > (A)0)) gradient[v] = (A)0;
            one[v] += gradient[v];
            two[v] += gradient[v] * centred[v];
        }
    });
}

// dx = f * g - a - (x - mean) * b.
template <bool RELU, bool PLANES, int V, typename T, typename G, typename A, int R, typename I>
__device__ __forceinline__ void gradients(
    const T* x, const G* g, T* dx, const Images<R, 3, I>& in, const A* factors, I apart) {
    Share<PLANES, V, R, 3, I> here(in);
    const A* own = factors + (i64)here.image * apart;
    A f[V], a[V], b[V], mean[V], offset[V];
    here.of_channels(own, (I)1, f);
    here.of_channels(own + in.channels, (I)1, a);
    here.of_channels(own + 2 * in.channels, (I)1, b);
    here.of_channels(own + 3 * in.channels, (I)1, mean);
    if constexpr (RELU) here.of_channels(own + 4 * in.channels, (I)1, offset);
    over_rows<2 * V, A>(
        here,
        [&](const I* places, A* values) {
            load<V>(x + places[0], values);
            load<V>(g + places[1], values + V);
        },
        [&](const I* places, A* values) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                A centred = values[v] - mean[v], gradient = values[V + v];
                if (RELU && !(fma(centred, f[v], offset[v]) > (A)0)) gradient = (A)0;
                values[v] = fma(gradient, f[v], -fma(centred, b[v], a[v]));
            }
            store<V>(dx + places[2], values);
        });
}
