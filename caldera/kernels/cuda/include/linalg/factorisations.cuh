// Orthogonal factorisations with one block for each matrix: Householder's reflections for QR,
// Jacobi's rotations for eigenvalues and singular values. Signs are those of graph/ops/linalg.py.
#pragma once
#include "linalg.cuh"

// The sign that makes the first of the largest components of a column positive.
template <typename C>
__device__ __forceinline__ C warp_sign(const Matrix<C>& a, u32 rows, u32 column) {
    u32 lane = threadIdx.x % 32;
    C largest = 0;
    for (u32 i = lane; i < rows; i += 32) largest = max(largest, size_of(a(i, column)));
    largest = warp_largest(largest);
    u32 first = rows;
    for (u32 i = lane; i < rows && first == rows; i += 32)
        if (size_of(a(i, column)) >= (C)0.99 * largest) first = i;
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2)
        first = min(first, __shfl_xor_sync(~0u, first, lane_mask));
    return first < rows && a(first, column) < 0 ? (C)-1 : (C)1;
}

// --- QR

// Make rows below j of column j zero: they become the reflection's vector, whose first component is
// 1, and what is returned is its factor.
template <typename C> __device__ __forceinline__ C warp_reflection(const Matrix<C>& r, u32 m, u32 j) {
    u32 lane = threadIdx.x % 32;
    C largest = 0;
    for (u32 i = j + lane; i < m; i += 32) {
        C value = size_of(r(i, j));
        if (value > largest || value != value) largest = value;
    }
    largest = warp_largest(largest);
    C below = 0;
    for (u32 i = j + 1 + lane; i < m; i += 32) {
        C part = largest > 0 ? r(i, j) / largest : (C)0;
        below += part * part;
    }
    below = warp_total(below);
    C corner = r(j, j);
    if (largest == largest && below == 0) return 0;
    C scaled = corner / largest;
    C norm = largest * square_root(scaled * scaled + below);
    C turned = corner > 0 ? -norm : norm;
    C divisor = corner - turned;
    __syncwarp();
    for (u32 i = j + 1 + lane; i < m; i += 32) r(i, j) /= divisor;
    if (lane == 0) r(j, j) = turned;
    __syncwarp();
    return (turned - corner) / turned;
}

// Reflect a column by the vector below the diagonal of column j of r.
template <typename C>
__device__ __forceinline__ void warp_reflect(
    const Matrix<C>& a, u32 column, const Matrix<C>& r, u32 j, C factor, u32 m) {
    u32 lane = threadIdx.x % 32;
    C dot = lane == 0 ? a(j, column) : (C)0;
    for (u32 i = j + 1 + lane; i < m; i += 32) dot += r(i, j) * a(i, column);
    dot = warp_total(dot) * factor;
    if (lane == 0) a(j, column) -= dot;
    for (u32 i = j + 1 + lane; i < m; i += 32) a(i, column) -= r(i, j) * dot;
}

