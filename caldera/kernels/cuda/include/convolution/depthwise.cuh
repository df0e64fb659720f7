// Convolutions of each channel by itself, images channels last. A thread has V channels, whose
// filters it keeps in registers, and a strip of an image, a few pixels wide. It goes down the
// strip, adds what it reads to all results that see it, and keeps those that see more: each row is
// read once, and the next ones are on their way meanwhile.
#pragma once
#include "fast_division.cuh"
#include "row_primitives.cuh"

const int MOST_THREADS = 256;

__host__ __device__ constexpr int floor_quotient(int n, int by) {
    return n >= 0 ? n / by : -((by - 1 - n) / by);
}

// Along an axis, result p sees places p * STRIDE + tap * DILATION - PADDING.
template <int N, int S, int P, int D> struct Axis {
    static const int TAPS = N, STRIDE = S, PADDING = P, DILATION = D;
};

// What LENGTH results in a row see along an axis: SPAN places from `first` on, which are APART.
// Result l meets place o of them through tap s; the results after these see places STEP further on.
template <typename X, int L> struct Forward {
    static const int TAPS = X::TAPS, LENGTH = L, STEP = L * X::STRIDE, APART = 1;
    static const int SPAN = (L - 1) * X::STRIDE + (X::TAPS - 1) * X::DILATION + 1;
    static __device__ __forceinline__ int first(int target) {
        return target * X::STRIDE - X::PADDING;
    }
    static __device__ __forceinline__ bool meets(int l, int s, int o) {
        return l * X::STRIDE + s * X::DILATION == o;
    }
};

// The same for the gradient of the image, which sees that of the results. L is a multiple of the
// stride, so that all look alike.
template <typename X, int L> struct Backward {
    static const int LOW = -floor_quotient((X::TAPS - 1) * X::DILATION - X::PADDING, X::STRIDE);
    static const int TAPS = X::TAPS, LENGTH = L, STEP = L / X::STRIDE, APART = 1;
    static const int SPAN = floor_quotient(L - 1 + X::PADDING, X::STRIDE) - LOW + 1;
    static __device__ __forceinline__ int first(int target) { return target / X::STRIDE + LOW; }
    static __device__ __forceinline__ bool meets(int l, int s, int o) {
        return l + X::PADDING - s * X::DILATION == (o + LOW) * X::STRIDE;
    }
};

// Single results that are APART themselves, by the dilation, with a stride of 1.
template <typename X> struct ForwardApart {
    static const int TAPS = X::TAPS, LENGTH = 1, STEP = 1, APART = X::DILATION, SPAN = X::TAPS;
    static __device__ __forceinline__ int first(int target) { return target - X::PADDING; }
    static __device__ __forceinline__ bool meets(int, int s, int o) { return s == o; }
};
template <typename X> struct BackwardApart {
    static const int TAPS = X::TAPS, LENGTH = 1, STEP = 1, APART = X::DILATION, SPAN = X::TAPS;
    static __device__ __forceinline__ int first(int target) {
        return target + X::PADDING - (X::TAPS - 1) * X::DILATION;
    }
    static __device__ __forceinline__ bool meets(int, int s, int o) { return s + o == SPAN - 1; }
};

// Images that are read, of `height` and `width`, and those whose pixels are gone through, in strips
// of so many `steps`.
struct Planes {
    i32 channels, height, width, rows, columns, steps;
    u32 count;
    Divisor runs, parts;
};

// A strip: its image, the rows from which and to which it goes, and its first column.
template <typename Rows, typename Columns> struct Strip {
    static const int UNIT = Rows::LENGTH * Rows::APART;
    i32 image, row, end, column;
    __device__ __forceinline__ Strip(const Planes& planes, u32 index) {
        u32 line = planes.runs.quotient(index), which = planes.parts.quotient(line);
        i32 part = (i32)(line - which * planes.parts.by);
        image = (i32)which;
        row = part / Rows::APART * (planes.steps * UNIT) + part % Rows::APART;
        end = min(row + planes.steps * UNIT, planes.rows);
        column = (i32)(index - line * planes.runs.by) * Columns::LENGTH;
    }
};

