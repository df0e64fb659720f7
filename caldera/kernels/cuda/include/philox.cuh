// Random numbers as caldera/core/tensor/philox.py defines them, to the last bit: element i of a stream is
// a function of (seed, step, stream, i) alone. Products and sums are written as calls because a
// compiler may contract a * b + c into one operation that rounds once, and bits would differ.
#pragma once
#include "types.cuh"

struct Philox {
    u32 key[2], upper[2];

    // Four words: those that stand at 4 * block and behind it in the stream.
    __device__ __forceinline__ uint4 words(u64 block) const {
        u32 a = (u32)block, b = (u32)(block >> 32), c = upper[0], d = upper[1];
        u32 first = key[0], second = key[1];
#pragma unroll
        for (int round = 0; round < 10; round++) {
            u32 high_a = __umulhi(0xD2511F53u, a), low_a = 0xD2511F53u * a;
            u32 high_c = __umulhi(0xCD9E8D57u, c), low_c = 0xCD9E8D57u * c;
            a = high_c ^ b ^ first;
            b = low_c;
            c = high_a ^ d ^ second;
            d = low_a;
            first += 0x9E3779B9u;
            second += 0xBB67AE85u;
        }
        return make_uint4(a, b, c, d);
    }
};

__device__ __forceinline__ Philox philox_of(i64 seed, i64 step, u32 stream) {
    return {{(u32)seed, (u32)((u64)seed >> 32)}, {(u32)step, stream}};
}

// --- uniform numbers in [0, 1), of as many upper bits as the dtype holds

__device__ __forceinline__ float uniform_float(u32 word) {
    return __fmul_rn((float)(word >> 8), 0x1p-24f);
}
__device__ __forceinline__ i64 join_53_bits(u32 upper, u32 lower) {
    return ((i64)(upper >> 5) << 26) | (i64)(lower >> 6);
}
__device__ __forceinline__ double uniform_double(u32 upper, u32 lower) {
    return __dmul_rn((double)join_53_bits(upper, lower), 0x1p-53);
}

// The numbers that one block of words gives.
template <typename T> struct Uniform;
template <> struct Uniform<float> {
    static const int count = 4;
    static __device__ __forceinline__ void draw(uint4 w, float* out) {
        out[0] = uniform_float(w.x);
        out[1] = uniform_float(w.y);
        out[2] = uniform_float(w.z);
        out[3] = uniform_float(w.w);
    }
};
template <> struct Uniform<double> {
    static const int count = 2;
    static __device__ __forceinline__ void draw(uint4 w, double* out) {
        out[0] = uniform_double(w.x, w.y);
        out[1] = uniform_double(w.z, w.w);
    }
};
template <typename T, int BITS> struct UniformHalf {
    static const int count = 4;
    static __device__ __forceinline__ void draw(uint4 w, T* out) {
        u32 words[4] = {w.x, w.y, w.z, w.w};
        for (int i = 0; i < 4; i++)
            out[i] = Stored<T>::from(
                __fmul_rn((float)(words[i] >> (32 - BITS)), 1.0f / (float)(1 << BITS)));
    }
};
template <> struct Uniform<half_t> : UniformHalf<half_t, 11> {};
template <> struct Uniform<bfloat_t> : UniformHalf<bfloat_t, 8> {};

