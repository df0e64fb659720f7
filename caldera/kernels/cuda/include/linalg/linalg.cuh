// Linear algebra with one block for each matrix. Matrices live in shared memory, or in the workspace
// where they are too large for it. What cannot be factorised or inverted comes out as nan.
#pragma once
#include "strided_index.cuh"

template <typename C> struct Limits;
template <> struct Limits<float> {
    static __device__ __forceinline__ float epsilon() { return 0x1p-23f; }
    static __device__ __forceinline__ float tiny() { return 1e-18f; }
    static __device__ __forceinline__ float infinity() { return bits_to_float(0x7f800000u); }
    static __device__ __forceinline__ float nan() { return bits_to_float(0x7fc00000u); }
};
template <> struct Limits<double> {
    static __device__ __forceinline__ double epsilon() { return 0x1p-52; }
    static __device__ __forceinline__ double tiny() { return 1e-150; }
    static __device__ __forceinline__ double infinity() {
        return __longlong_as_double(0x7ff0000000000000LL);
    }
    static __device__ __forceinline__ double nan() {
        return __longlong_as_double(0x7ff8000000000000LL);
    }
};
__device__ __forceinline__ float size_of(float x) { return fabsf(x); }
__device__ __forceinline__ double size_of(double x) { return fabs(x); }
__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }

// A matrix in memory that the block has to itself.
template <typename C> struct Matrix {
    C* start;
    u32 down, right;
    __device__ __forceinline__ C& operator()(u32 i, u32 j) const {
        return start[(u64)i * down + (u64)j * right];
    }
};

// A matrix of an array: any strides.
template <typename T> struct View {
    T* start;
    i64 down, right;
    __device__ __forceinline__ T& operator()(u32 i, u32 j) const {
        return start[(i64)i * down + (i64)j * right];
    }
};

// A thread as one of a warp that shares out rows or columns with the others.
struct Group {
    u32 warp, warps, lane;
    __device__ __forceinline__ Group()
        : warp(threadIdx.x / 32), warps(blockDim.x / 32), lane(threadIdx.x % 32) {}
};

template <typename C> __device__ __forceinline__ C warp_total(C value) {
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2)
        value += __shfl_xor_sync(~0u, value, lane_mask);
    return value;
}

// The largest, nan if there is one among them.
template <typename C> __device__ __forceinline__ C warp_largest(C value) {
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        C other = __shfl_xor_sync(~0u, value, lane_mask);
        if (other > value || other != other) value = other;
    }
    return value;
}

// The largest magnitude in a matrix, for all threads.
template <typename C>
__device__ __forceinline__ C block_largest(const Matrix<C>& a, u32 rows, u32 columns) {
    __shared__ C found[32];
    Group group;
    C largest = 0;
    for (u32 i = group.warp; i < rows; i += group.warps)
        for (u32 j = group.lane; j < columns; j += 32) {
            C value = size_of(a(i, j));
            if (value > largest || value != value) largest = value;
        }
    largest = warp_largest(largest);
    if (group.lane == 0) found[group.warp] = largest;
    __syncthreads();
    for (u32 i = 0; i < group.warps; i++)
        if (found[i] > largest || found[i] != found[i]) largest = found[i];
    __syncthreads();
    return largest;
}

// --- equations

struct Elimination {
    bool singular;
    u32 exchanges;
};

// The row with the largest number in column k, from row k on; the first of them.
template <typename C> __device__ __forceinline__ u32 warp_pivot(const Matrix<C>& a, u32 n, u32 k) {
    u32 lane = threadIdx.x % 32, row = k;
    C largest = -1;
    for (u32 i = k + lane; i < n; i += 32) {
        C value = size_of(a(i, k));
        if (value > largest) {
            largest = value;
            row = i;
        }
    }
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        C other = __shfl_xor_sync(~0u, largest, lane_mask);
        u32 other_row = __shfl_xor_sync(~0u, row, lane_mask);
        if (other > largest || (other == largest && other_row < row)) {
            largest = other;
            row = other_row;
        }
    }
    return row;
}

// Make the first n columns upper triangular by exchanging rows and subtracting multiples of them.
template <typename C>
__device__ __forceinline__ Elimination block_eliminate(const Matrix<C>& a, u32 n, u32 columns) {
    __shared__ u32 pivot_row;
    __shared__ C pivot;
    Group group;
    Elimination result = {false, 0};
    for (u32 k = 0; k < n; k++) {
        if (group.warp == 0) {
            u32 row = warp_pivot(a, n, k);
            if (group.lane == 0) {
                pivot_row = row;
                pivot = a(row, k);
            }
        }
        __syncthreads();
        u32 other = pivot_row;
        C divisor = pivot;
        if (divisor == 0) {
            result.singular = true;
            break;
        }
        if (other != k) {
            result.exchanges++;
            for (u32 j = k + threadIdx.x; j < columns; j += blockDim.x) {
                C mine = a(k, j);
                a(k, j) = a(other, j);
                a(other, j) = mine;
            }
            __syncthreads();
        }
        for (u32 i = k + 1 + threadIdx.x; i < n; i += blockDim.x) a(i, k) /= divisor;
        __syncthreads();
        for (u32 i = k + 1 + group.warp; i < n; i += group.warps) {
            C factor = a(i, k);
            for (u32 j = k + 1 + group.lane; j < columns; j += 32) a(i, j) -= factor * a(k, j);
        }
        __syncthreads();
    }
    __syncthreads();
    return result;
}

