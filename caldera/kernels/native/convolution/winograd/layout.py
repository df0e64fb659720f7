"""Split of a convolution's tiles into blocks, their assignment to workers, and memory sizes.

There are two modes. With separate blocks, each worker transforms its tiles from pixels to outputs,
in private scratch memory that stays in its cache. With shared blocks, all workers transform a
block, then share its products point by point, then transform back. The matrices of the filters,
which may be larger than any cache, are then read once per block, not once per block and worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from caldera.base.threads import is_limited, thread_count
from caldera.core.tensor.dtype import NAMES
from caldera.kernels.common.binding import workspace_limit
from caldera.kernels.native.codegen import (
    computed_type,
    host_target,
    natural_lanes,
)
from caldera.kernels.native.convolution import PEAK
from caldera.kernels.native.convolution.correlation_blocking import best_shape
from caldera.kernels.native.convolution.reorder import staging_bytes
from caldera.kernels.native.convolution.tiling import TiledLayout
from caldera.kernels.native.convolution.winograd.transforms import reach
from caldera.kernels.native.normalisation.loops import rows_of_image

_BLOCKS_IN_PLACE = (12, 6)
_BLOCKS_OF_OUR_PRODUCTS = (60, 30, 12)
_BLOCKS_BY_ROWS = (16, 8)
_BLOCKS_OF_BLAS = (128, 64, 32, 16, 8)
_BLOCKS_TOGETHER = (256, 128, 64, 32, 16, 8)
"""Tiles in a block, the most first."""
_NEAREST_CACHE = 44 << 10
"""Bytes of the first-level cache, which should contain the points of a block and of the filters."""
_MANY_FILTERS = 1 << 16
"""Minimum input channels times output channels for which workers compute together."""
_OUR_PRODUCTS = 1 << 15
_OUR_SUMS = 1 << 12
"""Maximum size of a matrix that the built-in kernel multiplies.

BLAS would spend more time on packing such matrices.
"""
_FEW_SUMS = 1 << 8
"""Maximum size of matrices for which reading a block's pixels again per row of points pays."""
_FEW_CHANNELS = 32
"""Maximum number of terms of sums that take no longer than computing addresses of their rows."""
_BLOCKS_OF_A_WORKER = 4
"""Blocks of rows that a worker has at least if it takes their sums: they are shared as a whole."""
_TRANSFORMED = 0.4e-9
"""Seconds for an element of a transformed tile."""
_FILTER = 1e-9
"""Seconds for an element of a transformed filter."""
_WORTH_SPLITTING = 1 << 10
"""Number of filters from which on several workers transform them faster than one."""
_TURNS = (4, 2)
"""Parts that a worker has, the most first: threads of a machine are not equally fast, and who is
done sooner takes what others have not begun."""
_WORTH_A_TURN = 1 << 20
"""Products of a part at least: threads need time to find the next."""
_WASTE = 1.05
"""Maximum ratio of the rows of a part, rounded up to whole register tiles, to its tiles."""
_SUMS_OF_A_WORKER = 160 << 10
"""Bytes of the sums of all parts of a worker, at most: they are added up in the end."""


