"""Moving elements without computing: shapes, axes, joining, cutting and repeating."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, lift, lift_all, wrap
from caldera.core.graph.node import Node
from caldera.core.graph.ops import base
from caldera.core.graph.ops import movement as moves
from caldera.core.tensor.shape import (
    as_list,
    as_shape,
    normalise_axes,
    normalise_axis,
    normalise_permutation,
    reshape_with_unknown,
    size,
)
from caldera.errors import ShapeError
from caldera.op.arguments import along_an_axis, place

__all__ = [
    "broadcast",
    "concat",
    "flatten",
    "flip",
    "meshgrid",
    "moveaxis",
    "repeat",
    "reshape",
    "roll",
    "slice",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "tile",
    "transpose",
    "unsqueeze",
]

Sizes = int | Sequence[int]
Bound = int | None | Sequence[int | None]


def reshape(x: Any, shape: Sizes) -> Expr:
    """Return the same elements in the same (row-major) order in another shape; one size may be -1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.reshape(cd.tensor([[1.0, 2.0], [3.0, 4.0]]), (4, -1)).shape
    (4, 1)
    """
    node = lift(x)
    return Expr(base.reshape(node, reshape_with_unknown(node.shape, shape, place("reshape", node))))


def flatten(x: Any, start_axis: int = 0) -> Expr:
    """Merge the axes from `start_axis` on into one; 1 keeps the samples of a batch separate.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.Tensor((8, 3, 2))
    >>> op.flatten(x).shape, op.flatten(x, start_axis=1).shape
    ((48,), (8, 6))
    """
    node = lift(x)
    if not node.shape and start_axis in (0, -1):
        return Expr(base.reshape(node, (1,)))
    first = normalise_axis(start_axis, len(node.shape), place("flatten", node))
    return Expr(base.reshape(node, (*node.shape[:first], size(node.shape[first:]))))


def transpose(x: Any, axes: Sequence[int] | None = None) -> Expr:
    """Return the axes in another order; reversed if none is given.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.Tensor((2, 3, 4))
    >>> op.transpose(x).shape, op.transpose(x, (0, 2, 1)).shape
    ((4, 3, 2), (2, 4, 3))
    """
    node = lift(x)
    order = normalise_permutation(axes, len(node.shape), place("transpose", node))
    return Expr(moves.transpose(node, order))


@along_an_axis
def swapaxes(x: Any, first: int, second: int) -> Expr:
    """Exchange two axes.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.swapaxes(cd.Tensor((2, 3, 4)), 0, -1).shape
    (4, 3, 2)
    """
    node = lift(x)
    rank, where = len(node.shape), place("swapaxes", node)
    a, b = normalise_axis(first, rank, where), normalise_axis(second, rank, where)
    order = [b if axis == a else a if axis == b else axis for axis in range(rank)]
    return Expr(moves.transpose(node, tuple(order)))


def moveaxis(x: Any, source: Sizes, target: Sizes) -> Expr:
    """Move axes to other positions; the remaining axes keep their order.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.Tensor((2, 3, 4))
    >>> op.moveaxis(x, 0, -1).shape, op.moveaxis(x, (0, 1), (2, 0)).shape
    ((3, 4, 2), (3, 4, 2))
    """
    node = lift(x)
    rank, where = len(node.shape), place("moveaxis", node)
    given = [as_list(each) for each in (source, target)]
    taken, places = ([normalise_axis(axis, rank, where) for axis in each] for each in given)
    require(
        len(taken) == len(places) == len(set(taken)) == len(set(places)),
        where,
        "a permutation of the axes",
        f"{source} and {target}",
        error=ShapeError,
    )
    order = [axis for axis in range(rank) if axis not in taken]
    for position, axis in sorted(zip(places, taken, strict=True)):
        order.insert(position, axis)
    return Expr(moves.transpose(node, tuple(order)))


def squeeze(x: Any, axis: Sizes | None = None) -> Expr:
    """Remove the axes of size 1, or those named, which must have size 1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.squeeze(cd.Tensor((1, 3, 1))).shape, op.squeeze(cd.Tensor((1, 3, 1)), axis=0).shape
    ((3,), (3, 1))
    """
    node = lift(x)
    where = place("squeeze", node)
    if axis is None:
        dropped = tuple(i for i, n in enumerate(node.shape) if n == 1)
    else:
        dropped = normalise_axes(axis, len(node.shape), where)
    for each in dropped:
        require(
            node.shape[each] == 1,
            where,
            f"axis {each} of size 1",
            node.shape[each],
            error=ShapeError,
        )
    return Expr(base.reshape(node, base.reduced_shape(node.shape, dropped, keepdims=False)))


def unsqueeze(x: Any, axis: Sizes) -> Expr:
    """Insert axes of size 1 at these positions of the result.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.unsqueeze(cd.Tensor((2, 3)), 0).shape, op.unsqueeze(cd.Tensor((2, 3)), (0, -1)).shape
    ((1, 2, 3), (1, 2, 3, 1))
    """
    node = lift(x)
    rank = len(node.shape) + len(as_list(axis))
    axes = normalise_axes(axis, rank, place("unsqueeze", node))
    sizes = iter(node.shape)
    return Expr(base.reshape(node, tuple(1 if i in axes else next(sizes) for i in range(rank))))


def broadcast(x: Any, shape: Sizes) -> Expr:
    """Broadcast `x` to a larger shape, by NumPy's rule.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.broadcast(cd.tensor([1.0, 2.0]), (2, 2)).tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    node = lift(x)
    return Expr(base.broadcast_to(node, as_shape(shape, place("broadcast", node))))


