// Normalisation of images, over the batch or over groups of channels: sums of parts of the data,
// statistics from these, then all elements. An image is rows (its pixels, or those of the whole
// batch) by channels, and rows are cut into chunks. A thread has V neighbours: channels of a row,
// or (PLANES) rows of a channel.
#pragma once
#include "row_primitives.cuh"

template <int R, int A, typename I> struct Images {
    StridedLayout<R, A, I> rows;
    I image[A], channel[A];  // strides
    I channels, length, chunk, chunks;
};

// What a thread has to do: its image, its first channel, and the rows from `row` to `end` in steps.
template <bool PLANES, int V, int R, int A, typename I> struct Share {
    const Images<R, A, I>& in;
    I image, chunk, channel, row, end, step;
    I base[A];

    __device__ __forceinline__ Share(const Images<R, A, I>& in) : in(in) {
        I block = blockIdx.x, across = PLANES ? 1 : blockDim.x * V;
        I blocks = PLANES ? in.channels : (in.channels + across - 1) / across;
        chunk = block / blocks % in.chunks;
        image = block / blocks / in.chunks;
        channel = block % blocks * across + (PLANES ? 0 : threadIdx.x * V);
        row = chunk * in.chunk + (PLANES ? thread_of_block() * V : threadIdx.y);
        step = PLANES ? blockDim.x * blockDim.y * V : blockDim.y;
        end = (chunk + 1) * in.chunk < in.length ? (chunk + 1) * in.chunk : in.length;
        if (channel >= in.channels) end = row;
#pragma unroll
        for (int a = 0; a < A; a++)
            base[a] = image * in.image[a] + channel * in.channel[a];
    }

    __device__ __forceinline__ void places(I at, I* found) const {
        in.rows.at(at, found);
#pragma unroll
        for (int a = 0; a < A; a++) found[a] += base[a];
    }

    // Numbers of which every channel has one: this thread's, or 0 where it has no channel.
    template <typename T, typename S>
    __device__ __forceinline__ void of_channels(const T* vector, I stride, S* values) const {
#pragma unroll
        for (int v = 0; v < V; v++) {
            I place = (channel + (PLANES ? 0 : v)) * stride;
            values[v] = channel < in.channels ? (S)wide(vector[place]) : (S)0;
        }
    }

    // Where the sums of this chunk are: those of all channels, twice.
    __device__ __forceinline__ double* sums(double* partial) const {
        return partial + ((i64)image * in.chunks + chunk) * 2 * in.channels;
    }
};

template <typename A> __device__ __forceinline__ A finite_or_zero(A x) {
    return x - x == (A)0 ? x : (A)0;
}

// --- sums

// Two sums over the rows of a chunk for every channel; `add(row, one, two)` adds to them. They are
// taken in the type of computation by a thread and in double between threads.
// `kept` is shared memory for what 256 threads have.
template <typename A, bool PLANES, int V, typename Place, typename Add>
__device__ __forceinline__ void block_sums(
    const Place& here, double* partial, double* kept, Add add) {
    A one[V], two[V];
#pragma unroll
    for (int v = 0; v < V; v++) one[v] = two[v] = (A)0;
#pragma unroll 4
    for (auto row = here.row; row < here.end; row += here.step) add(row, one, two);
    double* target = here.sums(partial);
    if constexpr (PLANES) {
        double both[2] = {0.0, 0.0};
#pragma unroll
        for (int v = 0; v < V; v++) {
            both[0] += (double)one[v];
            both[1] += (double)two[v];
        }
        both[0] = block_sum(both[0]);
        both[1] = block_sum(both[1]);
        if (thread_of_block() == 0) {
            target[here.channel] = both[0];
            target[here.in.channels + here.channel] = both[1];
        }
    } else {
        int across = blockDim.x * V, thread = thread_of_block();
#pragma unroll
        for (int v = 0; v < V; v++) {
            kept[thread * V + v] = (double)one[v];
            kept[(256 + thread) * V + v] = (double)two[v];
        }
        __syncthreads();
        auto first = here.channel - threadIdx.x * V;
        for (int i = thread; i < 2 * across; i += blockDim.x * blockDim.y) {
            int which = i / across, column = i % across;
            double total = 0.0;
            for (int row = 0; row < blockDim.y; row++)
                total += kept[which * 256 * V + row * across + column];
            if (first + column < here.in.channels)
                target[which * here.in.channels + first + column] = total;
        }
    }
}

// Of x less the first row of its image, and of the squares of that: a mean that is large against
// the deviation costs no accuracy.
template <bool PLANES, int V, typename T, int R, typename I>
__device__ __forceinline__ void block_image_sums(
    const T* x, const Images<R, 1, I>& in, double* partial, double* kept) {
    typedef typename Computed<T>::type A;
    Share<PLANES, V, R, 1, I> here(in);
    A pivot[V];
    if (in.length > 0) here.of_channels(x + here.image * in.image[0], in.channel[0], pivot);
#pragma unroll
    for (int v = 0; v < V; v++) pivot[v] = finite_or_zero(pivot[v]);
    block_sums<A, PLANES, V>(here, partial, kept, [&](I row, A* one, A* two) {
        I place[1];
        A values[V];
        here.places(row, place);
        load<V>(x + place[0], values);
#pragma unroll
        for (int v = 0; v < V; v++) {
            A away = values[v] - pivot[v];
            one[v] += away;
            two[v] += away * away;
        }
    });
}