// q of m rows and r of n columns, min(m, n) between them. The workspace holds both and the factors.
template <typename T, typename C>
__device__ __forceinline__ void block_qr(
    C* workspace, const View<const T>& a, const View<T>& out_q, const View<T>& out_r, u32 m,
    u32 n) {
    Group group;
    u32 k = m < n ? m : n;
    // Columns lie end to end: a warp walks down them.
    Matrix<C> r = {workspace, 1, m}, q = {workspace + (u64)m * n, 1, m};
    C* factors = workspace + (u64)m * n + (u64)m * k;
    for (u32 i = group.warp; i < m; i += group.warps) {
        for (u32 j = group.lane; j < n; j += 32) r(i, j) = (C)wide(a(i, j));
        for (u32 j = group.lane; j < k; j += 32) q(i, j) = i == j ? (C)1 : (C)0;
    }
    __syncthreads();
    for (u32 j = 0; j < k; j++) {
        if (group.warp == 0) {
            C factor = warp_reflection(r, m, j);
            if (group.lane == 0) factors[j] = factor;
        }
        __syncthreads();
        for (u32 c = j + 1 + group.warp; c < n; c += group.warps)
            warp_reflect(r, c, r, j, factors[j], m);
        __syncthreads();
    }
    for (u32 j = k; j-- > 0;) {
        for (u32 c = j + group.warp; c < k; c += group.warps)
            warp_reflect(q, c, r, j, factors[j], m);
        __syncthreads();
    }
    for (u32 i = group.warp; i < m; i += group.warps)
        for (u32 j = group.lane; j < k; j += 32)
            out_q(i, j) = Stored<T>::from(r(j, j) < 0 ? -q(i, j) : q(i, j));
    for (u32 i = group.warp; i < k; i += group.warps)
        for (u32 j = group.lane; j < n; j += 32) {
            C value = r(i, i) < 0 ? -r(i, j) : r(i, j);
            out_r(i, j) = Stored<T>::from(j < i ? (C)0 : value);
        }
}

// --- rotations

// Pair `number` of the pairs that meet in a round, as in a tournament of `players`, an even number.
__device__ __forceinline__ void meeting(
    u32 players, u32 round, u32 number, u32& first, u32& second) {
    u32 circle = players - 1;
    u32 a = number == 0 ? circle : (round + number) % circle;
    u32 b = (round + circle - number) % circle;
    first = a < b ? a : b;
    second = a < b ? b : a;
}

// Cosine and sine of the rotation that makes a symmetric 2 x 2 matrix diagonal.
template <typename C>
__device__ __forceinline__ void rotation(C first, C second, C between, C& cosine, C& sine) {
    C slope = (second - first) / (2 * between);
    C tangent = 1 / (size_of(slope) + square_root(slope * slope + 1));
    if (slope < 0) tangent = -tangent;
    cosine = 1 / square_root(tangent * tangent + 1);
    sine = tangent * cosine;
}

template <typename C>
__device__ __forceinline__ void rotate(C& a, C& b, C cosine, C sine) {
    C old = a;
    a = cosine * old - sine * b;
    b = sine * old + cosine * b;
}

const u32 MOST_SWEEPS = 30;

