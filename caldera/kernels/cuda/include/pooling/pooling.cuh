// Pooling over windows of images: a thread has V channels of a pixel at a time.
#pragma once
#include "fast_division.cuh"
#include "row_primitives.cuh"

// Where pixels lie: strides of images, channels, rows and columns.
template <typename I> struct Pixels {
    I image, channel, row, column;
    __device__ __forceinline__ I at(I n, I c, I y, I x) const {
        return n * image + c * channel + y * row + x * column;
    }
};

// The windows: what is known of them when a kernel is compiled, along rows and along columns.
template <int SIZE_, int STRIDE_, int DILATION_> struct Axis {
    static const int SIZE = SIZE_, STRIDE = STRIDE_, DILATION = DILATION_;
    static const int REACH = (SIZE - 1) * DILATION + 1;
    // Windows that may hold an element.
    static const int HOLDING = (REACH + STRIDE - 1) / STRIDE;
};

// SMALL: elements of a window, and windows that hold an element, are few enough to be in registers.
template <typename R, typename C, bool SMALL_> struct Window {
    typedef R Row;
    typedef C Column;
    static const int SIZE = R::SIZE * C::SIZE, HOLDING = R::HOLDING * C::HOLDING;
    static const bool SMALL = SMALL_;
};

// And what is known at the launch: `height` and `width` are those of the image that the windows lie
// on, `down` and `across` how many there are of them; `counted` is how many elements a mean has, 0:
// those that it sees. Threads are dealt out over `groups` of channels and `tall` times `wide`
// places; `bands` are the G rows of places that are taken together.
template <typename I> struct Windows {
    I height, width, down, across, top, left, counted;
    I threads, tall;
    typename Dividing<I>::type groups, wide, bands;
};

// A place that a thread has; LAST: channels turn fastest, then the rows of a band, whose windows
// share elements; else columns turn fastest.
template <typename I> struct Place { I n, c, y, x; };

template <typename I, typename D> __device__ __forceinline__ I split(I& index, const D& divisor) {
    I rest = (I)divisor.quotient(index), digit = index - rest * (I)divisor.by;
    index = rest;
    return digit;
}

template <int V, bool LAST, int G, typename I>
__device__ __forceinline__ bool own_place(const Windows<I>& in, Place<I>& own) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= in.threads) return false;
    if (LAST) own.c = split(index, in.groups) * V;
    I within = index % G;
    index /= G;
    own.x = split(index, in.wide);
    own.y = split(index, in.bands) * G + within;
    if (!LAST) own.c = split(index, in.groups) * V;
    own.n = index;
    return own.y < in.tall;
}

// --- from windows to the elements that they hold

// `tap(pack, position, inside)` for all positions of a window, row by row; outside of the image
// there is `padding`.
template <typename K, int V, typename T, typename I, typename Tap>
__device__ __forceinline__ void over_window(
    const T* image, const Pixels<I>& from, const Windows<I>& in, const Place<I>& own,
    Pack<T, V> padding, Tap tap) {
    typedef typename K::Row R;
    typedef typename K::Column C;
    I row = own.y * R::STRIDE - in.top, column = own.x * C::STRIDE - in.left;
    const T* corner = image + from.at(own.n, own.c, row, column);
#pragma unroll (K::SMALL ? R::SIZE : 1)
    for (int i = 0; i < R::SIZE; i++) {
        I y = row + i * R::DILATION;
#pragma unroll (K::SMALL ? C::SIZE : 1)
        for (int j = 0; j < C::SIZE; j++) {
            I x = column + j * C::DILATION;
            bool inside = y >= 0 && y < in.height && x >= 0 && x < in.width;
            Pack<T, V> pack = padding;
            if (inside)
                pack = packed<V>(corner + i * R::DILATION * from.row + j * C::DILATION * from.column);
            tap(pack, i * C::SIZE + j, inside);
        }
    }
}

// The first position of a window that is inside an image of this length; SIZE if there is none.
template <typename X, typename I> __device__ __forceinline__ I first_inside(I start, I length) {
    I first = start >= 0 ? 0 : (-start + X::DILATION - 1) / X::DILATION;
    return start + first * X::DILATION < length ? first : (I)X::SIZE;
}

