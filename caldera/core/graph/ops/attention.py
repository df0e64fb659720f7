"""Attention as one op, with one op for its gradient.

Besides the result, the op returns the logarithm of each row's sum of exponentials, from which the
gradient recomputes the probabilities. A kernel therefore does not store the (T, S) matrix. For a
row whose keys are all masked, result and logarithm are 0 (its probabilities, exp(-inf - 0), are
then 0 as well). Half-precision inputs are computed in float32, and the logarithm is float32.
`compute` is the precision of products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from caldera.core.graph import Node, Nodes, Spec, composite, refuse_dtype, refuse_shape
from caldera.core.graph.ops import (
    Gradient,
    accumulator,
    add,
    broadcast,
    broadcast_to,
    cast,
    concat,
    constant,
    div,
    equal,
    exp,
    full,
    greater_equal,
    iota,
    isfinite,
    log,
    matmul,
    max_,
    mul,
    reshape,
    sub,
    sum_,
    sum_to,
    transpose,
    where,
    widen,
    widened,
)
from caldera.core.tensor import Shape, bool_, int64, is_float

HEADS_INSIDE = (0, 2, 1, 3)
"""Memory order of axes (N, heads, T, D) where the heads of a step form one vector."""


def _check(q: Node, k: Node, v: Node, masks: Nodes) -> None:
    if any(each.dtype != q.dtype or not is_float(each.dtype) for each in (q, k, v)):
        refuse_dtype("q, k and v of the same floating-point dtype", hint="cast them with op.cast")
    if min(len(each.shape) for each in (q, k, v)) < 2:
        refuse_shape("q (..., T, D), k (..., S, D) and v (..., S, E)")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        refuse_shape("q (..., T, D), k (..., S, D) and v (..., S, E), with D and S the same")
    batch = broadcast(*[Spec(each.shape[:-2], each.dtype) for each in (q, k, v)])
    for mask in masks:
        if mask.dtype not in (bool_, q.dtype):
            refuse_dtype(f"a mask of booleans, or of {q.dtype.name} to be added to the scores")
        whole = Spec((*batch, q.shape[-2], k.shape[-2]), q.dtype)
        if broadcast(mask.spec, whole) != whole.shape:
            refuse_shape(f"a mask that broadcasts to {whole.shape}")


def _scores(
    times: Callable[..., Node], q: Node, k: Node, masks: Nodes, causal: bool, scale: float
) -> Node:
    """Return the product of each query with each key; -inf at masked positions."""
    scaled = mul(widen(q), constant(scale, accumulator(q.dtype)))
    scores = times(scaled, widen(k), ta=False, tb=True)
    never = constant(-math.inf, scores.dtype)
    for mask in masks:
        scores = where(mask, scores, never) if mask.dtype == bool_ else add(scores, widen(mask))
    if causal:
        scores = where(_not_later(scores.shape), scores, never)
    return scores


def _not_later(shape: Shape) -> Node:
    """Return True where a key does not follow its query; the last of both coincide."""
    queries, keys = shape[-2:]
    row = iota(shape=(queries, keys), axis=0, dtype=int64)
    column = iota(shape=(queries, keys), axis=1, dtype=int64)
    return greater_equal(add(row, constant(keys - queries, int64)), column)


@composite("scaled_dot_product_attention")
def attention(
    q: Node, k: Node, v: Node, *masks: Node, causal: bool, scale: float, **compute: str
) -> Nodes:
    """softmax(scale q k^T) v for (..., T, D), and the logarithm of each row's sum."""
    _check(q, k, v, masks)
    times = partial(matmul, **compute)
    scores = _scores(times, q, k, masks, causal, scale)
    if k.shape[-2] == 0:
        nothing = times(scores, widen(v), ta=False, tb=False)
        return cast(nothing, q.dtype), full(nothing.shape[:-1], 0, scores.dtype)
    last = (len(scores.shape) - 1,)
    largest = max_(scores, axis=last, keepdims=True)
    # A row that is masked altogether has the largest score -inf; -inf - -inf would be NaN.
    shift = where(isfinite(largest), largest, constant(0, scores.dtype))
    weights = exp(sub(scores, shift))
    total = sum_(weights, last, keepdims=True)
    none = equal(total, constant(0, total.dtype))
    safe = where(none, constant(1, total.dtype), total)
    y = div(times(weights, widen(v), ta=False, tb=False), safe)
    logarithm = broadcast_to(add(log(safe), shift), (*y.shape[:-1], 1))
    return cast(y, q.dtype), reshape(logarithm, y.shape[:-1])


