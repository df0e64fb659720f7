"""Sets, counts and positions: results whose length depends on the values.

Shapes are known before anything is computed, so a result of unknown length has a given `size`, and
is returned with its number of valid elements.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, lift, lift_all
from caldera.core.graph import Node, location
from caldera.core.graph.ops import (
    cast,
    concat,
    constant,
    cumsum,
    elementwise,
    full,
    indexing,
    iota,
    narrow,
    reshape,
    sum_,
)
from caldera.core.tensor import (
    bool_,
    int64,
    is_integer,
    side_of_range,
)
from caldera.errors import DtypeError, ShapeError
from caldera.op.arguments import as_count, place
from caldera.op.indexing import expect_indices, last_of_equal, stretched

__all__ = [
    "bincount",
    "nonzero",
    "searchsorted",
    "unique",
]


def _first_true(truths: Node, size: int) -> tuple[Node, Node]:
    """Return the positions of the first `size` true elements of a vector, and the true count.

    The remaining entries are positions of elements that are not true.
    """
    length = truths.shape[0]
    order = indexing.sort.outputs(cast(truths, int64), axis=0, descending=True)[1]
    if size <= length:
        found = narrow(order, 0, 0, size)
    else:
        found = concat((order, full((size - length,), 0, int64)), 0)
    return found, sum_(cast(truths, int64), (0,))


def nonzero(x: Any, size: int, fill: int = -1) -> tuple[Expr, Expr]:
    """Return the indices of nonzero elements, a row for each in order, and their number.

    There are `size` rows; rows after the last valid one contain `fill`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> places, count = op.nonzero(cd.tensor([[0.0, 3.0], [4.0, 0.0]]), size=3)
    >>> places.tolist(), count.item()
    ([[0, 1], [1, 0], [-1, -1]], 2)
    """
    node = lift(x)
    length = as_count(size, "size", "nonzero", least=0)
    truths = reshape(cast(node, bool_), (node.spec.size,))
    found, count = _first_true(truths, length)
    columns = []
    for n in reversed(node.shape):
        columns.append(reshape(elementwise.mod(found, constant(max(n, 1), int64)), (length, 1)))
        found = elementwise.floor_div(found, constant(max(n, 1), int64))
    rows = concat(tuple(columns[::-1]), 1) if columns else full((length, 0), 0, int64)
    counts = elementwise.less(iota(shape=(length, 1), axis=0, dtype=int64), count)
    return Expr(elementwise.where(counts, rows, constant(fill, int64))), Expr(count)


def unique(x: Any, size: int, fill: float = 0) -> tuple[Expr, Expr, Expr, Expr]:
    """Return the unique elements, their inverse indices, their counts, and their number.

    The elements are in ascending order. There is room for `size` elements; entries after the last
    valid one are `fill` and occur 0 times. If there are more, the largest are omitted. Every nan
    differs from every number and from every nan.

    >>> import caldera as cd
    >>> from caldera import op
    >>> values, inverse, counts, count = op.unique(cd.tensor([3, 1, 3, 7]), size=4)
    >>> values.tolist(), inverse.tolist(), counts.tolist(), count.item()
    ([1, 3, 7, 0], [1, 0, 1, 2], [1, 2, 1, 0], 3)
    """
    node = lift(x)
    places = as_count(size, "size", "unique", least=0)
    length = node.spec.size
    flat = reshape(node, (length,))
    ordered, order = indexing.sort.outputs(flat, axis=0, descending=False)
    last = last_of_equal(ordered, 0)
    found, count = _first_true(last, places)
    valid = elementwise.less(iota(shape=(places,), axis=0, dtype=int64), count)
    if length == 0:
        none = full((places,), 0, int64)
        inverse = full(node.shape, 0, int64)
        return Expr(full((places,), fill, node.dtype)), Expr(inverse), Expr(none), Expr(count)
    values = indexing.gather(ordered, found, axis=0)
    values = elementwise.where(valid, values, constant(_fitting(fill, node), node.dtype))
    # The runs end at these positions: what lies between two ends is one run.
    ends = elementwise.where(valid, found, constant(-1, int64))
    before = narrow(concat((full((1,), -1, int64), ends), 0), 0, 0, places)
    counts = elementwise.where(valid, elementwise.sub(ends, before), constant(0, int64))
    ended = cast(last, int64)
    rank = elementwise.sub(cumsum(ended, axis=0, reverse=False), ended)
    inverse = indexing.put_along_axis_add(full((length,), 0, int64), order, rank, axis=0)
    return Expr(values), Expr(reshape(inverse, node.shape)), Expr(counts), Expr(count)


def _fitting(fill: float, node: Node) -> float:
    if not is_integer(node.dtype):
        return fill
    require(
        math.isfinite(fill) and not side_of_range(int(fill), node.dtype),
        location("unique"),
        f"fill= a number that {node.dtype} can hold",
        fill,
        error=DtypeError,
    )
    return int(fill)


def bincount(x: Any, length: int, weights: Any = None) -> Expr:
    """Count each of the numbers 0 to length - 1 in `x`, or sum their weights.

    A number outside is an error when the value is computed.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.bincount([1, 3, 1], 4).tolist(), op.bincount([1, 3, 1], 4, [0.5, 1.0, 2.0]).tolist()
    ([0, 2, 0, 1], [0.0, 2.5, 0.0, 1.0])
    """
    node = lift(x)
    expect_indices(node, "bincount")
    bins = as_count(length, "length", "bincount")
    added = full(node.shape, 1, int64) if weights is None else lift(weights)
    added = stretched(added, node.shape, "bincount")
    return Expr(indexing.scatter_add(full((bins,), 0, added.dtype), node, added, axis=0))


def searchsorted(ordered: Any, values: Any, side: Literal["left", "right"] = "left") -> Expr:
    """Return the insertion indices of `values` in a sorted vector: before equal ones, or behind.

    `ordered` may also be a batch (..., n); `values` are then (..., m), with the same axes before. A
    nan is greater than all numbers.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0, 2.0, 5.0])
    >>> op.searchsorted(x, [0.0, 2.0, 9.0]).tolist(), op.searchsorted(x, 2.0, side="right").item()
    ([0, 1, 4], 3)
    """
    line, wanted = lift_all(ordered, values)
    require(
        side in ("left", "right"), location("searchsorted"), "side= 'left' or 'right'", repr(side)
    )
    *batch, length = line.shape or (0,)
    if not line.shape or (batch and wanted.shape[:-1] != tuple(batch)):
        raise ShapeError.build(
            place("searchsorted", line, wanted),
            got=f"{line.shape} and {wanted.shape}",
            expected="a vector in order, or (..., n) with values (..., m) of the same axes before",
        )
    rows = wanted if batch else reshape(wanted, (wanted.spec.size,))
    low, high = full(rows.shape, 0, int64), full(rows.shape, length, int64)
    axis = len(rows.shape) - 1
    for _ in range(length.bit_length()):
        # Bisection: the result is between low and high; once they are equal, both stay constant.
        middle = elementwise.floor_div(elementwise.add(low, high), constant(2, int64))
        at = elementwise.minimum(middle, constant(length - 1, int64))
        found = indexing.take_along_axis(line, at, axis=axis)
        behind = _comes_before(found, rows, side == "right")
        behind = elementwise.logical_and(behind, elementwise.less(middle, high))
        low = elementwise.where(behind, elementwise.add(middle, constant(1, int64)), low)
        high = elementwise.where(behind, high, middle)
    return Expr(reshape(low, wanted.shape))


def _comes_before(found: Node, wanted: Node, equal_too: bool) -> Node:
    """Return True where an element precedes a value, with nan after all numbers."""
    compare = elementwise.less_equal if equal_too else elementwise.less
    nan = elementwise.isnan(wanted)
    if not equal_too:
        nan = elementwise.logical_and(nan, elementwise.logical_not(elementwise.isnan(found)))
    return elementwise.logical_or(compare(found, wanted), nan)
