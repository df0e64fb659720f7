"""Reading and writing at computed positions, and sorting.

Indices are integers from -n to n - 1 along an axis of length n; one outside is an error when the
expression is computed. Sorting is stable, with NaN last.
"""

from __future__ import annotations

from typing import Any

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, lift, lift_all, wrap
from caldera.compiler.lazy.indexing import set_at
from caldera.core.graph import Node, describe, location
from caldera.core.graph.ops import (
    broadcast_to,
    cast,
    concat,
    constant,
    elementwise,
    full,
    indexing,
    narrow,
    reshape,
)
from caldera.core.tensor import (
    as_shape,
    bool_,
    broadcast_shapes,
    canonical,
    int8,
    int64,
    is_integer,
    normalise_axis,
)
from caldera.errors import DtypeError, ShapeError
from caldera.op.arguments import along_an_axis

__all__ = [
    "argsort",
    "gather",
    "one_hot",
    "put_along_axis",
    "put_along_axis_add",
    "scatter",
    "scatter_add",
    "sort",
    "take_along_axis",
    "top_k",
]


def gather(x: Any, indices: Any, axis: int = 0) -> Expr:
    """Return the parts of `x` at `indices` along `axis`, as `numpy.take` does.

    >>> import caldera as cd
    >>> from caldera import op
    >>> table = cd.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> op.gather(table, [2, 0, -1]).tolist()
    [[5.0, 6.0], [1.0, 2.0], [5.0, 6.0]]
    """
    node = as_vector(lift(x))
    return Expr(indexing.gather(node, lift(indices), axis=axis_of(node, axis, "gather")))


def scatter_add(x: Any, indices: Any, updates: Any, axis: int = 0) -> Expr:
    """Add `updates` to `x` at `indices` along `axis`; a repeated index receives both.

    `updates` has the shape of `op.gather(x, indices, axis)`, or broadcasts to it.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.scatter_add(cd.tensor([1.0, 1.0, 1.0]), [0, 2, 0], [5.0, 6.0, 7.0]).tolist()
    [13.0, 1.0, 7.0]
    """
    given, added = lift_all(x, updates)
    node, places = as_vector(given), lift(indices)
    position = axis_of(node, axis, "scatter_add")
    shape = (*node.shape[:position], *places.shape, *node.shape[position + 1 :])
    added = stretched(added, shape, "scatter_add")
    total = indexing.scatter_add(node, places, added, axis=position)
    return Expr(reshape(total, given.shape))


def take_along_axis(x: Any, indices: Any, axis: int) -> Expr:
    """Return, for each element of `indices`, the element of `x` at that index along `axis`.

    The remaining axes of `x` and `indices` correspond (or broadcast), as in
    `numpy.take_along_axis`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])
    >>> op.take_along_axis(x, [[2, 0], [1, 1]], axis=1).tolist()
    [[30.0, 10.0], [50.0, 50.0]]
    """
    given = lift(indices)
    node, places, position = aligned(lift(x), given, axis, "take_along_axis")
    taken = indexing.take_along_axis(node, places, axis=position)
    return Expr(taken if given.shape else reshape(taken, ()))


def put_along_axis_add(x: Any, indices: Any, updates: Any, axis: int) -> Expr:
    """Add each element of `updates` to `x` at its index along `axis`.

    The adjoint of `op.take_along_axis`; `updates` has the shape of `indices`, or broadcasts to it.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    >>> op.put_along_axis_add(x, [[2, 0], [1, 1]], 1.0, axis=1).tolist()
    [[1.0, 0.0, 1.0], [0.0, 2.0, 0.0]]
    """
    given, added = lift_all(x, updates)
    _, places, position = aligned(given, lift(indices), axis, "put_along_axis_add")
    added = stretched(added, places.shape, "put_along_axis_add")
    total = indexing.put_along_axis_add(as_vector(given), places, added, axis=position)
    return Expr(reshape(total, given.shape))


