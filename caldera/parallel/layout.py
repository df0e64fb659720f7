"""How ranks hold a value together: small values, apart from the communication they stand for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from caldera.graph.node import Node
from caldera.graph.ops.collective import all_gather, next_number, shard_size
from caldera.graph.ops.movement import concat, narrow
from caldera.tensor.shape import Shape, size

AXIS = "model"
"""The axis of the mesh along which layers are split."""


class RankLayout(ABC):
    """How each of several ranks has a part of a value."""

    @abstractmethod
    def shape(self, whole: Shape, rank: int) -> Shape:
        """The shape of a rank's part of a value."""

    @abstractmethod
    def part_of(self, whole: np.ndarray, rank: int) -> np.ndarray:
        """A rank's part of an array."""

    @abstractmethod
    def whole_of(self, parts: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
        """The array of this shape that these are the parts of."""


@dataclass(frozen=True)
class FlatLayout(RankLayout):
    """Each rank has a stretch of the elements, whatever the shape; zeros fill up the last.

    >>> import numpy as np
    >>> from caldera.parallel.layout import FlatLayout
    >>> [FlatLayout(2).part_of(np.arange(1, 4).reshape(1, 3), rank).tolist() for rank in (0, 1)]
    [[1, 2], [3, 0]]
    """

    ranks: int

    def shape(self, whole: Shape, rank: int) -> Shape:
        return (shard_size(size(whole), self.ranks),)

    def part_of(self, whole: np.ndarray, rank: int) -> np.ndarray:
        each = shard_size(whole.size, self.ranks)
        own = whole.reshape(-1)[each * rank : each * (rank + 1)]
        return np.pad(own, (0, each - own.size))

    def whole_of(self, parts: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
        return np.concatenate(parts)[: size(shape)].reshape(shape)


@dataclass(frozen=True)
class Split(RankLayout):
    """Each rank has a part of the value along `axis`.

    Along it the value is `blocks` blocks of the same length, one after the other (queries, keys and
    values, say), and of each a rank has what lies between two of the `cuts`.

    >>> from caldera.parallel.layout import evenly
    >>> evenly(1, 10, 3)
    Split(axis=1, cuts=(0, 4, 7, 10), blocks=1)
    >>> evenly(1, 10, 3).shape((5, 10), rank=0)
    (5, 4)
    """

    axis: int
    cuts: tuple[int, ...]
    blocks: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The length of each rank's part."""
        pairs = zip(self.cuts, self.cuts[1:], strict=False)
        return tuple(self.blocks * (end - begin) for begin, end in pairs)

    @property
    def block(self) -> int:
        """The length of a whole block."""
        return self.cuts[-1]

    def moved(self, axis: int) -> Split:
        """The same along another axis."""
        return replace(self, axis=axis)

    def shape(self, whole: Shape, rank: int) -> Shape:
        return (*whole[: self.axis], self.sizes[rank], *whole[self.axis + 1 :])

    def part(self, whole: Node, rank: int) -> Node:
        """A rank's part of a value that it has all of."""
        begin, end = self.cuts[rank : rank + 2]
        pieces = [
            narrow(whole, self.axis, number * self.block + begin, end - begin)
            for number in range(self.blocks)
        ]
        return concat(tuple(pieces), self.axis)

    def whole(self, part: Node, rank: int) -> Node:
        """The value that ranks have parts of: it goes to all of them."""
        node: Node = all_gather(
            part, axis=AXIS, dim=self.axis, sizes=self.sizes, rank=rank, number=next_number()
        )
        if self.blocks == 1:
            return node
        pieces, starts = [], np.cumsum((0, *self.sizes)).tolist()
        for number in range(self.blocks):
            for start, taken in zip(starts, self.sizes, strict=False):
                length = taken // self.blocks
                pieces.append(narrow(node, self.axis, start + number * length, length))
        return concat(tuple(pieces), self.axis)

    # --- of arrays

    def part_of(self, whole: np.ndarray, rank: int) -> np.ndarray:
        begin, end = self.cuts[rank : rank + 2]
        blocks = np.split(whole, self.blocks, axis=self.axis)
        index = (slice(None),) * self.axis + (slice(begin, end),)
        return np.concatenate([block[index] for block in blocks], axis=self.axis)

    def whole_of(self, parts: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
        blocks = [np.split(part, self.blocks, axis=self.axis) for part in parts]
        in_order = [each[number] for number in range(self.blocks) for each in blocks]
        return np.concatenate(in_order, axis=self.axis)


Placement = Split | None
"""None: every rank has the whole value."""


def evenly(axis: int, length: int, ranks: int, unit: int = 1, blocks: int = 1) -> Split:
    """As evenly as whole units go, the first ranks having one more.

    >>> from caldera.parallel.layout import evenly
    >>> evenly(1, 24, 2, unit=4, blocks=3)
    Split(axis=1, cuts=(0, 4, 8), blocks=3)
    """
    units = length // blocks // unit
    cuts = tuple(unit * -(-units * rank // ranks) for rank in range(ranks + 1))
    return Split(axis, cuts, blocks)


def reshaped(split: Split, shape: Shape, new: Shape) -> Split | None:
    """How a value of this shape is spread once it is reshaped; None if its parts are no parts then.

    >>> from caldera.parallel.layout import evenly, reshaped
    >>> reshaped(evenly(1, 4, 2), (5, 4, 3, 3), (5, 36))
    Split(axis=1, cuts=(0, 18, 36), blocks=1)
    >>> reshaped(evenly(1, 8, 2), (5, 8), (5, 2, 4))
    Split(axis=1, cuts=(0, 1, 2), blocks=1)
    """
    before, inside = size(shape[: split.axis]), size(shape[split.axis + 1 :])
    for axis, length in enumerate(new):
        within = size(new[axis + 1 :])
        same = size(new[:axis]) == before and length * within == shape[split.axis] * inside
        if same and within and not any(cut * inside % within for cut in split.cuts):
            return Split(axis, tuple(cut * inside // within for cut in split.cuts), split.blocks)
    return None
