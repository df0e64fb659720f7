// Softmax, its logarithm and cross entropy, with their gradients: a group takes a sample, and keeps
// the numbers of its classes in registers if they fit. Else they are read twice: once for the
// largest and the sum together, once for the result.
#pragma once
#include "row_primitives.cuh"

// Numbers of one sample, a class each.
template <typename T, typename I> struct Classes {
    T* first;
    I step;

    template <int V, typename A> __device__ __forceinline__ void load(int index, A* values) const {
        ::load<V>(first + index * step, values);
    }
    template <int V, typename A>
    __device__ __forceinline__ void store(int index, const A* values) const {
        ::store<V>(first + index * step, values);
    }
};

template <typename T, typename I>
__device__ __forceinline__ Classes<T, I> classes_at(T* array, I place, I step) {
    return {array + place, step};
}

// Sums along a row: a thread that has a long row to itself adds up in double.
template <typename Group, typename A> struct Added { typedef A type; };
template <int K, int V, typename A> struct Added<thread_group<K, V>, A> { typedef double type; };

// The largest number of a sample, and the sum of exp(x - largest).
template <typename A> struct Level { A largest, total; };

// x less the largest, and 0 where x is +inf.
template <typename A> __device__ __forceinline__ A below(A x, A largest) {
    return x == infinity_like(x) ? (A)0 : x - largest;
}

// What a sum is worth once its largest number is another one.
template <typename S, typename A> __device__ __forceinline__ S moved(S total, A from, A to) {
    return from == to ? total : total * (S)op_exp(from - to);
}

// Afterwards `kept` has exp(x - largest) if the group keeps anything.
template <typename Group, typename A, typename T, typename I>
__device__ __forceinline__ Level<A> level_of(
    Classes<T, I> x, int length, Kept<Group, A>& kept) {
    typedef typename Added<Group, A>::type S;
    A largest = -infinity_like((A)0);
    S total = (S)0;
    if constexpr (Group::K > 0) {
        each<Group>(length, [&](int k, int index) {
            x.template load<Group::V>(index, kept.at + k);
#pragma unroll
            for (int v = 0; v < Group::V; v++) largest = op_maximum(largest, kept.at[k + v]);
        });
        largest = Group::max(largest);
        each<Group>(length, [&](int k, int index) {
#pragma unroll
            for (int v = 0; v < Group::V; v++) {
                kept.at[k + v] = op_exp(below(kept.at[k + v], largest));
                total += (S)kept.at[k + v];
            }
        });
        return {largest, (A)Group::sum((double)total)};
    } else {
        each<Group>(length, [&](int, int index) {
            x.template load<Group::V>(index, kept.at);
            A top = largest;
#pragma unroll
            for (int v = 0; v < Group::V; v++) top = kept.at[v] > top ? kept.at[v] : top;
            if (top > largest) {
                total = moved(total, largest, top);
                largest = top;
            }
            // Numbers of -inf add nothing; if there is no other, `below` makes all nan. A nan does.
            bool is_plain = op_abs(largest) < infinity_like(largest);
#pragma unroll
            for (int v = 0; v < Group::V; v++) {
                A value = kept.at[v];
                if (is_plain) total += (S)op_exp(value - largest);
                else if (value != -infinity_like(value)) total += (S)op_exp(below(value, largest));
            }
        });
        A highest = Group::max(largest);
        return {highest, (A)Group::sum((double)moved(total, largest, highest))};
    }
}

// The same with x itself in `values`, if the group keeps anything.
template <typename Group, typename A, typename T, typename I>
__device__ __forceinline__ Level<A> level_and_values(
    Classes<T, I> x, int length, Kept<Group, A>& kept, Kept<Group, A>& values) {
    each<Group>(Group::K ? length : 0, [&](int k, int index) {
        x.template load<Group::V>(index, values.at + k);
    });
    return level_of<Group, A>(x, length, kept);
}

