"""Reductions and statistics.

`axis` is None (all axes), an int or a tuple; `keepdims` as in NumPy. Sums and products of integers
are int64, so that they do not overflow as soon as their parts would (uint64 stays uint64); truth
values are counted. Means and similar reductions of integers are float32.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, Literal

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph import Node, Op
from caldera.core.graph.ops import (
    Axes,
    cast,
    concat,
    constant,
    elementwise,
    indexing,
    narrow,
    reduced_shape,
    reduction,
    reshape,
    sum_,
    transpose,
)
from caldera.core.tensor import (
    bool_,
    int64,
    is_inexact,
    normalise_axes,
    normalise_axis,
    size,
    uint64,
)
from caldera.errors import ConfigError, ShapeError
from caldera.op.arguments import along_an_axis, place

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "logsumexp",
    "max",
    "mean",
    "median",
    "min",
    "norm",
    "prod",
    "quantile",
    "std",
    "sum",
    "variance",
]

Axis = int | Sequence[int] | None

NORMS = (1, 2, math.inf)


def countable(x: Any) -> Node:
    node = lift(x)
    return node if is_inexact(node.dtype) or node.dtype == uint64 else cast(node, int64)


def _axes(name: str, node: Node, axis: Axis) -> Axes:
    # A scalar is taken for the one element of a vector, as in NumPy.
    axes = normalise_axes(axis, len(node.shape) or 1, place(name, node))
    return axes if node.shape else ()


def _reduced(
    op: Op, node: Node, axis: Axis, keepdims: bool, *, name: str = "", **attrs: Any
) -> Expr:
    """Return a reduction over axes; `name` is the function's name, if it differs from the op's."""
    axes = _axes(name or op.name, node, axis)
    return Expr(op(node, axis=axes, keepdims=bool(keepdims), **attrs))


def sum(x: Any, axis: Axis = None, keepdims: bool = False) -> Expr:
    """Return the sum over `axis`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.sum(cd.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0).tolist()
    [4.0, 6.0]
    """
    node = countable(x)
    return Expr(sum_(node, _axes("sum", node, axis), bool(keepdims)))


def mean(x: Any, axis: Axis = None, keepdims: bool = False) -> Expr:
    """Return the mean over `axis`; nan for zero elements.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mean(cd.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1).tolist()
    [1.5, 3.5]
    """
    return _reduced(reduction.mean, as_float(lift(x)), axis, keepdims)


def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Expr:
    """Return the largest element over `axis`; equal ones share the gradient equally.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.max(cd.tensor([[1.0, 5.0], [3.0, 4.0]]), axis=1).tolist()
    [5.0, 4.0]
    """
    return _reduced(reduction.max_, lift(x), axis, keepdims)


def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Expr:
    """Return the smallest element over `axis`; equal ones share the gradient equally.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.min(cd.tensor([[1.0, 5.0], [3.0, 4.0]]), axis=1).tolist()
    [1.0, 3.0]
    """
    return _reduced(reduction.min_, lift(x), axis, keepdims)


def prod(x: Any, axis: Axis = None, keepdims: bool = False) -> Expr:
    """Return the product over `axis`; its derivative is right where elements are zero, too.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.prod(cd.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1).tolist()
    [2.0, 12.0]
    """
    return _reduced(reduction.prod, countable(x), axis, keepdims)


def variance(x: Any, axis: Axis = None, keepdims: bool = False, correction: int = 0) -> Expr:
    """Return the variance over `axis`: squared distances to the mean, over n - `correction`.

    The variance of complex numbers is real. (`op.var` makes a variable.)

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 3.0, 5.0])
    >>> op.variance(x[1:]).item(), op.variance(x, correction=1).item()
    (1.0, 4.0)
    """
    node = as_float(lift(x))
    return _reduced(reduction.var, node, axis, keepdims, name="variance", correction=correction)


def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Expr:
    """Compute log(sum(exp(x))) over `axis`, without overflow.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.logsumexp(cd.tensor([1000.0, float("-inf")])).item()
    1000.0
    """
    return _reduced(reduction.logsumexp, as_float(lift(x)), axis, keepdims)


def norm(x: Any, order: float = 2, axis: Axis = None, keepdims: bool = False) -> Expr:
    """Return the norm over `axis`: `order` 1 (sum of sizes), 2 (length) or infinity (largest).

    The norm of complex numbers is real. All elements along the axes form one vector. The derivative
    of the length of a vector of zeros is taken as 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([3.0, -4.0])
    >>> [op.norm(x, order).item() for order in (1, 2, float("inf"))]
    [7.0, 5.0, 4.0]
    """
    node = as_float(lift(x))
    if order not in NORMS:
        raise ConfigError.build(
            place("norm", node),
            expected="order 1, 2 or infinity",
            got=repr(order),
            hint="write other norms with op.abs, ** and op.sum",
        )
    return _reduced(reduction.norm, node, axis, keepdims, order=float(order))


@along_an_axis
def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Expr:
    """Return the index of the largest element along `axis`, the first of equal ones (int64).

    Without an axis it is the index in the flattened `x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.argmax(cd.tensor([[1.0, 5.0], [3.0, 3.0]]), axis=1).tolist()
    [1, 0]
    """
    return _position("argmax", x, axis, keepdims)


@along_an_axis
def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Expr:
    """Return the index of the smallest element along `axis`, the first of equal ones (int64).

    Without an axis it is the index in the flattened `x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.argmin(cd.tensor([[1.0, 5.0], [3.0, 3.0]]), axis=1).tolist()
    [0, 0]
    """
    return _position("argmin", x, axis, keepdims)


def _position(name: str, x: Any, axis: int | None, keepdims: bool) -> Expr:
    node = lift(x)
    find = reduction.argmax if name == "argmax" else reduction.argmin
    if axis is None:
        found = find(reshape(node, (node.spec.size,)), axis=0, keepdims=False)
        every = tuple(range(len(node.shape)))
        return Expr(reshape(found, reduced_shape(node.shape, every, keepdims)))
    which = normalise_axis(axis, len(node.shape), place(name, node))
    return Expr(find(node, axis=which, keepdims=bool(keepdims)))


def any(x: Any, axis: Axis = None, keepdims: bool = False) -> Expr:
    """Return True if at least one element over `axis` is true (or not zero).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.any(cd.tensor([[1.0, 5.0], [3.0, 4.0]]) > 4.0, axis=1).tolist()
    [True, False]
    """
    node = cast(lift(x), bool_)
    found = sum_(cast(node, int64), _axes("any", node, axis), bool(keepdims))
    return Expr(elementwise.greater(found, constant(0, int64)))


def all(x: Any, axis: Axis = None, keepdims: bool = False) -> Expr:
    """Return True if every element over `axis` is true (or not zero), or if there are none.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.all(cd.tensor([[1.0, 5.0], [3.0, 4.0]]) > 2.0, axis=1).tolist()
    [False, True]
    """
    node = cast(lift(x), bool_)
    missing = elementwise.logical_not(node)
    found = sum_(cast(missing, int64), _axes("all", node, axis), bool(keepdims))
    return Expr(elementwise.equal(found, constant(0, int64)))


Method = Literal["linear", "lower", "higher", "nearest", "midpoint"]
METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


def std(x: Any, axis: Axis = None, keepdims: bool = False, correction: int = 0) -> Expr:
    """Return the standard deviation over `axis`: the root of `op.variance`, with n - `correction`.

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
    """Return the median over `axis`: the middle element, or the mean of both; nan with any nan.

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
    """Return the value below which a fraction `q` of the elements over `axis` is; nan with any nan.

    The result is interpolated between two elements; `method` selects the interpolation, as in
    NumPy. Several `q` have several results, along a new first axis. The derivative flows to the
    elements that determine the result.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([5.0, 1.0, 2.0, 9.0])
    >>> op.quantile(x, 0.5).item(), op.quantile(x, [0.0, 0.75]).tolist()
    (3.5, [1.0, 6.0])
    """
    several = isinstance(q, Sequence)
    given = tuple(q) if isinstance(q, Sequence) else (q,)
    require(method in METHODS, "op.quantile", f"method= one of {', '.join(METHODS)}", repr(method))
    if not given or not builtins.all(
        isinstance(each, int | float) and 0 <= each <= 1 for each in given
    ):
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
