// Element types. Half-precision numbers are stored in 16 bits and computed with as floats.
#pragma once
#include "machine.cuh"

struct half_t { u16 bits; };
struct bfloat_t { u16 bits; };

__device__ __forceinline__ float wide(half_t x) { return half_bits_to_float(x.bits); }
__device__ __forceinline__ float wide(bfloat_t x) { return bits_to_float((u32)x.bits << 16); }
template <typename T> __device__ __forceinline__ T wide(T x) { return x; }

template <typename T> struct Stored {
    template <typename S> static __device__ __forceinline__ T from(S x) { return (T)x; }
};

template <> struct Stored<half_t> {
    static __device__ __forceinline__ half_t from(float x) { return {float_to_half_bits(x)}; }
    static __device__ __forceinline__ half_t from(double x) { return {double_to_half_bits(x)}; }
    static __device__ __forceinline__ half_t from(i32 x) { return {float_to_half_bits((float)x)}; }
    static __device__ __forceinline__ half_t from(u32 x) { return {float_to_half_bits((float)x)}; }
    static __device__ __forceinline__ half_t from(i64 x) { return from((double)x); }
    static __device__ __forceinline__ half_t from(u64 x) { return from((double)x); }
    static __device__ __forceinline__ half_t from(bool x) { return from(x ? 1.0f : 0.0f); }
};

template <> struct Stored<bfloat_t> {
    static __device__ __forceinline__ bfloat_t from(float x) { return {float_to_bfloat_bits(x)}; }
    // Rounded to odd first: then rounding again gives what rounding once would give.
    static __device__ __forceinline__ bfloat_t from(double x) {
        float near = (float)x;
        double back = (double)near;
        u32 bits = float_to_bits(near);
        if (!(bits & 1u) && (back < x || back > x)) {
            bool outside = (back < 0.0 ? -back : back) > (x < 0.0 ? -x : x);
            near = bits_to_float(outside ? bits - 1u : bits + 1u);
        }
        return from(near);
    }
    static __device__ __forceinline__ bfloat_t from(i32 x) { return from((double)x); }
    static __device__ __forceinline__ bfloat_t from(u32 x) { return from((double)x); }
    static __device__ __forceinline__ bfloat_t from(i64 x) { return from((double)x); }
    static __device__ __forceinline__ bfloat_t from(u64 x) { return from((double)x); }
    static __device__ __forceinline__ bfloat_t from(bool x) { return from(x ? 1.0f : 0.0f); }
};

template <> struct Stored<bool> {
    template <typename S> static __device__ __forceinline__ bool from(S x) { return x != (S)0; }
};
