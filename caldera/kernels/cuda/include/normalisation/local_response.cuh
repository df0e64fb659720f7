// Local response normalisation: a thread computes a channel of a row (a pixel). What neighbours add
// to a gradient is computed once for a tile of rows by channels, in shared memory.
#pragma once
#include "row_primitives.cuh"

// The sizes of images, of the windows over channels, and of a block's tile.
template <typename I> struct Response {
    I rows, channels, before, after, tile_rows, tile_channels;
};

// x ** -beta.
template <typename A> __device__ __forceinline__ A negative_power(A x, A beta) {
    if (beta == (A)1) return (A)1 / x;
    if (beta == (A)0.5) return (A)1 / op_sqrt(x);
    if (beta == (A)0.75) {
        A root = op_sqrt(x);
        return (A)1 / (root * op_sqrt(root));
    }
    return op_pow(x, -beta);
}

// k + alpha times the sum of squares over the window of a channel.
template <typename A, typename T, typename I>
__device__ __forceinline__ A window_base(
    const T* x, I step, const Response<I>& in, I channel, A alpha, A k) {
    I first = channel - in.before < 0 ? 0 : channel - in.before;
    I end = channel + in.after + 1 < in.channels ? channel + in.after + 1 : in.channels;
    A total = (A)0;
    for (I at = first; at < end; at++) {
        A value = (A)wide(x[at * step]);
        total += value * value;
    }
    return fma(total, alpha, k);
}

// Rows and channels by their number; LAST: channels turn fastest.
template <bool LAST, typename I>
__device__ __forceinline__ void split(I index, I rows, I channels, I& row, I& channel) {
    row = LAST ? index / channels : index % rows;
    channel = LAST ? index % channels : index / rows;
}

template <bool LAST, typename T, int R, typename A, typename I>
__device__ __forceinline__ void respond(
    const T* x, T* y, const StridedLayout<R, 2, I>& rows, I x_step, I y_step, Response<I> in, A alpha,
    A beta, A k) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x, row, channel, places[2];
    if (index >= in.rows * in.channels) return;
    split<LAST>(index, in.rows, in.channels, row, channel);
    rows.at(row, places);
    A base = window_base<A>(x + places[0], x_step, in, channel, alpha, k);
    A value = (A)wide(x[places[0] + channel * x_step]);
    y[places[1] + channel * y_step] = Stored<T>::from(value * negative_power(base, beta));
}

// A channel's own part of its gradient, and what it adds to those of its neighbours.
template <typename A> struct Parts { A own, other; };

template <typename A, typename T, typename I>
__device__ __forceinline__ Parts<A> parts_of(
    const T* x, const T* g, I x_step, I g_step, const Response<I>& in, I channel, A alpha, A beta,
    A k) {
    A base = window_base<A>(x, x_step, in, channel, alpha, k);
    A own = (A)wide(g[channel * g_step]) * negative_power(base, beta);
    return {own, own * (A)wide(x[channel * x_step]) / base};
}

// Dynamic shared memory has both parts of a tile with its neighbours on both sides.
template <bool LAST, typename T, int R, typename A, typename I>
__device__ __forceinline__ void block_response_gradients(
    const T* x, const T* g, T* dx, const StridedLayout<R, 3, I>& rows, I x_step, I g_step, I dx_step,
    Response<I> in, A alpha, A beta, A k) {
    DYNAMIC_SHARED(A, kept);
    I tiles = (in.channels + in.tile_channels - 1) / in.tile_channels;
    I top = (I)blockIdx.x / tiles * in.tile_rows;
    I left = (I)blockIdx.x % tiles * in.tile_channels;
    // The channels whose windows hold one of this tile lie mirrored.
    I width = in.tile_channels + in.before + in.after, row, column, places[3];
    A* own = kept;
    A* others = kept + in.tile_rows * width;
    for (I i = threadIdx.x; i < in.tile_rows * width; i += blockDim.x) {
        split<LAST>(i, in.tile_rows, width, row, column);
        I channel = left + column - in.after;
        Parts<A> found = {(A)0, (A)0};
        if (top + row < in.rows && channel >= 0 && channel < in.channels) {
            rows.at(top + row, places);
            found = parts_of(
                x + places[0], g + places[1], x_step, g_step, in, channel, alpha, beta, k);
        }
        own[row * width + column] = found.own;
        others[row * width + column] = found.other;
    }
    __syncthreads();
    for (I i = threadIdx.x; i < in.tile_rows * in.tile_channels; i += blockDim.x) {
        split<LAST>(i, in.tile_rows, in.tile_channels, row, column);
        I channel = left + column;
        if (top + row >= in.rows || channel >= in.channels) continue;
        rows.at(top + row, places);
        const A* met = others + row * width + column;
        A total = (A)0;
        for (I at = 0; at <= in.before + in.after; at++) total += met[at];
        A factor = (A)wide(x[places[0] + channel * x_step]) * (alpha * ((A)2 * beta));
        A value = own[row * width + column + in.after] - factor * total;
        dx[places[2] + channel * dx_step] = Stored<T>::from(value);
    }
}
