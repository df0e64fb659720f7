// Attention and its gradients through tensor cores, in half precision or tf32. A block of 4 warps has 64
// queries (or keys), a warp 16 of them; what these meet passes through shared memory, the next tile
// on its way while one is used. Scores stay in registers: the results of one product lie as the
// left operand of the next one has to. Sums run in a fixed order.
#pragma once
#include "attention_backward.cuh"

static const int WARPS = 4, OWN_ROWS = 16 * WARPS, CORE_THREADS = 32 * WARPS;

// What a tensor core does with numbers of a type: `word` is what it is given of 4 bytes.
template <typename T> struct AttentionCore;
template <> struct AttentionCore<half_t> {
    static __device__ __forceinline__ u32 word(u32 bits) { return bits; }
    static __device__ __forceinline__ u32 pair(float x, float y) { return half_pair(x, y); }
    static __device__ __forceinline__ void mma_add(float* c, const u32* a, u32 b0, u32 b1) {
        mma_half(c, a, b0, b1);
    }
};
template <> struct AttentionCore<bfloat_t> {
    static __device__ __forceinline__ u32 word(u32 bits) { return bits; }
    static __device__ __forceinline__ u32 pair(float x, float y) { return bfloat_pair(x, y); }
    static __device__ __forceinline__ void mma_add(float* c, const u32* a, u32 b0, u32 b1) {
        mma_bfloat(c, a, b0, b1);
    }
};
template <> struct AttentionCore<float> {
    static __device__ __forceinline__ u32 word(u32 bits) { return tf32_near(bits_to_float(bits)); }
    static __device__ __forceinline__ void mma_add(float* c, const u32* a, u32 b0, u32 b1) {
        mma_tf32(c, a, b0, b1);
    }
};

// Rows of numbers in shared memory, of a multiple of 16 columns; each begins 16 bytes further along
// the banks than the one before. A product takes 32 bytes of a row at a step.
template <typename T, int ROWS_, int COLUMNS_> struct SharedRows {
    static const int ROWS = ROWS_, COLUMNS = COLUMNS_, PIECE = 16 / sizeof(T);
    static const int PITCH = COLUMNS + PIECE, SIZE = ROWS * PITCH;
};
template <typename T> constexpr int steps_of(int columns) { return columns * sizeof(T) / 32; }

// Part of a matrix into shared memory, zeros beyond its ends. ALIGNED: its rows are whole pieces of
// 16 bytes. It is there after `copies_done` and a barrier.
template <typename Rows, bool ALIGNED, typename T, typename I>
__device__ __forceinline__ void block_bring(
    T* to, Matrix<const T, I> from, int top, int rows, int left, int columns) {
    const int PIECE = Rows::PIECE, PIECES = Rows::COLUMNS / PIECE;
    for (int i = threadIdx.x; i < Rows::ROWS * PIECES; i += CORE_THREADS) {
        int r = i / PIECES, c = i % PIECES * PIECE;
        T* place = to + r * Rows::PITCH + c;
        bool inside = top + r < rows && left + c < columns;
        if (ALIGNED) {
            copy_ahead16(place, inside ? from.at(top + r, left + c) : from.first, inside);
        } else {
#pragma unroll
            for (int k = 0; k < PIECE; k++)
                place[k] = inside && left + c + k < columns ? *from.at(top + r, left + c + k)
                                                            : Stored<T>::from(0.0f);
        }
    }
}

template <int N> __device__ __forceinline__ void clear_sums(float (&sums)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[n][i] = 0.0f;
}

// --- products of a warp

// The left operand: 16 rows, STEPS pieces of 32 bytes of each.
template <int STEPS, typename T>
__device__ __forceinline__ void warp_left(u32 (&left)[STEPS][4], const T* rows, int pitch) {
    int lane = threadIdx.x % 32;
    SharedPlace place = shared_place(rows + lane % 16 * pitch) + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        mma_rows(left[k], place + k * 32);
#pragma unroll
        for (int i = 0; i < 4; i++) left[k][i] = AttentionCore<T>::word(left[k][i]);
    }
}

