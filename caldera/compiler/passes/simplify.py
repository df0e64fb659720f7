"""Algebra that is exact in floating point.

Each rule returns the same bits for every input, infinities, NaN and signed zeros included: x * 0
stays (it may be NaN), x + 0.0 stays (it turns -0.0 into 0.0), x - x stays. Only `x ** 2` becomes
more accurate, as a product is rounded once.
"""

from __future__ import annotations

import math

import numpy as np

from caldera.compiler.passes.constants import source_of
from caldera.compiler.passes.pattern import Rules, anything, number, p
from caldera.core.graph import Node, Nodes
from caldera.core.graph.ops import (
    abs_,
    add,
    broadcast_to,
    cast,
    constant,
    div,
    equal,
    flip,
    iota,
    isnan,
    logical_not,
    matmul,
    mul,
    neg,
    not_equal,
    reciprocal,
    reshape,
    slice_,
    square,
    sub,
    transpose,
    where,
)
from caldera.core.tensor import (
    FLOATS,
    INTEGERS,
    UNSIGNED,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    is_float,
    uint8,
    uint16,
    uint32,
    uint64,
)

x, y, a, b, c = (anything(name) for name in "xyabc")
k = number("k")


def _has_sign(value: float, sign: float) -> bool:
    return isinstance(value, float) and value == 0 and math.copysign(1, value) == sign


integer_zero = number(test=lambda value: value == 0 and not isinstance(value, float | bool))
positive_zero = number(test=lambda value: _has_sign(value, 1))
negative_zero = number(test=lambda value: _has_sign(value, -1))


# --- arithmetic


def _by_reciprocal(node: Node, x: Node, k: float) -> Node | None:
    """Dividing by a power of two is multiplying by another one, if that exists in this dtype."""
    if k == 0 or not math.isfinite(k) or abs(math.frexp(k)[0]) != 0.5:
        return None
    with np.errstate(over="ignore"):
        inverse = constant(1 / k, node.dtype)
    return mul(x, inverse) if inverse.attrs["value"] == 1 / k else None


def _negative(k: float, dtype: DType) -> Node:
    """Return -k as a constant; integers wrap around."""
    return constant(np.negative(np.asarray(k, dtype)).item(), dtype)


ARITHMETIC = Rules(
    (p.add(x, integer_zero), lambda x: x),
    (p.add(x, negative_zero), lambda x: x),
    (p.sub(x, integer_zero), lambda x: x),
    (p.sub(x, positive_zero), lambda x: x),
    (p.sub(integer_zero, x), lambda x: neg(x)),
    (p.sub(negative_zero, x), lambda x: neg(x)),
    (p.mul(x, 1), lambda x: x),
    (p.mul(x, -1), lambda x: neg(x)),
    (p.mul(x, x), lambda x: square(x)),
    (p.div(x, 1), lambda x: x),
    (p.div(x, -1), lambda x: neg(x)),
    (p.div(1, x), lambda x: reciprocal(x)),
    (p.div(x, k, name="node"), _by_reciprocal),
    (p.pow(x, 1), lambda x: x),
    (p.pow(x, 2), lambda x: square(x)),
    (p.pow(x, -1), lambda x: reciprocal(x) if is_float(x.dtype) else None),
    (p.pow(x, number(test=lambda value: value == 0)), lambda x: constant(1, x.dtype)),
    # Signs move without rounding.
    (p.neg(p.neg(x)), lambda x: x),
    (p.add(x, p.neg(y)), lambda x, y: sub(x, y)),
    (p.sub(x, p.neg(y)), lambda x, y: add(x, y)),
    (p.mul(p.neg(x), p.neg(y)), lambda x, y: mul(x, y)),
    (p.div(p.neg(x), p.neg(y)), lambda x, y: div(x, y)),
    (p.mul(p.neg(x), k), lambda x, k: mul(x, _negative(k, x.dtype))),
    (p.neg(p.mul(x, k)), lambda x, k: mul(x, _negative(k, x.dtype))),
    (p.square(p.neg(x)), lambda x: square(x)),
    (p.square(p.abs(x)), lambda x: square(x)),
    (p.abs(p.neg(x)), lambda x: abs_(x) if x.dtype not in UNSIGNED else None),
    (p.abs(p.abs(x)), lambda x: abs_(x)),
    (p.relu(p.relu(x, name="node")), lambda node, x: node),
    (p.maximum(x, x), lambda x: x),
    (p.minimum(x, x), lambda x: x),
    (p.stop_gradient(x), lambda x: x),
)