// Solve with the upper triangle in the first n columns; the right sides stand behind it.
template <typename C>
__device__ __forceinline__ void block_substitute(const Matrix<C>& a, u32 n, u32 columns) {
    Group group;
    for (u32 k = n; k-- > 0;) {
        C divisor = a(k, k);
        for (u32 j = n + threadIdx.x; j < columns; j += blockDim.x) a(k, j) /= divisor;
        __syncthreads();
        for (u32 i = group.warp; i < k; i += group.warps) {
            C factor = a(i, k);
            for (u32 j = n + group.lane; j < columns; j += 32) a(i, j) -= factor * a(k, j);
        }
        __syncthreads();
    }
}

// x of a x = b for some columns of b, or of the identity where b is null.
template <typename T, typename C>
__device__ __forceinline__ void block_solve(
    C* workspace, const View<const T>& a, const View<const T>& b, const View<T>& x, u32 n,
    u32 first, u32 count) {
    Group group;
    u32 columns = n + count;
    Matrix<C> both = {workspace, columns, 1};
    for (u32 i = group.warp; i < n; i += group.warps)
        for (u32 j = group.lane; j < columns; j += 32) {
            if (j < n) both(i, j) = (C)wide(a(i, j));
            else if (b.start) both(i, j) = (C)wide(b(i, first + j - n));
            else both(i, j) = i == first + j - n ? (C)1 : (C)0;
        }
    __syncthreads();
    bool singular = block_eliminate(both, n, columns).singular;
    if (!singular) block_substitute(both, n, columns);
    for (u32 i = group.warp; i < n; i += group.warps)
        for (u32 j = group.lane; j < count; j += 32)
            x(i, first + j) = Stored<T>::from(singular ? Limits<C>::nan() : both(i, n + j));
}

template <typename T, typename C>
__device__ __forceinline__ void block_slogdet(
    C* workspace, const View<const T>& a, T* sign, T* log_size, u32 n) {
    Group group;
    Matrix<C> matrix = {workspace, n, 1};
    for (u32 i = group.warp; i < n; i += group.warps)
        for (u32 j = group.lane; j < n; j += 32) matrix(i, j) = (C)wide(a(i, j));
    __syncthreads();
    Elimination done = block_eliminate(matrix, n, n);
    if (group.warp > 0) return;
    C total = 0;
    u32 negative = 0;
    for (u32 i = group.lane; i < n && !done.singular; i += 32) {
        C value = matrix(i, i);
        total += logarithm(size_of(value));
        negative += value < 0;
    }
    total = warp_total(total);
    negative = warp_total(negative) + done.exchanges;
    if (group.lane > 0) return;
    C direction = negative % 2 ? (C)-1 : (C)1;
    *sign = Stored<T>::from(done.singular ? (C)0 : direction);
    *log_size = Stored<T>::from(done.singular ? -Limits<C>::infinity() : total);
}

// The lower triangular factor of (a + transposed a) / 2.
template <typename T, typename C>
__device__ __forceinline__ void block_cholesky(
    C* workspace, const View<const T>& a, const View<T>& out, u32 n) {
    Group group;
    Matrix<C> l = {workspace, n, 1};
    for (u32 i = group.warp; i < n; i += group.warps)
        for (u32 j = group.lane; j <= i; j += 32)
            l(i, j) = ((C)wide(a(i, j)) + (C)wide(a(j, i))) * (C)0.5;
    __syncthreads();
    bool failed = false;
    for (u32 k = 0; k < n && !failed; k++) {
        C pivot = l(k, k);
        failed = !(pivot > 0);
        C root = square_root(pivot);
        __syncthreads();
        for (u32 i = k + threadIdx.x; i < n; i += blockDim.x) l(i, k) = i == k ? root : l(i, k) / root;
        __syncthreads();
        for (u32 i = k + 1 + group.warp; i < n; i += group.warps) {
            C factor = l(i, k);
            for (u32 j = k + 1 + group.lane; j <= i; j += 32) l(i, j) -= factor * l(j, k);
        }
        __syncthreads();
    }
    for (u32 i = group.warp; i < n; i += group.warps)
        for (u32 j = group.lane; j < n; j += 32) {
            C value = j <= i ? l(i, j) : (C)0;
            out(i, j) = Stored<T>::from(failed ? Limits<C>::nan() : value);
        }
}
