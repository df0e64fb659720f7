// Reductions: what each of them keeps, and how the threads of a block bring it together.
// Sums and products of real numbers are kept in double, so they are at least as accurate as pairwise
// sums; everything is combined in an order that the shape alone decides.
#pragma once
#include "math.cuh"

template <typename T> struct Wider { typedef T type; };
template <> struct Wider<float> { typedef double type; };

template <typename T> struct Limits;
#define LIMITS(T, low, high)                                                                    \
    template <> struct Limits<T> {                                                              \
        static __device__ __forceinline__ T lowest() { return low; }                            \
        static __device__ __forceinline__ T highest() { return high; }                          \
    };
LIMITS(bool, false, true)
LIMITS(u8, 0, 255)
LIMITS(u16, 0, 65535)
LIMITS(u32, 0, 4294967295u)
LIMITS(u64, 0, 18446744073709551615ull)
LIMITS(i8, -128, 127)
LIMITS(i16, -32768, 32767)
LIMITS(i32, -2147483647 - 1, 2147483647)
LIMITS(i64, -9223372036854775807LL - 1, 9223372036854775807LL)
LIMITS(float, -infinity_like(0.0f), infinity_like(0.0f))
LIMITS(double, -infinity_like(0.0), infinity_like(0.0))

// --- reductions of elements of type T: `none` changes nothing, `of` is what element number `where`
// gives, `both` joins two parts, `value` is the result

template <typename T> struct Sum {
    typedef typename Wider<T>::type Total;
    static __device__ __forceinline__ Total none() { return (Total)0; }
    static __device__ __forceinline__ Total of(T x, i64 where) { return (Total)x; }
    static __device__ __forceinline__ Total both(Total a, Total b) { return op_add(a, b); }
    static __device__ __forceinline__ Total value(Total a) { return a; }
};
// As NumPy's count, seen as a truth value.
template <> struct Sum<bool> {
    typedef bool Total;
    static __device__ __forceinline__ bool none() { return false; }
    static __device__ __forceinline__ bool of(bool x, i64 where) { return x; }
    static __device__ __forceinline__ bool both(bool a, bool b) { return a || b; }
    static __device__ __forceinline__ bool value(bool a) { return a; }
};

template <typename T> struct Prod {
    typedef typename Wider<T>::type Total;
    static __device__ __forceinline__ Total none() { return (Total)1; }
    static __device__ __forceinline__ Total of(T x, i64 where) { return (Total)x; }
    static __device__ __forceinline__ Total both(Total a, Total b) { return op_mul(a, b); }
    static __device__ __forceinline__ Total value(Total a) { return a; }
};
template <> struct Prod<bool> {
    typedef bool Total;
    static __device__ __forceinline__ bool none() { return true; }
    static __device__ __forceinline__ bool of(bool x, i64 where) { return x; }
    static __device__ __forceinline__ bool both(bool a, bool b) { return a && b; }
    static __device__ __forceinline__ bool value(bool a) { return a; }
};

template <typename T> struct Max {
    typedef T Total;
    static __device__ __forceinline__ T none() { return Limits<T>::lowest(); }
    static __device__ __forceinline__ T of(T x, i64 where) { return x; }
    static __device__ __forceinline__ T both(T a, T b) { return op_maximum(a, b); }
    static __device__ __forceinline__ T value(T a) { return a; }
};

template <typename T> struct Min {
    typedef T Total;
    static __device__ __forceinline__ T none() { return Limits<T>::highest(); }
    static __device__ __forceinline__ T of(T x, i64 where) { return x; }
    static __device__ __forceinline__ T both(T a, T b) { return op_minimum(a, b); }
    static __device__ __forceinline__ T value(T a) { return a; }
};

// The place of the largest or smallest element: the first among equals; a nan counts as larger and
// smaller than anything.
template <typename T> struct Found { T value; i64 where; };

template <typename T, bool LARGEST> struct Position {
    typedef Found<T> Total;
    static __device__ __forceinline__ Total none() { return {(T)0, -1}; }
    static __device__ __forceinline__ Total of(T x, i64 where) { return {x, where}; }
    static __device__ __forceinline__ Total both(Total a, Total b) {
        if (a.where < 0) return b;
        if (b.where < 0) return a;
        bool better = LARGEST ? a.value > b.value : a.value < b.value;
        bool worse = LARGEST ? b.value > a.value : b.value < a.value;
        if (is_nan(a.value) || is_nan(b.value)) {
            better = !is_nan(b.value);
            worse = !is_nan(a.value);
        }
        return better || (!worse && a.where < b.where) ? a : b;
    }
    static __device__ __forceinline__ i64 value(Total a) { return a.where; }
};
template <typename T> struct ArgMax : Position<T, true> {};
template <typename T> struct ArgMin : Position<T, false> {};

