// Fourier transforms of any length, rows in shared memory or in the workspace: Stockham's method, in
// which every stage writes in another order what the one before it wrote, so nothing is sorted.
#pragma once
#include "strided_index.cuh"

template <typename C> struct __align__(2 * sizeof(C)) Complex { C real, imaginary; };

template <typename C>
__device__ __forceinline__ Complex<C> operator+(Complex<C> a, Complex<C> b) {
    return {a.real + b.real, a.imaginary + b.imaginary};
}
template <typename C>
__device__ __forceinline__ Complex<C> operator-(Complex<C> a, Complex<C> b) {
    return {a.real - b.real, a.imaginary - b.imaginary};
}
template <typename C>
__device__ __forceinline__ Complex<C> operator*(Complex<C> a, Complex<C> b) {
    return {a.real * b.real - a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
}

__device__ __forceinline__ void turned(float half_turns, float* sine, float* cosine) {
    sincospif(half_turns, sine, cosine);
}
__device__ __forceinline__ void turned(double half_turns, double* sine, double* cosine) {
    sincospi(half_turns, sine, cosine);
}

// exp(-2 pi i k / n), or its conjugate. Quarter turns are split off in integers: what is left is
// small, and its rounding with it.
template <typename C> __device__ __forceinline__ Complex<C> root_of_unity(u32 k, u32 n, bool inverse) {
    u64 quarters = ((u64)k * 4 + n / 2) / n;
    i64 rest = (i64)((u64)k * 4) - (i64)(quarters * n);
    C sine, cosine;
    turned((C)rest / (C)(2 * (u64)n), &sine, &cosine);
    Complex<C> root;
    switch (quarters % 4) {
        case 0: root = {cosine, -sine}; break;
        case 1: root = {-sine, -cosine}; break;
        case 2: root = {-cosine, sine}; break;
        default: root = {sine, cosine};
    }
    if (inverse) root.imaginary = -root.imaginary;
    return root;
}

struct Radices {
    u32 count;
    u32 each[31];
};

// Transform `rows` rows of n numbers from `from` (and back to `to`, turn by turn); where they end up.
// `done` is the length of the transforms that the stages so far have made.
template <typename C>
__device__ __forceinline__ Complex<C>* block_transform(
    Complex<C>* from, Complex<C>* to, const Complex<C>* roots, u32 n, u32 rows, bool inverse,
    const Radices& radices) {
    typedef Complex<C> Z;
    u32 done = 1;
    for (u32 stage = 0; stage < radices.count; stage++) {
        u32 radix = radices.each[stage];
        u32 apart = n / radix;
        u32 step = apart / done;  // from the root of one multiple to that of the next
        __syncthreads();
        if (radix == 4) {
            for (u32 i = threadIdx.x; i < rows * apart; i += blockDim.x) {
                u32 row = i / apart, j = i - row * apart, inner = j % done;
                const Z* source = from + (u64)row * n + j;
                Z* target = to + (u64)row * n + (j - inner) * 4 + inner;
                Z a = source[0];
                Z b = source[apart] * roots[inner * step];
                Z c = source[2 * apart] * roots[2 * inner * step];
                Z d = source[3 * apart] * roots[3 * inner * step];
                Z even = a + c, odd = a - c, sum = b + d, difference = b - d;
                Z turned = {difference.imaginary, -difference.real};
                if (inverse) turned = {-difference.imaginary, difference.real};
                target[0] = even + sum;
                target[done] = odd + turned;
                target[2 * done] = even - sum;
                target[3 * done] = odd - turned;
            }
        } else if (radix == 2) {
            for (u32 i = threadIdx.x; i < rows * apart; i += blockDim.x) {
                u32 row = i / apart, j = i - row * apart, inner = j % done;
                const Z* source = from + (u64)row * n + j;
                Z* target = to + (u64)row * n + (j - inner) * 2 + inner;
                Z a = source[0], b = source[apart] * roots[inner * step];
                target[0] = a + b;
                target[done] = a - b;
            }
        } else {
            // Any other prime: a sum for every result.
            for (u32 i = threadIdx.x; i < rows * n; i += blockDim.x) {
                u32 row = i / n, place = i - row * n;
                u32 which = place / apart, j = place - which * apart, inner = j % done;
                const Z* source = from + (u64)row * n + j;
                Z sum = source[0];
                u32 turn = inner * step + which * apart, angle = 0;
                if (turn >= n) turn -= n;
                for (u32 r = 1; r < radix; r++) {
                    angle += turn;
                    if (angle >= n) angle -= n;
                    sum = sum + source[r * apart] * roots[angle];
                }
                to[(u64)row * n + (j - inner) * radix + inner + which * done] = sum;
            }
        }
        done *= radix;
        Z* last = from;
        from = to;
        to = last;
    }
    __syncthreads();
    return from;
}

// --- what is read and written: complex numbers are pairs, `pair` apart

enum Transform { COMPLEX, REAL, TO_REAL };

// Element `k` of a row of length n of the full transform's input.
template <typename T, typename C, int KIND>
__device__ __forceinline__ Complex<C> element_of(const T* row, i64 step, i64 pair, u32 k, u32 n) {
    if (KIND == REAL) return {(C)wide(row[(i64)k * step]), (C)0};
    if (KIND == COMPLEX) {
        const T* place = row + (i64)k * step;
        return {(C)wide(place[0]), (C)wide(place[pair])};
    }
    // Only half of the frequencies is there; the others are their conjugates, and the ones without a
    // partner are real.
    bool mirrored = k > n / 2;
    u32 kept = mirrored ? n - k : k;
    const T* place = row + (i64)kept * step;
    C imaginary = kept == 0 || 2 * kept == n ? (C)0 : (C)wide(place[pair]);
    return {(C)wide(place[0]), mirrored ? -imaginary : imaginary};
}

template <typename T, typename C, int KIND>
__device__ __forceinline__ void put_element(
    T* row, i64 step, i64 pair, u32 k, u32 n, Complex<C> value) {
    if (KIND == REAL && k > n / 2) return;
    T* place = row + (i64)k * step;
    place[0] = Stored<T>::from(value.real);
    if (KIND != TO_REAL) place[pair] = Stored<T>::from(value.imaginary);
}

template <typename T> struct Signals {
    T* start;
    i64 step, pair;
};

// All rows, `rows_at_once` in each block. The workspace holds the roots and these rows twice.
template <typename T, typename C, int KIND>
__device__ __forceinline__ void block_fourier(
    Complex<C>* workspace, const Signals<const T>& x, const Signals<T>& out,
    const StridedAxes<2>& rows, u32 row_count, u32 rows_at_once, u32 n, bool inverse,
    const Radices& radices) {
    Complex<C>* roots = workspace;
    Complex<C>* first = workspace + n;
    Complex<C>* second = first + (u64)rows_at_once * n;
    for (u32 k = threadIdx.x; k < n; k += blockDim.x) roots[k] = root_of_unity<C>(k, n, inverse);
    for (u32 begin = blockIdx.x * rows_at_once; begin < row_count;
         begin += gridDim.x * rows_at_once) {
        u32 here = row_count - begin < rows_at_once ? row_count - begin : rows_at_once;
        for (u32 i = threadIdx.x; i < here * n; i += blockDim.x) {
            u32 row = i / n, k = i - row * n;
            i64 at[2];
            locate(rows, begin + row, at);
            first[i] = element_of<T, C, KIND>(x.start + at[0], x.step, x.pair, k, n);
        }
        const Complex<C>* result =
            block_transform(first, second, roots, n, here, inverse, radices);
        for (u32 i = threadIdx.x; i < here * n; i += blockDim.x) {
            u32 row = i / n, k = i - row * n;
            i64 at[2];
            locate(rows, begin + row, at);
            put_element<T, C, KIND>(out.start + at[1], out.step, out.pair, k, n, result[i]);
        }
        __syncthreads();
    }
}

// --- for a library that transforms dense rows of complex numbers

template <typename T, typename C, int KIND>
__device__ __forceinline__ void pack_rows(
    Complex<C>* dense, const Signals<const T>& x, const StridedAxes<2>& rows, u64 count, u32 n) {
    for (u64 i = grid_index<u64>(); i < count; i += grid_stride<u64>()) {
        u64 row = i / n;
        i64 at[2];
        locate(rows, row, at);
        dense[i] = element_of<T, C, KIND>(x.start + at[0], x.step, x.pair, (u32)(i - row * n), n);
    }
}

template <typename T, typename C, int KIND>
__device__ __forceinline__ void unpack_rows(
    const Complex<C>* dense, const Signals<T>& out, const StridedAxes<2>& rows, u64 count, u32 n) {
    for (u64 i = grid_index<u64>(); i < count; i += grid_stride<u64>()) {
        u64 row = i / n;
        i64 at[2];
        locate(rows, row, at);
        put_element<T, C, KIND>(
            out.start + at[1], out.step, out.pair, (u32)(i - row * n), n, dense[i]);
    }
}
