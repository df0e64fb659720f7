// Softmax, its logarithm and cross entropy, with their gradients: a team takes a sample, and keeps
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
template <typename Team, typename A> struct Added { typedef A type; };
template <int K, int V, typename A> struct Added<thread_team<K, V>, A> { typedef double type; };

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

// Afterwards `kept` has exp(x - largest) if the team keeps anything.
template <typename Team, typename A, typename T, typename I>
__device__ __forceinline__ Level<A> level_of(
    Classes<T, I> x, int length, Kept<Team, A>& kept) {
    typedef typename Added<Team, A>::type S;
    A largest = -infinity_like((A)0);
    S total = (S)0;
    if constexpr (Team::K > 0) {
        each<Team>(length, [&](int k, int index) {
            x.template load<Team::V>(index, kept.at + k);
#pragma unroll
            for (int v = 0; v < Team::V; v++) largest = op_maximum(largest, kept.at[k + v]);
        });
        largest = Team::max(largest);
        each<Team>(length, [&](int k, int index) {
#pragma unroll
            for (int v = 0; v < Team::V; v++) {
                kept.at[k + v] = op_exp(below(kept.at[k + v], largest));
                total += (S)kept.at[k + v];
            }
        });
        return {largest, (A)Team::sum((double)total)};
    } else {
        each<Team>(length, [&](int, int index) {
            x.template load<Team::V>(index, kept.at);
#pragma unroll
            for (int v = 0; v < Team::V; v++) {
                A value = kept.at[v];
                // Numbers of -inf add nothing; if there is no other, `below` makes all nan.
                if (value == -infinity_like(value)) continue;
                if (value > largest) {
                    total = moved(total, largest, value);
                    largest = value;
                }
                total += value == largest ? (S)1 : (S)op_exp(value - largest);
            }
        });
        A highest = Team::max(largest);
        return {highest, (A)Team::sum((double)moved(total, largest, highest))};
    }
}

// The same with x itself in `values`, if the team keeps anything.
template <typename Team, typename A, typename T, typename I>
__device__ __forceinline__ Level<A> level_and_values(
    Classes<T, I> x, int length, Kept<Team, A>& kept, Kept<Team, A>& values) {
    each<Team>(Team::K ? length : 0, [&](int k, int index) {
        x.template load<Team::V>(index, values.at + k);
    });
    return level_of<Team, A>(x, length, kept);
}

// exp(x - largest) of V classes, from what was kept or computed again.
template <typename Team, typename A, typename T, typename I>
__device__ __forceinline__ void weights(
    Classes<T, I> x, Level<A> level, int k, int index, const Kept<Team, A>& kept, A* values) {
    if constexpr (Team::K == 0) x.template load<Team::V>(index, values);
#pragma unroll
    for (int v = 0; v < Team::V; v++)
        values[v] = Team::K ? kept.at[k + v] : op_exp(below(values[v], level.largest));
}

// --- softmax

template <typename Team, typename T, typename I>
__device__ __forceinline__ void softmax(Classes<const T, I> x, Classes<T, I> y, int length) {
    typedef typename Computed<T>::type A;
    Kept<Team, A> kept;
    Level<A> level = level_of<Team, A>(x, length, kept);
    each<Team>(length, [&](int k, int index) {
        A values[Team::V];
        weights<Team>(x, level, k, index, kept, values);
#pragma unroll
        for (int v = 0; v < Team::V; v++) values[v] = values[v] / level.total;
        y.template store<Team::V>(index, values);
    });
}

template <typename Team, typename T, typename I>
__device__ __forceinline__ void log_softmax(Classes<const T, I> x, Classes<T, I> y, int length) {
    typedef typename Computed<T>::type A;
    Kept<Team, A> kept, values;
    Level<A> level = level_and_values(x, length, kept, values);
    A logarithm = op_log(level.total);
    each<Team>(length, [&](int k, int index) {
        A results[Team::V];
        if (Team::K == 0) x.template load<Team::V>(index, values.at);
#pragma unroll
        for (int v = 0; v < Team::V; v++)
            results[v] = below(values.at[k + v], level.largest) - logarithm;
        y.template store<Team::V>(index, results);
    });
}

