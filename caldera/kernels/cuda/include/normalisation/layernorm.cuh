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

// A number as it is when it has been stored and is read again.
template <typename T, typename A> __device__ __forceinline__ A as_stored(A value) {
    return (A)wide(Stored<T>::from(value));
}

// ADDS: of x + more, which is written to `total`. `rows` leads to rows of x, more, total and y, mean
// and variance; `row` to elements of x, more, total, y, scale and shift.
template <bool ADDS, typename Group, bool DENSE, typename T, typename B, typename Y, typename P,
          typename A, int R, int N, typename I>
__device__ __forceinline__ void layer_norm(
    const T* x, const B* more, T* total, Y* y, const P* scale, const P* shift, A* mean,
    A* variance, const StridedLayout<R, 6, I>& rows, const StridedLayout<N, 6, I>& row, I count,
    int length, double eps) {
    const int V = Group::V;
    I which = blockIdx.x * Group::count() + Group::index(), at[6];
    if (which >= count) return;
    rows.at(which, at);
    Kept<Group, A> kept;
    auto see = [&](const I* places, A* values) {
        load<V>(x + at[0] + places[0], values);
        if constexpr (ADDS) {
            A others[V];
            load<V>(more + at[1] + places[1], others);
#pragma unroll
            for (int v = 0; v < V; v++) values[v] = as_stored<T>(values[v] + others[v]);
        }
    };
    A pivot = (A)0, one = (A)0, two = (A)0;
    if (length > 0) {
        pivot = (A)wide(x[at[0]]);
        if constexpr (ADDS) pivot = as_stored<T>(pivot + (A)wide(more[at[1]]));
        pivot = finite_or_zero(pivot);
    }
    each<Group>(length, [&](int k, int index) {
        I places[6];
        inside<DENSE>(row, (I)index, places);
        see(places, kept.at + k);
#pragma unroll
        for (int v = 0; v < V; v++) {
            A away = kept.at[k + v] - pivot;
            one += away;
            two += away * away;
        }
    });
    double both[2] = {Group::sum((double)one), Group::sum((double)two)};
    Moments found = moments(both[0], both[1], (double)pivot, (double)length);
    A centre = (A)found.mean, inverse = (A)inverse_deviation(found.variance, eps);
    each<Group>(length, [&](int k, int index) {
        I places[6];
        A gain[V], offset[V], values[V];
        inside<DENSE>(row, (I)index, places);
        if (Group::K == 0) see(places, kept.at);
        load<V>(scale + places[4], gain);
        load<V>(shift + places[5], offset);
#pragma unroll
        for (int v = 0; v < V; v++)
            values[v] = fma((kept.at[k + v] - centre) * inverse, gain[v], offset[v]);
        // Only here has every thread read the pivot: the total may lie where x does.
        if constexpr (ADDS) store<V>(total + at[2] + places[2], kept.at + k);
        store<V>(y + at[3] + places[3], values);
    });
    if (Group::lane() == 0) {
        mean[at[4]] = centre;
        variance[at[5]] = (A)found.variance;
    }
}

// What a thread adds up for its columns of all rows: the gradients of scale and shift, and the
// gradient of x.
template <typename Group, typename A> struct Columns {
    Kept<Group, A> products, plain, totals;
};

// A column sum of all groups of a block, added up in the order of the groups.
template <typename Group, typename A>
__device__ __forceinline__ void block_column_part(
    const Kept<Group, A>& column, int length, A* sums) {
    // As many as a warp keeps; a block that is one group has nothing to add up.
    const int ROOM = Group::GROUPS > 1 ? 32 * Group::K * Group::V : 1;
    __shared__ A kept[Group::GROUPS][ROOM];
    A* own = Group::GROUPS > 1 ? kept[Group::index()] : sums;
    each<Group>(length, [&](int k, int index) {
#pragma unroll
        for (int v = 0; v < Group::V; v++) own[index + v] = column.at[k + v];
    });
    if constexpr (Group::GROUPS > 1) {
        __syncthreads();
        for (int column = threadIdx.x; column < length; column += blockDim.x) {
            A total = kept[0][column];
#pragma unroll
            for (int group = 1; group < Group::GROUPS; group++) total += kept[group][column];
            sums[column] = total;
        }
        // The next column sum takes the same room.
        __syncthreads();
    }
}

