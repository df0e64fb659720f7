// Pooling over windows of images, and its adjoints. A thread computes V channels of one pixel that
// is written; the adjoints look from an element to the windows that hold it, so nothing is added
// to from two sides.
#pragma once
#include "rows.cuh"

// Where pixels lie: strides of images, channels, rows and columns.
template <typename I> struct Pixels {
    I image, channel, row, column;
    __device__ __forceinline__ I at(I n, I c, I y, I x) const {
        return n * image + c * channel + y * row + x * column;
    }
};

// The windows: `height` and `width` are those of the image that they lie on, `down` and `across`
// how many there are of them; `counted` is how many elements a mean has, 0: those that it sees.
template <typename I> struct Windows {
    I images, channels, height, width, down, across;
    I rows, columns, row_stride, column_stride, top, left, row_dilation, column_dilation, counted;
};

// A pixel that is written; LAST: channels are those that turn fastest, else columns.
template <typename I> struct Pixel { I n, c, y, x; };

template <int V, bool LAST, typename I>
__device__ __forceinline__ bool own_pixel(I images, I channels, I height, I width, Pixel<I>& own) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x, groups = channels / V;
    if (index >= images * groups * height * width) return false;
    if (LAST) {
        own.c = index % groups * V;
        index /= groups;
    }
    own.x = index % width;
    index /= width;
    own.y = index % height;
    index /= height;
    if (!LAST) {
        own.c = index % groups * V;
        index /= groups;
    }
    own.n = index;
    return true;
}

// `tap(values, position)` for all elements of a window that are of the image, row by row. B of a
// row are on their way at the same time; B divides the columns.
template <int V, int B, typename A, typename T, typename I, typename Tap>
__device__ __forceinline__ void over_window(
    const T* image, const Pixels<I>& from, const Windows<I>& in, const Pixel<I>& own, Tap tap) {
    I first_row = own.y * in.row_stride - in.top;
    I first_column = own.x * in.column_stride - in.left;
    for (I i = 0; i < in.rows; i++) {
        I row = first_row + i * in.row_dilation;
        if (row < 0 || row >= in.height) continue;
        for (I j = 0; j < in.columns; j += B) {
            A values[B][V];
            bool inside[B];
#pragma unroll
            for (int b = 0; b < B; b++) {
                I column = first_column + (j + b) * in.column_dilation;
                inside[b] = column >= 0 && column < in.width;
                if (inside[b]) load<V>(image + from.at(own.n, own.c, row, column), values[b]);
            }
#pragma unroll
            for (int b = 0; b < B; b++)
                if (inside[b]) tap(values[b], i * in.columns + j + b);
        }
    }
}

// The windows along one axis that may hold a place: from `first` to `last`.
template <typename I> struct Range { I first, last; };

template <typename I>
__device__ __forceinline__ Range<I> holding(
    I place, I stride, I before, I reach, I windows) {
    I padded = place + before, least = padded - reach + 1;
    I first = least <= 0 ? 0 : (least + stride - 1) / stride, last = padded / stride;
    return {first, last < windows ? last : windows - 1};
}

// `tap(window row, window column, position)` for all windows that hold an element.
template <typename I, typename Tap>
__device__ __forceinline__ void over_windows(const Windows<I>& in, I y, I x, Tap tap) {
    Range<I> down = holding(
        y, in.row_stride, in.top, (in.rows - 1) * in.row_dilation + 1, in.down);
    Range<I> across = holding(
        x, in.column_stride, in.left, (in.columns - 1) * in.column_dilation + 1, in.across);
    for (I row = down.first; row <= down.last; row++) {
        I i = y + in.top - row * in.row_stride;
        if (i % in.row_dilation) continue;
        for (I column = across.first; column <= across.last; column++) {
            I j = x + in.left - column * in.column_stride;
            if (j % in.column_dilation) continue;
            tap(row, column, i / in.row_dilation * in.columns + j / in.column_dilation);
        }
    }
}

// How many elements of the image a window holds along one axis; means have no dilation.
template <typename I>
__device__ __forceinline__ I seen(I window, I stride, I before, I size, I length) {
    I first = window * stride - before, end = first + size;
    return (end < length ? end : length) - (first > 0 ? first : 0);
}

template <typename A, typename I>
__device__ __forceinline__ A held(const Windows<I>& in, I y, I x) {
    if (in.counted) return (A)in.counted;
    return (A)(seen(y, in.row_stride, in.top, in.rows, in.height) *
               seen(x, in.column_stride, in.left, in.columns, in.width));
}