// LOGARITHM: of log_softmax. dx = y (g - sum(g y)), or g - exp(y) sum(g).
template <bool LOGARITHM, typename Team, typename T, typename I>
__device__ __forceinline__ void softmax_slopes(
    Classes<const T, I> g, Classes<const T, I> y, Classes<T, I> dx, int length) {
    typedef typename Computed<T>::type A;
    Kept<Team, A> slope, value;
    typename Added<Team, A>::type total = 0;
    each<Team>(length, [&](int k, int index) {
        g.template load<Team::V>(index, slope.at + k);
        y.template load<Team::V>(index, value.at + k);
#pragma unroll
        for (int v = 0; v < Team::V; v++)
            total += LOGARITHM ? slope.at[k + v] : slope.at[k + v] * value.at[k + v];
    });
    A common = (A)Team::sum((double)total);
    each<Team>(length, [&](int k, int index) {
        A results[Team::V];
        if (Team::K == 0) {
            g.template load<Team::V>(index, slope.at);
            y.template load<Team::V>(index, value.at);
        }
#pragma unroll
        for (int v = 0; v < Team::V; v++) {
            A own = slope.at[k + v], at = value.at[k + v];
            results[v] = LOGARITHM ? own - op_exp(at) * common : at * (own - common);
        }
        dx.template store<Team::V>(index, results);
    });
}

// --- cross entropy

// A label that is no class gives nan, and nothing is read for it.
template <typename Team, typename T, typename L, typename I>
__device__ __forceinline__ void cross_entropy(
    Classes<const T, I> logits, const L* label, T* loss, int length) {
    typedef typename Computed<T>::type A;
    Kept<Team, A> kept;
    Level<A> level = level_of<Team, A>(logits, length, kept);
    if (Team::lane()) return;
    i64 named = (i64)*label;
    A found = infinity_like((A)0) - infinity_like((A)0);
    if (named >= 0 && named < length) {
        A own[1];
        logits.template load<1>((int)named, own);
        found = op_log(level.total) - below(own[0], level.largest);
    }
    *loss = Stored<T>::from(found);
}

template <typename Team, typename T, typename L, typename I>
__device__ __forceinline__ void cross_entropy_slopes(
    const T* g, Classes<const T, I> logits, const L* label, Classes<T, I> dx, int length) {
    typedef typename Computed<T>::type A;
    Kept<Team, A> kept;
    Level<A> level = level_of<Team, A>(logits, length, kept);
    A slope = (A)wide(*g);
    i64 named = (i64)*label;
    each<Team>(length, [&](int k, int index) {
        A values[Team::V];
        weights<Team>(logits, level, k, index, kept, values);
#pragma unroll
        for (int v = 0; v < Team::V; v++)
            values[v] = (values[v] / level.total - (named == index + v ? (A)1 : (A)0)) * slope;
        dx.template store<Team::V>(index, values);
    });
}

// With probabilities as targets: a target of 0 adds nothing, whatever its logit.
template <typename Team, typename T, typename I>
__device__ __forceinline__ void soft_cross_entropy(
    Classes<const T, I> logits, Classes<const T, I> targets, T* loss, int length) {
    typedef typename Computed<T>::type A;
    Kept<Team, A> kept, values;
    Level<A> level = level_and_values(logits, length, kept, values);
    A logarithm = op_log(level.total);
    typename Added<Team, A>::type total = 0;
    each<Team>(length, [&](int k, int index) {
        A shares[Team::V];
        if (Team::K == 0) logits.template load<Team::V>(index, values.at);
        targets.template load<Team::V>(index, shares);
#pragma unroll
        for (int v = 0; v < Team::V; v++)
            if (shares[v] != (A)0)
                total += shares[v] * (logarithm - below(values.at[k + v], level.largest));
    });
    double found = Team::sum((double)total);
    if (Team::lane() == 0) *loss = Stored<T>::from((A)found);
}

template <typename Team, typename T, typename I>
__device__ __forceinline__ void soft_cross_entropy_slopes(
    const T* g, Classes<const T, I> logits, Classes<const T, I> targets, Classes<T, I> dx,
    int length) {
    typedef typename Computed<T>::type A;
    Kept<Team, A> kept, shares;
    typename Added<Team, A>::type total = 0;
    each<Team>(length, [&](int k, int index) {
        targets.template load<Team::V>(index, shares.at + k);
#pragma unroll
        for (int v = 0; v < Team::V; v++) total += shares.at[k + v];
    });
    A amount = (A)Team::sum((double)total), slope = (A)wide(*g);
    Level<A> level = level_of<Team, A>(logits, length, kept);
    each<Team>(length, [&](int k, int index) {
        A values[Team::V];
        weights<Team>(logits, level, k, index, kept, values);
        if (Team::K == 0) targets.template load<Team::V>(index, shares.at);
#pragma unroll
        for (int v = 0; v < Team::V; v++)
            values[v] = (values[v] / level.total * amount - shares.at[k + v]) * slope;
        dx.template store<Team::V>(index, values);
    });
}
