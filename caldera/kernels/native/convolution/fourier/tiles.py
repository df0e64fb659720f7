"""Tiles of Fourier-domain convolution: their memory, and transforms as matrix products.

A tile has at most `length` rows and columns. It is real, so half of its frequencies along the
rows' axis are kept; along the columns' axis, all. Real and imaginary parts are separate rows (or
columns). Transforms this short take hardly more arithmetic as products with constant matrices
than as fast transforms, and products run at the full speed of the machine, on vectors of
channels, in any layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.tensor.dtype import DType
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import workspace_limit
from caldera.kernels.native.codegen import CACHE_LINE
from caldera.kernels.native.convolution import PEAK
from caldera.kernels.native.convolution.reorder import staging_bytes
from caldera.kernels.native.convolution.tiling import TiledLayout


@dataclass(frozen=True, eq=False)
class FourierMatrices:
    """What tiles are multiplied with. Angles are positive in inverse transforms."""

    down: np.ndarray
    """(frequency, part) by row: the forward transform along columns of a tile."""
    across: np.ndarray
    """(frequency, part) by (part, column): the forward transform along rows."""
    back_across: np.ndarray
    """(part, column) by (frequency, part): the inverse along rows."""
    back_down: np.ndarray
    """row by (frequency, part): the inverse along columns, whose results are real."""
    filters: np.ndarray
    """(frequency down, frequency across, part) by tap: the forward transform of filters."""
    taps: np.ndarray
    """(frequency down, frequency across, part) by tap: the inverse transform, to taps."""


def frequencies(length: int) -> int:
    """How many frequencies of a real signal are kept.

    >>> frequencies(16)
    9
    """
    return length // 2 + 1


@lru_cache(maxsize=64)
def matrices(length: int, taps: tuple[int, int], turned: bool, dtype: DType) -> FourierMatrices:
    """The matrices for tiles of this length and filters of this size.

    `turned` transforms filters turned by 180 degrees, as the input gradient wants them.

    >>> found = matrices(16, (7, 7), False, np.dtype("float32"))
    >>> found.down.shape, found.across.shape, found.filters.shape
    ((18, 16), (32, 32), (288, 49))
    """
    places = np.arange(length)
    half = np.arange(frequencies(length))
    angles = 2 * np.pi / length * (np.outer(places, places) % length)
    cosines, sines = np.cos(angles), np.sin(angles)
    # All but the first frequency and, for even lengths, the last stand for two.
    weights = np.where((half == 0) | (2 * half == length), 1.0, 2.0) / length**2

    down = np.stack([cosines[half], -sines[half]], axis=1)
    across = np.stack(
        [np.stack([cosines, sines], axis=1), np.stack([-sines, cosines], axis=1)], axis=1
    )
    back_across = np.stack(
        [np.stack([cosines, -sines], axis=2), np.stack([sines, cosines], axis=2)], axis=0
    )
    weighted = weights[:, None] * np.stack([cosines[half], -sines[half]], axis=0)
    back_down = weighted.transpose(2, 1, 0)
    rows, columns = (np.arange(count)[::-1] if turned else np.arange(count) for count in taps)
    of_row, of_column = np.outer(half, rows), np.outer(places, columns)
    phases = of_row[:, None, :, None] + of_column[None, :, None, :]
    turns = 2 * np.pi / length * (phases % length)
    both = np.stack([np.cos(turns), -np.sin(turns)], axis=2)

    def dense(matrix: np.ndarray, *shape: int) -> np.ndarray:
        return np.ascontiguousarray(matrix.reshape(shape), dtype)

    count = taps[0] * taps[1]
    return FourierMatrices(
        dense(down, 2 * len(half), length),
        dense(across, 2 * length, 2 * length),
        dense(back_across, 2 * length, 2 * length),
        dense(back_down, length, 2 * len(half)),
        dense(both, -1, count),
        dense(both * weights[:, None, None, None, None], -1, count),
    )


LENGTHS = (16, 24, 32, 48, 64)
"""Of tiles and their transforms, along either axis."""
_BLOCKS = (64, 32, 16, 8, 4)
"""Tiles in a block, the most first."""


@dataclass(frozen=True)
class FourierTiling(TiledLayout):
    """What one call of an op needs."""

    @cached_property
    def length(self) -> int:
        """The length of the transforms that takes the least time."""
        widest = max(self.geometry.taps)
        return min((each for each in LENGTHS if each > widest), key=self._seconds)

    def steps(self, length: int) -> tuple[int, int]:
        """Rows and columns of outputs that a tile has."""
        rows, columns = self.geometry.taps
        return length - rows + 1, length - columns + 1

    def grid(self, length: int) -> tuple[int, int]:
        """Tiles from top to bottom and from left to right."""
        shape = self.geometry.image if self.is_gradient else self.geometry.output
        rows, columns = self.steps(length)
        return -(-shape[2] // rows), -(-shape[3] // columns)

    @property
    def seconds(self) -> float:
        """How long it will take, roughly, on one core of the same speed as all such estimates."""
        return self._seconds(self.length)

    def _seconds(self, length: int) -> float:
        half = frequencies(length)
        down, across = self.grid(length)
        products = 8 * half * length * self.inner * self.columns
        transforms = 12 * half * length * length * (self.inner + self.columns)
        filters = 4 * half * length * size(self.geometry.filters)
        tile = products / (0.8 * PEAK) + transforms / (0.35 * PEAK)
        return self.geometry.batch * down * across * tile + filters / (0.8 * PEAK)

    @cached_property
    def tiles(self) -> int:
        """How many there are in all images."""
        down, across = self.grid(self.length)
        return self.geometry.batch * down * across

    @property
    def points(self) -> int:
        """Matrices of the points: real and imaginary parts of all frequencies that are kept."""
        return 2 * frequencies(self.length) * self.length

    @cached_property
    def block(self) -> int:
        """Tiles in a block: as many as pay and fit into the workspace allowed."""
        limit = workspace_limit() - staging_bytes(self.node)
        itemsize = self.geometry.dtype.itemsize
        fitting = (n for n in _BLOCKS if sum(self._lengths(n)) * itemsize <= limit)
        return min(next(fitting, _BLOCKS[-1]), self.tiles)

    @property
    def workers(self) -> int:
        """How many parts the work is done in."""
        return thread_count()

    # --- memory, in elements

    @property
    def filter_step(self) -> int:
        """From one point of the filters to the next."""
        return self._step(self.inner * self.columns)

    @property
    def step(self) -> int:
        """From one point of a block of transformed tiles to the next."""
        return self._step(self.block * self.inner)

    @property
    def other_step(self) -> int:
        """From one point of a block of the other tiles to the next."""
        return self._step(self.block * self.columns)

    @property
    def workspace(self) -> int:
        """Scratch memory of a worker: a tile that is transformed along one axis."""
        channels = max(self.inner, self.columns)
        return self._step(2 * frequencies(self.length) * self.length * channels)

    @property
    def lengths(self) -> tuple[int, int, int, int]:
        """Points of filters, of the transformed tiles and of the others, and workers' memory."""
        return self._lengths(self.block)

    def _lengths(self, block: int) -> tuple[int, int, int, int]:
        points, others = (self._step(block * each) for each in (self.inner, self.columns))
        return (
            self.points * self.filter_step,
            self.points * points,
            self.points * others,
            self.workers * self.workspace,
        )

    def _step(self, elements: int) -> int:
        """Whole cache lines, an odd number of them: else the same row of all matrices would be in
        the same place of the cache."""
        itemsize = self.geometry.dtype.itemsize
        lines = -(-elements * itemsize // CACHE_LINE)
        return (lines + 1 - lines % 2) * CACHE_LINE // itemsize
