"""Reading and adding at computed positions, and sorting.

Indices are integers from -n to n - 1 along an axis of length n; one outside is an error when the
expression is computed. Sorting is stable, with NaN last.
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, lift, lift_all, wrap
from caldera.core.graph.node import Node
from caldera.core.graph.ops import indexing
from caldera.core.graph.ops.base import broadcast_to, reshape
from caldera.core.tensor.dtype import canonical
from caldera.core.tensor.shape import as_shape, broadcast_shapes, normalise_axis
from caldera.errors import ShapeError
from caldera.op.arguments import along_an_axis


def gather(x: Any, indices: Any, axis: int = 0) -> Expr:
    """The parts of `x` at `indices` along `axis`, as `numpy.take` gives them.

    >>> import caldera as cd
    >>> from caldera import op
    >>> table = cd.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> op.gather(table, [2, 0, -1]).tolist()
    [[5.0, 6.0], [1.0, 2.0], [5.0, 6.0]]
    """
    node = as_vector(lift(x))
    return Expr(indexing.gather(node, lift(indices), axis=axis_of(node, axis, "gather")))


def scatter_add(x: Any, indices: Any, updates: Any, axis: int = 0) -> Expr:
    """`x` with `updates` added at `indices` along `axis`; an index named twice gets both.

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
    """For each element of `indices`, the element of `x` at that index along `axis`.

    The other axes of `x` and `indices` correspond (or broadcast), as in `numpy.take_along_axis`.

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
    """`x` with each element of `updates` added at its index along `axis`.

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
    """1 at each index of a new last axis of length `classes`, and 0 elsewhere.

    An index outside 0 to classes - 1 gives zeros only.

    >>> from caldera import op
    >>> op.one_hot([1, 0, -1], 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    (length,) = as_shape((classes,), "op.one_hot classes")
    return Expr(indexing.one_hot(lift(indices), classes=length, dtype=canonical(dtype)))


@along_an_axis
def sort(x: Any, axis: int = -1, descending: bool = False) -> Expr:
    """The elements in order along `axis`: equal ones keep their order, NaN come last.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([3.0, 1.0, 2.0])
    >>> op.sort(x).tolist(), op.sort(x, descending=True).tolist()
    ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    """
    return _sorted(x, axis, descending, "sort")[0]


@along_an_axis
def argsort(x: Any, axis: int = -1, descending: bool = False) -> Expr:
    """The indices (int64) that put `x` in order along `axis`: equal elements keep their order.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.argsort(cd.tensor([3.0, 1.0, 3.0, 2.0]), descending=True).tolist()
    [0, 2, 3, 1]
    """
    return _sorted(x, axis, descending, "argsort")[1]


@along_an_axis
def top_k(x: Any, k: int, axis: int = -1) -> tuple[Expr, Expr]:
    """The `k` largest elements along `axis`, largest first, and their indices (int64).

    Of equal elements the one with the lower index comes first; NaN come last.

    >>> import caldera as cd
    >>> from caldera import op
    >>> values, indices = op.top_k(cd.tensor([1.0, 9.0, 4.0, 9.0]), 3)
    >>> values.tolist(), indices.tolist()
    ([9.0, 9.0, 4.0], [1, 3, 2])
    """
    node = lift(x)
    (length,) = as_shape((k,), "op.top_k k")
    values, indices = indexing.top_k.outputs(node, k=length, axis=axis_of(node, axis, "top_k"))
    return Expr(values), Expr(indices)


def as_vector(node: Node) -> Node:
    """The node; a scalar as the one element of a vector."""
    return node if node.shape else reshape(node, (1,))


def axis_of(node: Node, axis: int, name: str) -> int:
    """An axis of a node, counted from the front."""
    return normalise_axis(axis, len(node.shape), f"op.{name}")


def stretched(updates: Node, shape: tuple[int, ...], name: str) -> Node:
    """Updates in the shape of the places they go to, if they broadcast to it."""
    whole = broadcast_shapes(updates.shape, shape, where=f"op.{name}")
    # Updates may be broadcast, the places they go to may not: the op refuses what is too large.
    return broadcast_to(updates, shape) if whole == shape else updates


def aligned(x: Node, indices: Node, axis: int, name: str) -> tuple[Node, Node, int]:
    """Both with the same sizes outside `axis`, which is then counted from the front."""
    x, indices = as_vector(x), as_vector(indices)
    position = axis_of(x, axis, name)
    if len(x.shape) != len(indices.shape):
        raise ShapeError.build(
            f"op.{name}",
            expected=f"indices with as many axes as x, {len(x.shape)}",
            got=f"shape {indices.shape}",
            hint="use op.gather to read the same positions everywhere",
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
