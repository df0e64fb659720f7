"""Shapes, axes and strides: pure functions and values, shared by tensors and graphs.

Every function that can fail takes `where`, the name its error message starts with. A strided view
is (shape, strides, offset), all in elements. Basic indices (ints, slices, `...`, None) give another
view of the same memory; index arrays do not, and are left to NumPy on a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from caldera.errors import IndexingError, ShapeError

Shape = tuple[int, ...]


def as_shape(shape: int | Iterable[int], where: str = "shape") -> Shape:
    """Return a shape from an int or a sequence of ints; negative sizes are rejected.

    >>> as_shape(3), as_shape([2, 0]), as_shape(())
    ((3,), (2, 0), ())
    """
    sizes = _as_ints(shape, where)
    for size_of_axis in sizes:
        if size_of_axis < 0:
            raise ShapeError.build(where, expected="sizes >= 0", got=str(sizes))
    return sizes


def as_list(value: Any) -> list[Any]:
    """Return one value or a sequence of values as a list.

    >>> as_list(3), as_list((1, 2))
    ([3], [1, 2])
    """
    plain = isinstance(value, str | bytes) or (isinstance(value, np.ndarray) and not value.ndim)
    return list(value) if isinstance(value, Iterable) and not plain else [value]


def size(shape: Shape) -> int:
    """Return the number of elements.

    >>> size((2, 3)), size(()), size((4, 0))
    (6, 1, 0)
    """
    return prod(shape)


@lru_cache(maxsize=4096)
def row_major_strides(shape: Shape) -> Shape:
    """Return the distance in elements between neighbours along each axis of a dense array.

    >>> row_major_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides = []
    step = 1
    for size_of_axis in reversed(shape):
        strides.append(step)
        # An empty axis must not make the strides of preceding axes zero.
        step *= max(size_of_axis, 1)
    return tuple(reversed(strides))


def normalise_axis(axis: int, rank: int, where: str) -> int:
    """Return an axis counted from the front, from one that may be counted from the back.

    >>> normalise_axis(-1, 3, "op.sum")
    2
    """
    number = _as_int(axis, where, "an axis")
    if not -rank <= number < rank:
        expected = f"an axis from {-rank} to {rank - 1}" if rank else "no axis: this is a scalar"
        raise ShapeError.build(where, expected=expected, got=str(number))
    return number % rank


def normalise_axes(axis: int | Iterable[int] | None, rank: int, where: str) -> Shape:
    """Return the axes denoted by `axis`, ascending and unique; None means all axes.

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
    """Return an order of all axes; None reverses them.

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
    """Return the shape that all of these broadcast to, by NumPy's rule.

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
                        hint="reshape or unsqueeze one operand",
                    )
                result[position] = size_of_axis
    return tuple(result)


def reshape_with_unknown(old: Shape, new: int | Iterable[int], where: str) -> Shape:
    """Return the shape denoted by `new`, in which one size may be -1 and is then computed.

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
                where,
                expected="no -1 together with a size of 0: any size would fit",
                got=str(wanted),
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
    expected = "ints" if isinstance(values, list | tuple) else "an int or a sequence of ints"
    return tuple(_as_int(value, where, expected) for value in as_list(values))


def _as_int(value: object, where: str, expected: str) -> int:
    if isinstance(value, bool | np.bool_):
        raise ShapeError.build(where, expected=expected, got=repr(value))
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError.build(where, expected=expected, got=repr(value)) from None


