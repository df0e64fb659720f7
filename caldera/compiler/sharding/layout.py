"""Layouts: small values that map elements of an array to ranks, independent of any data.

There are two kinds. In a `CartesianLayout` ranks are a mesh, and each axis of the array is split
along an axis of the mesh, or not at all: rows, columns, grids, block-cyclic, replicated. A rank's
part is one array, with its indices along each axis in their order. In a `TableLayout` any block
belongs to any ranks; a rank's part is the flat concatenation of its blocks. Replicas of a part are
complete on each of their ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from caldera.compiler.sharding.axis_split import (
    AxisSplit,
    Intervals,
    indices,
    overlap,
    positions,
    total,
)
from caldera.core.tensor import DType, Shape, size
from caldera.errors import ConfigError, ShapeError

Bounds = Sequence[tuple[int, int, int]]
"""(start, stop, step) an axis, with step > 0 and 0 <= start <= stop <= n."""


@dataclass(frozen=True)
class IndexBlock:
    """Contiguous elements of a rank's part, with their indices along each axis.

    `offset` is the first element's position in the part, in elements.
    """

    axes: tuple[Intervals, ...]
    offset: int = 0

    @cached_property
    def shape(self) -> Shape:
        """Number of indices along each axis."""
        return tuple(map(total, self.axes))

    @property
    def size(self) -> int:
        """Number of elements."""
        return size(self.shape)

    def overlap(self, other: IndexBlock) -> IndexBlock | None:
        """Return the intersection; None if it is empty."""
        axes = []
        for mine, others in zip(self.axes, other.axes, strict=True):
            both = overlap(mine, others)
            if not both:
                return None
            axes.append(both)
        return IndexBlock(tuple(axes))

    def index_of(self, wanted: IndexBlock) -> tuple[slice | np.ndarray, ...]:
        """Return the index of the block `wanted` in an array of this block, which contains it."""
        pairs = zip(self.axes, wanted.axes, strict=True)
        index = tuple(positions(own, each) for own, each in pairs)
        if all(isinstance(each, slice) for each in index):
            return index
        return np.ix_(*(np.arange(e.start, e.stop) if isinstance(e, slice) else e for e in index))

    def view(self, part: np.ndarray) -> np.ndarray:
        """Return this block of a flat part."""
        return part[self.offset : self.offset + self.size].reshape(self.shape)


class ShardLayout(ABC):
    """Assignment of the elements of an array of this `shape` to `ranks`.

    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     layout = dm.ones((5, 2), layout=dm.Rows()).eval().layout
    >>> isinstance(layout, dm.Layout), layout.local_shape(0), layout.owners((4, 0))
    (True, (3, 2), (1,))
    """

    shape: Shape
    ranks: tuple[int, ...]

    @abstractmethod
    def local_shape(self, rank: int) -> Shape:
        """Return the shape of a rank's part.

        A rank without a part has an empty array, except for scalars, which have no axis that could
        be empty.
        """

    @abstractmethod
    def pieces(self, rank: int) -> tuple[IndexBlock, ...]:
        """Return the blocks of a rank, in the order of its part."""

    @property
    @abstractmethod
    def cuts(self) -> tuple[tuple[int, ...], ...]:
        """Along each axis where blocks begin, and the length: a block has the same owners."""

    @abstractmethod
    def owners(self, index: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks that have the element with this index."""

    @abstractmethod
    def transposed(self, axes: Sequence[int]) -> ShardLayout:
        """Return the layout of the transpose, if every rank transposes its part."""

    # --- facts

    def elements(self, rank: int) -> int:
        """Return the number of elements of a rank."""
        return sum(piece.size for piece in self.pieces(rank))

    def nbytes(self, rank: int, dtype: DType) -> int:
        """Return the size of a rank's part in bytes."""
        return self.elements(rank) * np.dtype(dtype).itemsize

    @property
    def is_replicated(self) -> bool:
        """True if each rank of the layout has the whole array."""
        if not size(self.shape):
            # Parts without elements may still have other shapes than the whole.
            return all(self.local_shape(rank) == self.shape for rank in self.ranks)
        return all(self.elements(rank) == size(self.shape) for rank in self.ranks)

    # --- arrays

    def part_of(self, whole: np.ndarray, rank: int) -> np.ndarray:
        """Return a rank's part of an array."""
        check_shape("part_of", self.shape, whole.shape)
        pieces = self.pieces(rank)
        if not pieces:
            return np.zeros(self.local_shape(rank), whole.dtype)
        taken = [whole[index_of(piece.axes)].reshape(-1) for piece in pieces]
        return np.concatenate(taken).reshape(self.local_shape(rank))

    def put(self, whole: np.ndarray, rank: int, part: np.ndarray) -> None:
        """Write a rank's part to its position in an array."""
        flat = np.ascontiguousarray(part).reshape(-1)
        for piece in self.pieces(rank):
            whole[index_of(piece.axes)] = piece.view(flat)

    def whole_of(self, parts: Mapping[int, np.ndarray] | Sequence[np.ndarray]) -> np.ndarray:
        """Return the array that these are the parts of, by rank."""
        given = parts if isinstance(parts, Mapping) else dict(enumerate(parts))
        dtype = next(iter(given.values())).dtype if given else np.float64
        whole = np.zeros(self.shape, dtype)
        for rank in self.ranks:
            self.put(whole, rank, given[rank])
        return whole