def concat(parts: Sequence[Any], axis: int = 0) -> Expr:
    """Concatenate the parts along an axis; their remaining sizes must be equal.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.concat([cd.tensor([1.0, 2.0]), cd.tensor([3.0])]).tolist()
    [1.0, 2.0, 3.0]
    """
    nodes = _several("concat", parts)
    which = normalise_axis(axis, len(nodes[0].shape), place("concat", *nodes))
    return Expr(moves.concat(nodes, which))


def stack(parts: Sequence[Any], axis: int = 0) -> Expr:
    """Return the parts side by side along a new axis; their shapes must be equal.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.stack([cd.tensor([1.0, 2.0]), cd.tensor([3.0, 4.0])], axis=1).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    nodes = _several("stack", parts)
    first = nodes[0].shape
    where = place("stack", *nodes)
    if any(node.shape != first for node in nodes):
        shapes = ", ".join(str(node.shape) for node in nodes)
        raise ShapeError.build(where, expected="parts of the same shape", got=shapes)
    which = normalise_axis(axis, len(first) + 1, where)
    shape = (*first[:which], 1, *first[which:])
    return Expr(moves.concat(tuple(base.reshape(node, shape) for node in nodes), which))


def _several(name: str, parts: Sequence[Any]) -> tuple[Node, ...]:
    require(len(parts) != 0, f"op.{name}", "at least one part", error=ShapeError)
    return lift_all(*parts)


def split(x: Any, parts: Sizes, axis: int = 0) -> tuple[Expr, ...]:
    """Split `x` along an axis: `parts` is a number of equal pieces, or the size of each piece.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0, 3.0, 4.0])
    >>> [piece.tolist() for piece in op.split(x, 2)]
    [[1.0, 2.0], [3.0, 4.0]]
    >>> [piece.tolist() for piece in op.split(x, (3, 1))]
    [[1.0, 2.0, 3.0], [4.0]]
    """
    node = lift(x)
    where = place("split", node)
    which = normalise_axis(axis, len(node.shape), where)
    length = node.shape[which]
    if isinstance(parts, Iterable):
        sizes = as_shape(parts, where)
    else:
        (pieces,) = as_shape((parts,), where)
        if pieces < 1 or length % pieces:
            raise ShapeError.build(
                where,
                expected=f"a number of equal pieces that axis {which} of {length} can give",
                got=str(pieces),
                hint="give the size of each piece instead",
            )
        sizes = (length // pieces,) * pieces
    if sizes == (length,):
        return (Expr(node),)
    return wrap(moves.split(node, sizes, which))


def slice(x: Any, start: Bound = None, stop: Bound = None, step: Bound = None) -> Expr:
    """Return a regular part: one start, stop and step for axis 0, or for each of the first axes.

    It is `x[start:stop:step]`, or `x[start[0]:stop[0]:step[0], start[1]:stop[1]:step[1], ...]`;
    None and negative numbers have the same meaning.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> op.slice(x, 1).tolist()
    [[4.0, 5.0, 6.0]]
    >>> op.slice(x, (0, 0), (2, 3), (1, 2)).tolist()
    [[1.0, 3.0], [4.0, 6.0]]
    """
    node = lift(x)
    bounds = [as_list(each) for each in (start, stop, step)]
    count = max(len(each) for each in bounds)
    if count > len(node.shape):
        raise ShapeError.build(
            place("slice", node),
            expected=f"bounds for at most {len(node.shape)} axes",
            got=str(count),
        )
    if 0 in bounds[2]:
        raise ShapeError.build(place("slice", node), expected="steps other than 0", got=str(step))
    starts, stops, steps = ([*each, *[None] * (count - len(each))] for each in bounds)
    return Expr(node)[tuple(map(builtins.slice, starts, stops, steps))]


def flip(x: Any, axis: Sizes | None = None) -> Expr:
    """Return the elements in reverse order along an axis, several axes, or all axes.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.flip(cd.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1).tolist()
    [[2.0, 1.0], [4.0, 3.0]]
    """
    node = lift(x)
    return Expr(moves.flip(node, normalise_axes(axis, len(node.shape), place("flip", node))))


def roll(x: Any, shift: Sizes, axis: Sizes | None = None) -> Expr:
    """Roll the elements along an axis; elements beyond its end reappear at its start.

    Without an axis they are rolled in row-major order, over all axes.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.roll(cd.tensor([1.0, 2.0, 3.0, 4.0]), 1).tolist()
    [4.0, 1.0, 2.0, 3.0]
    >>> op.roll(cd.tensor([[1.0, 2.0], [3.0, 4.0]]), (1, 1), axis=(0, 1)).tolist()
    [[4.0, 3.0], [2.0, 1.0]]
    """
    node = lift(x)
    where = place("roll", node)
    shifts = as_list(shift)
    if axis is None:
        flat = _rolled(base.reshape(node, (size(node.shape),)), 0, sum(map(index, shifts)))
        return Expr(base.reshape(flat, node.shape))
    axes = as_list(axis)
    if len(shifts) == 1:
        shifts *= len(axes)
    elif len(axes) == 1:
        axes *= len(shifts)
    require(
        len(axes) == len(shifts),
        where,
        "a shift for each axis",
        f"{shift} for {axis}",
        error=ShapeError,
    )
    for each, by in zip(axes, shifts, strict=True):
        node = _rolled(node, normalise_axis(each, len(node.shape), where), index(by))
    return Expr(node)


def _rolled(node: Node, axis: int, shift: int) -> Node:
    length = node.shape[axis]
    by = shift % length if length else 0
    if not by:
        return node
    parts = moves.narrow(node, axis, length - by, by), moves.narrow(node, axis, 0, length - by)
    return moves.concat(parts, axis)


def meshgrid(*lines: Any, indexing: str = "xy") -> tuple[Expr, ...]:
    """Return the coordinates of a grid: each vector along a separate axis, repeated along the rest.

    As in NumPy the first vector runs along the columns; with `indexing="ij"` vector i runs along
    axis i.

    >>> from caldera import op
    >>> x, y = op.meshgrid([1.0, 2.0, 3.0], [4.0, 5.0])
    >>> x.tolist(), y.tolist()
    ([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], [[4.0, 4.0, 4.0], [5.0, 5.0, 5.0]])
    """
    nodes = [lift(each) for each in lines]
    where = place("meshgrid", *nodes) if nodes else "op.meshgrid"
    require(indexing in ("xy", "ij"), where, "indexing='xy' or 'ij'", repr(indexing))
    if any(len(node.shape) > 1 for node in nodes):
        shapes = ", ".join(str(node.shape) for node in nodes)
        raise ShapeError.build(where, expected="vectors", got=shapes)
    order = list(range(len(nodes)))
    if indexing == "xy":
        order[:2] = order[:2][::-1]
    shape = tuple(size(nodes[i].shape) for i in order)
    grids = []
    for i, node in enumerate(nodes):
        line = tuple(shape[axis] if each == i else 1 for axis, each in enumerate(order))
        grids.append(base.broadcast_to(base.reshape(node, line), shape))
    return wrap(grids)


def tile(x: Any, repeats: Sizes) -> Expr:
    """Repeat `x` side by side along each axis; fewer `repeats` are for the last axes.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.tile(cd.tensor([1.0, 2.0]), 2).tolist()
    [1.0, 2.0, 1.0, 2.0]
    >>> op.tile(cd.tensor([1.0, 2.0]), (2, 1)).tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    node = lift(x)
    counts = as_shape(repeats, place("tile", node))
    return Expr(moves.tile(node, repeats=(1,) * (len(node.shape) - len(counts)) + counts))


def repeat(x: Any, repeats: int, axis: int) -> Expr:
    """Repeat each element `repeats` times in a row along an axis.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.repeat(cd.tensor([1.0, 2.0]), 2, axis=0).tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    node = lift(x)
    where = place("repeat", node)
    which = normalise_axis(axis, len(node.shape), where)
    (count,) = as_shape((repeats,), where)
    return Expr(moves.repeat(node, repeats=count, axis=which))