// sums += left * right^T, where the right operand has 8 N rows.
template <int N, int STEPS, typename T>
__device__ __forceinline__ void warp_times_rows(
    float (&sums)[N][4], const u32 (&left)[STEPS][4], const T* right, int pitch) {
    typedef AttentionCore<T> Core;
    int lane = threadIdx.x % 32;
    SharedPlace place =
        shared_place(right + (lane % 8 + lane / 16 * 8) * pitch) + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 words[4];
            mma_rows(words, place + n * 8 * pitch * (int)sizeof(T) + k * 32);
            Core::mma_add(sums[n], left[k], Core::word(words[0]), Core::word(words[1]));
            Core::mma_add(sums[n + 1], left[k], Core::word(words[2]), Core::word(words[3]));
        }
}

// The same with a left operand that is read as it is needed.
template <int STEPS, int N, typename T>
__device__ __forceinline__ void warp_rows_times_rows(
    float (&sums)[N][4], const T* rows, int rows_pitch, const T* right, int pitch) {
    const int DEEP = 32 / sizeof(T);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        u32 left[1][4];
        warp_left(left, rows + k * DEEP, rows_pitch);
        warp_times_rows(sums, left, right + k * DEEP, pitch);
    }
}

// sums += left * right: the left operand has results of a product, 8 K columns of them.
template <int N, int K, typename T>
__device__ __forceinline__ void warp_times_columns(
    float (&sums)[N][4], const float (&left)[K][4], const T* right, int pitch) {
    int lane = threadIdx.x % 32;
    SharedPlace place = shared_place(right + lane % 16 * pitch) + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        u32 rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            rows[i] = AttentionCore<T>::pair(
                left[k + i / 2][i % 2 * 2], left[k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 words[4];
            mma_columns(words, place + (k * 8 * pitch + n * 8) * (int)sizeof(T));
            AttentionCore<T>::mma_add(sums[n], rows, words[0], words[1]);
            AttentionCore<T>::mma_add(sums[n + 1], rows, words[2], words[3]);
        }
    }
}

// Floats cannot be turned on their way from shared memory. Terms of a sum come in the order in which
// a thread has them: those of even columns first, then those of odd ones.
template <int N, int K>
__device__ __forceinline__ void warp_times_columns(
    float (&sums)[N][4], const float (&left)[K][4], const float* right, int pitch) {
    const float* place = right + threadIdx.x % 4 * 2 * pitch + threadIdx.x % 32 / 4;
#pragma unroll
    for (int k = 0; k < K; k++) {
        u32 rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) rows[i] = tf32_near(left[k][i % 2 * 2 + i / 2]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float* here = place + k * 8 * pitch + n * 8;
            mma_tf32(sums[n], rows, tf32_near(here[0]), tf32_near(here[pitch]));
        }
    }
}

// Where the results of a product lie: a thread has two rows, `half` of them 8 further down.
__device__ __forceinline__ int own_row(int half) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + half * 8;
}
__device__ __forceinline__ int own_column(int tile) { return tile * 8 + threadIdx.x % 4 * 2; }

// Results times a factor, as far as they are inside of the matrix.
template <bool ALIGNED, int N, typename T, typename I>
__device__ __forceinline__ void deliver_sums(
    Matrix<T, I> to, int top, int rows, int left, int columns, const float (&sums)[N][4],
    float factor) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = top + own_row(half);
#pragma unroll
        for (int n = 0; n < N; n++) {
            int c = left + own_column(n);
            float both[2] = {sums[n][half * 2] * factor, sums[n][half * 2 + 1] * factor};
            if (r >= rows) continue;
            if (ALIGNED) {
                if (c < columns) store<2>(to.at(r, c), both);
            } else {
                if (c < columns) *to.at(r, c) = Stored<T>::from(both[0]);
                if (c + 1 < columns) *to.at(r, c + 1) = Stored<T>::from(both[1]);
            }
        }
    }
}

// --- who sees whom

template <bool CAUSAL>
__device__ __forceinline__ bool is_seen(AttentionSizes in, int query, int key) {
    return key < in.keys && query < in.queries &&
           (!CAUSAL || key <= query + in.keys - in.queries);
}

// Whether all of some queries see all of some keys.
template <bool CAUSAL>
__device__ __forceinline__ bool is_whole(
    AttentionSizes in, int top, int queries, int side, int keys) {
    return side + keys <= in.keys && top + queries <= in.queries &&
           (!CAUSAL || side + keys - 1 <= top + in.keys - in.queries);
}

// Known when compiled.
template <bool VALUE> struct Flag { static const bool value = VALUE; };

