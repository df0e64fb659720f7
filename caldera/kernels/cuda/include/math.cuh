// Every element-wise op on values in registers, with NumPy's meaning to the last detail: nans win in
// maximum and minimum, floor division rounds down, integers wrap, a division of integers by 0
// gives 0. Functions are named op_ and the op's name; halves come and go as floats.
#pragma once
#include "types.cuh"

// --- what is true of a type

template <typename T> struct Kind { enum { real = 0 }; typedef u32 word; };
template <> struct Kind<float> { enum { real = 1 }; typedef u32 word; };
template <> struct Kind<double> { enum { real = 1 }; typedef u64 word; };
template <> struct Kind<i64> { enum { real = 0 }; typedef u64 word; };
template <> struct Kind<u64> { enum { real = 0 }; typedef u64 word; };

__device__ __forceinline__ float infinity_like(float) { return bits_to_float(0x7f800000u); }
__device__ __forceinline__ double infinity_like(double) {
    return __longlong_as_double(0x7ff0000000000000LL);
}

// The same name for both widths: plain C has none.
#define BOTH(name, single, double_)                                                             \
    __device__ __forceinline__ float name(float x) { return single(x); }                        \
    __device__ __forceinline__ double name(double x) { return double_(x); }
#define BOTH_OF_TWO(name, single, double_)                                                      \
    __device__ __forceinline__ float name(float x, float y) { return single(x, y); }            \
    __device__ __forceinline__ double name(double x, double y) { return double_(x, y); }

BOTH(magnitude, fabsf, fabs)
BOTH_OF_TWO(signed_as, copysignf, copysign)
BOTH_OF_TWO(exact_rest, fmodf, fmod)

template <typename T> __device__ __forceinline__ bool is_nan(T x) { return x != x; }

// A value with no more digits than a stored type has.
template <typename S> __device__ __forceinline__ float rounded(float x) {
    return wide(Stored<S>::from(x));
}

// --- arithmetic. Products are rounded before they are added to anything: what was fused with what
// must not change a result.

#define INTEGERS(T, name, expression)                                                           \
    __device__ __forceinline__ T op_##name(T left, T right) {                                   \
        typedef typename Kind<T>::word word;                                                    \
        word a = (word)left, b = (word)right;                                                   \
        return (T)(expression);                                                                 \
    }
#define INTEGER_TYPES(name, expression)                                                         \
    INTEGERS(u8, name, expression)                                                              \
    INTEGERS(u16, name, expression)                                                             \
    INTEGERS(u32, name, expression)                                                             \
    INTEGERS(u64, name, expression)                                                             \
    INTEGERS(i8, name, expression)                                                              \
    INTEGERS(i16, name, expression)                                                             \
    INTEGERS(i32, name, expression)                                                             \
    INTEGERS(i64, name, expression)

INTEGER_TYPES(add, a + b)
INTEGER_TYPES(sub, a - b)
INTEGER_TYPES(mul, a * b)

// --- bits. A count that is no bit's place, a negative one too, leaves nothing of the number.

template <typename T> __device__ __forceinline__ T op_bitwise_and(T a, T b) { return (T)(a & b); }
template <typename T> __device__ __forceinline__ T op_bitwise_or(T a, T b) { return (T)(a | b); }
template <typename T> __device__ __forceinline__ T op_bitwise_xor(T a, T b) { return (T)(a ^ b); }
template <typename T> __device__ __forceinline__ T op_bitwise_invert(T x) { return (T)~x; }
template <typename T> __device__ __forceinline__ T op_bitwise_left_shift(T x, T count) {
    typedef typename Kind<T>::word word;
    return (word)count < 8 * sizeof(T) ? (T)((word)x << (word)count) : (T)0;
}
template <typename T> __device__ __forceinline__ T op_bitwise_right_shift(T x, T count) {
    typedef typename Kind<T>::word word;
    return (word)count < 8 * sizeof(T) ? (T)(x >> count) : x < (T)0 ? (T)-1 : (T)0;
}

