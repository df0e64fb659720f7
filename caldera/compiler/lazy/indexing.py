"""NumPy indexing on nodes: parsing a key, reading the selected elements, and updating these.

A key is split into parts, one for each axis it makes or takes away. Ints, slices, `...` and None
are slices and shapes. Arrays of ints are positions: positions in several axes become positions in
one axis, their product, which `gather` reads. A mask is the positions at which it is true, so it
has to be known when the expression is written. Positions may be nodes, computed when a plan runs.

An update returns another node. The axes that a key selects from are merged into one axis of rows,
and the key becomes a row number for each value. If rows are known now, each row is read from the
values or from the node. If they are computed, values are added to zeros. Both are differentiable,
through node and values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.graph.node import Node, Spec, Symbol, describe
from caldera.core.graph.ops import (
    broadcast_to,
    cast,
    concat,
    constant,
    flip,
    full,
    narrow,
    reshape,
    slice_,
    transpose,
)
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops.base import array as array_leaf
from caldera.core.graph.ops.indexing import as_signed, gather, scatter_add, sort
from caldera.core.tensor import (
    Shape,
    Tensor,
    bool_,
    canonical,
    index_arrays,
    int8,
    int64,
    is_integer,
    promote,
    size,
)
from caldera.errors import DtypeError, IndexingError, ShapeError

Positions = np.ndarray | Node


@dataclass(frozen=True)
class AxisIndex:
    """Positions along an axis; `is_new` if the key makes that axis (of size 1) itself."""

    positions: Positions
    is_new: bool = False


Part = None | slice | AxisIndex


def array_node(array: np.ndarray) -> Node:
    """Return a node that holds an array; a number is a constant."""
    if array.ndim == 0:
        return constant(array.item(), canonical(array.dtype))
    # Stored on the host, and copied by a plan of another device. The default device would load the
    # libraries of a GPU in programs that otherwise use only the CPU.
    held = Tensor.from_numpy(array, device="cpu")
    return array_leaf(symbol=Symbol("", Spec(held.shape, held.dtype), "array", held))


class Index:
    """A key for one shape. Every `None`, slice and `AxisIndex` among its parts is an axis."""

    def __init__(self, node: Node, key: tuple[Any, ...]) -> None:
        self.parts, dots = _parts(node, plain_key(key))
        self.at = [i for i, part in enumerate(self.parts) if isinstance(part, AxisIndex)]
        self.is_number = all(self._positions(i).shape == () for i in self.at)
        try:
            shapes_of = [self._positions(i).shape for i in self.at]
            self.shape = () if self.is_number else np.broadcast_shapes(*shapes_of)
        except ValueError:
            shapes = ", ".join(str(self._positions(i).shape) for i in self.at)
            raise IndexingError.build(
                "index", expected="index arrays that broadcast together", got=f"shapes {shapes}"
            ) from None
        # As in NumPy, axes of positions keep their place, or come first if a slice separates them.
        last = self.at[-1] if self.at else 0
        self.first = self.at[0] if self.at else 0
        if last - self.first >= len(self.at) or self.first < dots <= last:
            self.first = 0

    def _positions(self, i: int) -> Positions:
        part = self.parts[i]
        assert isinstance(part, AxisIndex)
        return part.positions

    @property
    def order(self) -> list[int]:
        """The parts in the order in which their axes are read."""
        others = [i for i in range(len(self.parts)) if i not in self.at]
        return [*others[: self.first], *self.at, *others[self.first :]]

    @property
    def is_known(self) -> bool:
        """True if all positions are known now."""
        return all(isinstance(self._positions(i), np.ndarray) for i in self.at)

    def axis_of(self, part: int) -> int:
        """Return the axis of the result that a slice or a new axis became."""
        before = self.order[: self.order.index(part)]
        positions = [each for each in before if each in self.at]
        return len(before) - len(positions) + (len(self.shape) if positions else 0)

    def read(self, node: Node) -> Node:
        """Return the selected elements of a node with the shape for which the key was made."""
        if self.is_number and self.is_known:
            return _cut(node, self.parts, without_numbers=True)
        cut = _cut(node, self.parts)
        turned = transpose(cut, tuple(self.order))
        before, after = self.first, self.first + len(self.at)
        lengths = turned.shape[before:after]
        joined = reshape(turned, (*turned.shape[:before], size(lengths), *turned.shape[after:]))
        return gather(joined, self._joined(lengths), axis=before)

    def _joined(self, lengths: Shape) -> Node:
        """Return flat positions in the indexed axes, merged to a single axis."""
        all_positions = [self._positions(i) for i in self.at]
        if self.is_known:
            flat = (
                np.ravel_multi_index(np.broadcast_arrays(*all_positions), lengths)  # type: ignore[arg-type]
                if size(self.shape)
                else np.zeros(self.shape, np.int64)
            )
            return array_node(np.asarray(flat, np.int64))
        if len(all_positions) == 1:
            return all_positions[0]  # type: ignore[return-value]
        total, valid = full((), 0, int64), None
        for positions, n in zip(all_positions, lengths, strict=True):
            length = full((), n, int64)
            if isinstance(positions, np.ndarray):
                counted = array_node(positions)
            else:
                given = cast(positions, int64)
                counted = e.where(e.less(given, full((), 0, int64)), e.add(given, length), given)
                inside = e.logical_and(
                    e.greater_equal(counted, full((), 0, int64)), e.less(counted, length)
                )
                valid = inside if valid is None else e.logical_and(valid, inside)
            total = e.add(e.mul(total, length), counted)
        assert valid is not None
        # A position outside its axis must not become a valid position in the merged axis.
        outside = full((), math.prod(lengths), int64)
        return broadcast_to(e.where(valid, total, outside), self.shape)


def plain_key(key: tuple[Any, ...]) -> list[Any]:
    """Convert a key to None, `...`, slices, ints, nodes and NumPy arrays."""
    return [_plain(item) for item in key]


def _plain(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, slice | Node):
        return item
    if isinstance(item, bool | np.bool_):
        return np.array(item)
    if isinstance(item, int | np.integer):
        return int(item)
    return np.asarray(index_arrays((item,))[0])


def _taken(item: Any) -> int:
    """Return the number of axes a part of a key takes."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == bool_ else 1


