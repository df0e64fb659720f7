"""Writing and finding at computed positions, sets and counts.

Shapes are known before anything is computed, so what may come out longer or shorter has a `size`
that is given, and says how many of it count.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from caldera.compiler.lazy import Expr, lift, lift_all
from caldera.compiler.lazy.indexing import set_at
from caldera.core.graph.node import Node, describe
from caldera.core.graph.opdef import location
from caldera.core.graph.ops import elementwise, indexing
from caldera.core.graph.ops.base import cast, constant, full, iota, reshape, sum_
from caldera.core.graph.ops.movement import concat, narrow
from caldera.core.graph.ops.reduction import cumsum
from caldera.core.tensor.dtype import bool_, int8, int64, is_integer, side_of_range
from caldera.errors import ConfigError, DtypeError, ShapeError
from caldera.op.arguments import as_count, place
from caldera.op.indexing import aligned, as_vector, axis_of, stretched


def _counted(indices: Node, length: int) -> Node:
    """Indices from the front, as int64: negative ones are counted from the end."""
    whole = cast(indexing.as_signed(indices), int64)
    below = elementwise.less(whole, constant(0, int64))
    ahead = elementwise.add(whole, constant(length, int64))
    return elementwise.where(below, ahead, whole)


def _last_of_equal(ordered: Node, axis: int) -> Node:
    """Whether an element is the last of its run along an axis that is in order."""
    length = ordered.shape[axis]
    if length == 0:
        return full(ordered.shape, True, bool_)
    ahead = narrow(ordered, axis, 1, length - 1)
    differs = elementwise.not_equal(narrow(ordered, axis, 0, length - 1), ahead)
    ends = tuple(1 if i == axis else n for i, n in enumerate(ordered.shape))
    return concat((differs, full(ends, True, bool_)), axis)


def scatter(x: Any, indices: Any, updates: Any, axis: int = 0) -> Expr:
    """`x` with `updates` in place of what was at `indices` along `axis`.

    `updates` has the shape of `op.gather(x, indices, axis)`, or broadcasts to it. Of equal indices
    the last one wins. (To add instead, use `op.scatter_add`.)

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.scatter(cd.tensor([1.0, 1.0, 1.0]), [0, 2, 0], [5.0, 6.0, 7.0]).tolist()
    [7.0, 1.0, 6.0]
    """
    whole, given = lift_all(x, updates)
    node, places = as_vector(whole), lift(indices)
    _expect_indices(places, "scatter")
    which = axis_of(node, axis, "scatter")
    before, after = node.shape[:which], node.shape[which + 1 :]
    given = stretched(given, (*before, *places.shape, *after), "scatter")
    written = set_at(node, (*(slice(None),) * which, places), given)
    return Expr(reshape(written, whole.shape))


def put_along_axis(x: Any, indices: Any, updates: Any, axis: int) -> Expr:
    """`x` with each element of `updates` in place of what was at its index along `axis`.

    As `numpy.put_along_axis`, but into a copy; of equal indices the last one wins. (To add instead,
    use `op.put_along_axis_add`.)

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> op.put_along_axis(x, [[2], [0]], 9.0, axis=1).tolist()
    [[1.0, 2.0, 9.0], [9.0, 5.0, 6.0]]
    """
    node, given = lift_all(x, updates)
    _expect_indices(lift(indices), "put_along_axis")
    if node.dtype == bool_:
        whole, part = (Expr(cast(each, int8)) for each in (node, given))
        return Expr(cast(put_along_axis(whole, indices, part, axis).node, bool_))
    if not node.shape:
        vector = put_along_axis(Expr(as_vector(node)), indices, updates, axis)
        return Expr(reshape(vector.node, ()))
    _, places, which = aligned(node, lift(indices), axis, "put_along_axis")
    given = stretched(given, places.shape, "put_along_axis")
    flat = _counted(places, node.shape[which])
    ordered, order = indexing.sort.outputs(flat, axis=which, descending=False)
    wins = _last_of_equal(ordered, which)
    chosen = indexing.take_along_axis(given, order, axis=which)
    chosen = elementwise.where(wins, chosen, constant(0, chosen.dtype))
    hits = indexing.put_along_axis_add(
        full(node.shape, 0, int64), ordered, cast(wins, int64), axis=which
    )
    written = indexing.put_along_axis_add(
        full(node.shape, 0, node.dtype), ordered, chosen, axis=which
    )
    hit = elementwise.greater(hits, constant(0, int64))
    return Expr(elementwise.where(hit, written, node))


def _expect_indices(node: Node, name: str) -> None:
    if not is_integer(node.dtype):
        raise DtypeError.build(
            location(name),
            expected="integers as indices",
            got=describe(node),
            hint="cast them with op.cast(indices, 'int64')",
        )


# --- what may come out longer or shorter


def _first_true(truths: Node, size: int) -> tuple[Node, Node]:
    """The positions of the first `size` true elements of a vector, and how many are true.

    Behind the last true one stand positions that are not true.
    """
    length = truths.shape[0]
    order = indexing.sort.outputs(cast(truths, int64), axis=0, descending=True)[1]
    if size <= length:
        found = narrow(order, 0, 0, size)
    else:
        found = concat((order, full((size - length,), 0, int64)), 0)
    return found, sum_(cast(truths, int64), (0,))


def nonzero(x: Any, size: int, fill: int = -1) -> tuple[Expr, Expr]:
    """Where elements are not 0: a row of indices for each, in order, and how many there are.

    There are `size` rows; behind the last one that counts they hold `fill`.

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
    """The different elements in ascending order, where each element of `x` stands among them, how
    often each occurs, and how many they are.

    There are places for `size` of them; behind the last one that counts stands `fill`, which occurs
    0 times. If there are more, the largest are left out. Every nan is different from all others.

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
    last = _last_of_equal(ordered, 0)
    found, count = _first_true(last, places)
    valid = elementwise.less(iota(shape=(places,), axis=0, dtype=int64), count)
    if length == 0:
        none = full((places,), 0, int64)
        return Expr(full((places,), fill, node.dtype)), Expr(node), Expr(none), Expr(count)
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
    if not math.isfinite(fill) or side_of_range(int(fill), node.dtype):
        raise DtypeError.build(
            location("unique"), expected=f"fill= a number that {node.dtype} can hold", got=str(fill)
        )
    return int(fill)


def bincount(x: Any, length: int, weights: Any = None) -> Expr:
    """How often each of the numbers 0 to length - 1 occurs in `x`, or the sum of its weights there.

    A number outside is an error when the value is computed.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.bincount([1, 3, 1], 4).tolist(), op.bincount([1, 3, 1], 4, [0.5, 1.0, 2.0]).tolist()
    ([0, 2, 0, 1], [0.0, 2.5, 0.0, 1.0])
    """
    node = lift(x)
    _expect_indices(node, "bincount")
    bins = as_count(length, "length", "bincount")
    added = full(node.shape, 1, int64) if weights is None else lift(weights)
    added = stretched(added, node.shape, "bincount")
    return Expr(indexing.scatter_add(full((bins,), 0, added.dtype), node, added, axis=0))


def searchsorted(ordered: Any, values: Any, side: Literal["left", "right"] = "left") -> Expr:
    """Where `values` would stand in a vector in ascending order: before equal ones, or behind them.

    `ordered` may also be a batch (..., n); `values` are then (..., m), with the same axes before. A
    nan stands behind all numbers.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0, 2.0, 5.0])
    >>> op.searchsorted(x, [0.0, 2.0, 9.0]).tolist(), op.searchsorted(x, 2.0, side="right").item()
    ([0, 1, 4], 3)
    """
    line, wanted = lift_all(ordered, values)
    if side not in ("left", "right"):
        raise ConfigError.build(
            location("searchsorted"), expected="side= 'left' or 'right'", got=repr(side)
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
        # Bisection: what is sought lies from low to high; where they meet, nothing moves.
        middle = elementwise.floor_div(elementwise.add(low, high), constant(2, int64))
        at = elementwise.minimum(middle, constant(length - 1, int64))
        found = indexing.take_along_axis(line, at, axis=axis)
        behind = _comes_before(found, rows, side == "right")
        behind = elementwise.logical_and(behind, elementwise.less(middle, high))
        low = elementwise.where(behind, elementwise.add(middle, constant(1, int64)), low)
        high = elementwise.where(behind, high, middle)
    return Expr(reshape(low, wanted.shape))


def _comes_before(found: Node, wanted: Node, equal_too: bool) -> Node:
    """Whether an element stands before a value, with nan behind all numbers."""
    compare = elementwise.less_equal if equal_too else elementwise.less
    nan = elementwise.isnan(wanted)
    if not equal_too:
        nan = elementwise.logical_and(nan, elementwise.logical_not(elementwise.isnan(found)))
    return elementwise.logical_or(compare(found, wanted), nan)