// exp(x - largest) of V classes, from what was kept or computed again.
template <typename Group, typename A, typename T, typename I>
__device__ __forceinline__ void weights(
    Classes<T, I> x, Level<A> level, int k, int index, const Kept<Group, A>& kept, A* values) {
    if constexpr (Group::K == 0) x.template load<Group::V>(index, values);
#pragma unroll
    for (int v = 0; v < Group::V; v++)
        values[v] = Group::K ? kept.at[k + v] : op_exp(below(values[v], level.largest));
}

// --- softmax

template <typename Group, typename T, typename I>
__device__ __forceinline__ void softmax(Classes<const T, I> x, Classes<T, I> y, int length) {
    typedef typename Computed<T>::type A;
    Kept<Group, A> kept;
    Level<A> level = level_of<Group, A>(x, length, kept);
    each<Group>(length, [&](int k, int index) {
        A values[Group::V];
        weights<Group>(x, level, k, index, kept, values);
#pragma unroll
        for (int v = 0; v < Group::V; v++) values[v] = values[v] / level.total;
        y.template store<Group::V>(index, values);
    });
}

template <typename Group, typename T, typename I>
__device__ __forceinline__ void log_softmax(Classes<const T, I> x, Classes<T, I> y, int length) {
    typedef typename Computed<T>::type A;
    Kept<Group, A> kept, values;
    Level<A> level = level_and_values(x, length, kept, values);
    A logarithm = op_log(level.total);
    each<Group>(length, [&](int k, int index) {
        A results[Group::V];
        if (Group::K == 0) x.template load<Group::V>(index, values.at);
#pragma unroll
        for (int v = 0; v < Group::V; v++)
            results[v] = below(values.at[k + v], level.largest) - logarithm;
        y.template store<Group::V>(index, results);
    });
}

// LOGARITHM: of log_softmax. dx = y (g - sum(g y)), or g - exp(y) sum(g).
template <bool LOGARITHM, typename Group, typename T, typename I>
__device__ __forceinline__ void softmax_gradients(
    Classes<const T, I> g, Classes<const T, I> y, Classes<T, I> dx, int length) {
    typedef typename Computed<T>::type A;
    Kept<Group, A> gradient, value;
    typename Added<Group, A>::type total = 0;
    each<Group>(length, [&](int k, int index) {
        g.template load<Group::V>(index, gradient.at + k);
        y.template load<Group::V>(index, value.at + k);
#pragma unroll
        for (int v = 0; v < Group::V; v++)
            total += LOGARITHM ? gradient.at[k + v] : gradient.at[k + v] * value.at[k + v];
    });
    A common = (A)Group::sum((double)total);
    each<Group>(length, [&](int k, int index) {
        A results[Group::V];
        if (Group::K == 0) {
            g.template load<Group::V>(index, gradient.at);
            y.template load<Group::V>(index, value.at);
        }
#pragma unroll
        for (int v = 0; v < Group::V; v++) {
            A own = gradient.at[k + v], at = value.at[k + v];
            results[v] = LOGARITHM ? own - op_exp(at) * common : at * (own - common);
        }
        dx.template store<Group::V>(index, results);
    });
}

// --- cross entropy

// A label that is no class gives nan, and nothing is read for it.
template <typename Group, typename T, typename L, typename I>
__device__ __forceinline__ void cross_entropy(
    Classes<const T, I> logits, const L* label, T* loss, int length) {
    typedef typename Computed<T>::type A;
    Kept<Group, A> kept;
    Level<A> level = level_of<Group, A>(logits, length, kept);
    if (Group::lane()) return;
    i64 named = (i64)*label;
    A found = infinity_like((A)0) - infinity_like((A)0);
    if (named >= 0 && named < length) {
        A own[1];
        logits.template load<1>((int)named, own);
        found = op_log(level.total) - below(own[0], level.largest);
    }
    *loss = Stored<T>::from(found);
}