// --- normal numbers by Box and Muller, as caldera/core/tensor/random.py computes them

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double plus(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ float over(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double over(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ float root(float a) { return __fsqrt_rn(a); }
__device__ __forceinline__ double root(double a) { return __dsqrt_rn(a); }
__device__ __forceinline__ i32 bits_of(float a) { return __float_as_int(a); }
__device__ __forceinline__ i64 bits_of(double a) { return __double_as_longlong(a); }
__device__ __forceinline__ float with_bits(i32 a) { return __int_as_float(a); }
__device__ __forceinline__ double with_bits(i64 a) { return __longlong_as_double(a); }

// Horner's rule over the first N coefficients; that of the constant comes first.
template <int N, typename T>
__device__ __forceinline__ T polynomial(T variable, const T* coefficients) {
    T result = times(variable, coefficients[N - 1]);
#pragma unroll
    for (int i = N - 2; i > 0; i--) result = times(plus(result, coefficients[i]), variable);
    return plus(result, coefficients[0]);
}

// The bit layout, and how many terms the series need.
template <typename T> struct Precision;
template <> struct Precision<float> {
    typedef i32 integer;
    typedef u32 bits;
    static const int mantissa_bits = 23, angle_bits = 24, sign_shift = 30;
    static const int sine_terms = 4, cosine_terms = 6, log_terms = 5;
    static const integer root_half = 0x3F3504F3;
};
template <> struct Precision<double> {
    typedef i64 integer;
    typedef u64 bits;
    static const int mantissa_bits = 52, angle_bits = 53, sign_shift = 62;
    static const int sine_terms = 8, cosine_terms = 10, log_terms = 11;
    static const integer root_half = 0x3FE6A09E667F3BCDLL;
};

// -2 log(value), from value = mantissa * 2**exponent with the mantissa near 1.
template <typename T> __device__ __forceinline__ T minus_two_log(T value) {
    typedef Precision<T> P;
    const T terms[] = {
        (T)-4.0, (T)(-4.0 / 3), (T)(-4.0 / 5), (T)(-4.0 / 7), (T)(-4.0 / 9), (T)(-4.0 / 11),
        (T)(-4.0 / 13), (T)(-4.0 / 15), (T)(-4.0 / 17), (T)(-4.0 / 19), (T)(-4.0 / 21)};
    typename P::integer bits = bits_of(value);
    typename P::integer exponent = (bits - P::root_half) >> P::mantissa_bits;
    T mantissa = with_bits((typename P::integer)(
        (typename P::bits)bits - ((typename P::bits)exponent << P::mantissa_bits)));
    T ratio = over(plus(mantissa, (T)-1), plus(mantissa, (T)1));
    T series = times(polynomial<P::log_terms>(times(ratio, ratio), terms), ratio);
    return plus(times((T)exponent, (T)(-2.0 * 0.6931471805599453)), series);
}

// r cos t and r sin t for u in (0, 1] and an angle of turn / 2**angle_bits turns.
template <typename T>
__device__ __forceinline__ void normal_pair(T u, typename Precision<T>::integer turn, T* out) {
    typedef Precision<T> P;
    typedef typename P::bits Bits;
    const T sines[] = {
        (T)(-1.0 / 6), (T)(1.0 / 120), (T)(-1.0 / 5040), (T)(1.0 / 362880), (T)(-1.0 / 39916800),
        (T)(1.0 / 6227020800.0), (T)(-1.0 / 1307674368000.0), (T)(1.0 / 355687428096000.0)};
    const T cosines[] = {
        (T)1.0, (T)-0.5, (T)(1.0 / 24), (T)(-1.0 / 720), (T)(1.0 / 40320), (T)(-1.0 / 3628800),
        (T)(1.0 / 479001600), (T)(-1.0 / 87178291200.0), (T)(1.0 / 20922789888000.0),
        (T)(-1.0 / 6402373705728000.0)};
    T radius = root(minus_two_log(u));
    // Quarter turns are split off in integers, exactly; what is left lies in [-pi/4, pi/4).
    const int quarter = P::angle_bits - 2;
    typename P::integer quadrant = (turn + ((typename P::integer)1 << (quarter - 1))) >> quarter;
    typename P::integer rest = turn - (quadrant << quarter);
    T to_radians = (T)(6.283185307179586 / (double)((i64)1 << P::angle_bits));
    T angle = times((T)rest, to_radians);
    T square = times(angle, angle);
    T sine = times(times(polynomial<P::sine_terms>(square, sines), square), angle);
    sine = plus(sine, angle);
    T cosine = polynomial<P::cosine_terms>(square, cosines);
    bool odd = quadrant & 1;
    // The cosine is negative in quadrants 1 and 2, the sine in 2 and 3: move that bit to the sign.
    Bits first = (Bits)bits_of(odd ? sine : cosine) ^ ((Bits)((quadrant + 1) & 2) << P::sign_shift);
    Bits second = (Bits)bits_of(odd ? cosine : sine) ^ ((Bits)(quadrant & 2) << P::sign_shift);
    out[0] = times(with_bits((typename P::integer)first), radius);
    out[1] = times(with_bits((typename P::integer)second), radius);
}

__device__ __forceinline__ void normal_floats(u32 radius, u32 angle, float* out) {
    float u = plus(times((float)radius, 0x1p-32f), 0x1p-33f);
    normal_pair(u, (i32)(angle >> 8), out);
}

template <typename T> struct Normal {
    static const int count = 4;
    static __device__ __forceinline__ void draw(uint4 w, T* out) {
        float drawn[4];
        normal_floats(w.x, w.y, drawn);
        normal_floats(w.z, w.w, drawn + 2);
        for (int i = 0; i < 4; i++) out[i] = Stored<T>::from(drawn[i]);
    }
};
template <> struct Normal<double> {
    static const int count = 2;
    static __device__ __forceinline__ void draw(uint4 w, double* out) {
        double u = times((double)(join_53_bits(w.x, w.y) + 1), 0x1p-53);
        normal_pair(u, join_53_bits(w.z, w.w), out);
    }
};
