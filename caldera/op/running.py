"""Sums, products, maxima and minima of all elements up to each one along an axis.

Products, maxima and minima take log2(n) steps over the whole array: each step combines the result
that ends at an element with the result that ends twice as far before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caldera.compiler.lazy import Expr, lift
from caldera.core.graph import Node, describe, location
from caldera.core.graph.ops import (
    concat,
    elementwise,
    flip,
    indexing,
    iota,
    narrow,
    reduction,
)
from caldera.core.tensor import (
    int64,
    normalise_axis,
)
from caldera.errors import ShapeError
from caldera.op.arguments import along_an_axis, place
from caldera.op.control import leaves_of, like_structure
from caldera.op.reduction import countable

__all__ = [
    "associative_scan",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
]


@along_an_axis
def cumsum(x: Any, axis: int, reverse: bool = False) -> Expr:
    """Compute the running sum along `axis`: element i is the sum of elements 0 to i.

    With `reverse`, sums start at the end.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0, 3.0])
    >>> op.cumsum(x, axis=0).tolist(), op.cumsum(x, axis=0, reverse=True).tolist()
    ([1.0, 3.0, 6.0], [6.0, 5.0, 3.0])
    """
    node = countable(x)
    which = normalise_axis(axis, len(node.shape), place("cumsum", node))
    return Expr(reduction.cumsum(node, axis=which, reverse=reverse))


Parts = tuple[Node, ...]


def _running(parts: Parts, axis: int, join: Callable[[Parts, Parts], Parts]) -> Parts:
    """`join(earlier, later)` over all elements up to each."""
    length = parts[0].shape[axis]
    step = 1
    while step < length:
        earlier = tuple(narrow(each, axis, 0, length - step) for each in parts)
        later = tuple(narrow(each, axis, step, length - step) for each in parts)
        start = tuple(narrow(each, axis, 0, step) for each in parts)
        joined = join(earlier, later)
        parts = tuple(concat(pair, axis) for pair in zip(start, joined, strict=True))
        step *= 2
    return parts


@along_an_axis
def cumprod(x: Any, axis: int, reverse: bool = False) -> Expr:
    """Return the running product along `axis`: element i is the product up to and with i, from the
    end if reverse. Its derivative is right where elements are zero, too.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0, 3.0])
    >>> op.cumprod(x, axis=0).tolist(), op.cumprod(x, axis=0, reverse=True).tolist()
    ([1.0, 2.0, 6.0], [6.0, 6.0, 3.0])
    """
    node = countable(x)
    which = normalise_axis(axis, len(node.shape), place("cumprod", node))
    ends = (which,) if reverse else ()

    def join(earlier: Parts, later: Parts) -> Parts:
        return (elementwise.mul(earlier[0], later[0]),)

    return Expr(flip(_running((flip(node, ends),), which, join)[0], ends))


def associative_scan(
    function: Callable[[Any, Any], Any], xs: Any, axis: int = 0, *, reverse: bool = False
) -> Any:
    """Return all results of `function(earlier, later)` over the elements up to each along `axis`.

    `xs` is one expression, or tuples of corresponding expressions, of the same length along the
    axis. The function takes whole arrays of earlier and of later elements, must work element by
    element, and has to be associative. It is called log2(n) times, while `op.scan` takes n steps.
    With `reverse` results are over the elements from each one to the end, and `earlier` follows
    `later` in the array.

    >>> import caldera as cd
    >>> from caldera import op
    >>> def after(first, second):  # x -> a x + b, one function after another
    ...     return first[0] * second[0], first[1] * second[0] + second[1]
    >>> decay, x = cd.tensor([0.5, 0.5, 0.5]), cd.tensor([1.0, 1.0, 1.0])
    >>> op.associative_scan(after, (decay, x))[1].tolist()
    [1.0, 1.5, 1.75]
    """
    where = location("associative_scan")
    nodes = [lift(value) for value in leaves_of(xs)]
    axes = [
        normalise_axis(axis, len(node.shape), place("associative_scan", node)) for node in nodes
    ]
    lengths = {node.shape[at] for node, at in zip(nodes, axes, strict=True)}
    if len(set(axes)) != 1 or len(lengths) != 1:
        got = ", ".join(map(describe, nodes)) or "none"
        raise ShapeError.build(where, expected=f"values of equal length along axis {axis}", got=got)
    which = axes[0]
    ends = (which,) if reverse else ()

    def join(earlier: Parts, later: Parts) -> Parts:
        made = function(like_structure(xs, iter(earlier)), like_structure(xs, iter(later)))
        found = [
            lift(value, node.dtype) for value, node in zip(leaves_of(made), nodes, strict=False)
        ]
        fits = len(found) == len(leaves_of(made)) == len(nodes) and all(
            one.spec.logical == other.spec.logical for one, other in zip(found, later, strict=True)
        )
        if not fits:
            raise ShapeError.build(
                where,
                expected="a function whose result is like each of its arguments, "
                + ", ".join(map(describe, later)),
                got=", ".join(map(describe, found)),
            )
        return tuple(found)

    parts = _running(tuple(flip(node, ends) for node in nodes), which, join)
    return like_structure(xs, iter([flip(node, ends) for node in parts]))


@along_an_axis
def cummax(x: Any, axis: int) -> tuple[Expr, Expr]:
    """Return the running maximum along `axis` and its index (int64), the first of equal ones.

    From a nan on, the result is that nan.

    >>> import caldera as cd
    >>> from caldera import op
    >>> values, indices = op.cummax(cd.tensor([1.0, 3.0, 2.0, 3.0, 5.0]), axis=0)
    >>> values.tolist(), indices.tolist()
    ([1.0, 3.0, 3.0, 3.0, 5.0], [0, 1, 1, 1, 4])
    """
    return _extreme("cummax", x, axis, elementwise.greater_equal)


@along_an_axis
def cummin(x: Any, axis: int) -> tuple[Expr, Expr]:
    """Return the running minimum along `axis` and its index (int64), the first of equal ones.

    From a nan on, the result is that nan.

    >>> import caldera as cd
    >>> from caldera import op
    >>> values, indices = op.cummin(cd.tensor([3.0, 1.0, 2.0, 1.0]), axis=0)
    >>> values.tolist(), indices.tolist()
    ([3.0, 1.0, 1.0, 1.0], [0, 1, 1, 1])
    """
    return _extreme("cummin", x, axis, elementwise.less_equal)


def _extreme(
    name: str, x: Any, axis: int, stays: Callable[[Node, Node], Node]
) -> tuple[Expr, Expr]:
    node = lift(x)
    which = normalise_axis(axis, len(node.shape), place(name, node))

    def join(earlier: Parts, later: Parts) -> Parts:
        kept = stays(earlier[0], later[0])
        kept = elementwise.logical_or(kept, elementwise.isnan(earlier[0]))
        return tuple(
            elementwise.where(kept, old, new) for old, new in zip(earlier, later, strict=True)
        )

    places = iota(shape=node.shape, axis=which, dtype=int64)
    fixed = elementwise.stop_gradient(node)
    indices = _running((fixed, places), which, join)[1]
    return Expr(indexing.take_along_axis(node, indices, axis=which)), Expr(indices)