class StridedView(NamedTuple):
    """Layout in which element (i, j, ...) is at offset + i * strides[0] + j * strides[1] + ..."""

    shape: Shape
    strides: Shape
    offset: int

    @property
    def is_dense(self) -> bool:
        """True if the elements are contiguous in row-major order.

        >>> StridedView((2, 3), (3, 1), 6).is_dense, StridedView((2, 3), (1, 2), 0).is_dense
        (True, False)
        """
        wanted = row_major_strides(self.shape)
        if self.strides == wanted:
            return True
        steps = zip(self.shape, self.strides, wanted, strict=True)
        return size(self.shape) == 0 or all(
            length == 1 or stride == dense for length, stride, dense in steps
        )

    @property
    def span(self) -> tuple[int, int]:
        """Return the first element of memory in use, and the distance from it to the last.

        >>> StridedView((3,), (-2,), 5).span
        (1, 5)
        """
        if size(self.shape) == 0:
            return self.offset, 0
        steps = zip(self.shape, self.strides, strict=True)
        reaches = [(length - 1) * stride for length, stride in steps]
        return self.offset + sum(min(each, 0) for each in reaches), sum(map(abs, reaches)) + 1

    def element(self, indices: tuple[object, ...]) -> int:
        """Return the position of an element from one int per axis.

        >>> StridedView((2, 3), (3, 1), 0).element((1, -1))
        5
        """
        position = self.offset
        for axis, number in enumerate(indices):
            position += self._inside(number, axis) * self.strides[axis]
        return position

    def indexed(self, key: tuple[object, ...]) -> StridedView:
        """Return the layout of a basic index, by NumPy's rules.

        >>> StridedView((4, 5), (5, 1), 0).indexed((slice(None, None, 2), -1))
        StridedView(shape=(2,), strides=(10,), offset=4)
        """
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        axis = 0
        for item in self._without_ellipsis(key):
            if item is None:
                shape.append(1)
                strides.append(0)
                continue
            stride = self.strides[axis]
            if isinstance(item, slice):
                start, step, length = self._sliced(item, axis)
                shape.append(length)
                strides.append(stride * step)
                # The start of an empty slice may lie outside the memory.
                offset += start * stride if length else 0
            else:
                offset += self._inside(item, axis) * stride
            axis += 1
        return StridedView(tuple(shape), tuple(strides), offset)

    def reshaped(self, shape: Shape) -> StridedView | None:
        """Return the layout of the same elements in another shape, or None without such strides.

        >>> StridedView((4, 6), (6, 1), 0).reshaped((2, 2, 6))
        StridedView(shape=(2, 2, 6), strides=(12, 6, 1), offset=0)
        >>> StridedView((6, 4), (1, 6), 0).reshaped((24,)) is None
        True
        """
        if self.is_dense:
            return StridedView(shape, row_major_strides(shape), self.offset)
        # NumPy finds the strides, for a byte of which no more is read.
        seen = as_strided(np.empty(1, np.int8), self.shape, self.strides)
        try:
            return StridedView(shape, seen.reshape(shape, copy=False).strides, self.offset)
        except ValueError:
            return None

    def permuted(self, order: Shape) -> StridedView:
        """Return the layout with the axes in another order.

        >>> StridedView((2, 3), (3, 1), 0).permuted((1, 0))
        StridedView(shape=(3, 2), strides=(1, 3), offset=0)
        """
        return StridedView(
            tuple(self.shape[axis] for axis in order),
            tuple(self.strides[axis] for axis in order),
            self.offset,
        )

    def _without_ellipsis(self, key: tuple[object, ...]) -> list[object]:
        """Return the key with whole slices for the axes it leaves out."""
        places = [position for position, item in enumerate(key) if item is Ellipsis]
        used = sum(item is not None and item is not Ellipsis for item in key)
        if len(places) > 1:
            raise IndexingError.build("index", expected="at most one ...", got=_written(key))
        if used > len(self.shape):
            raise IndexingError.build(
                "index",
                expected=f"at most {len(self.shape)} indices for shape {self.shape}",
                got=_written(key),
            )
        position = places[0] if places else len(key)
        whole = [slice(None)] * (len(self.shape) - used)
        return [*key[:position], *whole, *key[position + 1 :]]

    def _inside(self, item: object, axis: int) -> int:
        """Return an int index counted from the front."""
        number = index(item)  # type: ignore[arg-type]
        length = self.shape[axis]
        if not -length <= number < length:
            raise IndexingError.build(
                f"index {number} of axis {axis}",
                expected=f"{-length} to {length - 1}" if length else "no index: the axis is empty",
                got=f"{number} for shape {self.shape}",
            )
        return number + length if number < 0 else number

    def _sliced(self, item: slice, axis: int) -> tuple[int, int, int]:
        """Start, step and length of a slice."""
        try:
            start, stop, step = item.indices(self.shape[axis])
        except (TypeError, ValueError):
            raise IndexingError.build(
                "index", expected="a slice of ints with a step other than 0", got=_written((item,))
            ) from None
        return start, step, len(range(start, stop, step))


def is_element(key: tuple[object, ...], rank: int) -> bool:
    """Return True if the key selects one element: an int for every axis.

    >>> is_element((0, -1), 2), is_element((0,), 2)
    (True, False)
    """
    if len(key) != rank:
        return False
    # A loop is twice as fast as `all` with a generator, and this runs for every `t[i, j]`.
    for item in key:  # noqa: SIM110
        if type(item) is not int and not _is_int(item):
            return False
    return True


def is_basic(key: tuple[object, ...]) -> bool:
    """Return True if the key selects a view: it has only ints, slices, `...` and None.

    >>> is_basic((0, slice(1), None, ...)), is_basic(([0, 1],))
    (True, False)
    """
    return all(
        item is None or item is Ellipsis or isinstance(item, slice) or _is_int(item) for item in key
    )


def index_arrays(key: tuple[object, ...]) -> tuple[Any, ...]:
    """Return a key with index arrays as NumPy takes it: lists and tensors in it become arrays.

    >>> index_arrays((slice(2), [0, 1]))
    (slice(None, 2, None), array([0, 1]))
    """
    return tuple(item if is_basic((item,)) else _index_array(item) for item in key)


def picked(array: NDArray[Any], key: tuple[Any, ...]) -> Any:
    """Return the elements that index arrays select; NumPy's complaints become ours.

    >>> picked(np.arange(5), (np.array([3, 3]),)).tolist()
    [3, 3]
    """
    try:
        return array[key]
    except IndexError as error:
        raise IndexingError.build(
            "index", expected=f"indices for shape {array.shape}", got=str(error)
        ) from None


def _index_array(item: object) -> NDArray[Any]:
    try:
        array = np.asarray(item)
    except ValueError:
        array = np.empty(0, object)
    if array.size == 0 and isinstance(item, list):
        return array.astype(np.intp)
    if array.dtype.kind not in "biu":
        raise IndexingError.build(
            "index",
            expected="ints, slices, ..., None, or arrays of ints or bools",
            got=f"{type(item).__name__} {item!r}",
        )
    if array.dtype == np.uint64:
        # NumPy would count what int64 has not from the end.
        array = np.minimum(array, np.iinfo(np.int64).max).astype(np.int64)
    return array


def _is_int(item: object) -> bool:
    return isinstance(item, int | np.integer) and not isinstance(item, bool)


def _written(key: tuple[object, ...]) -> str:
    """Return the text of the key as written between brackets."""

    def part(item: object) -> str:
        if item is Ellipsis:
            return "..."
        if isinstance(item, slice):
            bounds = [item.start, item.stop] + ([] if item.step is None else [item.step])
            return ":".join("" if bound is None else str(bound) for bound in bounds)
        return str(item)

    return f"[{', '.join(part(item) for item in key)}]"
