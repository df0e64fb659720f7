// The adjoints of pooling. They look from elements to the windows that hold them, so nothing is added
// to from two sides and every element is written once. A thread has all elements that lie between
// the corners of neighbouring windows: they are held by the same few windows, which it reads once.
#pragma once
#include "pooling.cuh"

// `look(window row, window column, k)` for all windows that may hold elements of this place, then
// for each of its elements `begin()`, `tap(k, position)` for all windows that do hold it, and
// `end(y, x)`. Windows that are not there are not looked at.
template <typename K, typename I, typename Look, typename Begin, typename Tap, typename End>
__device__ __forceinline__ void over_elements(
    const Windows<I>& in, const Place<I>& own, Look look, Begin begin, Tap tap, End end) {
    typedef typename K::Row R;
    typedef typename K::Column C;
    I row = own.y + in.top / R::STRIDE, column = own.x + in.left / C::STRIDE;
#pragma unroll
    for (int a = 0; a < R::HOLDING; a++)
#pragma unroll
        for (int b = 0; b < C::HOLDING; b++)
            if (row >= a && row - a < in.down && column >= b && column - b < in.across)
                look(row - a, column - b, a * C::HOLDING + b);
#pragma unroll
    for (int p = 0; p < R::STRIDE; p++)
#pragma unroll
        for (int q = 0; q < C::STRIDE; q++) {
            I y = row * R::STRIDE + p - in.top, x = column * C::STRIDE + q - in.left;
            if (y < 0 || y >= in.height || x < 0 || x >= in.width) continue;
            begin();
#pragma unroll
            for (int a = 0; a < R::HOLDING; a++)
#pragma unroll
                for (int b = 0; b < C::HOLDING; b++) {
                    const int i = p + a * R::STRIDE, j = q + b * C::STRIDE;
                    if (i < R::REACH && i % R::DILATION == 0 && j < C::REACH && j % C::DILATION == 0)
                        tap(a * C::HOLDING + b, i / R::DILATION * C::SIZE + j / C::DILATION);
                }
            end(y, x);
        }
}

// The windows along one axis that may hold a place: from `first` to `last`.
template <typename I> struct Range { I first, last; };

template <typename X, typename I>
__device__ __forceinline__ Range<I> holding(I place, I before, I windows) {
    I padded = place + before, least = padded - X::REACH + 1;
    I first = least <= 0 ? 0 : (least + X::STRIDE - 1) / X::STRIDE, last = padded / X::STRIDE;
    return {first, last < windows ? last : windows - 1};
}

// `tap(window row, window column, position)` for all windows that hold an element, however many.
template <typename K, typename I, typename Tap>
__device__ __forceinline__ void over_windows(const Windows<I>& in, I y, I x, Tap tap) {
    typedef typename K::Row R;
    typedef typename K::Column C;
    Range<I> down = holding<R>(y, in.top, in.down), across = holding<C>(x, in.left, in.across);
    for (I row = down.first; row <= down.last; row++) {
        I i = y + in.top - row * R::STRIDE;
        if (i % R::DILATION) continue;
        for (I column = across.first; column <= across.last; column++) {
            I j = x + in.left - column * C::STRIDE;
            if (j % C::DILATION) continue;
            tap(row, column, i / R::DILATION * C::SIZE + j / C::DILATION);
        }
    }
}

// Names that are compared with one position, several in an instruction where they are bytes.
template <typename N, int V> struct Names {
    static const bool BYTES = sizeof(N) == 1 && V % 4 == 0;
    union {
        Pack<N, V> pack;
        u32 words[BYTES ? V / 4 : 1];
    };
    // What is 0 where a name is the position.
    __device__ __forceinline__ Names apart(int position) const {
        Names other;
        if constexpr (BYTES) {
#pragma unroll
            for (int w = 0; w < V / 4; w++)
                other.words[w] = words[w] ^ (u32)position * 0x01010101u;
        } else {
#pragma unroll
            for (int v = 0; v < V; v++) other.pack.at[v] = pack.at[v] ^ (N)position;
        }
        return other;
    }
    __device__ __forceinline__ bool is_zero(int v) const {
        if constexpr (BYTES) return (words[v / 4] & 0xffu << v % 4 * 8) == 0;
        return pack.at[v] == 0;
    }
};

