"""User-facing layouts for any shape and any ranks.

`of(shape, ranks)` returns the `ShardLayout` of an array of that shape on the given ranks. A
distribution constructed with explicit ranks uses those instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from caldera.compiler.sharding.axis_split import AxisSplit, cyclic_split, even_split
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, along_axis, replicated
from caldera.compiler.sharding.table_layout import TableLayout
from caldera.core.tensor.shape import Shape
from caldera.errors import ConfigError

Cuts = int | Sequence[int] | None
"""The length of a block, or where blocks begin (with the end of the last), or one block."""


class Distribution(ABC):
    """A layout for any shape.

    >>> from caldera import dmath as dm
    >>> isinstance(dm.Rows(), dm.Distribution), dm.Rows().of((4, 2), range(2)).local_shape(0)
    (True, (2, 2))
    """

    @abstractmethod
    def of(self, shape: Shape, ranks: Iterable[int]) -> ShardLayout:
        """Return the layout of an array of this shape on the available `ranks`."""


def as_layout(given: ShardLayout | Distribution, shape: Shape, ranks: Iterable[int]) -> ShardLayout:
    """Return the layout for a user's argument: a layout or a distribution."""
    if isinstance(given, Distribution):
        return given.of(tuple(shape), ranks)
    if not isinstance(given, ShardLayout) or given.shape != tuple(shape):
        raise ConfigError.build(
            "layout",
            expected=f"a layout of shape {tuple(shape)}, or one for any shape",
            got=repr(given),
            hint="such as Rows(), Grid(2, 4) or Replicated()",
        )
    return given


def _own(ranks: Sequence[int] | None, others: Iterable[int]) -> tuple[int, ...]:
    return tuple(others) if ranks is None else tuple(int(rank) for rank in ranks)


@dataclass(frozen=True)
class Axis(Distribution):
    """One block per rank along an axis, split as evenly as whole `unit`s allow, or at `cuts`.

    >>> from caldera.compiler.sharding.distributions import Axis
    >>> Axis(1).of((2, 10), range(3)).cuts
    ((0, 2), (0, 4, 7, 10))
    >>> Axis(0, cuts=(0, 1, 1, 9)).of((9,), range(3)).local_shape(1)
    (0,)
    """

    axis: int
    unit: int = 1
    cuts: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None

    def of(self, shape: Shape, ranks: Iterable[int]) -> ShardLayout:
        own = _own(self.ranks, ranks)
        if not shape:
            return replicated(shape, own)
        if not -len(shape) <= self.axis < len(shape):
            raise ConfigError.build(
                "layout", expected=f"an axis of shape {shape}", got=f"axis {self.axis}"
            )
        axis = self.axis % len(shape)
        split = even_split(shape[axis], len(own), self.unit)
        if self.cuts is not None:
            split = AxisSplit(len(own), tuple(self.cuts), tuple(range(len(self.cuts) - 1)))
        return along_axis(shape, axis, split, own)


def Rows(
    unit: int = 1, *, cuts: Iterable[int] | None = None, ranks: Iterable[int] | None = None
) -> Axis:
    """Return a distribution of a matrix by rows: `Axis(0)`.

    >>> from caldera.compiler.sharding.distributions import Rows
    >>> Rows().of((5, 3), range(2)).local_shape(0)
    (3, 3)
    """
    return Axis(0, unit, _tuple(cuts), _tuple(ranks))


def Columns(
    unit: int = 1, *, cuts: Iterable[int] | None = None, ranks: Iterable[int] | None = None
) -> Axis:
    """Return a distribution of a matrix by columns: `Axis(-1)`.

    >>> from caldera.compiler.sharding.distributions import Columns
    >>> Columns().of((5, 3), range(2)).local_shape(0)
    (5, 2)
    """
    return Axis(-1, unit, _tuple(cuts), _tuple(ranks))


