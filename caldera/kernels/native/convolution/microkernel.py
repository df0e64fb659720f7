"""The innermost loops of direct convolution: a few pixels by a few vectors of output channels, all
in registers.

Where an instruction can multiply by one lane of a vector (arm), inputs are loaded as vectors, which
are then used lane by lane; elsewhere (x86) single inputs are loaded into all lanes of a register.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from caldera.kernels.native.codegen import (
    Emitter,
    Number,
    Pointer,
    RegisterValue,
    host_target,
    natural_lanes,
    vector,
)


@lru_cache(maxsize=1)
def by_lanes() -> bool:
    """Whether this machine multiplies by one lane of a vector."""
    return host_target().triple.startswith(("aarch64", "arm64"))


@lru_cache(maxsize=1)
def shapes() -> tuple[tuple[int, int], ...]:
    """Tiles that fit into the registers: (pixels, vectors of channels)."""
    if host_target().registers < 32:
        return ((6, 2), (4, 3), (10, 1))
    return ((5, 4), (7, 3), (8, 2), (12, 1)) if by_lanes() else ((6, 4), (8, 3), (12, 2), (12, 1))


def best_shape(results: int, pixels: int, lanes: int) -> tuple[int, int]:
    """The tile that wastes least on this many output channels and pixels."""

    def cost(shape: tuple[int, int]) -> float:
        rows, vectors = shape
        loads = vectors + (rows / lanes if by_lanes() else rows)
        # Two multiplications or two loads a cycle; a sum can take its next term after four cycles.
        cycles = max(rows * vectors / 2, loads / 2, 4.0) + 0.25
        return cycles * -(-results // (vectors * lanes)) * -(-pixels // rows)

    return min(shapes(), key=cost)


def depthwise_shape(channels: int, lanes: int) -> tuple[int, int]:
    """The tile for filters of one channel: every product takes an input of its own."""
    vectors = max(1, min(2 if host_target().registers < 32 else 4, channels // lanes))
    return (4 if vectors > 1 else 6), vectors


class PixelTile:
    """Sums for `pixels` by `vectors` of output channels."""

    def __init__(self, k: Emitter, pixels: int, vectors: int, source: Sequence[Pointer]) -> None:
        self.k = k
        self.pixels = pixels
        self.vectors = vectors
        self.source = source
        self.kind = source[0].type
        self.lanes = natural_lanes(self.kind)
        self.width = vectors * self.lanes
        self._zero = k.constant(0.0, vector(self.kind, self.lanes))
        self.sums = [[k.variable(self._zero) for _ in range(vectors)] for _ in range(pixels)]

    def add(self, filters: Pointer, place: Number, length: RegisterValue) -> None:
        """Add the products of `length` neighbouring inputs from `place` on."""
        k = self.k
        start: Number = 0
        if by_lanes():
            start = length // self.lanes * self.lanes
            with k.loop(0, start, self.lanes) as index:
                inputs = [each.load(index + place, self.lanes) for each in self.source]
                row = filters.at(index * self.width)
                for lane in range(self.lanes):
                    spread = [k.broadcast_lane(each, lane) for each in inputs]
                    self._multiply(spread, row.at(lane * self.width))
        with k.loop(start, length) as index:
            self._multiply_singles(index + place, filters.at(index * self.width))

    def add_known(self, filters: Pointer, place: RegisterValue, length: int) -> None:
        """The same for a small number of inputs that is known, without any loop."""
        k = self.k
        known = length // self.lanes * self.lanes if by_lanes() else 0
        for first in range(0, known, self.lanes):
            inputs = [each.load(place + first, self.lanes) for each in self.source]
            for lane in range(self.lanes):
                spread = [k.broadcast_lane(each, lane) for each in inputs]
                self._multiply(spread, filters.at((first + lane) * self.width))
        for index in range(known, length):
            self._multiply_singles(place + index, filters.at(index * self.width))

    def add_alike(self, filters: Pointer, place: RegisterValue) -> None:
        """Add the products of vectors of inputs with as many filters, channel by channel."""
        for vector_index in range(self.vectors):
            start = vector_index * self.lanes
            weight = filters.load(start, self.lanes)
            for pixel, source in enumerate(self.source):
                total = self.sums[pixel][vector_index]
                given = source.load(place + start, self.lanes)
                total.value = self.k.fma(given, weight, total.value)

    def _multiply_singles(self, place: RegisterValue, filters: Pointer) -> None:
        """Add the products of the one input at `place` of each pixel, loaded just before it is
        used: all of them at once would take more registers than there are."""
        weights = [filters.load(j * self.lanes, self.lanes) for j in range(self.vectors)]
        for row, source in zip(self.sums, self.source, strict=True):
            given = self.k.splat(source.load(place), self.lanes)
            for total, weight in zip(row, weights, strict=True):
                total.value = self.k.fma(given, weight, total.value)

    def _multiply(self, inputs: Sequence[RegisterValue], filters: Pointer) -> None:
        weights = [filters.load(j * self.lanes, self.lanes) for j in range(self.vectors)]
        for row, given in zip(self.sums, inputs, strict=True):
            for total, weight in zip(row, weights, strict=True):
                total.value = self.k.fma(given, weight, total.value)

    def clear(self, kept: Pointer) -> None:
        """Set all sums to zero."""
        for index in range(self.pixels * self.vectors):
            kept.store(index * self.lanes, self._zero)

    def keep(self, kept: Pointer) -> None:
        """Add the sums to those that were kept, and begin new ones."""
        for index, total in enumerate(total for row in self.sums for total in row):
            together = kept.load(index * self.lanes, self.lanes) + total.value
            kept.store(index * self.lanes, together)
            total.value = self._zero

    def take_back(self, kept: Pointer) -> None:
        """Add what was kept to the sums."""
        for index, total in enumerate(total for row in self.sums for total in row):
            total.value = kept.load(index * self.lanes, self.lanes) + total.value

    def store(self, targets: Sequence[Pointer]) -> None:
        """Write the sums of each pixel to its place."""
        for row, target in zip(self.sums, targets, strict=True):
            for index, total in enumerate(row):
                target.store(index * self.lanes, total.value)
