// Adding at computed positions, in an order that does not change from run to run: every place has
// one thread that adds to it. An update at a position that is not there is not added, and leaves
// nan in what else is added to.
#pragma once
#include "gather.cuh"
#include "sort.cuh"

// What updates are summed in: halves in floats, and integers without a sign, which may wrap.
template <typename T> struct Sum {
    typedef u32 type;
    static __device__ __forceinline__ void spoil(type&) {}
};
template <> struct Sum<i64> {
    typedef u64 type;
    static __device__ __forceinline__ void spoil(type&) {}
};
template <> struct Sum<u64> : Sum<i64> {};
template <> struct Sum<double> {
    typedef double type;
    static __device__ __forceinline__ void spoil(type& sum) { sum = __longlong_as_double(-1); }
};
template <> struct Sum<float> {
    typedef float type;
    static __device__ __forceinline__ void spoil(type& sum) { sum = bits_to_float(~0u); }
};
template <> struct Sum<half_t> : Sum<float> {};
template <> struct Sum<bfloat_t> : Sum<float> {};

// --- few updates: the thread of an element looks at all of them

// `elements` walks out, x, updates, positions and the place along the axis, V elements at a time;
// the steps lead from one of the V to the next. `added` walks the updates of a column.
template <typename T, typename Position, int V, typename Index>
__device__ __forceinline__ void scatter_scanning(
    T* out, const T* x, const T* updates, const Position* positions, const StridedAxes<5>& elements,
    i64 x_step, i64 update_step, i64 place_step, const StridedAxes<2>& added, u32 additions,
    i64 length, Index count) {
    typedef typename Sum<T>::type S;
    for (Index i = grid_index<Index>(); i < count; i += grid_stride<Index>()) {
        i64 at[5];
        locate(elements, i, at);
        S sums[V];
#pragma unroll
        for (int v = 0; v < V; v++) sums[v] = (S)wide(x[at[1] + v * x_step]);
        for (u32 k = 0; k < additions; k++) {
            i64 from[2];
            locate(added, k, from);
            i64 place = place_of(positions[at[3] + from[1]], length);
#pragma unroll
            for (int v = 0; v < V; v++) {
                if (place < 0) Sum<T>::spoil(sums[v]);
                else if (place == at[4] + v * place_step)
                    sums[v] += (S)wide(updates[at[2] + from[0] + v * update_step]);
            }
        }
        Pack<T, V> results;
#pragma unroll
        for (int v = 0; v < V; v++) results.each[v] = Stored<T>::from(sums[v]);
        *(Pack<T, V>*)(out + at[0]) = results;
    }
}

// --- many updates: sorted by the row they are added to, so that those of a row lie together

// The row of an update of a position that is not there: behind all others.
const u32 NOWHERE = ~0u;
__device__ __forceinline__ u32 row_of(Item item) { return (u32)(item >> 32); }

// The item of update k: `in_column` updates belong to each column of `length` rows.
template <typename Position> struct Targets {
    const Position* positions;
    const StridedAxes<2>* added;
    u32 in_column;
    i64 length;
    __device__ __forceinline__ Item operator()(u32, u32 k) const {
        i64 at[2];
        locate(*added, k, at);
        i64 place = place_of(positions[at[1]], length);
        Item item;
        set_item(item, place < 0 ? NOWHERE : (u32)(k / in_column * length + place), k);
        return item;
    }
};

template <typename T, int V> struct Scatter {
    typedef typename Sum<T>::type S;
    typedef Pack<S, V> Sums;
    T* out;
    const T* updates;
    const Item* items;
    // Of each chunk: the sum of a row that began before it, and of one that goes on behind it.
    Sums* heads;
    Sums* tails;
    const StridedAxes<1>* rows;     // a row in out
    const StridedAxes<2>* columns;  // V columns in out and updates
    const StridedAxes<2>* added;    // an update in updates and positions
    u32 additions, chunk, column_count;

    __device__ __forceinline__ static void add(Sums& sums, const Sums& more) {
#pragma unroll
        for (int v = 0; v < V; v++) sums.each[v] += more.each[v];
    }

    __device__ __forceinline__ void add_to_row(u32 row, i64 column, Sums sums) const {
        i64 at[1];
        locate(*rows, row, at);
        Pack<T, V>* place = (Pack<T, V>*)(out + at[0] + column);
        bool spoilt = row_of(items[additions - 1]) == NOWHERE;
        Pack<T, V> old = *place, result;
#pragma unroll
        for (int v = 0; v < V; v++) {
            S sum = (S)wide(old.each[v]) + sums.each[v];
            if (spoilt) Sum<T>::spoil(sum);
            result.each[v] = Stored<T>::from(sum);
        }
        *place = result;
    }

    // Sum the rows of one chunk of sorted updates, in V columns.
    __device__ __forceinline__ void sum_chunk(u32 number, u32 column) const {
        const int AHEAD = 8;
        u32 begin = number * chunk;
        u32 end = additions - begin < chunk ? additions : begin + chunk;
        i64 beside[2];
        locate(*columns, column, beside);
        u32 row = row_of(items[begin]);
        bool began_before = begin > 0 && row_of(items[begin - 1]) == row;
        u64 mine = (u64)number * column_count + column;
        Sums sums = {};
        for (u32 k = begin; k < end; k += AHEAD) {
            // Updates are asked for before any is needed: they come from all over the memory.
            u32 targets[AHEAD];
            Pack<T, V> values[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                targets[j] = NOWHERE;
                if (k + j >= end) continue;
                Item item = items[k + j];
                targets[j] = row_of(item);
                if (targets[j] == NOWHERE) continue;
                i64 at[2];
                locate(*added, position_of(item), at);
                values[j] = *(const Pack<T, V>*)(updates + beside[1] + at[0]);
            }
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                if (targets[j] == NOWHERE) continue;
                if (targets[j] != row) {
                    if (began_before) heads[mine] = sums;
                    else add_to_row(row, beside[0], sums);
                    began_before = false;
                    row = targets[j];
                    sums = {};
                }
#pragma unroll
                for (int v = 0; v < V; v++) sums.each[v] += (S)wide(values[j].each[v]);
            }
        }
        if (row == NOWHERE) return;
        bool goes_on = end < additions && row_of(items[end]) == row;
        if (began_before) heads[mine] = sums;
        else if (goes_on) tails[mine] = sums;
        else add_to_row(row, beside[0], sums);
    }

    // Where a row begins in this chunk and goes on behind it, put its parts together.
    __device__ __forceinline__ void join_chunks(u32 number, u32 column) const {
        u32 begin = number * chunk;
        u32 end = additions - begin < chunk ? additions : begin + chunk;
        if (end == additions) return;
        u32 row = row_of(items[end - 1]);
        if (row == NOWHERE || row_of(items[end]) != row) return;
        if (begin > 0 && row_of(items[begin - 1]) == row) return;
        u32 low = end, high = additions;
        while (low < high) {
            u32 middle = low + (high - low) / 2;
            if (row_of(items[middle]) == row) low = middle + 1;
            else high = middle;
        }
        u32 last = (low - 1) / chunk;
        Sums sums = tails[(u64)number * column_count + column];
#pragma unroll 8
        for (u32 other = number + 1; other <= last; other++)
            add(sums, heads[(u64)other * column_count + column]);
        i64 beside[2];
        locate(*columns, column, beside);
        add_to_row(row, beside[0], sums);
    }
};
