// Layer normalisation: a group takes a row, and keeps it in registers if it fits.
#pragma once
#include "norm_statistics.cuh"

// Where an element of a row lies from the row's start; DENSE: all arrays hold rows without gaps.
template <bool DENSE, int R, int A, typename I>
__device__ __forceinline__ void inside(const StridedLayout<R, A, I>& row, I index, I* places) {
    if constexpr (DENSE) {
#pragma unroll
        for (int a = 0; a < A; a++) places[a] = index;
    } else {
        row.at(index, places);
    }
}

// `rows` leads to rows of x and y, mean and variance; `row` to elements of x, y, scale and shift.
template <typename Group, bool DENSE, typename T, typename Y, typename P, typename A, int R, int N,
          typename I>
__device__ __forceinline__ void layer_norm(
    const T* x, Y* y, const P* scale, const P* shift, A* mean, A* variance,
    const StridedLayout<R, 4, I>& rows, const StridedLayout<N, 4, I>& row, I count, int length,
    double eps) {
    I which = blockIdx.x * Group::count() + Group::index(), at[4];
    if (which >= count) return;
    rows.at(which, at);
    Kept<Group, A> kept;
    A pivot = length > 0 ? finite_or_zero((A)wide(x[at[0]])) : (A)0, one = (A)0, two = (A)0;
    each<Group>(length, [&](int k, int index) {
        I places[4];
        inside<DENSE>(row, (I)index, places);
        load<Group::V>(x + at[0] + places[0], kept.at + k);
#pragma unroll
        for (int v = 0; v < Group::V; v++) {
            A away = kept.at[k + v] - pivot;
            one += away;
            two += away * away;
        }
    });
    double both[2] = {Group::sum((double)one), Group::sum((double)two)};
    Moments found = moments(both[0], both[1], (double)pivot, (double)length);
    A centre = (A)found.mean, inverse = (A)inverse_deviation(found.variance, eps);
    each<Group>(length, [&](int k, int index) {
        I places[4];
        A gain[Group::V], offset[Group::V], values[Group::V];
        inside<DENSE>(row, (I)index, places);
        if (Group::K == 0) load<Group::V>(x + at[0] + places[0], kept.at);
        load<Group::V>(scale + places[2], gain);
        load<Group::V>(shift + places[3], offset);
#pragma unroll
        for (int v = 0; v < Group::V; v++)
            values[v] = fma((kept.at[k + v] - centre) * inverse, gain[v], offset[v]);
        store<Group::V>(y + at[1] + places[1], values);
    });
    if (Group::lane() == 0) {
        mean[at[2]] = centre;
        variance[at[3]] = (A)found.variance;
    }
}

// What a thread adds up for its columns of all rows: the gradients of scale and shift.
template <typename Group, typename A> struct Columns {
    Kept<Group, A> products, plain;
};

// The columns of all groups of a block, added up in the order of the groups.
template <typename Group, typename A>
__device__ __forceinline__ void block_column_parts(
    const Columns<Group, A>& columns, int length, A* sums) {
    // Twice as many as a warp keeps; a block that is one group has nothing to add up.
    const int ROOM = Group::GROUPS > 1 ? 64 * Group::K * Group::V : 1;
    __shared__ A kept[Group::GROUPS][ROOM];
    A* own = Group::GROUPS > 1 ? kept[Group::index()] : sums;
    each<Group>(length, [&](int k, int index) {
#pragma unroll
        for (int v = 0; v < Group::V; v++) {
            own[index + v] = columns.plain.at[k + v];
            own[length + index + v] = columns.products.at[k + v];
        }
    });
    if constexpr (Group::GROUPS > 1) {
        __syncthreads();
        for (int column = threadIdx.x; column < 2 * length; column += blockDim.x) {
            A total = kept[0][column];
#pragma unroll
            for (int group = 1; group < Group::GROUPS; group++) total += kept[group][column];
            sums[column] = total;
        }
    }
}

// The gradient of x, and for each block its sums for scale and shift, to partial[2][length].
// `rows` leads to rows of x, g and dx, mean and variance; `row` to elements of x, g, dx and scale.
template <typename Group, bool DENSE, typename T, typename G, typename P, typename M, typename A,
          int R, int N, typename I>
__device__ __forceinline__ void block_layer_gradients(
    const T* x, const G* g, T* dx, const P* scale, const M* mean, const M* variance,
    const StridedLayout<R, 5, I>& rows, const StridedLayout<N, 4, I>& row, I count, int length,
    double eps, A* partial) {
    const int V = Group::V;
    A* sums = partial + (i64)blockIdx.x * 2 * length;
    Columns<Group, A> columns;
#pragma unroll
    for (int k = 0; k < sizeof(columns.plain.at) / sizeof(A); k++)
        columns.products.at[k] = columns.plain.at[k] = (A)0;
    I first = blockIdx.x * Group::count() + Group::index();
    for (I which = first; which < count; which += gridDim.x * Group::count()) {
        I at[5];
        rows.at(which, at);
        double wide_inverse = inverse_deviation((double)wide(variance[at[4]]), eps);
        A centre = (A)wide(mean[at[3]]), inverse = (A)wide_inverse, one = (A)0, two = (A)0;
        Kept<Group, A> gradient, away;
        // V elements: gradients, distances from the mean, gradients times scale.
        auto see = [&](const I* places, A* gradients, A* centred, A* scaled) {
            load<V>(g + at[1] + places[1], gradients);
            load<V>(x + at[0] + places[0], centred);
            load<V>(scale + places[3], scaled);
#pragma unroll
            for (int v = 0; v < V; v++) {
                centred[v] -= centre;
                scaled[v] *= gradients[v];
            }
        };
        each<Group>(length, [&](int k, int index) {
            I places[4];
            A scaled[V];
            inside<DENSE>(row, (I)index, places);
            see(places, gradient.at + k, away.at + k, scaled);
#pragma unroll
            for (int v = 0; v < V; v++) {
                A plain = gradient.at[k + v], product = plain * (away.at[k + v] * inverse);
                one += scaled[v];
                two += scaled[v] * away.at[k + v];
                if constexpr (Group::K > 0) {
                    columns.plain.at[k + v] += plain;
                    columns.products.at[k + v] += product;
                } else {
                    // The columns of a long row are added up in memory.
                    bool begins = which == first;
                    sums[index + v] = begins ? plain : sums[index + v] + plain;
                    A* other = sums + length + index + v;
                    *other = begins ? product : *other + product;
                }
            }
        });
        double both[2] = {Group::sum((double)one), Group::sum((double)two)};
        A level = (A)(wide_inverse * both[0] / (double)length);
        A slant = (A)(wide_inverse * wide_inverse * wide_inverse * both[1] / (double)length);
        each<Group>(length, [&](int k, int index) {
            I places[4];
            A scaled[V], values[V];
            inside<DENSE>(row, (I)index, places);
            if constexpr (Group::K > 0) {
                load<V>(scale + places[3], scaled);
#pragma unroll
                for (int v = 0; v < V; v++) scaled[v] *= gradient.at[k + v];
            } else {
                see(places, gradient.at, away.at, scaled);
            }
#pragma unroll
            for (int v = 0; v < V; v++)
                values[v] = scaled[v] * inverse - fma(away.at[k + v], slant, level);
            store<V>(dx + at[2] + places[2], values);
        });
    }
    if constexpr (Group::K > 0) block_column_parts<Group>(columns, length, sums);
}
