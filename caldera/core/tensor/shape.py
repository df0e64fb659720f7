"""Shapes and axes: pure functions on tuples of ints, shared by tensors and graphs.

Every function that can fail takes `where`, the name its error message starts with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import Any

import numpy as np

from caldera.errors import ShapeError

Shape = tuple[int, ...]


def as_shape(shape: int | Iterable[int], where: str = "shape") -> Shape:
    """A shape from an int or a sequence of ints; anything negative is refused.

    >>> as_shape(3), as_shape([2, 0]), as_shape(())
    ((3,), (2, 0), ())
    """
    sizes = _as_ints(shape, where)
    for size_of_axis in sizes:
        if size_of_axis < 0:
            raise ShapeError.build(where, expected="sizes of 0 or more", got=str(sizes))
    return sizes


def as_list(value: Any) -> list[Any]:
    """Several values as a list, from one or from any sequence of them.

    >>> as_list(3), as_list((1, 2))
    ([3], [1, 2])
    """
    plain = isinstance(value, str | bytes) or (isinstance(value, np.ndarray) and not value.ndim)
    return list(value) if isinstance(value, Iterable) and not plain else [value]


def size(shape: Shape) -> int:
    """The number of elements.

    >>> size((2, 3)), size(()), size((4, 0))
    (6, 1, 0)
    """
    return prod(shape)


@lru_cache(maxsize=4096)
def row_major_strides(shape: Shape) -> Shape:
    """How many elements apart two neighbours along each axis are, with the last axis dense.

    >>> row_major_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides = []
    step = 1
    for size_of_axis in reversed(shape):
        strides.append(step)
        # An empty axis must not make the strides of the others zero.
        step *= max(size_of_axis, 1)
    return tuple(reversed(strides))


def normalise_axis(axis: int, rank: int, where: str) -> int:
    """An axis counted from the front, from one that may be counted from the back.

    >>> normalise_axis(-1, 3, "op.sum")
    2
    """
    number = _as_int(axis, where, "an axis")
    if not -rank <= number < rank:
        expected = f"an axis from {-rank} to {rank - 1}" if rank else "no axis: this is a scalar"
        raise ShapeError.build(where, expected=expected, got=str(number))
    return number % rank


def normalise_axes(axis: int | Iterable[int] | None, rank: int, where: str) -> Shape:
    """The axes meant by `axis`, in ascending order and each once; None means all of them.

    >>> normalise_axes((-1, 0), 3, "op.sum"), normalise_axes(None, 2, "op.sum")
    ((0, 2), (0, 1))
    """
    if axis is None:
        return tuple(range(rank))
    axes = tuple(normalise_axis(each, rank, where) for each in _as_ints(axis, where))
    if len(set(axes)) != len(axes):
        raise ShapeError.build(where, expected="each axis once", got=str(axis))
    return tuple(sorted(axes))


def normalise_permutation(axes: Sequence[int] | None, rank: int, where: str) -> Shape:
    """An order of all axes; None reverses them.

    >>> normalise_permutation((0, -1, 1), 3, "op.transpose")
    (0, 2, 1)
    """
    if axes is None:
        return tuple(reversed(range(rank)))
    order = tuple(normalise_axis(each, rank, where) for each in _as_ints(axes, where))
    if sorted(order) != list(range(rank)):
        raise ShapeError.build(
            where, expected=f"each of the {rank} axes once", got=str(tuple(axes))
        )
    return order


def broadcast_shapes(*shapes: Shape, where: str = "broadcast") -> Shape:
    """The shape that all of these broadcast to, by NumPy's rule.

    >>> broadcast_shapes((5, 1), (3,), (), where="op.add")
    (5, 3)
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for position, size_of_axis in enumerate(shape, start=rank - len(shape)):
            if size_of_axis != 1:
                if result[position] not in (1, size_of_axis):
                    raise ShapeError.build(
                        where,
                        expected="shapes that broadcast together (equal or 1, from the right)",
                        got=" and ".join(map(str, shapes)),
                        hint="reshape or unsqueeze one of them",
                    )
                result[position] = size_of_axis
    return tuple(result)


def reshape_with_unknown(old: Shape, new: int | Iterable[int], where: str) -> Shape:
    """The shape meant by `new`, in which one size may be -1: whatever the rest leaves.

    >>> reshape_with_unknown((32, 28, 28), (32, -1), "op.reshape")
    (32, 784)
    """
    wanted = _as_ints(new, where)
    unknown = [position for position, size_of_axis in enumerate(wanted) if size_of_axis == -1]
    if len(unknown) > 1 or any(size_of_axis < -1 for size_of_axis in wanted):
        raise ShapeError.build(
            where, expected="sizes of 0 or more, and at most one -1", got=str(wanted)
        )
    elements = size(old)
    result = wanted
    if unknown:
        known = prod(size_of_axis for size_of_axis in wanted if size_of_axis != -1)
        if not known:
            raise ShapeError.build(
                where, expected="no -1 beside a size of 0: any size would fit", got=str(wanted)
            )
        result = (*wanted[: unknown[0]], elements // known, *wanted[unknown[0] + 1 :])
    if size(result) != elements:
        raise ShapeError.build(
            where,
            expected=f"a shape with the {elements} elements of {old}",
            got=f"{wanted}" + ("" if unknown else f" with {size(wanted)}"),
        )
    return result


def _as_ints(values: int | Iterable[int], where: str) -> Shape:
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        return tuple(_as_int(value, where, "ints") for value in values)
    return (_as_int(values, where, "an int or a sequence of ints"),)


def _as_int(value: object, where: str, expected: str) -> int:
    if isinstance(value, bool | np.bool_):
        raise ShapeError.build(where, expected=expected, got=repr(value))
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError.build(where, expected=expected, got=repr(value)) from None