def one_hot(indices: Any, classes: int, dtype: Any = "float32") -> Expr:
    """Return 1 at each index of a new last axis of length `classes`, and 0 elsewhere.

    An index outside 0 to classes - 1 results in only zeros.

    >>> from caldera import op
    >>> op.one_hot([1, 0, -1], 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    (length,) = as_shape((classes,), "op.one_hot classes")
    return Expr(indexing.one_hot(lift(indices), classes=length, dtype=canonical(dtype)))


@along_an_axis
def sort(x: Any, axis: int = -1, descending: bool = False) -> Expr:
    """Return the elements in order along `axis`: equal ones keep their order, NaN come last.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([3.0, 1.0, 2.0])
    >>> op.sort(x).tolist(), op.sort(x, descending=True).tolist()
    ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    """
    return _sorted(x, axis, descending, "sort")[0]


@along_an_axis
def argsort(x: Any, axis: int = -1, descending: bool = False) -> Expr:
    """Return the indices (int64) that sort `x` along `axis`; equal elements keep their order.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.argsort(cd.tensor([3.0, 1.0, 3.0, 2.0]), descending=True).tolist()
    [0, 2, 3, 1]
    """
    return _sorted(x, axis, descending, "argsort")[1]


@along_an_axis
def top_k(x: Any, k: int, axis: int = -1) -> tuple[Expr, Expr]:
    """Return the `k` largest elements along `axis`, largest first, and their indices (int64).

    Of equal elements the one with the lower index comes first; NaN come last.

    >>> import caldera as cd
    >>> from caldera import op
    >>> values, indices = op.top_k(cd.tensor([1.0, 9.0, 4.0, 9.0]), 3)
    >>> values.tolist(), indices.tolist()
    ([9.0, 9.0, 4.0], [1, 3, 2])
    """
    node = lift(x)
    (length,) = as_shape((k,), "op.top_k k")
    return wrap(indexing.top_k.outputs(node, k=length, axis=axis_of(node, axis, "top_k")))


def as_vector(node: Node) -> Node:
    """Return the node; a scalar as the one element of a vector."""
    return node if node.shape else reshape(node, (1,))


def axis_of(node: Node, axis: int, name: str) -> int:
    """Return an axis of a node, counted from the front."""
    return normalise_axis(axis, len(node.shape), f"op.{name}")


def stretched(updates: Node, shape: tuple[int, ...], name: str) -> Node:
    """Return updates in the shape of their target positions, if they broadcast to it."""
    whole = broadcast_shapes(updates.shape, shape, where=f"op.{name}")
    # Updates may be broadcast, but not their targets: the op rejects updates that are too large.
    return broadcast_to(updates, shape) if whole == shape else updates


def aligned(x: Node, indices: Node, axis: int, name: str) -> tuple[Node, Node, int]:
    """Return both with the same sizes outside `axis`, which is then counted from the front."""
    x, indices = as_vector(x), as_vector(indices)
    position = axis_of(x, axis, name)
    require(
        len(x.shape) == len(indices.shape),
        f"op.{name}",
        f"indices with {len(x.shape)} axes, like x",
        f"shape {indices.shape}",
        hint="use op.gather to read the same positions everywhere",
        error=ShapeError,
    )
    before, after = slice(position), slice(position + 1, None)
    around = broadcast_shapes(
        x.shape[before] + x.shape[after],
        indices.shape[before] + indices.shape[after],
        where=f"op.{name}",
    )
    sizes = [
        (*around[:position], node.shape[position], *around[position:]) for node in (x, indices)
    ]
    return broadcast_to(x, sizes[0]), broadcast_to(indices, sizes[1]), position


def _sorted(x: Any, axis: int, descending: bool, name: str) -> tuple[Expr, ...]:
    node = lift(x)
    return wrap(
        indexing.sort.outputs(node, axis=axis_of(node, axis, name), descending=bool(descending))
    )


def _counted(indices: Node, length: int) -> Node:
    """Return indices from the front, as int64: negative ones are counted from the end."""
    whole = cast(indexing.as_signed(indices), int64)
    below = elementwise.less(whole, constant(0, int64))
    ahead = elementwise.add(whole, constant(length, int64))
    return elementwise.where(below, ahead, whole)


def last_of_equal(ordered: Node, axis: int) -> Node:
    """Return True for each element that is the last of its run along a sorted axis."""
    length = ordered.shape[axis]
    if length == 0:
        return full(ordered.shape, True, bool_)
    ahead = narrow(ordered, axis, 1, length - 1)
    differs = elementwise.not_equal(narrow(ordered, axis, 0, length - 1), ahead)
    ends = tuple(1 if i == axis else n for i, n in enumerate(ordered.shape))
    return concat((differs, full(ends, True, bool_)), axis)


def scatter(x: Any, indices: Any, updates: Any, axis: int = 0) -> Expr:
    """Return `x` with the slices at `indices` along `axis` replaced by `updates`.

    `updates` has the shape of `op.gather(x, indices, axis)`, or broadcasts to it. Of equal indices
    the last one wins. (To add instead, use `op.scatter_add`.)

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.scatter(cd.tensor([1.0, 1.0, 1.0]), [0, 2, 0], [5.0, 6.0, 7.0]).tolist()
    [7.0, 1.0, 6.0]
    """
    whole, given = lift_all(x, updates)
    node, places = as_vector(whole), lift(indices)
    expect_indices(places, "scatter")
    which = axis_of(node, axis, "scatter")
    before, after = node.shape[:which], node.shape[which + 1 :]
    given = stretched(given, (*before, *places.shape, *after), "scatter")
    written = set_at(node, (*(slice(None),) * which, places), given)
    return Expr(reshape(written, whole.shape))


def put_along_axis(x: Any, indices: Any, updates: Any, axis: int) -> Expr:
    """Return `x` with each element at its index along `axis` replaced by `updates`.

    As `numpy.put_along_axis`, but into a copy; of equal indices the last one wins. (To add instead,
    use `op.put_along_axis_add`.)

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> op.put_along_axis(x, [[2], [0]], 9.0, axis=1).tolist()
    [[1.0, 2.0, 9.0], [9.0, 5.0, 6.0]]
    """
    node, given = lift_all(x, updates)
    expect_indices(lift(indices), "put_along_axis")
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
    wins = last_of_equal(ordered, which)
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


def expect_indices(node: Node, name: str) -> None:
    if not is_integer(node.dtype):
        raise DtypeError.build(
            location(name),
            expected="integers as indices",
            got=describe(node),
            hint="cast them with op.cast(indices, 'int64')",
        )