def check_shape(where: str, expected: Shape, got: Shape) -> None:
    """Refuse an array of another shape than the layout's."""
    if tuple(expected) != tuple(got):
        raise ShapeError.build(f"layout.{where}", expected=f"shape {expected}", got=f"{got}")


def check_ranks(ranks: Sequence[int]) -> None:
    if len(set(ranks)) != len(ranks) or not ranks or min(ranks) < 0:
        raise ConfigError.build(
            "layout", expected="ranks from 0, at least one and each once", got=str(ranks)
        )


@dataclass(frozen=True)
class CartesianLayout(ShardLayout):
    """Layout by axes: `splits` has the split of each axis, None if it is not partitioned.

    The ranks are a mesh in row-major order: one axis for each split, in the order of the splits,
    and a last axis for replicas.

    >>> import numpy as np
    >>> from caldera.compiler.sharding.axis_split import even_split
    >>> from caldera.compiler.sharding.layout import CartesianLayout
    >>> layout = CartesianLayout((3, 4), (even_split(3, 2), None), (0, 1, 2, 3))
    >>> layout.mesh, layout.replicas
    ((2, 2), 2)
    >>> layout.local_shape(0), layout.local_shape(3), layout.owners((2, 0))
    ((2, 4), (1, 4), (2, 3))
    """

    shape: Shape
    splits: tuple[AxisSplit | None, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        splits = tuple(None if s is None or s.parts == 1 else s for s in self.splits)
        object.__setattr__(self, "splits", splits)
        lengths = tuple(
            n if s is None else s.length for n, s in zip(self.shape, splits, strict=True)
        )
        if lengths != self.shape:
            raise ShapeError.build(
                "layout", expected=f"splits of shape {self.shape}", got=f"{lengths}"
            )
        check_ranks(self.ranks)
        if len(self.ranks) % prod(s.parts for s in splits if s is not None):
            raise ConfigError.build(
                "layout",
                expected=f"a multiple of {prod(self._parts)} ranks, the number of parts",
                got=f"{len(self.ranks)} ranks",
            )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.splits, self.ranks))

    # --- the mesh

    @cached_property
    def _parts(self) -> tuple[int, ...]:
        return tuple(split.parts for split in self.splits if split is not None)

    @cached_property
    def replicas(self) -> int:
        """Number of ranks that have the same part."""
        return len(self.ranks) // prod(self._parts)

    @cached_property
    def mesh(self) -> tuple[int, ...]:
        """The shape of the mesh of ranks: the parts of each split, and the replicas."""
        return (*self._parts, self.replicas)

    @cached_property
    def split_axes(self) -> tuple[int, ...]:
        """The axes that are shared out."""
        return tuple(axis for axis, split in enumerate(self.splits) if split is not None)

    @cached_property
    def _place(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.ranks)}

    def coordinates(self, rank: int) -> tuple[int, ...] | None:
        """Return the coordinates of a rank in the mesh; None if it is not in the mesh."""
        place = self._place.get(rank)
        if place is None:
            return None
        found = []
        for length in reversed(self.mesh):
            place, coordinate = divmod(place, length)
            found.append(coordinate)
        return tuple(reversed(found))

    def group(self, parts: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks that have the part with these numbers along the split axes."""
        first = int(np.ravel_multi_index((*parts, 0), self.mesh))
        return self.ranks[first : first + self.replicas]

    # --- what a layout says

    def axis_intervals(self, rank: int, axis: int) -> Intervals:
        """Return the indices of a rank along an axis, as intervals."""
        split = self.splits[axis]
        if rank not in self._place:
            return ()
        if split is None:
            return ((0, self.shape[axis]),) if self.shape[axis] else ()
        return split.intervals[self.part_along(axis, rank)]

    def part_along(self, axis: int, rank: int) -> int:
        """Return the part of an axis that a rank has."""
        place = self.coordinates(rank)
        assert place is not None
        return 0 if self.splits[axis] is None else place[self.split_axes.index(axis)]

    def axis_indices(self, rank: int, axis: int) -> np.ndarray:
        """Return the global indices of a rank's part along an axis."""
        return indices(self.axis_intervals(rank, axis))

    def local_shape(self, rank: int) -> Shape:
        return tuple(total(self.axis_intervals(rank, axis)) for axis in range(len(self.shape)))

    def pieces(self, rank: int) -> tuple[IndexBlock, ...]:
        if rank not in self._place:
            return ()
        piece = IndexBlock(
            tuple(self.axis_intervals(rank, axis) for axis in range(len(self.shape)))
        )
        return (piece,) if piece.size else ()

    @property
    def cuts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            (0, n) if split is None else split.cuts
            for n, split in zip(self.shape, self.splits, strict=True)
        )

    def owners(self, index: Sequence[int]) -> tuple[int, ...]:
        parts = []
        for place, split in zip(index, self.splits, strict=True):
            if split is not None:
                block = int(np.searchsorted(split.cuts, place, side="right")) - 1
                parts.append(split.owners[block])
        return self.group(parts)

    # --- other layouts

    def transposed(self, axes: Sequence[int]) -> CartesianLayout:
        """Return the layout with these axes in this order; partitions of dropped axes are
        replicated.

        Ranks that differed along the dropped axes are adjacent along the last axis of the mesh.
        """
        order = [self.split_axes.index(axis) for axis in axes if self.splits[axis] is not None]
        gone = [place for place in range(len(self._parts)) if place not in order]
        mesh = np.array(self.ranks).reshape(self.mesh).transpose(*order, *gone, len(self._parts))
        return CartesianLayout(
            tuple(self.shape[axis] for axis in axes),
            tuple(self.splits[axis] for axis in axes),
            tuple(mesh.reshape(-1).tolist()),
        )

    def sliced(self, bounds: Bounds) -> CartesianLayout:
        """Return the layout of a slice, if every rank slices its part."""
        splits = tuple(
            None if split is None else split.sliced(*bound)
            for split, bound in zip(self.splits, bounds, strict=True)
        )
        return CartesianLayout(tuple(len(range(*b)) for b in bounds), splits, self.ranks)

    def local_slices(self, bounds: Bounds, rank: int) -> tuple[tuple[slice, ...], ...]:
        """Along each axis which of a rank's own indices a slice takes, stretch by stretch."""
        return tuple(
            _taken(self.axis_intervals(rank, axis), bound) for axis, bound in enumerate(bounds)
        )

    def without(self, axes: Sequence[int]) -> CartesianLayout:
        """Return the layout without some axes; their partitions are replicated."""
        return self.transposed([axis for axis in range(len(self.shape)) if axis not in axes])

    def unsplit(self, axes: Sequence[int]) -> CartesianLayout:
        """Return the layout with some axes whole on every rank; their partitions are replicated."""
        less = self.without(axes)
        for axis in sorted(axes):
            less = less.expanded(axis, self.shape[axis])
        return less

    def expanded(self, axis: int, length: int = 1) -> CartesianLayout:
        """Return the layout with one more axis, which is not partitioned."""
        return CartesianLayout(
            (*self.shape[:axis], length, *self.shape[axis:]),
            (*self.splits[:axis], None, *self.splits[axis:]),
            self.ranks,
        )

    def flipped(self, axes: Sequence[int]) -> CartesianLayout:
        """The layout of the array in reverse along some axes, if ranks reverse their parts."""
        splits = tuple(
            split.flipped() if split is not None and axis in axes else split
            for axis, split in enumerate(self.splits)
        )
        return CartesianLayout(self.shape, splits, self.ranks)