// Eigenvalues and eigenvectors of (a + transposed a) / 2. The workspace holds two matrices and,
// for every pair of a round, a cosine and a sine.
template <typename T, typename C>
__device__ __forceinline__ void block_eigh(
    C* workspace, const View<const T>& given, T* values, i64 values_step, const View<T>& vectors,
    u32 n) {
    __shared__ u32 moved;
    Group group;
    Matrix<C> a = {workspace, n, 1}, v = {workspace + (u64)n * n, 1, n};
    u32 players = n + n % 2;
    C* cosines = workspace + 2 * (u64)n * n;
    C* sines = cosines + players / 2;
    for (u32 i = group.warp; i < n; i += group.warps)
        for (u32 j = group.lane; j < n; j += 32) {
            a(i, j) = ((C)wide(given(i, j)) + (C)wide(given(j, i))) * (C)0.5;
            v(i, j) = i == j ? (C)1 : (C)0;
        }
    __syncthreads();
    C largest = block_largest(a, n, n);
    bool finite = largest <= Limits<C>::infinity() && largest < Limits<C>::infinity();
    C scale = finite && largest > 0 ? largest : (C)1;
    for (u32 i = threadIdx.x; i < n * n; i += blockDim.x) workspace[i] /= scale;
    __syncthreads();
    for (u32 sweep = 0; finite && sweep < MOST_SWEEPS; sweep++) {
        if (threadIdx.x == 0) moved = 0;
        __syncthreads();
        for (u32 round = 0; round + 1 < players; round++) {
            for (u32 t = threadIdx.x; t < players / 2; t += blockDim.x) {
                u32 p, q;
                meeting(players, round, t, p, q);
                cosines[t] = 1;
                sines[t] = 0;
                if (q >= n || size_of(a(p, q)) <= Limits<C>::epsilon() * (C)0.125) continue;
                rotation(a(p, p), a(q, q), a(p, q), cosines[t], sines[t]);
                moved = 1;
            }
            __syncthreads();
            for (u32 t = group.warp; t < players / 2; t += group.warps) {
                if (sines[t] == 0) continue;
                u32 p, q;
                meeting(players, round, t, p, q);
                for (u32 j = group.lane; j < n; j += 32)
                    rotate(a(p, j), a(q, j), cosines[t], sines[t]);
            }
            __syncthreads();
            for (u32 t = group.warp; t < players / 2; t += group.warps) {
                if (sines[t] == 0) continue;
                u32 p, q;
                meeting(players, round, t, p, q);
                for (u32 i = group.lane; i < n; i += 32) {
                    rotate(a(i, p), a(i, q), cosines[t], sines[t]);
                    rotate(v(i, p), v(i, q), cosines[t], sines[t]);
                }
                __syncwarp();
                if (group.lane == 0) a(p, q) = a(q, p) = 0;
            }
            __syncthreads();
        }
        bool done = moved == 0;
        __syncthreads();
        if (done) break;
    }
    for (u32 j = group.warp; j < n; j += group.warps) {
        C mine = a(j, j);
        u32 place = 0;
        for (u32 i = group.lane; i < n; i += 32)
            place += a(i, i) < mine || (a(i, i) == mine && i < j);
        place = finite ? warp_total(place) : j;
        C sign = warp_sign(v, n, j);
        if (group.lane == 0)
            values[(i64)place * values_step] =
                Stored<T>::from(finite ? mine * scale : Limits<C>::nan());
        for (u32 i = group.lane; i < n; i += 32)
            vectors(i, place) = Stored<T>::from(finite ? sign * v(i, j) : Limits<C>::nan());
    }
}

// Columns of `u` whose singular value is 0 (in `sizes`) become unit vectors across all others.
template <typename C>
__device__ __forceinline__ void warp_complete(const Matrix<C>& u, const C* sizes, u32 m, u32 n) {
    u32 lane = threadIdx.x % 32;
    for (u32 column = 0; column < n; column++) {
        if (sizes[column] > 0) continue;
        // The unit vector of which the other columns hold the least.
        C least = Limits<C>::infinity();
        u32 row = 0;
        for (u32 i = lane; i < m; i += 32) {
            C held = 0;
            for (u32 c = 0; c < n; c++)
                if (sizes[c] > 0 || c < column) held += u(i, c) * u(i, c);
            if (held < least) {
                least = held;
                row = i;
            }
        }
        for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
            C other = __shfl_xor_sync(~0u, least, lane_mask);
            u32 other_row = __shfl_xor_sync(~0u, row, lane_mask);
            if (other < least || (other == least && other_row < row)) {
                least = other;
                row = other_row;
            }
        }
        for (u32 i = lane; i < m; i += 32) u(i, column) = i == row ? (C)1 : (C)0;
        for (int pass = 0; pass < 2; pass++)
            for (u32 c = 0; c < n; c++) {
                if (!(sizes[c] > 0 || c < column)) continue;
                C dot = 0;
                for (u32 i = lane; i < m; i += 32) dot += u(i, c) * u(i, column);
                dot = warp_total(dot);
                for (u32 i = lane; i < m; i += 32) u(i, column) -= dot * u(i, c);
            }
        C norm = 0;
        for (u32 i = lane; i < m; i += 32) norm += u(i, column) * u(i, column);
        norm = square_root(warp_total(norm));
        for (u32 i = lane; i < m; i += 32) u(i, column) /= norm;
        __syncwarp();
    }
}