// Which of N pixels from `first` on lie in a row of so many, a bit for each.
template <int N> __device__ __forceinline__ u32 inside(i32 first, i32 width) {
    u32 bits = 0;
#pragma unroll
    for (int o = 0; o < N; o++) bits |= (u32)((u32)(first + o) < (u32)width) << o;
    return bits;
}

// The pixel that is n further on, of so many bytes each.
template <typename T> __device__ __forceinline__ T* further(T* place, u32 n, u32 bytes) {
    return (T*)((char*)place + (u64)n * bytes);
}

// N pixels in a row, zero where a bit says that there is none.
template <int N, int V, typename T>
__device__ __forceinline__ void read_row(
    const T* line, u32 bits, u32 bytes, Pack<T, V> (&pixels)[N]) {
#pragma unroll
    for (int o = 0; o < N; o++) {
        pixels[o].word = typename Word<V * sizeof(T)>::type();
        if (bits & 1u << o) pixels[o] = packed<V>(further(line, o, bytes));
    }
}

// Numbers that the compiler knows: what is in registers has no other index.
template <int N> struct Number {
    static const int value = N;
};
template <int... N> struct Numbers {};
template <int END, int... N> struct UpTo : UpTo<END - 1, END - 1, N...> {};
template <int... N> struct UpTo<0, N...> {
    typedef Numbers<N...> type;
};

// Goes down a strip. Each step reads FRESH rows, which OPEN steps see, this one and those after it.
template <typename Rows, typename Columns, int V, typename T> struct Descent {
    static const int FRESH = Rows::STEP < Rows::SPAN ? Rows::STEP : Rows::SPAN;
    static const int OPEN = (Rows::SPAN + Rows::STEP - 1) / Rows::STEP;
    static const int UNIT = Strip<Rows, Columns>::UNIT;
    // Whether what is open stays where it is while steps go on, which takes code for each of them.
    static const bool STAYS = OPEN <= 3;
    static __device__ __forceinline__ int place(int step, int open) {
        return STAYS ? (step + open) % OPEN : open;
    }
    typedef Pack<T, V> Fresh[FRESH][Columns::SPAN];
    const Planes& planes;
    const T* line;
    i32 row, end, y;
    u32 bits;
    Fresh next;

    __device__ __forceinline__ Descent(
        const T* images, const Strip<Rows, Columns>& strip, const Planes& planes)
        : planes(planes), row(strip.row - (OPEN - 1) * UNIT), end(strip.end) {
        i32 x = Columns::first(strip.column);
        y = Rows::first(row) + (Rows::SPAN - FRESH) * Rows::APART;
        i64 above = (i64)strip.image * planes.height + y;
        line = images + (above * planes.width + x) * planes.channels;
        bits = inside<Columns::SPAN>(x, planes.width);
        read();
    }

    __device__ __forceinline__ void read() {
        i64 pitch = (i64)planes.width * planes.channels * Rows::APART;
#pragma unroll
        for (int f = 0; f < FRESH; f++)
            read_row(line + f * pitch, (u32)(y + f * Rows::APART) < (u32)planes.height ? bits : 0u,
                     planes.channels * (u32)sizeof(T), next[f]);
        y += Rows::STEP * Rows::APART;
        line += Rows::STEP * pitch;
    }

    // `look(row, fresh, Number<STEP>)` for each step, the numbers over and over. The first steps
    // are those of the strip above, for what this one sees of theirs.
    template <typename Look> __device__ __forceinline__ void go(Look look) {
        go(look, typename UpTo<STAYS ? OPEN : 1>::type());
    }
    template <typename Look, int... STEPS>
    __device__ __forceinline__ void go(Look look, Numbers<STEPS...>) {
        while ((step<STEPS>(look) && ...)) {}
    }
    template <int STEP, typename Look> __device__ __forceinline__ bool step(Look look) {
        Fresh fresh;
#pragma unroll
        for (int f = 0; f < FRESH; f++)
#pragma unroll
            for (int x = 0; x < Columns::SPAN; x++) fresh[f][x] = next[f][x];
        bool more = row + UNIT < end;
        if (more) read();
        look(row, fresh, Number<STEP>());
        row += UNIT;
        return more;
    }

    // `meet(open, tap, k, l, v, pixel)` for each pixel, each of V channels and all that see it:
    // result l of row k of a step that is so many after this one.
    template <typename Meet>
    static __device__ __forceinline__ void each_meeting(const Fresh& fresh, Meet meet) {
        typedef typename Computed<T>::type A;
#pragma unroll
        for (int f = 0; f < FRESH; f++)
#pragma unroll
            for (int x = 0; x < Columns::SPAN; x++)
#pragma unroll
                for (int open = 0; open < OPEN; open++)
#pragma unroll
                    for (int r = 0; r < Rows::TAPS; r++)
#pragma unroll
                        for (int k = 0; k < Rows::LENGTH; k++)
                            if (Rows::meets(k, r, Rows::SPAN - FRESH + f - open * Rows::STEP))
                                each_column(x, [&](int s, int l) {
#pragma unroll
                                    for (int v = 0; v < V; v++)
                                        meet(open, r * Columns::TAPS + s, k, l, v,
                                             (A)wide(fresh[f][x].at[v]));
                                });
    }
    template <typename Meet>
    static __device__ __forceinline__ void each_column(int x, Meet meet) {
#pragma unroll
        for (int s = 0; s < Columns::TAPS; s++)
#pragma unroll
            for (int l = 0; l < Columns::LENGTH; l++)
                if (Columns::meets(l, s, x)) meet(s, l);
    }
};