def _parts(node: Node, key: list[Any]) -> tuple[list[Part], int]:
    """Return the parts of a key, and the index of the first part that replaces `...`."""
    given = sum(map(_taken, key))
    rank = len(node.shape)
    dots = [i for i, item in enumerate(key) if item is Ellipsis]
    if given > rank or len(dots) > 1:
        raise IndexingError.build("index", expected=f"at most {rank} indices", got=f"{given}")
    at = dots[0] if dots else len(key)
    whole = [slice(None)] * (rank - given)
    parts: list[Part] = []
    axis = first_of_dots = 0
    for i, item in enumerate((*key[:at], *whole, *key[at + 1 :])):
        if i == at and dots:
            first_of_dots = len(parts)
        if item is None or isinstance(item, slice):
            parts.append(item)
        elif isinstance(item, int):
            n = node.shape[axis]
            if not -n <= item < n:
                raise _outside(item, axis, node)
            parts.append(AxisIndex(np.array(item % n)))
        elif isinstance(item, Node):
            parts.append(AxisIndex(_checked_node(item)))
        elif item.dtype != bool_:
            parts.append(AxisIndex(_checked(item, axis, node)))
        elif item.ndim == 0:
            parts.append(AxisIndex(np.zeros(int(item), np.int64), is_new=True))
        else:
            parts += [AxisIndex(each) for each in _true_positions(item, axis, node)]
        axis += _taken(item)
    return parts, first_of_dots


def _checked(positions: np.ndarray, axis: int, node: Node) -> np.ndarray:
    """Return positions counted from the front."""
    n = node.shape[axis]
    wrong = (positions < -n) | (positions >= n)
    if wrong.any():
        raise _outside(positions[wrong].reshape(-1)[0], axis, node)
    return np.where(positions < 0, positions + n, positions).astype(np.int64)


def _outside(position: int, axis: int, node: Node) -> IndexingError:
    return IndexingError.build(
        "index",
        expected=f"an index within {node.shape[axis]} along axis {axis}",
        got=f"{position} into {describe(node)}",
    )


def _checked_node(positions: Node) -> Node:
    if positions.dtype == bool_:
        raise IndexingError.build(
            "index",
            expected="a mask that is known when the expression is written",
            got=f"{describe(positions)}, which is computed",
            hint="the result's shape would depend on the mask's values; use op.where(mask, x, "
            "...), or x.at[mask].set(value)",
        )
    if not is_integer(positions.dtype):
        raise IndexingError.build(
            "index",
            expected="integers as positions",
            got=describe(positions),
            hint="cast them with op.cast(indices, 'int64')",
        )
    return as_signed(positions)


