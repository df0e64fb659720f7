"""Reductions over axes, and running sums.

Ties: max and min share their gradient equally among equal elements; argmax and argmin return the
first. A reduction over an empty axis returns its neutral element if one exists (sum 0, prod 1,
logsumexp -inf).
"""

from __future__ import annotations

import math

from caldera.core.graph import Node, Nodes, Spec, composite, op, refuse_shape
from caldera.core.graph.ops.base import (
    Axes,
    cast,
    constant,
    expand_reduced,
    full,
    imag,
    real,
    reduced_shape,
    reshape,
    sum_,
)
from caldera.core.graph.ops.elementwise import (
    abs_,
    add,
    div,
    equal,
    exp,
    isfinite,
    log,
    mul,
    sqrt,
    square,
    stop_gradient,
    sub,
    where,
)
from caldera.core.graph.ops.movement import flip, narrow, pad
from caldera.core.tensor import HALVES, float32, int64, is_complex, part_of, size


def count(x: Node, axes: Axes) -> int:
    """Return the number of elements per result of a reduction over `axes`."""
    return size(tuple(x.shape[axis] for axis in axes))


def _needs_elements(x: Spec, axis: Axes) -> None:
    if any(x.shape[i] == 0 for i in axis):
        refuse_shape("at least one element along the reduced axes")


def _extreme(x: Spec, *, axis: Axes, keepdims: bool) -> Spec:
    _needs_elements(x, axis)
    return Spec(reduced_shape(x.shape, axis, keepdims), x.dtype)


def _among_ties(g: Node, y: Node, x: Node, *, axis: Axes, keepdims: bool) -> Nodes:
    chosen = cast(equal(x, expand_reduced(y, x.shape, axis)), x.dtype)
    winners = expand_reduced(sum_(chosen, axis), x.shape, axis)
    return (mul(expand_reduced(g, x.shape, axis), div(chosen, winners)),)


max_ = op("max", kind="reduction", gradient=_among_ties)(_extreme)
min_ = op("min", kind="reduction", gradient=_among_ties)(_extreme)


@op("prod", kind="reduction")
def prod(x: Spec, *, axis: Axes, keepdims: bool) -> Spec:
    """Return the product over `axis`."""
    return Spec(reduced_shape(x.shape, axis, keepdims), x.dtype)


@prod.gradient
def _(g: Node, y: Node, x: Node, *, axis: Axes, keepdims: bool) -> Nodes:
    # y / x would be wrong where x contains zeros: multiply the products before and after each
    # element, axis by axis.
    others = full(x.shape, 1, x.dtype)
    rest = x
    for i in axis:
        others = mul(others, _product_of_others(rest, i))
        rest = expand_reduced(prod(rest, axis=(i,), keepdims=False), rest.shape, (i,))
    return (mul(expand_reduced(g, x.shape, axis), others),)


def _product_of_others(x: Node, axis: int) -> Node:
    before = _products_before(x, axis)
    after = flip(_products_before(flip(x, (axis,)), axis), (axis,))
    return mul(before, after)


def _products_before(x: Node, axis: int) -> Node:
    """Element i holds the product of the elements before i, in log2(n) doubling steps."""
    length = x.shape[axis]
    result = _shifted(x, axis, 1)
    step = 1
    while step < length:
        result = mul(result, _shifted(result, axis, step))
        step *= 2
    return result


def _shifted(x: Node, axis: int, by: int) -> Node:
    length = x.shape[axis]
    by = min(by, length)
    widths = tuple((by, 0) if i == axis else (0, 0) for i in range(len(x.shape)))
    return pad(narrow(x, axis, 0, length - by), widths, 1)


def _position(x: Spec, *, axis: int, keepdims: bool) -> Spec:
    _needs_elements(x, (axis,))
    return Spec(reduced_shape(x.shape, (axis,), keepdims), int64)


argmax = op("argmax", kind="reduction")(_position)
argmin = op("argmin", kind="reduction")(_position)