template <typename Rows, typename Columns, int V, typename T>
__device__ __forceinline__ void depthwise(
    const T* images, const T* filters, T* out, const Planes& planes) {
    typedef typename Computed<T>::type A;
    typedef Descent<Rows, Columns, V, T> Down;
    const int TAPS = Rows::TAPS * Columns::TAPS;
    i32 channel = (i32)(blockIdx.y * blockDim.x + threadIdx.x) * V;
    u32 index = blockIdx.x * blockDim.y + threadIdx.y;
    if (channel >= planes.channels || index >= planes.count) return;
    Strip<Rows, Columns> strip(planes, index);
    Down down(images + channel, strip, planes);
    A kept[TAPS][V], sums[Down::OPEN][Rows::LENGTH][Columns::LENGTH][V];
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
            kept[tap][v] = (A)wide(filters[(channel + v) * TAPS + tap]);
#pragma unroll
    for (int open = 0; open < Down::OPEN; open++)
#pragma unroll
        for (int k = 0; k < Rows::LENGTH; k++)
#pragma unroll
            for (int l = 0; l < Columns::LENGTH; l++)
#pragma unroll
                for (int v = 0; v < V; v++) sums[open][k][l][v] = (A)0;
    u32 bits = inside<Columns::LENGTH>(strip.column, planes.columns);
    u32 bytes = planes.channels * (u32)sizeof(T);
    T* place = out + channel +
        ((i64)strip.image * planes.rows * planes.columns + strip.column) * planes.channels;
    down.go([&](i32 row, const auto& fresh, auto step) {
        Down::each_meeting(fresh, [&](int open, int tap, int k, int l, int v, A pixel) {
            sums[Down::place(step.value, open)][k][l][v] += pixel * kept[tap][v];
        });
        auto& done = sums[Down::place(step.value, 0)];
#pragma unroll
        for (int k = 0; k < Rows::LENGTH; k++) {
            T* line = place + (i64)(row + k) * planes.columns * planes.channels;
            u32 there = row >= strip.row && row + k < planes.rows ? bits : 0u;
#pragma unroll
            for (int l = 0; l < Columns::LENGTH; l++)
                if (there & 1u << l) store<V>(further(line, l, bytes), done[k][l]);
        }
#pragma unroll
        for (int open = Down::STAYS ? Down::OPEN - 1 : 0; open < Down::OPEN; open++)
#pragma unroll
            for (int k = 0; k < Rows::LENGTH; k++)
#pragma unroll
                for (int l = 0; l < Columns::LENGTH; l++)
#pragma unroll
                    for (int v = 0; v < V; v++) {
                        bool is_last = open == Down::OPEN - 1;
                        auto& slot = sums[Down::STAYS ? step.value : open][k][l][v];
                        slot = is_last ? (A)0 : sums[(open + 1) % Down::OPEN][k][l][v];
                    }
    });
}