// What follows a maximum: a bias for its channel, a relu. V biases lie side by side unless V is 1.
template <bool BIAS, bool RELU, typename T, typename I> struct PoolEpilogue {
    static const bool CHANGES = BIAS || RELU;
    const T* bias;
    I step;
    template <int V, typename A> __device__ __forceinline__ void apply(A* values, I channel) const {
        A more[V];
        if constexpr (BIAS) load<V>(bias + channel * (V == 1 ? step : 1), more);
#pragma unroll
        for (int v = 0; v < V; v++) {
            if constexpr (BIAS) values[v] = op_add(values[v], more[v]);
            if constexpr (RELU) values[v] = op_relu(values[v]);
        }
    }
};

// The largest of each window, and its position there. Of equal ones the first wins, a nan wins over
// everything, and a window of padding alone has -inf and the position -1.
template <typename K, int V, typename T, typename N, typename I, typename E>
__device__ __forceinline__ void max_any(
    const T* x, const Pixels<I>& from, const Windows<I>& in, const Place<I>& own, T* y, N* winner,
    const E& ending) {
    typedef typename Computed<T>::type A;
    A best[V];
    N name[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        best[v] = -infinity_like((A)0);
        name[v] = (N)-1;
    }
    Pack<T, V> padding;
    over_window<K, V>(x, from, in, own, padding, [&](Pack<T, V> pack, int position, bool inside) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            A value = wide(pack.at[v]);
            bool larger = value > best[v] || (is_nan(value) && !is_nan(best[v])) || name[v] < 0;
            best[v] = inside && larger ? value : best[v];
            name[v] = inside && larger ? (N)position : name[v];
        }
    });
    ending.template apply<V>(best, own.c);
    store<V>(y, best);
    store<V>(winner, name);
}

__device__ __forceinline__ u32 pair_above(half_t, u32 a, u32 b) { return half_pair_above(a, b); }
__device__ __forceinline__ u32 pair_above(bfloat_t, u32 a, u32 b) { return bfloat_pair_above(a, b); }
__device__ __forceinline__ u32 pair_max(half_t, u32 a, u32 b) { return half_pair_max(a, b); }
__device__ __forceinline__ u32 pair_max(bfloat_t, u32 a, u32 b) { return bfloat_pair_max(a, b); }
__device__ __forceinline__ u32 lowest_pair(half_t) { return 0xfc00fc00u; }
__device__ __forceinline__ u32 lowest_pair(bfloat_t) { return 0xff80ff80u; }

template <typename T, int V> union Pairs {
    Pack<T, V> pack;
    u32 at[V / 2];
};

// The same for 16-bit floats as long as no nan is among them, two channels in an instruction;
// false if there is one. The first element of a window is there before any comparison, -inf
// stands for what is not.
template <typename K, int V, typename T, typename N, typename I, typename E>
__device__ __forceinline__ bool max_pairs(
    const T* x, const Pixels<I>& from, const Windows<I>& in, const Place<I>& own, T* y, N* winner,
    const E& ending) {
    typedef typename K::Row R;
    typedef typename K::Column C;
    Pairs<T, V> padding, best;
    u32 names[V / 2], seen = 0;
    I row = own.y * R::STRIDE - in.top, column = own.x * C::STRIDE - in.left;
    I i = first_inside<R>(row, in.height), j = first_inside<C>(column, in.width);
    bool some = i < R::SIZE && j < C::SIZE;
    u32 first = some ? (u32)(i * C::SIZE + j) : 0xffffu;
#pragma unroll
    for (int k = 0; k < V / 2; k++) {
        padding.at[k] = best.at[k] = lowest_pair(T());
        names[k] = first * 0x10001u;
    }
    if (some)
        best.pack = packed<V>(
            x + from.at(own.n, own.c, row + i * R::DILATION, column + j * C::DILATION));
    over_window<K, V>(x, from, in, own, padding.pack, [&](Pack<T, V> pack, int position, bool) {
        Pairs<T, V> next;
        next.pack = pack;
#pragma unroll
        for (int k = 0; k < V / 2; k++) {
            u32 mask = pair_above(T(), next.at[k], best.at[k]);
            best.at[k] = (next.at[k] & mask) | (best.at[k] & ~mask);
            names[k] = ((u32)position * 0x10001u & mask) | (names[k] & ~mask);
            seen = pair_max(T(), seen, next.at[k]);
        }
    });
    if ((seen & 0xffffu) == 0x7fffu || seen >> 16 == 0x7fffu) return false;
    if constexpr (E::CHANGES) {
        float values[V];
#pragma unroll
        for (int v = 0; v < V; v++) values[v] = wide(best.pack.at[v]);
        ending.template apply<V>(values, own.c);
        store<V>(y, values);
    } else {
        put<V>(y, best.pack);
    }
    N name[V];
#pragma unroll
    for (int v = 0; v < V; v++) name[v] = (N)(i16)(names[v / 2] >> v % 2 * 16);
    store<V>(winner, name);
    return true;
}

