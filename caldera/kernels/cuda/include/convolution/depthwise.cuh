// Convolutions of each channel by itself, images channels last. A thread has V channels, whose
// filters it keeps in registers, and goes over runs of L neighbouring pixels of a row: pixels that
// several results of a run see are read once.
#pragma once
#include "fast_division.cuh"
#include "row_primitives.cuh"

const int MOST_THREADS = 256;

__host__ __device__ constexpr int floor_quotient(int n, int by) {
    return n >= 0 ? n / by : -((by - 1 - n) / by);
}

template <int R, int S, int SY, int SX, int PY, int PX, int DY, int DX> struct Window {
    static const int ROWS = R, COLUMNS = S, TAPS = R * S;
    static const int STRIDE_Y = SY, STRIDE_X = SX, PADDING_Y = PY, PADDING_X = PX;
    static const int DILATION_Y = DY, DILATION_X = DX;
};

// What a run of L results reads in a row of the image: SPAN pixels from `first` on; result l meets
// pixel o of them through tap s.
template <typename W, int L> struct Forward {
    static const int SPAN = (L - 1) * W::STRIDE_X + (W::COLUMNS - 1) * W::DILATION_X + 1;
    static __device__ __forceinline__ int row(int target, int tap) {
        return target * W::STRIDE_Y + tap * W::DILATION_Y - W::PADDING_Y;
    }
    static __device__ __forceinline__ int first(int target) {
        return target * W::STRIDE_X - W::PADDING_X;
    }
    static __device__ __forceinline__ bool meets(int l, int s, int o) {
        return l * W::STRIDE_X + s * W::DILATION_X == o;
    }
};

// The same for the gradient of the image, which reads that of the results. L is a multiple of the
// stride, so that all runs look alike.
template <typename W, int L> struct Backward {
    static const int LOW =
        floor_quotient(W::PADDING_X - (W::COLUMNS - 1) * W::DILATION_X, W::STRIDE_X);
    static const int SPAN = floor_quotient(L - 1 + W::PADDING_X, W::STRIDE_X) - LOW + 1;
    static __device__ __forceinline__ int row(int target, int tap) {
        int place = target + W::PADDING_Y - tap * W::DILATION_Y;
        return place >= 0 && place % W::STRIDE_Y == 0 ? place / W::STRIDE_Y : -1;
    }
    static __device__ __forceinline__ int first(int target) {
        return target / W::STRIDE_X + LOW;
    }
    static __device__ __forceinline__ bool meets(int l, int s, int o) {
        return l + W::PADDING_X - s * W::DILATION_X == (o + LOW) * W::STRIDE_X;
    }
};

// Images that are read, of `height` and `width`, and those whose pixels are gone through.
struct Planes {
    i32 channels, height, width, rows, columns;
    u32 count;
    Divisor runs, lines;
};

// A run: its image, its row, and its first column.
struct Run {
    i32 image, row, column;
    __device__ __forceinline__ Run(const Planes& planes, u32 index, int length) {
        u32 line = planes.runs.quotient(index), which = planes.lines.quotient(line);
        image = (i32)which;
        row = (i32)(line - which * planes.lines.by);
        column = (i32)(index - line * planes.runs.by) * length;
    }
};

template <typename T, int V> __device__ __forceinline__ Pack<T, V> zeros() {
    Pack<T, V> pack;
    pack.word = typename Word<V * sizeof(T)>::type();
    return pack;
}

// N pixels of a row from `first` on; those beside the image are zero.
template <int N, int V, typename T>
__device__ __forceinline__ void read_row(
    const T* line, i32 first, i32 width, i32 channels, Pack<T, V> (&pixels)[N]) {
#pragma unroll
    for (int o = 0; o < N; o++) {
        bool inside = (u32)(first + o) < (u32)width;
        pixels[o] = inside ? packed<V>(line + (i64)(first + o) * channels) : zeros<T, V>();
    }
}

