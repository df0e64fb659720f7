"""How ranks hold a value together: small values, apart from the communication they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from caldera.compiler.sharding.axis_split import even_split
from caldera.compiler.sharding.layout import CartesianLayout
from caldera.core.graph.ops.collective import shard_size
from caldera.core.tensor.shape import Shape, size

AXIS = "model"
"""The axis of the mesh along which layers are split."""


class RankLayout(Protocol):
    """How each of several ranks has a part of a value; every `sharding.layout.Layout` is one."""

    def local_shape(self, rank: int) -> Shape:
        """The shape of a rank's part."""

    def part_of(self, whole: np.ndarray, rank: int) -> np.ndarray:
        """A rank's part of an array."""

    def whole_of(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The array that these are the parts of, by rank."""


@dataclass(frozen=True)
class FlatLayout:
    """Each rank has a stretch of the elements, whatever the shape; zeros fill up the last.

    >>> import numpy as np
    >>> from caldera.parallel.layout import FlatLayout
    >>> flat = FlatLayout((1, 3), 2)
    >>> [flat.part_of(np.arange(1, 4).reshape(1, 3), rank).tolist() for rank in (0, 1)]
    [[1, 2], [3, 0]]
    """

    shape: Shape
    ranks: int

    def local_shape(self, rank: int) -> Shape:
        """The shape of a rank's part."""
        return (shard_size(size(self.shape), self.ranks),)

    def part_of(self, whole: np.ndarray, rank: int) -> np.ndarray:
        """A rank's part of an array."""
        each = shard_size(whole.size, self.ranks)
        own = whole.reshape(-1)[each * rank : each * (rank + 1)]
        return np.pad(own, (0, each - own.size))

    def whole_of(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The array that these are the parts of, by rank."""
        return np.concatenate(parts)[: size(self.shape)].reshape(self.shape)


def evenly(shape: Shape, axis: int, ranks: int, unit: int = 1, blocks: int = 1) -> CartesianLayout:
    """Along an axis, as evenly as whole units go, the first ranks having one more.

    Along it the value is `blocks` blocks of the same length, one after the other (queries, keys and
    values, say), and a rank has a part of each.

    >>> from caldera.parallel.layout import evenly
    >>> evenly((5, 10), 1, 3).local_shape(0)
    (5, 4)
    >>> evenly((24,), 0, 2, unit=4, blocks=3).cuts
    ((0, 4, 8, 12, 16, 20, 24),)
    """
    split = even_split(shape[axis] // blocks, ranks, unit).repeated(blocks)
    assert split is not None
    splits = tuple(split if each == axis else None for each in range(len(shape)))
    return CartesianLayout(shape, splits, tuple(range(ranks)))
