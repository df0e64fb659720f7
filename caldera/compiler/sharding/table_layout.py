"""Layouts by a table of blocks, and layouts of local reshapes and concatenations.

In a table layout any block belongs to any ranks. A reshape or concatenation is local if no
element moves between ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod

import numpy as np

from caldera.compiler.sharding.axis_split import AxisSplit
from caldera.compiler.sharding.layout import (
    CartesianLayout,
    IndexBlock,
    ShardLayout,
    check_ranks,
    replicated,
)
from caldera.core.tensor.shape import Shape, size
from caldera.errors import ShapeError


@dataclass(frozen=True)
class TableLayout(ShardLayout):
    """Blocks between `blocks`, the cuts along each axis; `table` has the ranks of each block, the
    last axis of blocks changing first.

    >>> from caldera.compiler.sharding.table_layout import TableLayout
    >>> layout = TableLayout((2, 3), ((0, 2), (0, 1, 3)), ((1,), (0, 1)))
    >>> layout.ranks, layout.local_shape(1), layout.owners((0, 2))
    ((0, 1), (6,), (0, 1))
    """

    shape: Shape
    blocks: tuple[tuple[int, ...], ...]
    table: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        counts = [len(cuts) - 1 for cuts in self.blocks]
        ends = tuple(cuts[-1] for cuts in self.blocks)
        rising = all(a <= b for cuts in self.blocks for a, b in pairwise(cuts))
        if ends != self.shape or any(cuts[0] for cuts in self.blocks) or not rising:
            raise ShapeError.build(
                "layout",
                expected=f"cuts from 0 to the ends of {self.shape}, in order",
                got=f"{self.blocks}",
            )
        if len(self.table) != prod(counts):
            raise ShapeError.build(
                "layout", expected=f"owners for {prod(counts)} blocks", got=str(len(self.table))
            )
        for ranks in self.table:
            check_ranks(ranks)
        object.__setattr__(self, "table", tuple(tuple(sorted(ranks)) for ranks in self.table))

    @cached_property
    def ranks(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(sorted({rank for ranks in self.table for rank in ranks})) or (0,)

    @cached_property
    def _pieces(self) -> dict[int, tuple[IndexBlock, ...]]:
        found: dict[int, list[IndexBlock]] = {rank: [] for rank in self.ranks}
        filled = dict.fromkeys(self.ranks, 0)
        spans = [tuple(pairwise(cuts)) for cuts in self.blocks]
        for box, ranks in zip(product(*spans), self.table, strict=True):
            block = IndexBlock(tuple((span,) for span in box))
            for rank in ranks if block.size else ():
                found[rank].append(IndexBlock(block.axes, filled[rank]))
                filled[rank] += block.size
        return {rank: tuple(pieces) for rank, pieces in found.items()}

    def local_shape(self, rank: int) -> Shape:
        return (self.elements(rank),)

    def pieces(self, rank: int) -> tuple[IndexBlock, ...]:
        return self._pieces.get(rank, ())

    @property
    def cuts(self) -> tuple[tuple[int, ...], ...]:
        return self.blocks

    def owners(self, index: Sequence[int]) -> tuple[int, ...]:
        place = 0
        for cuts, number in zip(self.blocks, index, strict=True):
            block = int(np.searchsorted(cuts, number, side="right")) - 1
            place = place * (len(cuts) - 1) + block
        return self.table[place]

    def transposed(self, axes: Sequence[int]) -> TableLayout:
        """Return the table of the transpose.

        Ranks have to bring their blocks into the new order.
        """
        counts = [len(cuts) - 1 for cuts in self.blocks]
        order = np.arange(len(self.table)).reshape(counts).transpose(*axes).reshape(-1).tolist()
        return TableLayout(
            tuple(self.shape[axis] for axis in axes),
            tuple(self.blocks[axis] for axis in axes),
            tuple(self.table[place] for place in order),
        )


def reshaped(layout: CartesianLayout, shape: Shape) -> CartesianLayout | None:
    """Return the layout of the array in another shape, if every rank reshapes its part.

    Return None if the ranks' elements would not form parts of the reshaped array.

    >>> from caldera.compiler.sharding.axis_split import even_split
    >>> from caldera.compiler.sharding.layout import CartesianLayout
    >>> from caldera.compiler.sharding.table_layout import reshaped
    >>> rows = CartesianLayout((4, 6), (even_split(4, 2), None), (0, 1))
    >>> reshaped(rows, (24,)).splits, reshaped(rows, (3, 8))
    ((AxisSplit(parts=2, cuts=(0, 12, 24), owners=(0, 1)),), None)
    """
    if shape == layout.shape:
        return layout
    if not size(shape):
        return replicated(shape, layout.ranks)
    splits: list[AxisSplit | None] = [None] * len(shape)
    for before, after in _groups(layout.shape, shape):
        taken = [axis for axis in before if layout.splits[axis] is not None]
        if len(taken) > 1:
            return None
        if taken:
            found = _moved(layout, taken[0], before, after, shape)
            if found is None:
                return None
            splits[found[0]] = found[1]
    return CartesianLayout(shape, tuple(splits), layout.ranks)


def _groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yield groups of axes of the old and the new shape with equal sizes."""
    i = j = 0
    while i < len(old) or j < len(new):
        before: list[int] = []
        after: list[int] = []
        have = want = 1
        while True:
            if i < len(old) and (have < want or not before or old[i] == 1):
                before.append(i)
                have *= old[i]
                i += 1
            elif j < len(new) and (want < have or not after or new[j] == 1):
                after.append(j)
                want *= new[j]
                j += 1
            else:
                break
        yield before, after