def replicated(shape: Shape, ranks: Sequence[int]) -> CartesianLayout:
    """Return a layout in which each of these ranks has the whole array."""
    return _replicated(shape, tuple(ranks))


def along_axis(
    shape: Shape, axis: int, split: AxisSplit | None, ranks: Iterable[int]
) -> CartesianLayout:
    """Return the layout in which one axis is split over the ranks.

    >>> from caldera.compiler.sharding.axis_split import even_split
    >>> from caldera.compiler.sharding.layout import along_axis
    >>> along_axis((2, 5), 1, even_split(5, 2), range(2)).local_shape(0)
    (2, 3)
    """
    splits = tuple(split if each == axis else None for each in range(len(shape)))
    return CartesianLayout(shape, splits, tuple(ranks))


# Ranks ask for the same few, several times for each node.
@lru_cache(maxsize=4096)
def _replicated(shape: Shape, ranks: tuple[int, ...]) -> CartesianLayout:
    return CartesianLayout(shape, (None,) * len(shape), ranks)


def index_of(axes: Sequence[Intervals]) -> tuple[slice | np.ndarray, ...]:
    """Return the index of these intervals in an array: slices if possible."""
    if all(len(each) == 1 for each in axes):
        return tuple(slice(*each[0]) for each in axes)
    return np.ix_(*map(indices, axes))


def _taken(held: Intervals, bound: tuple[int, int, int]) -> tuple[slice, ...]:
    """Return the local slices of a part's indices that a slice selects."""
    start, stop, step = bound
    found, place = [], 0
    for begin, end in held:
        first = start + -(-(max(begin, start) - start) // step) * step
        last = min(end, stop)
        if first < last:
            found.append(slice(place + first - begin, place + last - begin, step))
        place += end - begin
    return tuple(found)
