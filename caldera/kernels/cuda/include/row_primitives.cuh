// Rows of numbers: where strided elements lie, several of them moved at once, and sums and maxima
// over the threads that share a row.
#pragma once
#include "math.cuh"

// The type that elements of a stored type are computed with.
template <typename T> struct Computed { typedef float type; };
template <> struct Computed<double> { typedef double type; };

// --- several elements at once

template <int BYTES> struct Word;
template <> struct Word<1> { typedef u8 type; };
template <> struct Word<2> { typedef u16 type; };
template <> struct Word<4> { typedef u32 type; };
template <> struct Word<8> { typedef uint2 type; };
template <> struct Word<16> { typedef uint4 type; };

template <typename T, int V> union Pack {
    typename Word<V * sizeof(T)>::type word;
    T at[V];
};

// V neighbours as they are stored; their address is a multiple of the size of all.
template <int V, typename T> __device__ __forceinline__ Pack<T, V> packed(const T* place) {
    Pack<T, V> pack;
    pack.word = *(const typename Word<V * sizeof(T)>::type*)place;
    return pack;
}

template <int V, typename T> __device__ __forceinline__ void put(T* place, Pack<T, V> pack) {
    *(typename Word<V * sizeof(T)>::type*)place = pack.word;
}

// The same as numbers to compute with, in as few accesses as 16 bytes allow.
template <int V, typename T, typename A>
__device__ __forceinline__ void load(const T* place, A* values) {
    const int PART = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;
#pragma unroll
    for (int first = 0; first < V; first += PART) {
        Pack<T, PART> pack = packed<PART>(place + first);
#pragma unroll
        for (int v = 0; v < PART; v++) values[first + v] = (A)wide(pack.at[v]);
    }
}

template <int V, typename T, typename A>
__device__ __forceinline__ void store(T* place, const A* values) {
    const int PART = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;
#pragma unroll
    for (int first = 0; first < V; first += PART) {
        Pack<T, PART> pack;
#pragma unroll
        for (int v = 0; v < PART; v++) pack.at[v] = Stored<T>::from(values[first + v]);
        put<PART>(place + first, pack);
    }
}

// Bfloats are rounded in pairs: else that takes longer than everything else together.
template <int V> __device__ __forceinline__ void store(bfloat_t* place, const float* values) {
    if constexpr (V == 1) {
        *place = Stored<bfloat_t>::from(*values);
    } else {
        const int PART = V > 8 ? 8 : V;
#pragma unroll
        for (int first = 0; first < V; first += PART) {
            union {
                typename Word<2 * PART>::type word;
                u32 pair[PART / 2];
            } pack;
#pragma unroll
            for (int k = 0; k < PART / 2; k++)
                pack.pair[k] = bfloat_pair(values[first + 2 * k], values[first + 2 * k + 1]);
            *(typename Word<2 * PART>::type*)(place + first) = pack.word;
        }
    }
}

// --- where elements lie

// A arrays that are walked over together along R axes, the last of which turns fastest.
template <int R, int A, typename I> struct StridedLayout {
    I sizes[R];
    I strides[A][R];

    __device__ __forceinline__ void at(I index, I* places) const {
#pragma unroll
        for (int a = 0; a < A; a++) places[a] = 0;
#pragma unroll
        for (int axis = R - 1; axis > 0; axis--) {
            I rest = index / sizes[axis], digit = index - rest * sizes[axis];
#pragma unroll
            for (int a = 0; a < A; a++) places[a] += digit * strides[a][axis];
            index = rest;
        }
#pragma unroll
        for (int a = 0; a < A; a++) places[a] += index * strides[a][0];
    }
};

// --- sums and maxima; every thread is given the result, and the order is always the same

struct Sum {
    template <typename A> static __device__ __forceinline__ A of(A a, A b) { return a + b; }
};
// A nan among the numbers is the largest.
struct Largest {
    template <typename A> static __device__ __forceinline__ A of(A a, A b) {
        return op_maximum(a, b);
    }
};