// The gradient of x, and for each block its sums for shift and scale, to partial[2][length]. ADDS:
// `more` is added to the gradient; ROUNDS: it is written to `rounded` as well; SUMS: its own sum is
// a third one in `partial`. `rows` leads to rows of x, g, dx, more and rounded, mean and variance;
// `row` to elements of x, g, dx, more, rounded and scale.
template <bool ADDS, bool ROUNDS, bool SUMS, typename Group, bool DENSE, typename T, typename G,
          typename B, typename H, typename P, typename M, typename A, int R, int N, typename I>
__device__ __forceinline__ void block_layer_gradients(
    const T* x, const G* g, T* dx, const B* more, H* rounded, const P* scale, const M* mean,
    const M* variance, const StridedLayout<R, 7, I>& rows, const StridedLayout<N, 6, I>& row,
    I count, int length, double eps, A* partial) {
    const int V = Group::V;
    A* sums = partial + (i64)blockIdx.x * (SUMS ? 3 : 2) * length;
    Columns<Group, A> columns;
#pragma unroll
    for (int k = 0; k < sizeof(columns.plain.at) / sizeof(A); k++)
        columns.products.at[k] = columns.plain.at[k] = columns.totals.at[k] = (A)0;
    I first = blockIdx.x * Group::count() + Group::index();
    for (I which = first; which < count; which += gridDim.x * Group::count()) {
        I at[7];
        rows.at(which, at);
        double wide_inverse = inverse_deviation((double)wide(variance[at[6]]), eps);
        A centre = (A)wide(mean[at[5]]), inverse = (A)wide_inverse, one = (A)0, two = (A)0;
        Kept<Group, A> gradient, away;
        // The columns of a long row are added up in memory.
        auto add_in_memory = [&](int place, A value) {
            sums[place] = which == first ? value : sums[place] + value;
        };
        // V elements: gradients, distances from the mean, gradients times scale.
        auto see = [&](const I* places, A* gradients, A* centred, A* scaled) {
            load<V>(g + at[1] + places[1], gradients);
            load<V>(x + at[0] + places[0], centred);
            load<V>(scale + places[5], scaled);
#pragma unroll
            for (int v = 0; v < V; v++) {
                centred[v] -= centre;
                scaled[v] *= gradients[v];
            }
        };
        each<Group>(length, [&](int k, int index) {
            I places[6];
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
                    add_in_memory(index + v, plain);
                    add_in_memory(length + index + v, product);
                }
            }
        });
        double both[2] = {Group::sum((double)one), Group::sum((double)two)};
        A level = (A)(wide_inverse * both[0] / (double)length);
        A slant = (A)(wide_inverse * wide_inverse * wide_inverse * both[1] / (double)length);
        each<Group>(length, [&](int k, int index) {
            I places[6];
            A scaled[V], values[V];
            inside<DENSE>(row, (I)index, places);
            if constexpr (Group::K > 0) {
                load<V>(scale + places[5], scaled);
#pragma unroll
                for (int v = 0; v < V; v++) scaled[v] *= gradient.at[k + v];
            } else {
                see(places, gradient.at, away.at, scaled);
            }
#pragma unroll
            for (int v = 0; v < V; v++)
                values[v] = scaled[v] * inverse - fma(away.at[k + v], slant, level);
            if constexpr (ADDS) {
                A others[V];
                load<V>(more + at[3] + places[3], others);
#pragma unroll
                for (int v = 0; v < V; v++) values[v] = as_stored<T>(values[v]) + others[v];
            }
            store<V>(dx + at[2] + places[2], values);
            if constexpr (ROUNDS || SUMS) {
#pragma unroll
                for (int v = 0; v < V; v++) values[v] = as_stored<T>(values[v]);
            }
            if constexpr (ROUNDS) store<V>(rounded + at[4] + places[4], values);
            if constexpr (SUMS) {
#pragma unroll
                for (int v = 0; v < V; v++) {
                    if constexpr (Group::K > 0) columns.totals.at[k + v] += values[v];
                    else add_in_memory(2 * length + index + v, values[v]);
                }
            }
        });
    }
    if constexpr (Group::K > 0) {
        block_column_part<Group>(columns.plain, length, sums);
        block_column_part<Group>(columns.products, length, sums + length);
        if constexpr (SUMS) block_column_part<Group>(columns.totals, length, sums + 2 * length);
    }
}