template <
    typename K, int V, bool LAST, int G, typename T, typename N, typename I,
    typename E = PoolEpilogue<false, false, T, I>>
__device__ __forceinline__ void max_pool(
    const T* __restrict__ x, T* __restrict__ y, N* __restrict__ winner, Pixels<I> from,
    Pixels<I> to, Pixels<I> names, Windows<I> in, const E& ending = {}) {
    Place<I> own;
    if (!own_place<V, LAST, G>(in, own)) return;
    y += to.at(own.n, own.c, own.y, own.x);
    winner += names.at(own.n, own.c, own.y, own.x);
    if constexpr (V > 1 && sizeof(T) == 2 && K::SIZE < 0x8000) {
        if (max_pairs<K, V>(x, from, in, own, y, winner, ending)) return;
        // Seldom, so it must not take registers.
        typedef Window<typename K::Row, typename K::Column, false> Rolled;
        max_any<Rolled, V>(x, from, in, own, y, winner, ending);
    } else {
        max_any<K, V>(x, from, in, own, y, winner, ending);
    }
}

// The element of each window that its name gives, and 0 where it gives none.
template <typename K, int V, bool LAST, int G, typename T, typename N, typename I>
__device__ __forceinline__ void pool_gather(
    const T* __restrict__ x, const N* __restrict__ name, T* __restrict__ y, Pixels<I> from,
    Pixels<I> names, Pixels<I> to, Windows<I> in) {
    typedef typename K::Row R;
    typedef typename K::Column C;
    Place<I> own;
    if (!own_place<V, LAST, G>(in, own)) return;
    N wanted[V];
    load<V>(name + names.at(own.n, own.c, own.y, own.x), wanted);
    Pack<T, V> found;
#pragma unroll
    for (int v = 0; v < V; v++) {
        I position = (I)wanted[v], i = position / C::SIZE, j = position - i * C::SIZE;
        I row = own.y * R::STRIDE - in.top + i * R::DILATION;
        I column = own.x * C::STRIDE - in.left + j * C::DILATION;
        bool inside = position >= 0 && i < R::SIZE && row >= 0 && row < in.height &&
                      column >= 0 && column < in.width;
        found.at[v] = Stored<T>::from(0.0f);
        if (inside) found.at[v] = x[from.at(own.n, own.c + v, row, column)];
    }
    put<V>(y + to.at(own.n, own.c, own.y, own.x), found);
}

// How many elements of the image a window holds along one axis; means have no dilation.
template <typename X, typename I> __device__ __forceinline__ I seen(I window, I before, I length) {
    I first = window * X::STRIDE - before, end = first + X::SIZE;
    return (end < length ? end : length) - (first > 0 ? first : 0);
}

template <typename K, int V, bool LAST, int G, typename T, typename I>
__device__ __forceinline__ void mean_pool(
    const T* __restrict__ x, T* __restrict__ y, Pixels<I> from, Pixels<I> to, Windows<I> in) {
    typedef typename Computed<T>::type A;
    Place<I> own;
    if (!own_place<V, LAST, G>(in, own)) return;
    A total[V];
    Pack<T, V> padding;
#pragma unroll
    for (int v = 0; v < V; v++) {
        total[v] = (A)0;
        padding.at[v] = Stored<T>::from(0.0f);
    }
    over_window<K, V>(x, from, in, own, padding, [&](Pack<T, V> pack, int, bool) {
#pragma unroll
        for (int v = 0; v < V; v++) total[v] += wide(pack.at[v]);
    });
    I rows = seen<typename K::Row>(own.y, in.top, in.height);
    I columns = seen<typename K::Column>(own.x, in.left, in.width);
    A count = (A)(in.counted ? in.counted : rows * columns);
#pragma unroll
    for (int v = 0; v < V; v++) total[v] /= count;
    store<V>(y + to.at(own.n, own.c, own.y, own.x), total);
}