# --- comparison and logic


def _truth(value: bool) -> Node:
    return constant(value, bool_)


def _equals_itself(x: Node) -> Node | None:
    return None if is_float(x.dtype) else _truth(True)


LOGIC = Rules(
    (p.logical_not(p.logical_not(x)), lambda x: x),
    (p.logical_not(p.equal(x, y)), lambda x, y: not_equal(x, y)),
    (p.logical_not(p.not_equal(x, y)), lambda x, y: equal(x, y)),
    (p.logical_and(x, x), lambda x: x),
    (p.logical_and(x, True), lambda x: x),
    (p.logical_and(x, False), lambda x: _truth(False)),
    (p.logical_or(x, x), lambda x: x),
    (p.logical_or(x, False), lambda x: x),
    (p.logical_or(x, True), lambda x: _truth(True)),
    (p.logical_xor(x, x), lambda x: _truth(False)),
    (p.logical_xor(x, False), lambda x: x),
    (p.logical_xor(x, True), lambda x: logical_not(x)),
    # NaN is neither less than, nor greater than, nor equal to itself.
    (p.less(x, x), lambda x: _truth(False)),
    (p.greater(x, x), lambda x: _truth(False)),
    (p.not_equal(x, x), lambda x: isnan(x) if is_float(x.dtype) else _truth(False)),
    (p.equal(x, x), _equals_itself),
    (p.less_equal(x, x), _equals_itself),
    (p.greater_equal(x, x), _equals_itself),
    (p.where(True, a, b), lambda a, b: a),
    (p.where(False, a, b), lambda a, b: b),
    (p.where(c, x, x), lambda c, x: x),
    (p.where(p.logical_not(c), a, b), lambda a, b, c: where(c, b, a)),
)


# --- casts

_EXACT: dict[DType, frozenset[DType]] = {
    bool_: INTEGERS | FLOATS,
    uint8: FLOATS | {uint16, uint32, uint64, int16, int32, int64},
    uint16: frozenset({uint32, uint64, int32, int64, float32, float64}),
    uint32: frozenset({uint64, int64, float64}),
    int8: FLOATS | {int16, int32, int64},
    int16: frozenset({int32, int64, float32, float64}),
    int32: frozenset({int64, float64}),
    float16: frozenset({float32, float64}),
    bfloat16: frozenset({float32, float64}),
    float32: frozenset({float64}),
}
"""For each dtype, the dtypes that represent all its values."""


def _direct_cast(x: Node, through: Node, node: Node) -> Node | None:
    """A cast by way of a wider dtype needs no detour (one by way of a narrower one rounds)."""
    if through.dtype not in _EXACT.get(x.dtype, ()):
        return None
    # Conversion of a float outside an integer's range depends on the machine and the dtype.
    if is_float(x.dtype) and not is_float(node.dtype):
        return None
    return cast(x, node.dtype)


def _position_of_given(x: Node, through: Node, node: Node) -> Node | None:
    """Take the argmax before a widening cast, as for predictions in accuracy."""
    exact = is_float(x.dtype) and through.dtype in _EXACT.get(x.dtype, ())
    return node.op.rebuild(node, (x,)) if exact else None


CASTS = Rules(
    (p.cast(p.cast(x, name="through"), name="node"), _direct_cast),
    (p.argmax(p.cast(x, name="through"), name="node"), _position_of_given),
    (p.argmin(p.cast(x, name="through"), name="node"), _position_of_given),
)


# --- movement


def _slice_of_slice(x: Node, inner: Node, node: Node) -> Node:
    bounds = []
    for first, second in zip(inner.attrs["bounds"], node.attrs["bounds"], strict=True):
        kept = range(*first)[slice(*second)]
        bounds.append((kept.start, kept[-1] + 1, kept.step) if kept else (0, 0, 1))
    return slice_(x, tuple(bounds))