__device__ __forceinline__ float op_add(float a, float b) { return a + b; }
__device__ __forceinline__ double op_add(double a, double b) { return a + b; }
__device__ __forceinline__ float op_sub(float a, float b) { return a - b; }
__device__ __forceinline__ double op_sub(double a, double b) { return a - b; }
__device__ __forceinline__ float op_mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double op_mul(double a, double b) { return __dmul_rn(a, b); }
template <typename T> __device__ __forceinline__ T op_div(T a, T b) { return a / b; }
template <typename T> __device__ __forceinline__ T op_square(T x) { return op_mul(x, x); }
template <typename T> __device__ __forceinline__ T op_reciprocal(T x) { return (T)1 / x; }

template <typename T> __device__ __forceinline__ T op_copysign(T x, T from) {
    return signed_as(x, from);
}
template <typename T> __device__ __forceinline__ T op_neg(T x) {
    if constexpr (Kind<T>::real) return -x;
    else return op_sub((T)0, x);
}
template <typename T> __device__ __forceinline__ T op_abs(T x) {
    if constexpr (Kind<T>::real) return magnitude(x);
    else return x < (T)0 ? op_neg(x) : x;
}
// 0 at both zeros, and a nan stays one.
template <typename T> __device__ __forceinline__ T op_sign(T x) {
    return x > (T)0 ? (T)1 : x < (T)0 ? (T)-1 : x == (T)0 ? (T)0 : x;
}

// --- comparison and logic

template <typename T> __device__ __forceinline__ bool op_equal(T a, T b) { return a == b; }
template <typename T> __device__ __forceinline__ bool op_not_equal(T a, T b) { return a != b; }
template <typename T> __device__ __forceinline__ bool op_less(T a, T b) { return a < b; }
template <typename T> __device__ __forceinline__ bool op_less_equal(T a, T b) { return a <= b; }
template <typename T> __device__ __forceinline__ bool op_greater(T a, T b) { return a > b; }
template <typename T> __device__ __forceinline__ bool op_greater_equal(T a, T b) { return a >= b; }
__device__ __forceinline__ bool op_logical_and(bool a, bool b) { return a && b; }
__device__ __forceinline__ bool op_logical_or(bool a, bool b) { return a || b; }
__device__ __forceinline__ bool op_logical_xor(bool a, bool b) { return a != b; }
__device__ __forceinline__ bool op_logical_not(bool x) { return !x; }
template <typename T> __device__ __forceinline__ bool op_isnan(T x) { return is_nan(x); }
template <typename T> __device__ __forceinline__ bool op_isfinite(T x) {
    if constexpr (Kind<T>::real) return magnitude(x) < infinity_like(x);
    else return true;
}
template <typename T> __device__ __forceinline__ T op_where(bool condition, T a, T b) {
    return condition ? a : b;
}
template <typename T> __device__ __forceinline__ T op_stop_gradient(T x) { return x; }
template <typename T> __device__ __forceinline__ T op_maximum(T a, T b) {
    return a > b || is_nan(a) ? a : b;
}
template <typename T> __device__ __forceinline__ T op_minimum(T a, T b) {
    return a < b || is_nan(a) ? a : b;
}
template <typename T> __device__ __forceinline__ T op_relu(T x) { return op_maximum(x, (T)0); }

// --- functions of real numbers, as accurate as the card's own

BOTH(op_exp, expf, exp)
BOTH(op_log, logf, log)
BOTH(op_log1p, log1pf, log1p)
BOTH(op_expm1, expm1f, expm1)
BOTH(op_sqrt, sqrtf, sqrt)
BOTH(op_floor, floorf, floor)
BOTH(op_ceil, ceilf, ceil)
BOTH(op_round, rintf, rint)
BOTH(op_sin, sinf, sin)
BOTH(op_cos, cosf, cos)
BOTH(op_tanh, tanhf, tanh)
BOTH(op_erf, erff, erf)

template <typename T> __device__ __forceinline__ T op_rsqrt(T x) { return (T)1 / op_sqrt(x); }

// Accurate at both ends: the exponential never overflows.
template <typename T> __device__ __forceinline__ T op_sigmoid(T x) {
    T small = op_exp(-op_abs(x));
    return (x < (T)0 ? small : (T)1) / (small + (T)1);
}