// For each element the sum over the windows that name it.
template <typename K, int V, bool LAST, int G, typename T, typename N, typename I>
__device__ __forceinline__ void pool_scatter(
    const T* __restrict__ g, const N* __restrict__ name, T* __restrict__ y, Pixels<I> from,
    Pixels<I> names, Pixels<I> to, Windows<I> in) {
    typedef typename Computed<T>::type A;
    Place<I> own;
    if (!own_place<V, LAST, G>(in, own)) return;
    A total[V];
    auto clear = [&]() {
#pragma unroll
        for (int v = 0; v < V; v++) total[v] = (A)0;
    };
    if constexpr (K::SMALL) {
        Pack<T, V> given[K::HOLDING];
        Names<N, V> wanted[K::HOLDING];
#pragma unroll
        for (int k = 0; k < K::HOLDING; k++)
#pragma unroll
            for (int v = 0; v < V; v++) wanted[k].pack.at[v] = (N)-1;
        over_elements<K>(in, own,
            [&](I row, I column, int k) {
                given[k] = packed<V>(g + from.at(own.n, own.c, row, column));
                wanted[k].pack = packed<V>(name + names.at(own.n, own.c, row, column));
            },
            clear,
            [&](int k, int position) {
                Names<N, V> apart = wanted[k].apart(position);
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (apart.is_zero(v)) total[v] += wide(given[k].at[v]);
            },
            [&](I row, I column) { store<V>(y + to.at(own.n, own.c, row, column), total); });
    } else {
        clear();
        over_windows<K>(in, own.y, own.x, [&](I row, I column, I position) {
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
}

// A window's part in a mean, as a product of what it is along rows and along columns.
template <typename K, typename A, typename I>
__device__ __forceinline__ A part_down(const Windows<I>& in, I row) {
    return (A)1 / (A)(in.counted ? in.counted : seen<typename K::Row>(row, in.top, in.height));
}
template <typename K, typename A, typename I>
__device__ __forceinline__ A part_across(const Windows<I>& in, I column) {
    if (in.counted) return (A)1;
    return (A)1 / (A)seen<typename K::Column>(column, in.left, in.width);
}

// The adjoint of means: for each element its part of the windows that hold it.
template <typename K, int V, bool LAST, int G, typename T, typename I>
__device__ __forceinline__ void mean_spread(
    const T* __restrict__ g, T* __restrict__ y, Pixels<I> from, Pixels<I> to, Windows<I> in) {
    typedef typename Computed<T>::type A;
    typedef typename K::Row R;
    typedef typename K::Column C;
    Place<I> own;
    if (!own_place<V, LAST, G>(in, own)) return;
    A total[V];
    auto clear = [&]() {
#pragma unroll
        for (int v = 0; v < V; v++) total[v] = (A)0;
    };
    if constexpr (K::SMALL) {
        Pack<T, V> given[K::HOLDING];
        A down[R::HOLDING], across[C::HOLDING];
#pragma unroll
        for (int a = 0; a < R::HOLDING; a++)
            down[a] = part_down<K, A>(in, own.y + in.top / R::STRIDE - a);
#pragma unroll
        for (int b = 0; b < C::HOLDING; b++)
            across[b] = part_across<K, A>(in, own.x + in.left / C::STRIDE - b);
#pragma unroll
        for (int k = 0; k < K::HOLDING; k++)
#pragma unroll
            for (int v = 0; v < V; v++) given[k].at[v] = Stored<T>::from(0.0f);
        over_elements<K>(in, own,
            [&](I row, I column, int k) {
                given[k] = packed<V>(g + from.at(own.n, own.c, row, column));
            },
            clear,
            [&](int k, int) {
                A part = down[k / C::HOLDING] * across[k % C::HOLDING];
#pragma unroll
                for (int v = 0; v < V; v++) total[v] += wide(given[k].at[v]) * part;
            },
            [&](I row, I column) { store<V>(y + to.at(own.n, own.c, row, column), total); });
    } else {
        clear();
        over_windows<K>(in, own.y, own.x, [&](I row, I column, I) {
            A values[V], part = part_down<K, A>(in, row) * part_across<K, A>(in, column);
            load<V>(g + from.at(own.n, own.c, row, column), values);
#pragma unroll
            for (int v = 0; v < V; v++) total[v] += values[v] * part;
        });
        store<V>(y + to.at(own.n, own.c, own.y, own.x), total);
    }
}