// --- threads that bring their parts together

// The value of the lane whose number differs in these bits.
template <typename T> __device__ __forceinline__ T warp_other(T x, int bits) {
    if constexpr (sizeof(T) < 4) return (T)__shfl_xor_sync(0xffffffffu, (i32)x, bits);
    else return __shfl_xor_sync(0xffffffffu, x, bits);
}
template <typename T> __device__ __forceinline__ Found<T> warp_other(Found<T> x, int bits) {
    return {warp_other(x.value, bits), warp_other(x.where, bits)};
}

// A place for one part of each thread of the largest block.
__device__ __forceinline__ void* block_shared() {
    __shared__ __align__(16) char shared[16 * 1024];
    return shared;
}

// What threads of one row (equal threadIdx.y) have, together, for the first of them. Rows are powers
// of 2 up to 32, or whole warps.
template <typename R> __device__ typename R::Total block_along(typename R::Total x) {
    int width = blockDim.x < 32 ? blockDim.x : 32;
    for (int bits = width >> 1; bits; bits >>= 1) x = R::both(x, warp_other(x, bits));
    if (blockDim.x <= 32) return x;
    typename R::Total* shared = (typename R::Total*)block_shared();
    int warps = blockDim.x / 32, lane = threadIdx.x & 31;
    __syncthreads();
    if (lane == 0) shared[threadIdx.y * warps + threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x >= 32) return x;
    x = lane < warps ? shared[threadIdx.y * warps + lane] : R::none();
    for (int bits = 16; bits; bits >>= 1) x = R::both(x, warp_other(x, bits));
    return x;
}

// What threads of one column (equal threadIdx.x) have, together, for the first of them. There is a
// power of 2 of rows.
template <typename R> __device__ typename R::Total block_across(typename R::Total x) {
    typename R::Total* shared = (typename R::Total*)block_shared();
    int place = threadIdx.y * blockDim.x + threadIdx.x;
    __syncthreads();
    shared[place] = x;
    for (int rows = blockDim.y >> 1; rows; rows >>= 1) {
        __syncthreads();
        if (threadIdx.y < rows) shared[place] = x = R::both(x, shared[place + rows * blockDim.x]);
    }
    return x;
}

// The value of the lane so many before this one.
template <typename T> __device__ __forceinline__ T warp_before(T x, int lanes, int width) {
    if constexpr (sizeof(T) < 4) return (T)__shfl_up_sync(0xffffffffu, (i32)x, lanes, width);
    else return __shfl_up_sync(0xffffffffu, x, lanes, width);
}
template <typename T> __device__ __forceinline__ T warp_last(T x, int width) {
    if constexpr (sizeof(T) < 4) return (T)__shfl_sync(0xffffffffu, (i32)x, width - 1, width);
    else return __shfl_sync(0xffffffffu, x, width - 1, width);
}

// What this thread and those before it in its row have, together; `whole` is what the row has.
template <typename R>
__device__ typename R::Total block_running(typename R::Total x, typename R::Total& whole) {
    int width = blockDim.x < 32 ? blockDim.x : 32, lane = threadIdx.x & (width - 1);
    for (int lanes = 1; lanes < width; lanes <<= 1) {
        typename R::Total before = warp_before(x, lanes, width);
        if (lane >= lanes) x = R::both(before, x);
    }
    whole = warp_last(x, width);
    if (blockDim.x <= 32) return x;
    int warps = blockDim.x / 32;
    typename R::Total* shared = (typename R::Total*)block_shared() + threadIdx.y * warps;
    __syncthreads();
    if (lane == 0) shared[threadIdx.x / 32] = whole;
    __syncthreads();
    typename R::Total before = R::none();
    whole = R::none();
    for (int warp = 0; warp < warps; warp++) {
        if (warp == threadIdx.x / 32) before = whole;
        whole = R::both(whole, shared[warp]);
    }
    return R::both(before, x);
}