BOTH_OF_TWO(op_pow, powf, pow)
// Wraps. NumPy refuses negative powers; here they are what is left of 1 / a^-b without its fraction.
template <typename T> __device__ __forceinline__ T op_pow(T a, T b) {
    if (b < (T)0) {
        if (a != (T)1 && a != (T)-1) return (T)0;
        return a == (T)1 || !(b & 1) ? (T)1 : (T)-1;
    }
    T result = (T)1;
    for (; b; b = (T)(b >> 1)) {
        if (b & 1) result = op_mul(result, a);
        a = op_mul(a, a);
    }
    return result;
}

// --- division that rounds down, and the rest, which has the sign of the divisor

template <typename T> struct Divided { T quotient, rest; };

template <typename T> __device__ __forceinline__ Divided<T> divided_down(T a, T b) {
    if (b == (T)0) return {(T)0, (T)0};
    // The least integer over -1 has no quotient; the others wrap as it does.
    if (b == (T)-1 && (T)-1 < (T)0) return {op_neg(a), (T)0};
    T quotient = (T)(a / b), rest = (T)(a % b);
    if (rest != (T)0 && (rest < (T)0) != (b < (T)0)) return {(T)(quotient - 1), (T)(rest + b)};
    return {quotient, rest};
}

template <typename T> __device__ __forceinline__ Divided<T> real_division(T a, T b) {
    T ratio = a / b, rest = exact_rest(a, b), quotient = (a - rest) / b;
    if ((rest < (T)0 || rest > (T)0) && (b < (T)0) != (rest < (T)0)) {
        quotient -= (T)1;
        rest += b;
    }
    if (rest == (T)0) rest = signed_as((T)0, b);
    T down = op_floor(quotient);
    if (quotient - down > (T)0.5) down += (T)1;
    if (quotient == (T)0) down = signed_as((T)0, ratio);
    return {b == (T)0 ? ratio : down, rest};
}
__device__ __forceinline__ Divided<float> divided_down(float a, float b) {
    return real_division(a, b);
}
__device__ __forceinline__ Divided<double> divided_down(double a, double b) {
    return real_division(a, b);
}

template <typename T> __device__ __forceinline__ T op_floor_div(T a, T b) {
    return divided_down(a, b).quotient;
}
template <typename T> __device__ __forceinline__ T op_mod(T a, T b) {
    return divided_down(a, b).rest;
}

// --- casts between computed types

// To bool: whether it is not 0. To integers: toward 0, by way of a signed integer.
template <typename To, typename From> struct Cast {
    static __device__ __forceinline__ To from(From x) { return (To)x; }
};
template <typename From> struct Cast<bool, From> {
    static __device__ __forceinline__ bool from(From x) { return x != (From)0; }
};
#define CAST_BY_WAY_OF(word, To, From)                                                          \
    template <> struct Cast<To, From> {                                                         \
        static __device__ __forceinline__ To from(From x) { return (To)(word)x; }               \
    };
CAST_BY_WAY_OF(i32, u8, float)
CAST_BY_WAY_OF(i32, u8, double)
CAST_BY_WAY_OF(i32, i8, float)
CAST_BY_WAY_OF(i32, i8, double)
CAST_BY_WAY_OF(i32, i16, float)
CAST_BY_WAY_OF(i32, i16, double)
CAST_BY_WAY_OF(i32, u16, float)
CAST_BY_WAY_OF(i32, u16, double)
CAST_BY_WAY_OF(i64, u32, float)
CAST_BY_WAY_OF(i64, u32, double)
// From 2^63 on there is no signed integer.
template <> struct Cast<u64, double> {
    static __device__ __forceinline__ u64 from(double x) {
        return x >= 9223372036854775808.0 ? (u64)x : (u64)(i64)x;
    }
};
template <> struct Cast<u64, float> {
    static __device__ __forceinline__ u64 from(float x) { return Cast<u64, double>::from(x); }
};

template <typename To, typename From> __device__ __forceinline__ To op_cast(From x) {
    return Cast<To, From>::from(x);
}
// To halves S, which are computed with as floats: rounded once, whatever they come from.
template <typename S, typename From> __device__ __forceinline__ float op_cast_to_half(From x) {
    return wide(Stored<S>::from(x));
}