// --- statistics

struct Moments { double mean, variance; };

// From the sums of x - pivot and of its squares over `count` numbers.
__device__ __forceinline__ Moments moments(double one, double two, double pivot, double count) {
    double shift = one / count, variance = two / count - shift * shift;
    // Rounding may make it negative; a nan stays one.
    return {pivot + shift, variance < 0.0 ? 0.0 : variance};
}

__device__ __forceinline__ double inverse_deviation(double variance, double eps) {
    return 1.0 / sqrt(variance + eps);
}

// A vector with the distance between its elements.
template <typename T, typename I> struct Strided {
    T* first;
    I step;
    __device__ __forceinline__ T& operator[](I index) const { return first[index * step]; }
};

template <typename T, typename I>
__device__ __forceinline__ Strided<T, I> strided(T* first, I step) {
    return {first, step};
}

// All sums of a channel over all parts: `blockDim.y` threads share a channel, and the first of them
// is given the result.
template <typename S, typename I, int SUMS>
__device__ __forceinline__ void block_totals(
    const S* partial, I parts, I apart, I channels, I channel, double (&found)[SUMS]) {
    __shared__ double kept[SUMS][512];
    int thread = thread_of_block();
#pragma unroll
    for (int sum = 0; sum < SUMS; sum++) found[sum] = 0.0;
    if (channel < channels) {
#pragma unroll 4
        for (I part = threadIdx.y; part < parts; part += blockDim.y) {
            const S* sums = partial + (i64)part * apart;
#pragma unroll
            for (int sum = 0; sum < SUMS; sum++)
                found[sum] += (double)sums[sum * channels + channel];
        }
    }
#pragma unroll
    for (int sum = 0; sum < SUMS; sum++) kept[sum][thread] = found[sum];
    __syncthreads();
    if (threadIdx.y == 0)
        for (int row = 1; row < blockDim.y; row++) {
#pragma unroll
            for (int sum = 0; sum < SUMS; sum++)
                found[sum] += kept[sum][row * blockDim.x + threadIdx.x];
        }
}

// Of a batch: mean, variance, and the factors of y = (x - mean) * factor + shift, for a channel.
template <typename T, typename P, typename A, typename I> struct BatchStatistics {
    Strided<const T, I> x;
    I channels;
    double count, eps;
    Strided<const P, I> scale, shift;
    Strided<A, I> mean, variance;
    A* factors;

    __device__ __forceinline__ void operator()(I channel, const double* both) const {
        double pivot = count > 0.0 ? (double)finite_or_zero(wide(x[channel])) : 0.0;
        Moments found = moments(both[0], both[1], pivot, count);
        // The outputs may lie where scale and shift do: these are read first.
        double gain = (double)wide(scale[channel]);
        factors[2 * channels + channel] = (A)wide(shift[channel]);
        mean[channel] = factors[channel] = (A)found.mean;
        variance[channel] = (A)found.variance;
        factors[channels + channel] = (A)(gain * inverse_deviation((double)(A)found.variance, eps));
    }
};

// The gradients of scale and shift, and the factors f, a, b and the mean of
// dx = f * g - a - (x - mean) * b; with RELU also the shift that its mask depends on.
template <bool RELU, typename P, typename M, typename A, typename I> struct BatchGradients {
    I channels;
    double count, eps;
    Strided<const P, I> scale, shift;
    Strided<const M, I> mean, variance;
    Strided<P, I> for_scale, for_shift;
    A* factors;

    __device__ __forceinline__ void operator()(I channel, const double* both) const {
        double inverse = inverse_deviation((double)wide(variance[channel]), eps);
        double factor = (double)wide(scale[channel]) * inverse;
        // The outputs may lie where the inputs do, so all of these are read first.
        if (RELU) factors[4 * channels + channel] = (A)wide(shift[channel]);
        factors[channel] = (A)factor;
        factors[channels + channel] = (A)(factor * both[0] / count);
        factors[2 * channels + channel] = (A)(factor * both[1] * inverse * inverse / count);
        factors[3 * channels + channel] = (A)wide(mean[channel]);
        for_scale[channel] = Stored<P>::from((typename Computed<P>::type)(both[1] * inverse));
        for_shift[channel] = Stored<P>::from((typename Computed<P>::type)both[0]);
    }
};

// `each(channel, both sums)` for the channels of a block of TOTALS_BLOCK.
template <typename Each, typename I>
__device__ __forceinline__ void block_of_batch(
    const double* partial, I chunks, I channels, const Each& each) {
    I channel = blockIdx.x * blockDim.x + threadIdx.x;
    double both[2];
    block_totals(partial, chunks, 2 * channels, channels, channel, both);
    if (threadIdx.y == 0 && channel < channels) each(channel, both);
}

