"""Strips of images as planes: each channel by itself, and rows so far apart that a tap lies at the
same distance from every output.

An output's place in a plane is row * pitch + column. Between the last output of a row and the first
of the next are places that belong to none: what is computed there is never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from caldera.base.threads import thread_count
from caldera.core.tensor.dtype import NAMES, DType
from caldera.kernels.common.geometry import Correlation
from caldera.kernels.native.codegen.dtypes import computed_type
from caldera.kernels.native.codegen.emitter import natural_lanes
from caldera.kernels.native.codegen.target import host_target

STRIP_BYTES = 1 << 17
"""What the planes of a strip may take: they should stay near, in the second-level cache."""
SUMS = 16
"""Partial sums of a weight gradient; the same for any number of threads."""


@dataclass(frozen=True)
class Planes:
    """A correlation of stride 1 on planes (lengths in elements)."""

    work: Correlation
    dtype: DType

    @cached_property
    def lanes(self) -> int:
        """Places of a vector."""
        return natural_lanes(computed_type(NAMES[self.dtype]))

    @cached_property
    def pitch(self) -> int:
        """From one row of a plane to the next."""
        return self.work.target[1] + self.work.reach[1] - 1

    @cached_property
    def terms(self) -> int:
        """Taps of all input channels."""
        return self.work.channels * self.work.taps[0] * self.work.taps[1]

    @cached_property
    def rows(self) -> int:
        """Output rows of a strip."""
        planes = (self.work.channels + self.work.results) * self.pitch * self.dtype.itemsize
        fits = max(1, STRIP_BYTES // planes - self.work.reach[0])
        strips = -(-self.work.target[0] // fits)
        return -(-self.work.target[0] // strips)

    @property
    def a_image(self) -> int:
        """Strips that an image is cut into."""
        return -(-self.work.target[0] // self.rows)

    @property
    def items(self) -> int:
        """Strips of the whole batch."""
        return self.work.batch * self.a_image

    @cached_property
    def vectors(self) -> int:
        """Vectors of a strip's places."""
        return -(-((self.rows - 1) * self.pitch + self.work.target[1]) // self.lanes)

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Output channels and vectors of places that are summed at once."""

        def cost(tile: tuple[int, int]) -> float:
            results, vectors = tile
            # Every other vector of inputs lies across two cache lines.
            cycles = max(results * vectors / 2, (results + 1.5 * vectors) / 2, 4.0) + 0.75
            return cycles * -(-self.work.results // results) * -(-self.vectors // vectors)

        return min(_tiles(), key=cost)

    @cached_property
    def sum_tile(self) -> tuple[int, int]:
        """Output channels and taps whose products are summed over places at once."""

        def cost(tile: tuple[int, int]) -> float:
            results, taps = tile
            cycles = max(results * taps / 2, (results + 1.5 * taps) / 2, 4.0) + 0.75
            return cycles * -(-self.work.results // results) * -(-self.terms // taps)

        return min(_tiles(), key=cost)

    def whole(self, tile: int) -> int:
        """The output channels, in whole tiles."""
        return -(-self.work.results // tile) * tile

    @cached_property
    def input_plane(self) -> int:
        """Elements of a channel of the input, with what tiles over the end read, and what whole
        vectors write behind the last row."""
        places = -(-self.vectors // self.tile[1]) * self.tile[1] * self.lanes
        reach = self.work.reach
        return _in_lines(places + (reach[0] - 1) * self.pitch + reach[1] - 1 + self.lanes)

    @cached_property
    def output_plane(self) -> int:
        """Elements of a channel of the output."""
        places = -(-self.vectors // self.tile[1]) * self.tile[1] * self.lanes
        return _in_lines(places + self.lanes)

    @property
    def filters(self) -> int:
        """Elements of packed filters, or of a partial sum for each lane."""
        return self.whole(self.tile[0]) * self.terms

    @property
    def parts(self) -> int:
        """Workers of a correlation, each with planes of its own."""
        return max(1, min(2 * thread_count(), self.items))

    @property
    def scratch(self) -> int:
        """Planes of a worker."""
        inputs = self.work.channels * self.input_plane
        results = max(self.whole(self.tile[0]), self.whole(self.sum_tile[0]))
        return inputs + results * self.output_plane

    @property
    def sums(self) -> int:
        """Partial sums of a weight gradient."""
        return max(1, min(SUMS, self.items))

    @property
    def sum_size(self) -> int:
        """Elements of a partial sum: a vector for every product of an output channel and a tap."""
        results, taps = self.sum_tile
        return self.whole(results) * -(-self.terms // taps) * taps * self.lanes


def _in_lines(length: int) -> int:
    return -(-length // 16) * 16


def _tiles() -> Iterator[tuple[int, int]]:
    """Tiles that fit into the registers, beside what they are multiplied with."""
    registers = host_target().registers
    for one in range(1, 13):
        for other in range(1, 8):
            if one * other + other + 2 <= registers:
                yield one, other