template <typename Join, typename A> __device__ __forceinline__ A warp_joined(A value) {
#pragma unroll
    for (int apart = 16; apart; apart /= 2)
        value = Join::of(value, __shfl_xor_sync(0xffffffffu, value, apart));
    return value;
}

__device__ __forceinline__ int thread_of_block() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// For blocks of whole warps.
template <typename Join, typename A> __device__ __forceinline__ A block_joined(A value) {
    __shared__ A parts[32];
    int thread = thread_of_block(), warps = blockDim.x * blockDim.y * blockDim.z / 32;
    value = warp_joined<Join>(value);
    // What was joined before has been read by then.
    __syncthreads();
    if (thread % 32 == 0) parts[thread / 32] = value;
    __syncthreads();
    A found = parts[0];
    for (int w = 1; w < warps; w++) found = Join::of(found, parts[w]);
    return found;
}

template <typename A> __device__ __forceinline__ A warp_sum(A value) {
    return warp_joined<Sum>(value);
}
template <typename A> __device__ __forceinline__ A warp_max(A value) {
    return warp_joined<Largest>(value);
}
template <typename A> __device__ __forceinline__ A block_sum(A value) {
    return block_joined<Sum>(value);
}
template <typename A> __device__ __forceinline__ A block_max(A value) {
    return block_joined<Largest>(value);
}

// --- the threads that share a row: a group

// Each thread takes V neighbours at a time. K > 0: at most K times, so that a row fits into
// registers; K = 0: as often as it takes, and elements are read again when they are needed again.
// A group has the number `index` among the `count` groups of its block; where the number of these
// does not depend on the launch it is GROUPS.
template <int K_, int V_> struct thread_group {
    static const int K = K_, V = V_;
    static __device__ __forceinline__ int lane() { return 0; }
    static __device__ __forceinline__ int lanes() { return 1; }
    static __device__ __forceinline__ int index() { return threadIdx.x; }
    static __device__ __forceinline__ int count() { return blockDim.x; }
    template <typename A> static __device__ __forceinline__ A sum(A value) { return value; }
    template <typename A> static __device__ __forceinline__ A max(A value) { return value; }
};

template <int K_, int V_> struct warp_group {
    static const int K = K_, V = V_, GROUPS = 4;
    static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
    static __device__ __forceinline__ int lanes() { return 32; }
    static __device__ __forceinline__ int index() { return threadIdx.x / 32; }
    static __device__ __forceinline__ int count() { return blockDim.x / 32; }
    template <typename A> static __device__ __forceinline__ A sum(A value) {
        return warp_sum(value);
    }
    template <typename A> static __device__ __forceinline__ A max(A value) {
        return warp_max(value);
    }
};

template <int K_, int V_> struct block_group {
    static const int K = K_, V = V_, GROUPS = 1;
    static __device__ __forceinline__ int lane() { return threadIdx.x; }
    static __device__ __forceinline__ int lanes() { return blockDim.x; }
    static __device__ __forceinline__ int index() { return 0; }
    static __device__ __forceinline__ int count() { return 1; }
    template <typename A> static __device__ __forceinline__ A sum(A value) {
        return block_sum(value);
    }
    template <typename A> static __device__ __forceinline__ A max(A value) {
        return block_max(value);
    }
};

// Numbers that a thread keeps of a row: all of its own, or those it has last seen.
template <typename Group, typename A> struct Kept {
    A at[(Group::K > 0 ? Group::K : 1) * Group::V];
};

// `visit(place among those kept, index in the row)` for every V elements of this thread.
template <typename Group, typename Visit>
__device__ __forceinline__ void each(int length, Visit visit) {
    if constexpr (Group::K > 0) {
#pragma unroll
        for (int k = 0; k < Group::K; k++) {
            int index = (k * Group::lanes() + Group::lane()) * Group::V;
            if (index < length) visit(k * Group::V, index);
        }
    } else {
        for (int index = Group::lane() * Group::V; index < length; index += Group::lanes() * Group::V)
            visit(0, index);
    }
}