// --- forward

// Over the four threads that share a row of results.
template <typename Join> __device__ __forceinline__ float warp_row_joined(float value) {
    value = Join::of(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return Join::of(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// Scores become exp(score - shift); `total` and `results` follow the shift. WHOLE: all queries see
// all keys of the tile, unless a mask forbids it.
template <bool CAUSAL, bool WHOLE, int K, int N, typename Masked>
__device__ __forceinline__ void warp_softmax(
    float (&scores)[K][4], float (&results)[N][4], float (&total)[2], float (&highest)[2],
    AttentionSizes in, float scale, int top, int side, Masked masked) {
    const float never = -infinity_like(0.0f);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = top + own_row(half);
        float largest = never;
#pragma unroll
        for (int n = 0; n < K; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int at = side + own_column(n) + j;
                float& score = scores[n][half * 2 + j];
                bool seen = WHOLE || is_seen<CAUSAL>(in, query, at);
                score = seen ? masked(query, at, score * scale) : never;
                if (score < infinity_like(0.0f)) largest = Higher::of(score, largest);
            }
        largest = Higher::of(warp_row_joined<Higher>(largest), highest[half]);
        float shift = finite_or_none(largest), before = highest[half];
        float factor = before == never ? 1.0f : __expf(before - shift);
        highest[half] = largest;
        total[half] *= factor;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) results[n][half * 2 + j] *= factor;
#pragma unroll
        for (int n = 0; n < K; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float& score = scores[n][half * 2 + j];
                score = __expf(score - shift);
                total[half] += score;
            }
    }
}

// WIDTH columns of the result for 64 queries, and the logarithms of the sums of exponentials.
template <int DEPTH, int WIDTH, int KEYS, bool CAUSAL, bool ALIGNED, typename T, typename I,
          typename Masked>
__device__ __forceinline__ void block_core_attention(
    Matrix<const T, I> q, Matrix<const T, I> key, Matrix<const T, I> v, Matrix<T, I> y,
    float* logarithm, I step, AttentionSizes in, float scale, int top, int left, Masked masked) {
    typedef SharedRows<T, OWN_ROWS, DEPTH> Asked;
    typedef SharedRows<T, KEYS, DEPTH> Keys;
    typedef SharedRows<T, KEYS, WIDTH> Values;
    const int STEPS = steps_of<T>(DEPTH);
    DYNAMIC_SHARED(T, shared);
    T* asked = shared;
    T* keys = asked + Asked::SIZE;
    T* values = keys + 2 * Keys::SIZE;
    int past = in.keys - in.queries, end = in.keys;
    if (CAUSAL && top + OWN_ROWS + past < end) end = top + OWN_ROWS + past;
    auto bring = [&](int side, int turn) {
        block_bring<Keys, ALIGNED>(keys + turn * Keys::SIZE, key, side, in.keys, 0, in.depth);
        block_bring<Values, ALIGNED>(values + turn * Values::SIZE, v, side, in.keys, left, in.width);
    };
    block_bring<Asked, ALIGNED>(asked, q, top, in.queries, 0, in.depth);
    bring(0, 0);
    copies_begun();
    float results[WIDTH / 8][4], total[2] = {0.0f, 0.0f};
    float highest[2] = {-infinity_like(0.0f), -infinity_like(0.0f)};
    clear_sums(results);
    const T* own = asked + threadIdx.x / 32 * 16 * Asked::PITCH;
    u32 queries[STEPS <= 8 ? STEPS : 1][4];
    int turn = 0;
    for (int side = 0; side < end; side += KEYS, turn = 1 - turn) {
        if (side + KEYS < end) bring(side + KEYS, 1 - turn);
        copies_begun();
        copies_done<1>();
        __syncthreads();
        float scores[KEYS / 8][4];
        clear_sums(scores);
        const T* here = keys + turn * Keys::SIZE;
        if constexpr (STEPS <= 8) {
            if (side == 0) warp_left(queries, own, Asked::PITCH);
            warp_times_rows(scores, queries, here, Keys::PITCH);
        } else {
            warp_rows_times_rows<STEPS>(scores, own, Asked::PITCH, here, Keys::PITCH);
        }
        if (is_whole<CAUSAL>(in, top, OWN_ROWS, side, KEYS))
            warp_softmax<CAUSAL, true>(
                scores, results, total, highest, in, scale, top, side, masked);
        else
            warp_softmax<CAUSAL, false>(
                scores, results, total, highest, in, scale, top, side, masked);
        warp_times_columns(results, scores, values + turn * Values::SIZE, Values::PITCH);
        __syncthreads();
    }
    copies_done<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = top + own_row(half);
        float found = warp_row_joined<Sum>(total[half]);
        // A row that is masked altogether gives 0.
        if (found == 0.0f) found = 1.0f;
        float inverse = 1.0f / found;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) results[n][half * 2 + j] *= inverse;
        if (left == 0 && threadIdx.x % 4 == 0 && query < in.queries)
            logarithm[query * step] = op_log(found) + finite_or_none(highest[half]);
    }
    deliver_sums<ALIGNED>(y, top, in.queries, left, in.width, results, 1.0f);
}