def _tuple(values: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(int(value) for value in values)


class Grid(Distribution):
    """Ranks as a mesh whose axes correspond to the first axes of the array.

    Ranks beyond the mesh are replicas if their number is a multiple of the mesh size; otherwise
    they have no part.

    >>> from caldera.compiler.sharding.distributions import Grid
    >>> Grid(2, 2).of((4, 6), range(4)).local_shape(3)
    (2, 3)
    """

    def __init__(
        self,
        *mesh: int,
        ranks: Iterable[int] | None = None,
        block: int | Sequence[int] | None = None,
    ) -> None:
        self.mesh = tuple(int(parts) for parts in mesh)
        self.ranks = _tuple(ranks)
        each = list(block) if isinstance(block, Iterable) else [block] * len(self.mesh)
        self.block = tuple(None if length is None else int(length) for length in each)
        if not self.mesh or min(self.mesh) < 1 or len(self.block) != len(self.mesh):
            raise ConfigError.build(
                "Grid",
                expected="numbers of ranks along the axes, and a block for each",
                got=f"{mesh} and {block}",
                hint="such as Grid(2, 4)",
            )

    def __repr__(self) -> str:
        return f"Grid{self.mesh}" if not any(self.block) else f"Grid{self.mesh, self.block}"

    def of(self, shape: Shape, ranks: Iterable[int]) -> ShardLayout:
        own = _own(self.ranks, ranks)
        mesh, block = self.mesh[: len(shape)], self.block[: len(shape)]
        taken = len(own) // prod(mesh) * prod(mesh)
        if not taken:
            raise ConfigError.build(
                "Grid", expected=f"at least {prod(mesh)} ranks, for {mesh}", got=f"{len(own)}"
            )
        splits: list[AxisSplit | None] = [None] * len(shape)
        for axis, (parts, length) in enumerate(zip(mesh, block, strict=True)):
            n = shape[axis]
            splits[axis] = even_split(n, parts) if not length else cyclic_split(n, parts, length)
        # Replicas differ by a multiple of the mesh size.
        meshes = np.array(own[:taken]).reshape(-1, prod(mesh)).T.reshape(-1)
        return CartesianLayout(shape, tuple(splits), tuple(meshes.tolist()))


def BlockCyclic(
    block: int | Sequence[int], *, grid: Sequence[int], ranks: Iterable[int] | None = None
) -> Grid:
    """Return blocks of equal size dealt to the ranks of a mesh in turn, as in ScaLAPACK.

    >>> from caldera.compiler.sharding.distributions import BlockCyclic
    >>> BlockCyclic(2, grid=(2,)).of((7,), range(2)).cuts
    ((0, 2, 4, 6, 7),)
    """
    return Grid(*grid, block=block, ranks=ranks)


@dataclass(frozen=True)
class Replicated(Distribution):
    """Distribution in which every rank has the whole array.

    >>> from caldera.compiler.sharding.distributions import Replicated
    >>> Replicated(ranks=(1, 2)).of((3,), range(4)).owners((0,))
    (1, 2)
    """

    ranks: tuple[int, ...] | None = None

    def of(self, shape: Shape, ranks: Iterable[int]) -> ShardLayout:
        return replicated(shape, _own(self.ranks, ranks))


class Blocks(Distribution):
    """Blocks of any sizes on any ranks.

    Along an axis, blocks are specified by their lengths, by their boundaries (including the end),
    or as a single block. `rows` and `columns` are the first axes; more follow in `others`. `owners`
    has a rank for each block, or several replica ranks: nested like the blocks, or a function of
    the block's indices. Without `owners`, blocks are assigned to the ranks in turn.

    >>> from caldera.compiler.sharding.distributions import Blocks
    >>> blocks = Blocks(rows=[0, 1, 4], columns=2, owners=[[0, 1], [1, (0, 2)]])
    >>> layout = blocks.of((4, 4), range(3))
    >>> layout.owners((3, 3)), layout.local_shape(1)
    ((0, 2), (8,))
    """

    def __init__(
        self, rows: Cuts = None, columns: Cuts = None, *others: Cuts, owners: Any = None
    ) -> None:
        self.cuts = (rows, columns, *others)
        self.owners = owners

    def __repr__(self) -> str:
        return f"Blocks({', '.join(map(str, self.cuts))})"

    def of(self, shape: Shape, ranks: Iterable[int]) -> ShardLayout:
        given = (*self.cuts, *(None,) * len(shape))[: len(shape)]
        blocks = tuple(_cuts(cuts, n) for cuts, n in zip(given, shape, strict=True))
        counts = tuple(len(cuts) - 1 for cuts in blocks)
        there = tuple(ranks)
        table = tuple(
            _ranks(self._owner(place, number, there))
            for number, place in enumerate(np.ndindex(counts))
        )
        return TableLayout(shape, blocks, table)

    def _owner(self, place: tuple[int, ...], number: int, ranks: tuple[int, ...]) -> Any:
        if self.owners is None:
            return ranks[number % len(ranks)]
        if callable(self.owners):
            return self.owners(*place)
        found = self.owners
        try:
            for each in place:
                found = found[each]
        except (IndexError, TypeError):
            raise ConfigError.build(
                "Blocks", expected=f"an owner for block {place}", got=f"{self.owners!r}"
            ) from None
        return found


def _cuts(given: Cuts, length: int) -> tuple[int, ...]:
    if given is None:
        return (0, length)
    if isinstance(given, int):
        return (*range(0, length, given), length) if length else (0, 0)
    return tuple(int(cut) for cut in given)


def _ranks(owner: Any) -> tuple[int, ...]:
    return (int(owner),) if np.ndim(owner) == 0 else tuple(int(rank) for rank in owner)