def _true_positions(mask: np.ndarray, axis: int, node: Node) -> tuple[np.ndarray, ...]:
    wanted = node.shape[axis : axis + mask.ndim]
    if mask.shape != wanted:
        raise IndexingError.build(
            "index",
            expected=f"a mask of shape {wanted} from axis {axis} on",
            got=f"shape {mask.shape} for {describe(node)}",
        )
    return mask.nonzero()


def _cut(node: Node, parts: Sequence[Part], without_numbers: bool = False) -> Node:
    """Apply slices and new axes; axes with positions stay whole, or are removed for numbers."""
    bounds: list[tuple[int, int, int]] = []
    flipped: list[int] = []
    shape: list[int] = []
    for part in parts:
        if part is None or (isinstance(part, AxisIndex) and part.is_new):
            shape.append(1)
            continue
        if without_numbers and isinstance(part, AxisIndex):
            number = int(part.positions)  # type: ignore[arg-type]
            bounds.append((number, number + 1, 1))
            continue
        n = node.shape[len(bounds)]
        chosen = range(*part.indices(n)) if isinstance(part, slice) else range(n)
        if len(chosen) and chosen.step < 0:
            chosen = chosen[::-1]
            flipped.append(len(bounds))
        count = len(chosen)
        bounds.append((chosen.start, chosen[-1] + 1, chosen.step) if count else (0, 0, 1))
        shape.append(count)
    return reshape(flip(slice_(node, tuple(bounds)), tuple(flipped)), tuple(shape))


def set_at(node: Node, key: tuple[Any, ...], values: Node) -> Node:
    """`node` with these values where the key leads; of two for one place the later one stays."""
    mask = _computed_mask(node, key)
    values = _of_dtype(values, node)
    if mask is not None:
        return _where(mask, _broadcast(values, node.shape[len(mask.shape) :]), node)
    rows = IndexedRows(node, key)
    if not rows.count:
        return node
    given = rows.arranged(values)
    if isinstance(rows.places, np.ndarray):
        return rows.restored(_set_known(rows.rows, rows.places.reshape(-1), given))
    return rows.restored(_set_computed(rows.rows, reshape(rows.places, (rows.count,)), given))


def add_at(node: Node, key: tuple[Any, ...], values: Node) -> Node:
    """`node` with these values added where the key leads; of two for one place both are."""
    mask = _computed_mask(node, key)
    values = _of_dtype(values, node)
    if mask is not None:
        new = e.add(node, _broadcast(values, node.shape[len(mask.shape) :]))
        return _where(mask, new, node)
    rows = IndexedRows(node, key)
    if not rows.count:
        return node
    places = rows.places
    flat = array_node(places.reshape(-1)) if isinstance(places, np.ndarray) else places
    flat = reshape(flat, (rows.count,))
    return rows.restored(scatter_add(rows.rows, flat, rows.arranged(values), axis=0))


class IndexedRows:
    """A node as rows (the axes a key chooses from, as one, come first), and the row of each value.

    `places` is an array if all of the key is known now.
    """

    def __init__(self, node: Node, key: tuple[Any, ...]) -> None:
        index = Index(node, key)
        self._whole: list[int] = []
        """The axes of which the key takes all, ..."""
        self._results: list[int] = []
        """... and which axes of the values they are."""
        axis = 0
        for i, part in enumerate(index.parts):
            if part is None or (isinstance(part, AxisIndex) and part.is_new):
                continue
            n = node.shape[axis]
            if isinstance(part, slice) and range(*part.indices(n)) == range(n):
                self._whole.append(axis)
                self._results.append(index.axis_of(i))
            axis += 1
        chosen = [each for each in range(len(node.shape)) if each not in self._whole]
        self._order = (*chosen, *self._whole)
        self._turned = transpose(node, self._order)
        self._rest = tuple(node.shape[each] for each in self._whole)
        self.rows = reshape(self._turned, (size(self._turned.shape[: len(chosen)]), *self._rest))
        self.places = self._places(node, index, key)
        self.count = size(self.places.shape)

    def _places(self, node: Node, index: Index, key: tuple[Any, ...]) -> np.ndarray | Node:
        shape = tuple(1 if axis in self._whole else n for axis, n in enumerate(node.shape))
        numbers = np.arange(size(shape)).reshape(shape)
        if index.is_known:
            return np.asarray(numbers[tuple(plain_key(key))])
        held = array_node(numbers)
        return Index(held, key).read(held)

    def arranged(self, values: Node) -> Node:
        """Broadcast values to the selected shape, as rows: one for each place."""
        shape = list(self.places.shape)
        for result, n in zip(self._results, self._rest, strict=True):
            shape[result] = n
        whole = _broadcast(values, tuple(shape))
        first = [axis for axis in range(len(shape)) if axis not in self._results]
        return reshape(transpose(whole, (*first, *self._results)), (self.count, *self._rest))

    def restored(self, rows: Node) -> Node:
        """Return rows as the axes of the node again."""
        back = np.argsort(self._order).tolist()
        return transpose(reshape(rows, self._turned.shape), tuple(back))