@op("cumsum", flops=lambda node: node.spec.size)
def cumsum(x: Spec, *, axis: int, reverse: bool) -> Spec:
    """Return the running sum along `axis`, from the end if `reverse`."""
    return x


cumsum.gradient(lambda g, y, x, *, axis, reverse: (cumsum(g, axis=axis, reverse=not reverse),))


def _widened(x: Node) -> Node:
    """Halves are reduced in float32: a count or a square would soon leave their range."""
    return cast(x, float32) if x.dtype in HALVES else x


@composite("mean", kind="reduction")
def mean(x: Node, *, axis: Axes, keepdims: bool) -> Node:
    """Return the mean over `axis`; nan for an empty axis."""
    wide = _widened(x)
    total = sum_(wide, axis, keepdims)
    return cast(div(total, constant(count(x, axis), wide.dtype)), x.dtype)


@composite("var", kind="reduction")
def var(x: Node, *, axis: Axes, keepdims: bool, correction: int) -> Node:
    """Return the variance over `axis`, divided by the number of elements less `correction`.

    Of complex numbers it is the mean of |x - mean|^2, a real number.
    """
    wide = _widened(x)
    total = sum_(_squared_size(_centred(wide, axis)), axis, keepdims)
    return cast(div(total, _freedom(total, count(x, axis), correction)), part_of(x.dtype))


@var.gradient
def _(g: Node, y: Node, x: Node, *, axis: Axes, keepdims: bool, correction: int) -> Nodes:
    # What would flow through the mean adds up to zero.
    wide = _widened(x)
    twice = mul(constant(2, wide.dtype), _centred(wide, axis))
    spread = expand_reduced(cast(g, wide.dtype), x.shape, axis)
    freedom = _freedom(wide, count(x, axis), correction)
    return (cast(mul(spread, div(twice, freedom)), x.dtype),)


def _centred(x: Node, axis: Axes) -> Node:
    return sub(x, mean(x, axis=axis, keepdims=True))


def _freedom(like: Node, elements: int, correction: int) -> Node:
    return constant(max(elements - correction, 0), like.dtype)


def _squared_size(x: Node) -> Node:
    """|x|^2, a real number."""
    if not is_complex(x.dtype):
        node = square(x)
    else:
        node = add(square(real(x)), square(imag(x)))
    return node


@composite("logsumexp", kind="reduction")
def logsumexp(x: Node, *, axis: Axes, keepdims: bool) -> Node:
    """Return log(sum(exp(x))), without overflow; -inf for an empty sum."""
    wide = _widened(x)
    shape = reduced_shape(x.shape, axis, True)
    shift = full(shape, 0, wide.dtype)
    if count(x, axis):
        largest = max_(wide, axis=axis, keepdims=True)
        # Infinite maxima would give inf - inf; shifting by 0 keeps inf, -inf and nan as they are.
        shift = stop_gradient(where(isfinite(largest), largest, shift))
    total = log(sum_(exp(sub(wide, shift)), axis, True))
    result = add(total, shift)
    return cast(reshape(result, reduced_shape(x.shape, axis, keepdims)), x.dtype)


@composite("norm", kind="reduction")
def norm(x: Node, *, axis: Axes, keepdims: bool, order: float) -> Node:
    """Return the 1-, 2- or infinity-norm over `axis`.

    The derivative of the 2-norm at 0 is taken as 0.
    """
    wide, result = _widened(x), part_of(x.dtype)
    if order == 1:
        return cast(sum_(abs_(wide), axis, keepdims), result)
    if order == math.inf:
        return cast(max_(abs_(wide), axis=axis, keepdims=keepdims), result)
    total = sum_(_squared_size(wide), axis, keepdims)
    zero = equal(total, constant(0, total.dtype))
    safe = where(zero, full(total.shape, 1, total.dtype), total)
    return cast(where(zero, full(total.shape, 0, total.dtype), sqrt(safe)), result)