def _flip_of_flip(x: Node, inner: Node, node: Node) -> Node:
    once = set(inner.attrs["axis"]) ^ set(node.attrs["axis"])
    return flip(x, tuple(sorted(once)))


def _without_leading_ones(x: Node, inner: Node, node: Node) -> Node | None:
    """Drop a reshape that only adds leading axes, as broadcasting does this implicitly."""
    extra = len(inner.shape) - len(x.shape)
    if extra < 0 or inner.shape != (1,) * extra + x.shape:
        return None
    return broadcast_to(x, node.shape)


def _piece(x: Node, parts: Node, node: Node) -> Node:
    """Replace a piece of a split by a slice, which is free."""
    axis, sizes = parts.attrs["axis"], parts.attrs["sizes"]
    index = node.attrs["index"]
    start = sum(sizes[:index])
    bounds = [(0, n, 1) for n in x.shape]
    bounds[axis] = (start, start + sizes[index], 1)
    return slice_(x, tuple(bounds))


def _narrow_operands(node: Node) -> Node | None:
    """Drop explicit broadcasts of operands: element-wise ops broadcast implicitly.

    No element is then computed twice.
    """
    if not any(given.op.name == "broadcast_to" for given in node.inputs):
        return None
    return node.op.node(*[source_of(given) for given in node.inputs], **node.attrs)


def _one_axis_range(node: Node) -> Node | None:
    """A range over a larger shape is a range over one axis, broadcast."""
    shape, axis = node.shape, node.attrs["axis"]
    along = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    if len(shape) == 1:
        return None
    return reshape(iota(shape=(shape[axis],), axis=0, dtype=node.dtype), along)


MOVEMENT = Rules(
    (p.reshape(p.reshape(x), name="node"), lambda x, node: reshape(x, node.shape)),
    (
        p.transpose(p.transpose(x, name="inner"), name="node"),
        lambda x, inner, node: transpose(
            x, tuple(inner.attrs["axes"][axis] for axis in node.attrs["axes"])
        ),
    ),
    (p.broadcast_to(p.broadcast_to(x), name="node"), lambda x, node: broadcast_to(x, node.shape)),
    (p.broadcast_to(p.reshape(x, name="inner"), name="node"), _without_leading_ones),
    (p.slice(p.slice(x, name="inner"), name="node"), _slice_of_slice),
    (p.flip(p.flip(x, name="inner"), name="node"), _flip_of_flip),
    (p.item(p.split(x, name="parts"), name="node"), _piece),
    (p.iota(name="node"), _one_axis_range),
    (anything("node", kind="elementwise"), _narrow_operands),
)


# --- reductions and products


def _single(x: Node, node: Node) -> Node | None:
    """Replace a reduction over axes of length 1 by a reshape."""
    if any(x.shape[axis] != 1 for axis in node.attrs["axis"]):
        return None
    return reshape(x, node.shape)


def _single_sum(x: Node, node: Node) -> Node | None:
    same = _single(x, node)
    if same is None or not is_float(x.dtype):
        return same
    # A sum starts from 0, so the sum of a single negative zero is positive zero.
    return add(same, constant(0, x.dtype))


def _swaps_last(moved: Node) -> bool:
    rank = len(moved.shape)
    return rank >= 2 and moved.attrs["axes"] == (*range(rank - 2), rank - 1, rank - 2)


def _turned(node: Node, moved: Node, operands: Nodes, flag: str) -> Node | None:
    attrs = {**node.attrs, flag: not node.attrs[flag]}
    return matmul(*operands, **attrs) if _swaps_last(moved) else None


REDUCTIONS = Rules(
    (p.sum(x, name="node"), _single_sum),
    (p.max(x, name="node"), _single),
    (p.min(x, name="node"), _single),
    (p.prod(x, name="node"), _single),
    (
        p.matmul(p.transpose(x, name="moved"), y, name="node"),
        lambda x, moved, y, node: _turned(node, moved, (x, y), "ta"),
    ),
    (
        p.matmul(y, p.transpose(x, name="moved"), name="node"),
        lambda x, moved, y, node: _turned(node, moved, (y, x), "tb"),
    ),
)

RULES = ARITHMETIC + LOGIC + CASTS + MOVEMENT + REDUCTIONS
"""All rules of simplification."""
