// Indices split without dividing.
#pragma once
#include "types.cuh"

// Division by a number that is fixed at the launch, right for everything below 2^31: a product and a
// shift (Granlund and Montgomery, 1994).
struct Divisor {
    u32 by, factor, shift;
    __device__ __forceinline__ u32 quotient(u32 n) const {
        return (__umulhi(n, factor) + n) >> shift;
    }
};
struct WideDivisor {
    u64 by;
    __device__ __forceinline__ u64 quotient(u64 n) const { return n / by; }
};

// What divides indices of a type.
template <typename I> struct Dividing { typedef Divisor type; };
template <> struct Dividing<i64> { typedef WideDivisor type; };
