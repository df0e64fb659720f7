// Walking over arrays: several elements at a time, and indices split without dividing.
#pragma once
#include "fast_division.cuh"

// Elements side by side, read and written at once.
template <typename T, int N> struct __align__(sizeof(T) * N) Pack { T v[N]; };

template <int N, typename T> __device__ __forceinline__ Pack<T, N> dense(const T* place) {
    return *(const Pack<T, N>*)place;
}
template <int N, typename T> __device__ __forceinline__ Pack<T, N> repeated(const T* place) {
    Pack<T, N> found;
    T value = *place;
#pragma unroll
    for (int i = 0; i < N; i++) found.v[i] = value;
    return found;
}
template <int N, typename T, typename O>
__device__ __forceinline__ Pack<T, N> strided(const T* place, O step) {
    Pack<T, N> found;
#pragma unroll
    for (int i = 0; i < N; i++) found.v[i] = place[i * step];
    return found;
}
// Not read from anywhere: the offset itself.
template <int N, typename O> __device__ __forceinline__ Pack<i64, N> counted(O offset, O step) {
    Pack<i64, N> found;
#pragma unroll
    for (int i = 0; i < N; i++) found.v[i] = (i64)(offset + i * step);
    return found;
}
template <typename T, int N> __device__ __forceinline__ void put(T* place, const Pack<T, N>& given) {
    *(Pack<T, N>*)place = given;
}
template <typename T, int N, typename O>
__device__ __forceinline__ void put(T* place, const Pack<T, N>& given, O step) {
#pragma unroll
    for (int i = 0; i < N; i++) place[i * step] = given.v[i];
}

// How many, as a type.
template <int N> struct Size { enum { value = N }; };