// `meet(tap, l, v, pixel)` for all pixels that the results l of a run see, and each of V channels.
template <typename Way, typename W, int V, int L, typename T, typename Meet>
__device__ __forceinline__ void each_meeting(
    const T* image, const Run& run, const Planes& planes, Meet meet) {
    typedef typename Computed<T>::type A;
#pragma unroll
    for (int r = 0; r < W::ROWS; r++) {
        i32 y = Way::row(run.row, r);
        if ((u32)y >= (u32)planes.height) continue;
        Pack<T, V> pixels[Way::SPAN];
        i64 line = ((i64)run.image * planes.height + y) * planes.width;
        read_row(image + line * planes.channels, Way::first(run.column), planes.width,
                 planes.channels, pixels);
#pragma unroll
        for (int o = 0; o < Way::SPAN; o++)
#pragma unroll
            for (int s = 0; s < W::COLUMNS; s++)
#pragma unroll
                for (int l = 0; l < L; l++)
                    if (Way::meets(l, s, o))
#pragma unroll
                        for (int v = 0; v < V; v++)
                            meet(r * W::COLUMNS + s, l, v, (A)wide(pixels[o].at[v]));
    }
}

template <typename Way, typename W, int V, int L, typename T>
__device__ __forceinline__ void depthwise(
    const T* image, const T* filters, T* out, const Planes& planes) {
    typedef typename Computed<T>::type A;
    i32 channel = (i32)(blockIdx.y * blockDim.x + threadIdx.x) * V;
    if (channel >= planes.channels) return;
    A kept[W::TAPS][V];
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int tap = 0; tap < W::TAPS; tap++)
            kept[tap][v] = (A)wide(filters[(channel + v) * W::TAPS + tap]);
    for (u32 index = blockIdx.x * blockDim.y + threadIdx.y; index < planes.count;
         index += gridDim.x * blockDim.y) {
        Run run(planes, index, L);
        A sums[L][V];
#pragma unroll
        for (int l = 0; l < L; l++)
#pragma unroll
            for (int v = 0; v < V; v++) sums[l][v] = (A)0;
        each_meeting<Way, W, V, L>(
            image + channel, run, planes, [&](int tap, int l, int v, A pixel) {
                sums[l][v] += pixel * kept[tap][v];
            });
        i64 place = ((i64)run.image * planes.rows + run.row) * planes.columns + run.column;
#pragma unroll
        for (int l = 0; l < L; l++)
            if (run.column + l < planes.columns)
                store<V>(out + (place + l) * planes.channels + channel, sums[l]);
    }
}

// The gradient of the filters: each block adds up its runs, to partial[block][tap][channel].
template <typename W, int V, int L, typename T, typename A>
__device__ __forceinline__ void block_depthwise_weight(
    const T* image, const T* gradient, A* partial, const Planes& planes) {
    typedef Forward<W, L> Way;
    __shared__ A shared[MOST_THREADS * V];
    i32 channel = (i32)(blockIdx.y * blockDim.x + threadIdx.x) * V;
    A sums[W::TAPS][V];
#pragma unroll
    for (int tap = 0; tap < W::TAPS; tap++)
#pragma unroll
        for (int v = 0; v < V; v++) sums[tap][v] = (A)0;
    u32 end = channel < planes.channels ? planes.count : 0u;
    for (u32 index = blockIdx.x * blockDim.y + threadIdx.y; index < end;
         index += gridDim.x * blockDim.y) {
        Run run(planes, index, L);
        Pack<T, V> slopes[L];
        i64 place = ((i64)run.image * planes.rows + run.row) * planes.columns;
        read_row(gradient + place * planes.channels + channel, run.column, planes.columns,
                 planes.channels, slopes);
        each_meeting<Way, W, V, L>(
            image + channel, run, planes, [&](int tap, int l, int v, A pixel) {
                sums[tap][v] += pixel * (A)wide(slopes[l].at[v]);
            });
    }
    int block_channels = blockDim.x * V, thread = threadIdx.y * blockDim.x + threadIdx.x;
    i32 begin = (i32)blockIdx.y * block_channels;
#pragma unroll
    for (int tap = 0; tap < W::TAPS; tap++) {
        // What was added up for the tap before has been read by then.
        __syncthreads();
#pragma unroll
        for (int v = 0; v < V; v++) shared[thread * V + v] = sums[tap][v];
        __syncthreads();
        A* here = partial + ((i64)blockIdx.x * W::TAPS + tap) * planes.channels;
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