template <typename Group, typename T, typename L, typename I>
__device__ __forceinline__ void cross_entropy_gradients(
    const T* g, Classes<const T, I> logits, const L* label, Classes<T, I> dx, int length) {
    typedef typename Computed<T>::type A;
    Kept<Group, A> kept;
    Level<A> level = level_of<Group, A>(logits, length, kept);
    A gradient = (A)wide(*g);
    i64 named = (i64)*label;
    each<Group>(length, [&](int k, int index) {
        A values[Group::V];
        weights<Group>(logits, level, k, index, kept, values);
#pragma unroll
        for (int v = 0; v < Group::V; v++)
            values[v] = (values[v] / level.total - (named == index + v ? (A)1 : (A)0)) * gradient;
        dx.template store<Group::V>(index, values);
    });
}

// Both: the losses, and the gradients in the dtype of the logits, over which they may be written.
template <typename Group, typename A, typename T, typename L, typename I>
__device__ __forceinline__ void cross_entropy_with_gradient(
    const A* g, Classes<const T, I> logits, const L* label, A* loss, Classes<T, I> dx, int length) {
    i64 named = (i64)*label;
    bool known = named >= 0 && named < length;
    // What is written over has been read before the group's threads meet.
    A gradient = *g, own[1] = {(A)0};
    if (known) logits.template load<1>((int)named, own);
    Kept<Group, A> kept;
    Level<A> level = level_of<Group, A>(logits, length, kept);
    A share = (A)1 / level.total;
    each<Group>(length, [&](int k, int index) {
        A values[Group::V];
        weights<Group>(logits, level, k, index, kept, values);
        // The place of the label among these, of which few threads have one.
        i64 place = named - index;
        bool is_here = place >= 0 && place < Group::V;
#pragma unroll
        for (int v = 0; v < Group::V; v++) {
            values[v] *= share;
            if (is_here && place == v) values[v] -= (A)1;
            values[v] *= gradient;
        }
        dx.template store<Group::V>(index, values);
    });
    if (Group::lane()) return;
    A nothing = infinity_like((A)0) - infinity_like((A)0);
    *loss = known ? op_log(level.total) - below(own[0], level.largest) : nothing;
}

// With probabilities as targets: a target of 0 adds nothing, whatever its logit.
template <typename Group, typename T, typename I>
__device__ __forceinline__ void soft_cross_entropy(
    Classes<const T, I> logits, Classes<const T, I> targets, T* loss, int length) {
    typedef typename Computed<T>::type A;
    Kept<Group, A> kept, values;
    Level<A> level = level_and_values(logits, length, kept, values);
    A logarithm = op_log(level.total);
    typename Added<Group, A>::type total = 0;
    each<Group>(length, [&](int k, int index) {
        A shares[Group::V];
        if (Group::K == 0) logits.template load<Group::V>(index, values.at);
        targets.template load<Group::V>(index, shares);
#pragma unroll
        for (int v = 0; v < Group::V; v++)
            if (shares[v] != (A)0)
                total += shares[v] * (logarithm - below(values.at[k + v], level.largest));
    });
    double found = Group::sum((double)total);
    if (Group::lane() == 0) *loss = Stored<T>::from((A)found);
}

template <typename Group, typename T, typename I>
__device__ __forceinline__ void soft_cross_entropy_gradients(
    const T* g, Classes<const T, I> logits, Classes<const T, I> targets, Classes<T, I> dx,
    int length) {
    typedef typename Computed<T>::type A;
    Kept<Group, A> kept, shares;
    typename Added<Group, A>::type total = 0;
    each<Group>(length, [&](int k, int index) {
        targets.template load<Group::V>(index, shares.at + k);
#pragma unroll
        for (int v = 0; v < Group::V; v++) total += shares.at[k + v];
    });
    A amount = (A)Group::sum((double)total), gradient = (A)wide(*g);
    Level<A> level = level_of<Group, A>(logits, length, kept);
    each<Group>(length, [&](int k, int index) {
        A values[Group::V];
        weights<Group>(logits, level, k, index, kept, values);
        if (Group::K == 0) targets.template load<Group::V>(index, shares.at);
#pragma unroll
        for (int v = 0; v < Group::V; v++)
            values[v] = (values[v] / level.total * amount - shares.at[k + v]) * gradient;
        dx.template store<Group::V>(index, values);
    });
}