@dataclass(frozen=True)
class WinogradTiling(TiledLayout):
    """Sizes and memory layout of a call, for each group of its channels."""

    size: int
    """Outputs that a tile has along an axis."""

    @cached_property
    def points(self) -> int:
        """Number of matrix products."""
        return reach(self.size) ** 2

    @property
    def by_rows(self) -> bool:
        """True if a block's points are computed row by row.

        The points and sums of a row are few enough to stay in the nearest cache.
        """
        few = self.size == 2 and self.inner * self.columns <= _FEW_SUMS
        return self.is_sum and few and self.is_apart and self.register_tile is not None

    @property
    def kept(self) -> int:
        """Number of points of a block that are in memory together."""
        return reach(self.size) if self.by_rows else self.points

    @property
    def written(self) -> tuple[int, int]:
        """Height and width of the images that tiles are counted in."""
        return self.geometry.source if self.is_gradient else self.geometry.target

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Tiles from top to bottom and from left to right."""
        height, width = self.written
        return -(-height // self.size), -(-width // self.size)

    @cached_property
    def tiles(self) -> int:
        """Number of tiles in all images."""
        return self.geometry.batch * self.grid[0] * self.grid[1]

    @cached_property
    def row_block(self) -> int | None:
        """Number of tiles that write a block of pixel rows whose sums one worker computes.

        None if a block of rows is written by several workers, or if blocks are few.
        """
        height, width = self.written
        rows = rows_of_image(height, width)
        if self.is_sum or not self.is_apart or self.geometry.groups > 1 or rows is None:
            return None
        if rows % self.size and rows != height:
            return None
        tiles = -(-rows // self.size) * self.grid[1]
        return tiles if self.tiles >= _BLOCKS_OF_A_WORKER * thread_count() * tiles else None

    @cached_property
    def turns(self) -> int:
        """Number of parts per worker, if all workers are equally fast."""
        if thread_count() == 1 or is_limited() or not self.is_apart:
            return 1
        return next(filter(self._is_worth, _TURNS), 1)

    def _is_worth(self, turns: int) -> bool:
        tiles = self.tiles // (thread_count() * turns)
        if tiles * self.points * self.inner * self.columns < _WORTH_A_TURN:
            return False
        if self.is_sum:
            sums = self.points * self.filter_step * self.geometry.dtype.itemsize
            return turns * sums <= _SUMS_OF_A_WORKER
        rows = 1 if self.register_tile is None else self.register_tile[0]
        return -(-tiles // rows) * rows <= tiles * _WASTE

    @property
    def seconds(self) -> float:
        """Estimated time on one core with the speed assumed by all estimates."""
        efficiency = 0.92
        for side in (self.inner, self.columns):
            efficiency *= side / (side + 1)
        pairs = self.inner * self.columns
        points = self.points * self.geometry.groups
        multiplying = 2 * self.tiles * points * pairs / (PEAK * efficiency)
        transformed = self.tiles * points * (self.inner + self.columns)
        return multiplying + transformed * _TRANSFORMED + points * pairs * _FILTER

    # --- who multiplies what

    @cached_property
    def is_apart(self) -> bool:
        """True if each worker has separate blocks."""
        few_tiles = self.tiles < thread_count() * _BLOCKS_OF_OUR_PRODUCTS[1]
        return self.inner * self.columns < _MANY_FILTERS and not few_tiles

    @cached_property
    def register_tile(self) -> tuple[int, int] | None:
        """Rows and vectors of the part of a product that stays in registers; None if BLAS is to
        multiply."""
        if self.inner * self.columns > (_OUR_SUMS if self.is_sum else _OUR_PRODUCTS):
            return None
        if not self.is_sum:
            return best_shape(self.columns, _BLOCKS_OF_OUR_PRODUCTS[0], self._lanes)
        for rows, vectors in ((8, 2), (16, 1)) if host_target().registers >= 32 else ((4, 2),):
            if self.columns % rows == 0 and self.inner % (vectors * self._lanes) == 0:
                return rows, vectors
        return None

    @property
    def known_channels(self) -> int:
        """Number of input channels if compiling a kernel for this number pays, else 0."""
        few = self.register_tile is not None and self.inner <= _FEW_CHANNELS
        return self.inner if few else 0

    @cached_property
    def _lanes(self) -> int:
        return natural_lanes(computed_type(NAMES[self.geometry.dtype]))

    @property
    def lanes(self) -> int:
        """Number of channels that are transformed together: a full register if there are enough."""
        fewest = min(self.inner, self.columns)
        return min(self._lanes, 1 << (fewest.bit_length() - 1))

    @cached_property
    def panel(self) -> int:
        """Number of columns in a panel of the filters' matrices."""
        if self.register_tile is None or self.is_sum:
            return self.columns
        return self.register_tile[1] * self._lanes

    @cached_property
    def width(self) -> int:
        """Number of columns of the matrices of the second set of images: whole panels."""
        return -(-self.columns // self.panel) * self.panel

    @cached_property
    def in_place(self) -> bool:
        """True if products overwrite the points from which they are computed.

        This requires result rows with the same length as the rows of points, and registers for a
        whole row before it is written.
        """
        ours = self.register_tile is not None and not self.is_sum
        return ours and self.is_apart and self.inner == self.width == self.panel

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        if not self.is_apart:
            return _BLOCKS_TOGETHER
        if self.register_tile is None:
            return _BLOCKS_OF_BLAS
        if self.in_place:
            return _BLOCKS_IN_PLACE
        if self.by_rows:
            return _BLOCKS_BY_ROWS
        near = [n for n in _BLOCKS_OF_OUR_PRODUCTS if self._block_bytes(n) <= _NEAREST_CACHE]
        return tuple(near) or _BLOCKS_OF_OUR_PRODUCTS

    @cached_property
    def block(self) -> int:
        """Tiles in a block: as many as pay and fit into the workspace allowed, shared evenly."""
        limit = workspace_limit() - staging_bytes(self.node)
        most = next((n for n in self._sizes if self._bytes(n) <= limit), self._sizes[-1])
        parts = thread_count() * self.turns if self.is_apart else 1
        rounds = max(1, -(-self.tiles // (most * parts)))
        even = max(1, -(-self.tiles // (rounds * parts)))
        rows = 1 if self.register_tile is None or self.is_sum else self.register_tile[0]
        return min(most, -(-even // rows) * rows)

    @property
    def padded(self) -> bool:
        """True if a worker's scratch memory has the capacity for whole register tiles."""
        if self.register_tile is None or self.is_sum or not self.is_apart:
            return False
        return self.block % self.register_tile[0] == 0

    @cached_property
    def parts(self) -> int:
        """Number of parts of the transforms."""
        count = -(-self.tiles // self.block) if self.is_apart else self.block
        return max(1, min(thread_count() * self.turns, count))

    @property
    def chunks(self) -> int:
        """Number of products into which the product of a point is split, for one per worker."""
        return -(-thread_count() // self.points)

    @property
    def filter_workers(self) -> int:
        """Number of workers that transform filters, or add the sums of their gradients."""
        elements = self.inner * self.columns * self.sums
        return thread_count() if elements >= _WORTH_SPLITTING else 1

    # --- memory, in elements

    @cached_property
    def filter_step(self) -> int:
        """Stride between points of the filters, in elements."""
        return self._step(self.inner * self.width)

    @property
    def step(self) -> int:
        """Stride between points of a block of transformed tiles, in elements."""
        return self._step(self.block * self.inner)

    @property
    def other_step(self) -> int:
        """Distance between points in a block of the second set of tiles."""
        return self._step(self.block * self.width)

    @cached_property
    def border(self) -> int:
        """Workspace for the pixel that represents all pixels outside the images."""
        return self._step(max(self.inner, self.columns))

    @property
    def scratches(self) -> int:
        """Number of blocks that are in memory together."""
        return min(thread_count(), self.parts) if self.is_apart else 1

    @property
    def sums(self) -> int:
        """Number of copies of the points of filters: sums of several parts are added last."""
        return self.parts if self.is_sum and self.is_apart else 1

    @property
    def lengths(self) -> tuple[int, int, int, int]:
        """Lengths of the memory for filters, both sets of transformed tiles, and border pixels."""
        others = 0 if self.in_place else self.scratches * self.kept * self.other_step
        return (
            self.sums * self.points * self.filter_step,
            self.scratches * self.kept * self.step,
            others,
            min(thread_count(), self.parts) * self.border,
        )

    def _bytes(self, block: int) -> int:
        """Return the maximum number of bytes that blocks of this size need."""
        copies = thread_count() if self.is_apart else 1
        sums = copies * self.turns if self.is_sum else 1
        elements = self.points * sums * self.filter_step
        elements += self.kept * copies * self._tile_elements(block)
        return (elements + thread_count() * self.border) * self.geometry.dtype.itemsize

    def _block_bytes(self, block: int) -> int:
        """Return the number of bytes that a worker accesses for a block."""
        elements = self.filter_step + self._tile_elements(block)
        return self.kept * elements * self.geometry.dtype.itemsize

    def _tile_elements(self, block: int) -> int:
        """Return the number of elements of a point in both sets of tiles."""
        others = 0 if self.in_place else self._step(block * self.width)
        return self._step(block * self.inner) + others