// --- backward

// Columns of the gradients of 64 queries, for one head; they lack the factor `scale`.
template <int DEPTH, int WIDTH, int KEYS, bool CAUSAL, bool ALIGNED, int N, typename T, typename I,
          typename Masked>
__device__ __forceinline__ void block_core_query_gradients(
    const Attended<T, float, I>& of, AttentionSizes in, float scale, int top, int left,
    Masked masked, float (&results)[N][4]) {
    typedef SharedRows<T, OWN_ROWS, DEPTH> Asked;
    typedef SharedRows<T, OWN_ROWS, WIDTH> Told;
    typedef SharedRows<T, KEYS, DEPTH> Keys;
    typedef SharedRows<T, KEYS, WIDTH> Values;
    DYNAMIC_SHARED(T, shared);
    T* asked = shared;
    T* told = asked + Asked::SIZE;
    T* keys = told + Told::SIZE;
    T* values = keys + 2 * Keys::SIZE;
    int past = in.keys - in.queries, end = in.keys;
    if (CAUSAL && top + OWN_ROWS + past < end) end = top + OWN_ROWS + past;
    auto bring = [&](int side, int turn) {
        block_bring<Keys, ALIGNED>(keys + turn * Keys::SIZE, of.key, side, in.keys, 0, in.depth);
        block_bring<Values, ALIGNED>(values + turn * Values::SIZE, of.v, side, in.keys, 0, in.width);
    };
    block_bring<Asked, ALIGNED>(asked, of.q, top, in.queries, 0, in.depth);
    block_bring<Told, ALIGNED>(told, of.g, top, in.queries, 0, in.width);
    bring(0, 0);
    copies_begun();
    float level[2], common[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = min(top + own_row(half), in.queries - 1);
        level[half] = of.logarithm[query * of.logarithm_step];
        common[half] = of.common[query * of.common_step];
    }
    int first = threadIdx.x / 32 * 16, turn = 0;
    for (int side = 0; side < end; side += KEYS, turn = 1 - turn) {
        if (side + KEYS < end) bring(side + KEYS, 1 - turn);
        copies_begun();
        copies_done<1>();
        __syncthreads();
        float scores[KEYS / 8][4], gradients[KEYS / 8][4];
        clear_sums(scores);
        clear_sums(gradients);
        const T* here = keys + turn * Keys::SIZE;
        warp_rows_times_rows<steps_of<T>(DEPTH)>(
            scores, asked + first * Asked::PITCH, Asked::PITCH, here, Keys::PITCH);
        warp_rows_times_rows<steps_of<T>(WIDTH)>(
            gradients, told + first * Told::PITCH, Told::PITCH, values + turn * Values::SIZE,
            Values::PITCH);
        auto change = [&](auto whole) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int query = top + own_row(i / 2), at = side + own_column(n) + i % 2;
                    bool seen = decltype(whole)::value || is_seen<CAUSAL>(in, query, at);
                    float score = seen ? masked(query, at, scores[n][i] * scale) : 0.0f;
                    float share = __expf(score - level[i / 2]);
                    gradients[n][i] = seen ? share * (gradients[n][i] - common[i / 2]) : 0.0f;
                }
        };
        if (is_whole<CAUSAL>(in, top, OWN_ROWS, side, KEYS)) change(Flag<true>());
        else change(Flag<false>());
        warp_times_columns(results, gradients, here + left, Keys::PITCH);
        __syncthreads();
    }
    copies_done<0>();
    // Whoever calls this again brings other rows.
    __syncthreads();
}

