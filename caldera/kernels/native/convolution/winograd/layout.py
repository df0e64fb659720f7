"""How the tiles of a convolution are cut into blocks, who computes what, and the memory for it.

Two ways to share the work. Apart: each worker takes blocks of tiles from pixels to outputs, in
scratch memory of its own that stays in its cache. Together: all workers transform a block, then
share its products point by point, then transform back: the matrices of the filters, which may be
larger than any cache, are read once a block and not once a block and worker.
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
"""Bytes of the nearest cache: a block's points and those of the filters stay there, if they can."""
_MANY_FILTERS = 1 << 16
"""Channels in times channels out, from which on workers compute together."""
_OUR_PRODUCTS = 1 << 15
_OUR_SUMS = 1 << 12
"""Up to so many, matrices are multiplied by a kernel of our own: BLAS would spend more time on
rearranging them."""
_FEW_SUMS = 1 << 8
"""Up to so many, it pays to read a block's pixels again for each row of points."""
_FEW_CHANNELS = 32
"""Sums of at most so many terms take no longer than finding out where their rows begin."""
_BLOCKS_OF_A_WORKER = 4
"""Blocks of rows that a worker has at least if it takes their sums: they are shared as a whole."""
_TRANSFORMED = 0.4e-9
"""Seconds for an element of a transformed tile."""
_FILTER = 1e-9
"""Seconds for an element of a transformed filter."""
_WORTH_SPLITTING = 1 << 10
"""From so many filters on, several workers transform them sooner than one."""
_TURNS = (4, 2)
"""Parts that a worker has, the most first: threads of a machine are not equally fast, and who is
done sooner takes what others have not begun."""
_WORTH_A_TURN = 1 << 20
"""Products of a part at least: threads need time to find the next."""
_WASTE = 1.05
"""Rows of the products of a part, in whole tiles of registers, to tiles at most."""
_SUMS_OF_A_WORKER = 160 << 10
"""Bytes of the sums of all parts of a worker, at most: they are added up in the end."""


@dataclass(frozen=True)
class WinogradTiling(TiledLayout):
    """What one call of an op needs, for each group of its channels."""

    size: int
    """Outputs that a tile has along an axis."""

    @cached_property
    def points(self) -> int:
        """How many products of matrices there are."""
        return reach(self.size) ** 2

    @property
    def by_rows(self) -> bool:
        """Whether a block's points are computed row by row: then so few of them, and of their
        sums, are in use at once that they stay in the nearest cache."""
        few = self.size == 2 and self.inner * self.columns <= _FEW_SUMS
        return self.is_sum and few and self.is_apart and self.register_tile is not None

    @property
    def kept(self) -> int:
        """How many points of a block are in memory at once."""
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
        """How many there are in all images."""
        return self.geometry.batch * self.grid[0] * self.grid[1]

    @cached_property
    def row_block(self) -> int | None:
        """How many tiles write a block of rows of pixels whose sums a worker takes at once; None
        where rows of blocks are not written by one worker alone, or blocks are few."""
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
        """How many parts a worker has, as long as none is ahead of others."""
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
        """How long it will take, roughly, on one core of the same speed as all such estimates."""
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
        """Whether each worker takes blocks of its own."""
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
        """Input channels, where it pays to compile a kernel for so many; else 0."""
        few = self.register_tile is not None and self.inner <= _FEW_CHANNELS
        return self.inner if few else 0

    @cached_property
    def _lanes(self) -> int:
        return natural_lanes(computed_type(NAMES[self.geometry.dtype]))

    @property
    def lanes(self) -> int:
        """Channels that are transformed at once: a register full, if there are as many."""
        fewest = min(self.inner, self.columns)
        return min(self._lanes, 1 << (fewest.bit_length() - 1))

    @cached_property
    def panel(self) -> int:
        """Columns of the filters' matrices that lie together."""
        if self.register_tile is None or self.is_sum:
            return self.columns
        return self.register_tile[1] * self._lanes

    @cached_property
    def width(self) -> int:
        """Columns of the matrices of the other images: whole panels."""
        return -(-self.columns // self.panel) * self.panel

    @cached_property
    def in_place(self) -> bool:
        """Whether products are written over the points they come from: rows of results as long as
        those, each of which is in registers as a whole before it is written."""
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
        """Whether a worker's scratch memory has room for whole tiles of registers."""
        if self.register_tile is None or self.is_sum or not self.is_apart:
            return False
        return self.block % self.register_tile[0] == 0

    @cached_property
    def parts(self) -> int:
        """How many parts transforms are done in."""
        count = -(-self.tiles // self.block) if self.is_apart else self.block
        return max(1, min(thread_count() * self.turns, count))

    @property
    def chunks(self) -> int:
        """Into how many products a point's is cut, so that there is one for every worker."""
        return -(-thread_count() // self.points)

    @property
    def filter_workers(self) -> int:
        """How many workers transform filters, or add up the sums of their gradients."""
        elements = self.inner * self.columns * self.sums
        return thread_count() if elements >= _WORTH_SPLITTING else 1

    # --- memory, in elements

    @cached_property
    def filter_step(self) -> int:
        """From one point of the filters to the next."""
        return self._step(self.inner * self.width)

    @property
    def step(self) -> int:
        """From one point of a block of transformed tiles to the next."""
        return self._step(self.block * self.inner)

    @property
    def other_step(self) -> int:
        """From one point of a block of the other tiles to the next."""
        return self._step(self.block * self.width)

    @cached_property
    def border(self) -> int:
        """Workspace for the pixel that stands for those outside of images."""
        return self._step(max(self.inner, self.columns))

    @property
    def scratches(self) -> int:
        """How many blocks are in memory at once."""
        return min(thread_count(), self.parts) if self.is_apart else 1

    @property
    def sums(self) -> int:
        """How many times the points of filters are kept: sums of several parts are added last."""
        return self.parts if self.is_sum and self.is_apart else 1

    @property
    def lengths(self) -> tuple[int, int, int, int]:
        """Points of filters, of the transformed tiles and of the others, and border pixels."""
        others = 0 if self.in_place else self.scratches * self.kept * self.other_step
        return (
            self.sums * self.points * self.filter_step,
            self.scratches * self.kept * self.step,
            others,
            min(thread_count(), self.parts) * self.border,
        )

    def _bytes(self, block: int) -> int:
        """At most so many bytes are needed with blocks of this size."""
        copies = thread_count() if self.is_apart else 1
        sums = copies * self.turns if self.is_sum else 1
        elements = self.points * sums * self.filter_step
        elements += self.kept * copies * self._tile_elements(block)
        return (elements + thread_count() * self.border) * self.geometry.dtype.itemsize

    def _block_bytes(self, block: int) -> int:
        """What one worker goes through for a block."""
        elements = self.filter_step + self._tile_elements(block)
        return self.kept * elements * self.geometry.dtype.itemsize

    def _tile_elements(self, block: int) -> int:
        """Of a point, in both sets of tiles."""
        others = 0 if self.in_place else self._step(block * self.width)
        return self._step(block * self.inner) + others
