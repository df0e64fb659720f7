// Conversion of signals to and from what a library transforms: dense rows of complex numbers.
#pragma once
#include "strided_index.cuh"

template <typename C> struct __align__(2 * sizeof(C)) Complex { C real, imaginary; };

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