// Singular values and vectors of a matrix with m rows and n <= m columns, by rotating its columns
// until they are orthogonal; `turned` if u and v are exchanged because it came transposed.
template <typename T, typename C>
__device__ __forceinline__ void block_svd(
    C* workspace, const View<const T>& given, const View<T>& out_u, T* values, i64 values_step,
    const View<T>& out_v, u32 m, u32 n, bool turned) {
    __shared__ u32 moved;
    Group group;
    Matrix<C> u = {workspace, 1, m}, v = {workspace + (u64)m * n, 1, n};
    C* sizes = workspace + (u64)m * n + (u64)n * n;
    for (u32 i = group.warp; i < m; i += group.warps)
        for (u32 j = group.lane; j < n; j += 32) {
            u(i, j) = (C)wide(given(i, j));
            if (i < n) v(i, j) = i == j ? (C)1 : (C)0;
        }
    __syncthreads();
    C largest = block_largest(u, m, n);
    bool finite = largest < Limits<C>::infinity();
    C scale = finite && largest > 0 ? largest : (C)1;
    for (u32 i = threadIdx.x; i < m * n; i += blockDim.x) workspace[i] /= scale;
    __syncthreads();
    C tolerance = Limits<C>::epsilon() * square_root((C)m);
    u32 players = n + n % 2;
    for (u32 sweep = 0; finite && sweep < MOST_SWEEPS; sweep++) {
        if (threadIdx.x == 0) moved = 0;
        __syncthreads();
        for (u32 round = 0; round + 1 < players; round++) {
            for (u32 t = group.warp; t < players / 2; t += group.warps) {
                u32 p, q;
                meeting(players, round, t, p, q);
                if (q >= n) continue;
                C first = 0, second = 0, between = 0;
                for (u32 i = group.lane; i < m; i += 32) {
                    first += u(i, p) * u(i, p);
                    second += u(i, q) * u(i, q);
                    between += u(i, p) * u(i, q);
                }
                first = warp_total(first);
                second = warp_total(second);
                between = warp_total(between);
                C both = square_root(first) * square_root(second);
                if (!(size_of(between) > tolerance * both)) continue;
                C cosine, sine;
                rotation(first, second, between, cosine, sine);
                for (u32 i = group.lane; i < m; i += 32) rotate(u(i, p), u(i, q), cosine, sine);
                for (u32 i = group.lane; i < n; i += 32) rotate(v(i, p), v(i, q), cosine, sine);
                if (group.lane == 0) moved = 1;
            }
            __syncthreads();
        }
        bool done = moved == 0;
        __syncthreads();
        if (done) break;
    }
    for (u32 j = group.warp; j < n; j += group.warps) {
        C size = 0;
        for (u32 i = group.lane; i < m; i += 32) size += u(i, j) * u(i, j);
        size = square_root(warp_total(size));
        if (size < Limits<C>::tiny()) size = 0;
        for (u32 i = group.lane; i < m && size > 0; i += 32) u(i, j) /= size;
        if (group.lane == 0) sizes[j] = size;
    }
    __syncthreads();
    if (group.warp == 0 && finite) warp_complete(u, sizes, m, n);
    __syncthreads();
    for (u32 j = group.warp; j < n; j += group.warps) {
        C mine = sizes[j];
        u32 place = 0;
        for (u32 i = group.lane; i < n; i += 32)
            place += sizes[i] > mine || (sizes[i] == mine && i < j);
        place = finite ? warp_total(place) : j;
        C sign = turned ? warp_sign(v, n, j) : warp_sign(u, m, j);
        if (!finite) sign = Limits<C>::nan();
        if (group.lane == 0)
            values[(i64)place * values_step] = Stored<T>::from(finite ? mine * scale : sign);
        for (u32 i = group.lane; i < m; i += 32) out_u(i, place) = Stored<T>::from(sign * u(i, j));
        for (u32 i = group.lane; i < n; i += 32) out_v(i, place) = Stored<T>::from(sign * v(i, j));
    }
}