def _moved(
    layout: CartesianLayout, axis: int, before: list[int], after: list[int], shape: Shape
) -> tuple[int, AxisSplit] | None:
    """Return the new axis that replaces a partitioned old axis, and its split."""
    split = layout.splits[axis]
    assert split is not None
    outer = size(tuple(layout.shape[each] for each in before if each < axis))
    inner = size(tuple(layout.shape[each] for each in before if each > axis))
    whole = split.scaled(inner)
    for place in after:
        outside = size(tuple(shape[each] for each in after if each < place))
        inside = size(tuple(shape[each] for each in after if each > place))
        flat: AxisSplit | None = None
        if outer % outside == 0:
            flat = whole.repeated(outer // outside)
        elif outside % outer == 0:
            flat = whole.period(outside // outer)
        here = None if flat is None else flat.divided(inside)
        if here is not None and here.length == shape[place]:
            return place, here
    return None


def joined(layouts: Sequence[CartesianLayout], axis: int) -> CartesianLayout | None:
    """Return the layout of concatenated arrays, if every rank concatenates its parts.

    Return None if the remaining axes are partitioned in different ways.

    >>> from caldera.compiler.sharding.axis_split import even_split
    >>> from caldera.compiler.sharding.layout import CartesianLayout
    >>> from caldera.compiler.sharding.table_layout import joined
    >>> rows = CartesianLayout((4,), (even_split(4, 2),), (0, 1))
    >>> joined([rows, rows], 0).splits[0]
    AxisSplit(parts=2, cuts=(0, 2, 4, 6, 8), owners=(0, 1, 0, 1))
    """
    first, *others = layouts
    for each in others:
        same = each.ranks == first.ranks and all(
            (a is None) == (b is None) and (number == axis or a == b)
            for number, (a, b) in enumerate(zip(first.splits, each.splits, strict=True))
        )
        if not same or (first.splits[axis] and first.mesh != each.mesh):
            return None
    split = first.splits[axis]
    for each in others:
        other = each.splits[axis]
        if split is not None and other is not None:
            split = split.joined(other)
    length = sum(each.shape[axis] for each in layouts)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return CartesianLayout(
        shape, (*first.splits[:axis], split, *first.splits[axis + 1 :]), first.ranks
    )
