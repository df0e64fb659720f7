"""Spread and order: standard deviations, medians and quantiles over axes.

`axis` is None (all axes), an int or a tuple; `keepdims` as in NumPy. Integers are computed in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.node import Node
from caldera.core.graph.ops import elementwise, indexing
from caldera.core.graph.ops.base import constant, reduced_shape, reshape
from caldera.core.graph.ops.movement import concat, narrow, transpose
from caldera.core.tensor.shape import normalise_axes, size
from caldera.errors import ConfigError, ShapeError
from caldera.op.arguments import place
from caldera.op.reduction import Axis, variance

Method = Literal["linear", "lower", "higher", "nearest", "midpoint"]
METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


def std(x: Any, axis: Axis = None, keepdims: bool = False, correction: int = 0) -> Expr:
    """The standard deviation over `axis`: the root of `op.variance`, with n - `correction`.

    Where all elements are equal its derivative is taken as 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 3.0, 5.0])
    >>> op.std(x[1:]).item(), op.std(x, correction=1).item()
    (1.0, 2.0)
    """
    spread = variance(x, axis, keepdims, correction).node
    zero, one = constant(0, spread.dtype), constant(1, spread.dtype)
    equal = elementwise.equal(spread, zero)
    root = elementwise.sqrt(elementwise.where(equal, one, spread))
    return Expr(elementwise.where(equal, zero, root))


def median(x: Any, axis: Axis = None, keepdims: bool = False) -> Expr:
    """The element in the middle over `axis`, or the mean of the two there; nan beside a nan.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.median(cd.tensor([[5.0, 1.0, 2.0], [9.0, 0.0, 4.0]]), axis=1).tolist()
    [2.0, 4.0]
    """
    return _quantiles("median", x, (0.5,), axis, keepdims, "linear")[0]


def quantile(
    x: Any,
    q: float | Sequence[float],
    axis: Axis = None,
    keepdims: bool = False,
    method: Method = "linear",
) -> Expr:
    """What a fraction `q` of the elements over `axis` lies below; nan beside a nan.

    Between two elements the result is interpolated; `method` says how, as in NumPy. Several `q` are
    several results, along a new first axis. The derivative goes to the elements that count.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([5.0, 1.0, 2.0, 9.0])
    >>> op.quantile(x, 0.5).item(), op.quantile(x, [0.0, 0.75]).tolist()
    (3.5, [1.0, 6.0])
    """
    several = isinstance(q, Sequence)
    given = tuple(q) if isinstance(q, Sequence) else (q,)
    if method not in METHODS:
        raise ConfigError.build(
            "op.quantile", expected=f"method= one of {', '.join(METHODS)}", got=repr(method)
        )
    if not given or not all(isinstance(each, int | float) and 0 <= each <= 1 for each in given):
        raise ConfigError.build("op.quantile", expected="q from 0 to 1, or several", got=repr(q))
    results = _quantiles("quantile", x, given, axis, keepdims, method)
    if not several:
        return results[0]
    rows = tuple(reshape(each.node, (1, *each.shape)) for each in results)
    return Expr(concat(rows, 0))


def _quantiles(
    name: str, x: Any, given: Sequence[float], axis: Axis, keepdims: bool, method: str
) -> list[Expr]:
    node = as_float(lift(x))
    # A scalar is taken for the one element of a vector, as in NumPy.
    axes = normalise_axes(axis, len(node.shape) or 1, place(name, node))[: len(node.shape)]
    shape = reduced_shape(node.shape, axes, keepdims)
    kept = tuple(i for i in range(len(node.shape)) if i not in axes)
    count = size(tuple(node.shape[i] for i in axes))
    if count == 0:
        raise ShapeError.build(
            place(name, node), expected="at least one element along the reduced axes", got="none"
        )
    rows = reshape(transpose(node, (*kept, *axes)), (*(node.shape[i] for i in kept), count))
    ordered = indexing.sort.outputs(rows, axis=len(kept), descending=False)[0]
    # NaN are sorted to the end.
    last = _at(ordered, count - 1)
    nan = elementwise.isnan(last)
    results = []
    for each in given:
        value = _between(ordered, each * (count - 1), method)
        results.append(Expr(reshape(elementwise.where(nan, last, value), shape)))
    return results


def _at(ordered: Node, index: int) -> Node:
    return narrow(ordered, len(ordered.shape) - 1, index, 1)


def _between(ordered: Node, position: float, method: str) -> Node:
    low, high = math.floor(position), math.ceil(position)
    if method == "lower":
        high = low
    elif method == "higher":
        low = high
    elif method == "nearest":
        low = high = round(position)
    below = _at(ordered, low)
    if low == high:
        return below
    share = constant(0.5 if method == "midpoint" else position - low, ordered.dtype)
    above = _at(ordered, high)
    # The difference of equal infinities is nan.
    flat = elementwise.equal(below, above)
    step = elementwise.where(flat, constant(0, below.dtype), elementwise.sub(above, below))
    return elementwise.add(below, elementwise.mul(step, share))