@attention.gradient
def _(
    g: tuple[Node | None, Node | None],
    y: Nodes,
    q: Node,
    k: Node,
    v: Node,
    *masks: Node,
    **how: Any,
) -> Gradient:
    for_y, for_logarithm = g
    result, logarithm = y
    if for_y is None:
        for_y = full(result.shape, 0, result.dtype)
    if for_logarithm is None:
        found = attention_backward.outputs(for_y, q, k, v, result, logarithm, *masks, **how)
    else:
        common = sub(_common(for_y, result), for_logarithm)
        found = attention_grad.outputs(for_y, q, k, v, common, logarithm, *masks, **how)
    added = iter(found[3:])
    return *found[:3], *(None if mask.dtype == bool_ else next(added) for mask in masks)


def _common(g: Node, result: Node) -> Node:
    """Return the term that a softmax's derivative subtracts from all scores of a row."""
    return sum_(mul(widen(g), widen(result)), (len(result.shape) - 1,))


@composite("scaled_dot_product_attention_backward")
def attention_backward(
    g: Node,
    q: Node,
    k: Node,
    v: Node,
    result: Node,
    logarithm: Node,
    *masks: Node,
    **how: Any,
) -> Nodes:
    """Return gradients of q, k, v and an additive mask, from both outputs of the attention.

    Libraries compute them together. Where a device has no kernel, the sums of g * result are a
    separate computation, which can be fused with a neighbouring loop.
    """
    common = _common(g, result)
    return attention_grad.outputs(g, q, k, v, common, logarithm, *masks, **how)


@composite("scaled_dot_product_attention_backward_packed")
def attention_backward_packed(
    g: Node,
    q: Node,
    k: Node,
    v: Node,
    result: Node,
    logarithm: Node,
    *masks: Node,
    **how: Any,
) -> Node:
    """Return the gradients of q, k and v, each (N, heads, T, D), side by side as (N, T, 3 heads D).

    That is the gradient of the product of which they are views. Passes make it of the pieces.
    """
    found = attention_backward.outputs(g, q, k, v, result, logarithm, *masks, **how)
    return concat(tuple(heads_joined(each) for each in found[:3]), axis=2)


def heads_joined(x: Node) -> Node:
    """(N, heads, T, D) as (N, T, heads D)."""
    count, heads, steps, width = x.shape
    return reshape(transpose(x, HEADS_INSIDE), (count, steps, heads * width))


@composite("scaled_dot_product_attention_grad")
@widened
def attention_grad(
    g: Node,
    q: Node,
    k: Node,
    v: Node,
    common: Node,
    logarithm: Node,
    *masks: Node,
    causal: bool,
    scale: float,
    **compute: str,
) -> Nodes:
    """Return the gradients with respect to q, k, v and a mask that was added.

    `logarithm` is the second output of the attention; `common`, one number a row, is the sum of
    g * y, less the gradient of the logarithm.
    """
    column = (*logarithm.shape, 1)
    times = partial(matmul, **compute)
    scores = _scores(times, q, k, masks, causal, scale)
    probabilities = exp(sub(scores, reshape(logarithm, column)))
    dv = times(probabilities, g, ta=True, tb=False)
    centred = sub(times(g, v, ta=False, tb=True), reshape(common, column))
    dscores = mul(probabilities, centred)
    factor = constant(scale, q.dtype)
    dq = mul(times(dscores, k, ta=False, tb=False), factor)
    dk = mul(times(dscores, q, ta=True, tb=False), factor)
    added = tuple(sum_to(dscores, mask.shape) for mask in masks if mask.dtype != bool_)
    return sum_to(dq, q.shape), sum_to(dk, k.shape), sum_to(dv, v.shape), *added
