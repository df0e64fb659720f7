"""How a convolution is cut into tiles for Fourier transforms, and the memory they take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from caldera.base.threads import thread_count
from caldera.core.tensor.shape import size
from caldera.kernels.common.scratch import workspace_limit
from caldera.kernels.native.codegen.target import CACHE_LINE
from caldera.kernels.native.convolution.cost_model import PEAK
from caldera.kernels.native.convolution.fourier.matrices import frequencies
from caldera.kernels.native.convolution.reorder import staging_bytes
from caldera.kernels.native.convolution.tiled_layout import TiledLayout

LENGTHS = (16, 24, 32, 48, 64)
"""Of tiles and their transforms, along either axis."""
_BLOCKS = (64, 32, 16, 8, 4)
"""Tiles in a block, the most first."""


@dataclass(frozen=True)
class Layout(TiledLayout):
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