def _where(flags: Node, yes: Node, no: Node) -> Node:
    """Select `yes` or `no` by flags for the first axes of `no`."""
    further = len(no.shape) - len(flags.shape)
    return e.where(reshape(flags, (*flags.shape, *(1,) * further)), yes, no)


def _set_known(rows: Node, places: np.ndarray, values: Node) -> Node:
    source = np.zeros(rows.shape[0], np.int64)
    is_changed = np.zeros(rows.shape[0], np.bool_)
    source[places] = np.arange(len(places))
    is_changed[places] = True
    new = gather(values, array_node(source), axis=0)
    return new if is_changed.all() else _where(array_node(is_changed), new, rows)


def _set_computed(rows: Node, places: Node, values: Node) -> Node:
    """Set computed places: sorting makes equal places neighbours, the last value is kept."""
    if rows.dtype == bool_:
        # Truth values cannot be added.
        return cast(_set_computed(cast(rows, int8), places, cast(values, int8)), bool_)
    count = places.shape[0]
    ordered, order = sort.outputs(places, axis=0, descending=False)
    is_other = e.not_equal(narrow(ordered, 0, 1, count - 1), narrow(ordered, 0, 0, count - 1))
    is_last = cast(concat((is_other, full((1,), True, bool_)), axis=0), int64)
    is_last = scatter_add(full((count,), 0, int64), order, is_last, axis=0)
    changes = scatter_add(full(rows.shape[:1], 0, int64), places, is_last, axis=0)
    zeros = full(values.shape, 0, values.dtype)
    kept = _where(cast(is_last, bool_), values, zeros)
    new = scatter_add(full(rows.shape, 0, rows.dtype), places, kept, axis=0)
    return _where(cast(changes, bool_), new, rows)


def _computed_mask(node: Node, key: tuple[Any, ...]) -> Node | None:
    """Return the mask if the key is a computed mask, else None."""
    masks = [each for each in key if isinstance(each, Node) and each.dtype == bool_]
    if not masks:
        return None
    (mask, *more), others = masks, [each for each in key if not isinstance(each, Node)]
    if more or key[0] is not mask or any(each is not Ellipsis for each in others):
        raise IndexingError.build(
            "index",
            expected="a computed mask as the only index",
            got=f"{len(key)} indices",
            hint="write the new value with op.where",
        )
    if mask.shape != node.shape[: len(mask.shape)]:
        raise IndexingError.build(
            "index",
            expected=f"a mask of shape {node.shape} or its first axes",
            got=describe(mask),
        )
    return mask


def _of_dtype(values: Node, node: Node) -> Node:
    if promote(values.dtype, node.dtype) != node.dtype:
        raise DtypeError.build(
            "at",
            expected=f"values that {node.dtype} can hold",
            got=describe(values),
            hint=f"cast them with op.cast(values, '{node.dtype}')",
        )
    return cast(values, node.dtype)


def _broadcast(values: Node, shape: Shape) -> Node:
    """Return values in a shape; axes of size 1 that are too many in front are left out."""
    surplus = max(len(values.shape) - len(shape), 0)
    fits = all(n == 1 for n in values.shape[:surplus]) and all(
        given in (1, n)
        for given, n in zip(reversed(values.shape[surplus:]), reversed(shape), strict=False)
    )
    if not fits:
        raise ShapeError.build(
            "at", expected=f"values that broadcast to {shape}", got=describe(values)
        )
    return broadcast_to(reshape(values, values.shape[surplus:]), shape)