// Of an image's group, which a warp takes. `partial` has the sums of the image's chunks; where the
// first are, the means of channels are kept on the way.
template <typename T, typename P, typename A, typename I>
__device__ __forceinline__ void warp_group_statistics(
    const T* x, I x_image, I x_channel, double* partial, I images, I chunks, I channels, I groups,
    double count, double eps, Strided<const P, I> scale, Strided<const P, I> shift,
    A* mean, I mean_image, I mean_group, A* variance, I variance_image, I variance_group,
    A* factors) {
    I which = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (which >= images * groups) return;
    I image = which / groups, group = which % groups, each = channels / groups;
    I begin = group * each + threadIdx.x % 32, end = (group + 1) * each;
    double* sums = partial + (i64)image * chunks * 2 * channels;
    double total = 0.0, spread = 0.0;
    for (I channel = begin; channel < end; channel += 32) {
        double one = 0.0, two = 0.0, pivot = 0.0;
        for (I chunk = 0; chunk < chunks; chunk++) {
            one += sums[(i64)chunk * 2 * channels + channel];
            two += sums[(i64)chunk * 2 * channels + channels + channel];
        }
        if (count > 0.0)
            pivot = (double)finite_or_zero(wide(x[image * x_image + channel * x_channel]));
        Moments found = moments(one, two, pivot, count);
        sums[channel] = found.mean;
        total += found.mean;
        spread += found.variance;
    }
    double middle = warp_sum(total) / (double)each;
    for (I channel = begin; channel < end; channel += 32) {
        double away = sums[channel] - middle;
        spread += away * away;
    }
    double found = warp_sum(spread) / (double)each, inverse = inverse_deviation(found, eps);
    A* own = factors + (i64)image * 3 * channels;
    for (I channel = begin; channel < end; channel += 32) {
        own[channel] = (A)middle;
        own[channels + channel] = (A)((double)wide(scale[channel]) * inverse);
        own[2 * channels + channel] = (A)wide(shift[channel]);
    }
    if (threadIdx.x % 32 == 0) {
        mean[image * mean_image + group * mean_group] = (A)middle;
        variance[image * variance_image + group * variance_group] = (A)found;
    }
}

// The factors of the gradient of a group, as for a batch. Where the first sums of a channel are,
// its part of the gradients of shift and scale is left.
template <typename P, typename M, typename A, typename I>
__device__ __forceinline__ void warp_group_gradients(
    double* partial, I images, I chunks, I channels, I groups, double count, double eps,
    Strided<const P, I> scale, const M* mean, I mean_image, I mean_group,
    const M* variance, I variance_image, I variance_group, A* factors) {
    I which = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (which >= images * groups) return;
    I image = which / groups, group = which % groups, each = channels / groups;
    I begin = group * each + threadIdx.x % 32, end = (group + 1) * each;
    double* sums = partial + (i64)image * chunks * 2 * channels;
    double middle = (double)wide(mean[image * mean_image + group * mean_group]);
    double inverse = inverse_deviation(
        (double)wide(variance[image * variance_image + group * variance_group]), eps);
    double plain = 0.0, along = 0.0;
    for (I channel = begin; channel < end; channel += 32) {
        double one = 0.0, two = 0.0, gain = (double)wide(scale[channel]);
        for (I chunk = 0; chunk < chunks; chunk++) {
            one += sums[(i64)chunk * 2 * channels + channel];
            two += sums[(i64)chunk * 2 * channels + channels + channel];
        }
        plain += gain * one;
        along += gain * two;
        sums[channel] = one;
        sums[channels + channel] = two * inverse;
    }
    double share = 1.0 / (count * (double)each);
    double level = warp_sum(plain) * inverse * share;
    double slant = warp_sum(along) * inverse * inverse * inverse * share;
    A* own = factors + (i64)image * 4 * channels;
    for (I channel = begin; channel < end; channel += 32) {
        own[channel] = (A)((double)wide(scale[channel]) * inverse);
        own[channels + channel] = (A)level;
        own[2 * channels + channel] = (A)slant;
        own[3 * channels + channel] = (A)middle;
    }
}

// The gradients of scale and shift from sums of parts, plain ones before those of products; `row`
// leads to the elements of both, and to those of what a third sum is written to, if there is one.
template <typename S, typename P, typename Q, int R, int SUMS, typename I>
__device__ __forceinline__ void block_parameter_gradients(
    const S* partial, I parts, I apart, I channels, P* for_scale, P* for_shift, Q* third,
    const StridedLayout<R, SUMS, I>& row) {
    I channel = blockIdx.x * blockDim.x + threadIdx.x, places[SUMS];
    double found[SUMS];
    block_totals(partial, parts, apart, channels, channel, found);
    if (threadIdx.y || channel >= channels) return;
    typedef typename Computed<P>::type A;
    row.at(channel, places);
    for_scale[places[0]] = Stored<P>::from((A)found[1]);
    for_shift[places[1]] = Stored<P>::from((A)found[0]);
    if constexpr (SUMS > 2)
        third[places[2]] = Stored<Q>::from((typename Computed<Q>::type)found[2]);
}