// The largest of each window, and its position there. Of equal ones the first wins, a nan wins over
// everything, and a window of padding alone has -inf and the position -1.
template <int V, bool LAST, int B, typename T, typename N, typename I>
__device__ __forceinline__ void max_pool(
    const T* x, T* y, N* winner, Pixels<I> from, Pixels<I> to, Pixels<I> names, Windows<I> in) {
    typedef typename Computed<T>::type A;
    Pixel<I> own;
    if (!own_pixel<V, LAST>(in.images, in.channels, in.down, in.across, own)) return;
    A best[V];
    N name[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        best[v] = -infinity_like((A)0);
        name[v] = (N)-1;
    }
    over_window<V, B, A>(x, from, in, own, [&](const A* values, I position) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            bool larger = values[v] > best[v] || (is_nan(values[v]) && !is_nan(best[v]));
            if (larger || name[v] < 0) {
                best[v] = values[v];
                name[v] = (N)position;
            }
        }
    });
    store<V>(y + to.at(own.n, own.c, own.y, own.x), best);
    store<V>(winner + names.at(own.n, own.c, own.y, own.x), name);
}

// The element of each window that its name gives, and 0 where it gives none.
template <int V, bool LAST, int B, typename T, typename N, typename I>
__device__ __forceinline__ void pool_gather(
    const T* x, const N* name, T* y, Pixels<I> from, Pixels<I> names, Pixels<I> to,
    Windows<I> in) {
    Pixel<I> own;
    if (!own_pixel<V, LAST>(in.images, in.channels, in.down, in.across, own)) return;
    N wanted[V];
    load<V>(name + names.at(own.n, own.c, own.y, own.x), wanted);
    Pack<T, V> found;
#pragma unroll
    for (int v = 0; v < V; v++) {
        I position = (I)wanted[v], i = position / in.columns, j = position - i * in.columns;
        I row = own.y * in.row_stride - in.top + i * in.row_dilation;
        I column = own.x * in.column_stride - in.left + j * in.column_dilation;
        bool inside = position >= 0 && i < in.rows && row >= 0 && row < in.height &&
                      column >= 0 && column < in.width;
        found.at[v] = Stored<T>::from(0.0f);
        if (inside) found.at[v] = x[from.at(own.n, own.c + v, row, column)];
    }
    put<V>(y + to.at(own.n, own.c, own.y, own.x), found);
}

// For each element the sum over the windows that name it.
template <int V, bool LAST, int B, typename T, typename N, typename I>
__device__ __forceinline__ void pool_scatter(
    const T* g, const N* name, T* y, Pixels<I> from, Pixels<I> names, Pixels<I> to,
    Windows<I> in) {
    typedef typename Computed<T>::type A;
    Pixel<I> own;
    if (!own_pixel<V, LAST>(in.images, in.channels, in.height, in.width, own)) return;
    A total[V];
#pragma unroll
    for (int v = 0; v < V; v++) total[v] = (A)0;
    over_windows(in, own.y, own.x, [&](I row, I column, I position) {
        A values[V];
        N wanted[V];
        load<V>(name + names.at(own.n, own.c, row, column), wanted);
        load<V>(g + from.at(own.n, own.c, row, column), values);
#pragma unroll
        for (int v = 0; v < V; v++)
            if ((I)wanted[v] == position) total[v] += values[v];
    });
    store<V>(y + to.at(own.n, own.c, own.y, own.x), total);
}

template <int V, bool LAST, int B, typename T, typename I>
__device__ __forceinline__ void mean_pool(
    const T* x, T* y, Pixels<I> from, Pixels<I> to, Windows<I> in) {
    typedef typename Computed<T>::type A;
    Pixel<I> own;
    if (!own_pixel<V, LAST>(in.images, in.channels, in.down, in.across, own)) return;
    A total[V];
#pragma unroll
    for (int v = 0; v < V; v++) total[v] = (A)0;
    over_window<V, B, A>(x, from, in, own, [&](const A* values, I) {
#pragma unroll
        for (int v = 0; v < V; v++) total[v] += values[v];
    });
    A count = held<A>(in, own.y, own.x);
#pragma unroll
    for (int v = 0; v < V; v++) total[v] /= count;
    store<V>(y + to.at(own.n, own.c, own.y, own.x), total);
}

// The adjoint: for each element its part of the windows that hold it.
template <int V, bool LAST, int B, typename T, typename I>
__device__ __forceinline__ void mean_spread(
    const T* g, T* y, Pixels<I> from, Pixels<I> to, Windows<I> in) {
    typedef typename Computed<T>::type A;
    Pixel<I> own;
    if (!own_pixel<V, LAST>(in.images, in.channels, in.height, in.width, own)) return;
    A total[V];
#pragma unroll
    for (int v = 0; v < V; v++) total[v] = (A)0;
    over_windows(in, own.y, own.x, [&](I row, I column, I) {
        A values[V], count = held<A>(in, row, column);
        load<V>(g + from.at(own.n, own.c, row, column), values);
#pragma unroll
        for (int v = 0; v < V; v++) total[v] += values[v] / count;
    });
    store<V>(y + to.at(own.n, own.c, own.y, own.x), total);
}