// Columns of the gradients of 64 keys (KEYS) and of as many values (VALUES), for one head; those of
// keys lack the factor `scale`. Scores are turned: a thread has keys for rows.
template <int DEPTH, int WIDTH, int QUERIES, bool KEYS, bool VALUES, bool CAUSAL, bool ALIGNED,
          int NK, int NV, typename T, typename I, typename Masked>
__device__ __forceinline__ void block_core_key_gradients(
    const Attended<T, float, I>& of, AttentionSizes in, float scale, int side, int left,
    Masked masked, float (&for_keys)[NK][4], float (&for_values)[NV][4]) {
    typedef SharedRows<T, OWN_ROWS, DEPTH> Keys;
    typedef SharedRows<T, OWN_ROWS, WIDTH> Values;
    typedef SharedRows<T, QUERIES, DEPTH> Asked;
    typedef SharedRows<T, QUERIES, WIDTH> Told;
    DYNAMIC_SHARED(T, shared);
    T* keys = shared;
    T* values = keys + Keys::SIZE;
    T* asked = values + Values::SIZE;
    T* told = asked + 2 * Asked::SIZE;
    float* level = (float*)(told + 2 * Told::SIZE);
    float* common = level + 2 * QUERIES;
    int past = in.keys - in.queries;
    int begin = CAUSAL && side - past > 0 ? (side - past) / QUERIES * QUERIES : 0;
    auto bring = [&](int top, int turn) {
        block_bring<Asked, ALIGNED>(asked + turn * Asked::SIZE, of.q, top, in.queries, 0, in.depth);
        block_bring<Told, ALIGNED>(told + turn * Told::SIZE, of.g, top, in.queries, 0, in.width);
        for (int i = threadIdx.x; i < QUERIES; i += CORE_THREADS) {
            int query = min(top + i, in.queries - 1);
            level[turn * QUERIES + i] = of.logarithm[query * of.logarithm_step];
            common[turn * QUERIES + i] = of.common[query * of.common_step];
        }
    };
    block_bring<Keys, ALIGNED>(keys, of.key, side, in.keys, 0, in.depth);
    block_bring<Values, ALIGNED>(values, of.v, side, in.keys, 0, in.width);
    if (begin < in.queries) bring(begin, 0);
    copies_begun();
    int first = threadIdx.x / 32 * 16, turn = 0;
    for (int top = begin; top < in.queries; top += QUERIES, turn = 1 - turn) {
        if (top + QUERIES < in.queries) bring(top + QUERIES, 1 - turn);
        copies_begun();
        copies_done<1>();
        __syncthreads();
        float shares[QUERIES / 8][4], gradients[QUERIES / 8][4];
        clear_sums(shares);
        clear_sums(gradients);
        const T* here = asked + turn * Asked::SIZE;
        const T* there = told + turn * Told::SIZE;
        warp_rows_times_rows<steps_of<T>(DEPTH)>(
            shares, keys + first * Keys::PITCH, Keys::PITCH, here, Asked::PITCH);
        warp_rows_times_rows<steps_of<T>(WIDTH)>(
            gradients, values + first * Values::PITCH, Values::PITCH, there, Told::PITCH);
        auto change = [&](auto whole) {
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int place = turn * QUERIES + own_column(n) + i % 2;
                    int query = place - turn * QUERIES + top, at = side + own_row(i / 2);
                    bool seen = decltype(whole)::value || is_seen<CAUSAL>(in, query, at);
                    float score = seen ? masked(query, at, shares[n][i] * scale) : 0.0f;
                    shares[n][i] = seen ? __expf(score - level[place]) : 0.0f;
                    gradients[n][i] =
                        seen ? shares[n][i] * (gradients[n][i] - common[place]) : 0.0f;
                }
        };
        if (is_whole<CAUSAL>(in, top, QUERIES, side, OWN_ROWS)) change(Flag<true>());
        else change(Flag<false>());
        if (VALUES && left < WIDTH)
            warp_times_columns(for_values, shares, there + left, Told::PITCH);
        if (KEYS && left < DEPTH)
            warp_times_columns(for_keys, gradients, here + left, Asked::PITCH);
        __syncthreads();
    }
    copies_done<0>();
    // Whoever calls this again brings other rows.
    __syncthreads();
}
