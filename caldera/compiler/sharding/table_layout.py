"""A layout in which any block belongs to any ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod

import numpy as np

from caldera.compiler.sharding.layout import Layout, Piece, check_ranks
from caldera.core.tensor.shape import Shape
from caldera.errors import ShapeError


@dataclass(frozen=True)
class TableLayout(Layout):
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
    def _pieces(self) -> dict[int, tuple[Piece, ...]]:
        found: dict[int, list[Piece]] = {rank: [] for rank in self.ranks}
        filled = dict.fromkeys(self.ranks, 0)
        spans = [tuple(pairwise(cuts)) for cuts in self.blocks]
        for box, ranks in zip(product(*spans), self.table, strict=True):
            block = Piece(tuple((span,) for span in box))
            for rank in ranks if block.size else ():
                found[rank].append(Piece(block.axes, filled[rank]))
                filled[rank] += block.size
        return {rank: tuple(pieces) for rank, pieces in found.items()}

    def local_shape(self, rank: int) -> Shape:
        return (self.elements(rank),)

    def pieces(self, rank: int) -> tuple[Piece, ...]:
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
        """The table of the transpose; ranks have to bring their blocks into the new order."""
        counts = [len(cuts) - 1 for cuts in self.blocks]
        order = np.arange(len(self.table)).reshape(counts).transpose(*axes).reshape(-1).tolist()
        return TableLayout(
            tuple(self.shape[axis] for axis in axes),
            tuple(self.blocks[axis] for axis in axes),
            tuple(self.table[place] for place in order),
        )