// The gradient of the filters: each block adds up its strips, to partial[block][tap][channel].
template <typename Rows, typename Columns, int V, typename T, typename A>
__device__ __forceinline__ void block_depthwise_weight(
    const T* images, const T* gradient, A* partial, const Planes& planes) {
    typedef Descent<Rows, Columns, V, T> Down;
    const int TAPS = Rows::TAPS * Columns::TAPS;
    __shared__ A shared[MOST_THREADS * V];
    i32 channel = (i32)(blockIdx.y * blockDim.x + threadIdx.x) * V;
    A sums[TAPS][V];
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int v = 0; v < V; v++) sums[tap][v] = (A)0;
    u32 end = channel < planes.channels ? planes.count : 0u;
    for (u32 index = blockIdx.x * blockDim.y + threadIdx.y; index < end;
         index += gridDim.x * blockDim.y) {
        Strip<Rows, Columns> strip(planes, index);
        Down down(images + channel, strip, planes);
        // Slopes of the steps that are open, and of the one after these.
        Pack<T, V> slopes[Down::OPEN][Columns::LENGTH], next[Columns::LENGTH];
        u32 bits = inside<Columns::LENGTH>(strip.column, planes.columns);
        const T* place = gradient + channel +
            ((i64)strip.image * planes.rows * planes.columns + strip.column) * planes.channels;
        auto read = [&](i32 row) {
            read_row(place + (i64)row * planes.columns * planes.channels,
                     row < strip.end ? bits : 0u, planes.channels * (u32)sizeof(T), next);
        };
        read(strip.row);
#pragma unroll
        for (int open = 0; open < Down::OPEN; open++)
#pragma unroll
            for (int l = 0; l < Columns::LENGTH; l++)
                slopes[open][l].word = typename Word<V * sizeof(T)>::type();
        down.go([&](i32 row, const auto& fresh, auto step) {
            if (!Down::STAYS)
#pragma unroll
                for (int open = 1; open < Down::OPEN; open++)
#pragma unroll
                    for (int l = 0; l < Columns::LENGTH; l++) slopes[open - 1][l] = slopes[open][l];
            auto& last = slopes[Down::place(step.value, Down::OPEN - 1)];
#pragma unroll
            for (int l = 0; l < Columns::LENGTH; l++) last[l] = next[l];
            read(row + Down::OPEN * Down::UNIT);
            Down::each_meeting(fresh, [&](int open, int tap, int, int l, int v, A pixel) {
                sums[tap][v] += pixel * (A)wide(slopes[Down::place(step.value, open)][l].at[v]);
            });
        });
    }
    int block_channels = blockDim.x * V, thread = threadIdx.y * blockDim.x + threadIdx.x;
    i32 begin = (i32)blockIdx.y * block_channels;
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
        // What was added up for the tap before has been read by then.
        __syncthreads();
#pragma unroll
        for (int v = 0; v < V; v++) shared[thread * V + v] = sums[tap][v];
        __syncthreads();
        A* here = partial + ((i64)blockIdx.x * TAPS + tap) * planes.channels;
        for (int i = thread; i < block_channels && begin + i < planes.channels;
             i += blockDim.x * blockDim.y) {
            A total = shared[i];
            for (int y = 1; y < blockDim.y; y++) total += shared[y * block_channels + i];
            here[begin + i] = total;
        }
    }
}

// out[channel][tap] from partial[part][tap][channel]; a block has 32 channels of a tap.
template <typename T, typename A>
__device__ __forceinline__ void block_depthwise_totals(
    const A* partial, T* out, i32 parts, i32 taps, i32 channels) {
    __shared__ A shared[8][32];
    i32 channel = (i32)(blockIdx.x * 32 + threadIdx.x), tap = (i32)blockIdx.y;
    A sum = (A)0;
    if (channel < channels)
        for (i32 part = threadIdx.y; part < parts; part += 8)
            sum += partial[((i64)part * taps + tap) * channels + channel];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || channel >= channels) return;
#pragma unroll
    for (int y = 1; y < 8; y++) sum += shared[y][threadIdx.x];
    out[(i64)channel * taps + tap] = Stored<T>::from(sum);
}
