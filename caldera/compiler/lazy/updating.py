"""New values for the parts of a node that a key names: another node, the old one stays as it is.

The axes that a key chooses from are taken as one, an axis of rows, and the key as a row for each
value. Where rows are known now, each one is looked up: from the values, or from the node. Where
they are computed, values are added to zeros. Both are differentiable, through node and values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.compiler.lazy.indexing import AxisIndex, Index, array_node, plain_key
from caldera.core.graph.node import Node, describe
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops.base import broadcast_to, cast, full, reshape
from caldera.core.graph.ops.indexing import gather, scatter_add, sort
from caldera.core.graph.ops.movement import concat, narrow, transpose
from caldera.core.tensor.dtype import bool_, int8, int64, promote
from caldera.core.tensor.shape import Shape, size
from caldera.errors import DtypeError, IndexingError, ShapeError


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
        """Values, broadcast to what the key names, in rows: one for each place."""
        shape = list(self.places.shape)
        for result, n in zip(self._results, self._rest, strict=True):
            shape[result] = n
        whole = _broadcast(values, tuple(shape))
        first = [axis for axis in range(len(shape)) if axis not in self._results]
        return reshape(transpose(whole, (*first, *self._results)), (self.count, *self._rest))

    def restored(self, rows: Node) -> Node:
        """Rows as the axes of the node again."""
        back = np.argsort(self._order).tolist()
        return transpose(reshape(rows, self._turned.shape), tuple(back))


def _where(flags: Node, yes: Node, no: Node) -> Node:
    """One or the other by flags for the first axes of the second."""
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
    """In the order of their places equal ones are neighbours: the last of them stays."""
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
    """A mask that is computed, beside the node, if that is the key."""
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
    """Values in a shape; axes of size 1 that are too many in front are left out."""
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
