"""Blocking of direct weight gradients, dense and depthwise: register tiles, strips, memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from caldera.base.threads import part_count, thread_count
from caldera.core.tensor.dtype import DType
from caldera.kernels.common.geometry import Correlation
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    Number,
    RegisterValue,
    computed_type,
    host_target,
    natural_lanes,
)
from caldera.kernels.native.convolution.correlation_blocking import StripBlocks, by_lanes, filling
from caldera.kernels.native.convolution.tiling import (
    StripNumbers,
    StripPixels,
    Strips,
    cut,
    pixel_table,
)

SUM_BYTES = 1 << 24
"""Maximum bytes of all partial sums."""
FEW_SUMS, MOST_SUMS = 8, 16
"""Partial sums of many output channels, which more threads can share out, and of few."""
PIXELS_A_STRIP = 256
"""Pixels that make up for adding a strip's sums to memory."""


def strips_wanted(work: Correlation) -> int:
    """Return the minimum number of strips of a batch; the same for any number of threads."""
    pixels = work.batch * work.target[0] * work.target[1]
    return max(2, min(MOST_SUMS, pixels // PIXELS_A_STRIP))


@dataclass(frozen=True)
class StripGradient(ABC):
    """A weight gradient as partial sums over strips, with its memory (lengths in elements)."""

    work: Correlation
    dtype: DType

    @cached_property
    def lanes(self) -> int:
        """Numbers in a vector."""
        return natural_lanes(computed_type(self.dtype.name))

    @cached_property
    @abstractmethod
    def tile(self) -> tuple[int, int]:
        """Inputs and vectors of output channels in a register tile of sums."""

    @property
    def step(self) -> int:
        """Output channels of a tile."""
        return self.tile[1] * self.lanes

    @property
    @abstractmethod
    def output_channels(self) -> tuple[int, int]:
        """Number of groups of output channels stored in blocks, and channels per group."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Elements of a partial sum."""

    @property
    @abstractmethod
    def sums(self) -> int:
        """Partial sums; the same for any number of threads."""

    @property
    def workers(self) -> int:
        """Number of workers for the partial sums, each with separate strips.

        It is the smallest number that keeps all threads busy to the end: memory that a worker has
        used before is in its cache.
        """
        return max(1, min(self.sums, part_count(thread_count(), each=2)))

    @property
    def parts(self) -> int:
        """Workers that may take part."""
        return self.workers

    @cached_property
    def strips(self) -> Strips:
        """Split of the batch."""
        channels = self.work.groups * self.work.channels
        return cut(self.work, channels, self.dtype.itemsize, strips_wanted(self.work))

    @cached_property
    @abstractmethod
    def input_blocks(self) -> StripBlocks:
        """Strips of the image."""

    @cached_property
    def output_blocks(self) -> StripBlocks:
        """Strips of the output's gradient."""
        own = replace(self.strips, source_rows=self.strips.rows, source_columns=self.work.target[1])
        return StripBlocks(own, *self.output_channels, self.step)

    @property
    def lengths(self) -> list[int]:
        """Scratch memory: partial sums, strips of images and of gradients."""
        return [
            self.sums * self.size,
            self.parts * self.input_blocks.length,
            self.parts * self.output_blocks.length,
        ]

    def arguments(self, x: np.ndarray, y: np.ndarray, scratch: list[np.ndarray]) -> dict[str, Any]:
        """Return the arguments of a kernel that sums over strips of image `x` and gradient `y`."""
        work, strips, blocks = self.work, self.strips, self.input_blocks
        by_output = (
            blocks.image_step,
            blocks.row_step * work.stride[0],
            blocks.width * work.stride[1],
        )
        partial, input_scratch, output_scratch = scratch
        return {
            "x": x,
            "y": y,
            "partial": partial,
            "input_scratch": input_scratch,
            "output_scratch": output_scratch,
            "places": pixel_table(strips.images, strips.rows, work.target[1], by_output),
            "x_blocks": filling(blocks, x, work.start),
            "y_blocks": filling(self.output_blocks, y, (0, 0)),
            "strips": {
                "cut": strips.numbers(work),
                "target_columns": work.target[1],
                "size": self.size,
                "sums": self.sums,
                "x_length": blocks.length,
                "y_length": self.output_blocks.length,
            },
            "parts": self.parts,
        }


@dataclass(frozen=True)
class GradientStrips:
    """The strips and the partial sums of a `StripGradient`, in a kernel."""

    cut: StripNumbers
    target_columns: Integer
    size: Integer
    sums: Integer
    x_length: Integer
    y_length: Integer

    @contextmanager
    def of_worker(
        self, k: Emitter, worker: RegisterValue, workers: Number
    ) -> Iterator[tuple[RegisterValue, StripPixels, RegisterValue]]:
        """The strips of a worker: where the partial sum begins that each is added to, its pixels,
        and whether it is not the first of that sum."""
        sums, items = self.sums, self.cut.items
        with k.loop(sums * worker // workers, sums * (worker + 1) // workers) as number:
            first = items * number // sums
            with k.loop(first, items * (number + 1) // sums) as item:
                yield number * self.size, self.cut.pixels(k, item), item.differs(first)


@dataclass(frozen=True)
class WeightGradientTile(StripGradient):
    """A dense weight gradient with its tile."""

    @property
    def inputs(self) -> int:
        """Channels of an input pixel."""
        return self.work.groups * self.work.channels

    @property
    def output_channels(self) -> tuple[int, int]:
        """Groups, and output channels of a group."""
        return self.work.groups, self.work.results

    @property
    def joined(self) -> bool:
        """True if a row of taps is contiguous: the channels of several pixels."""
        return self.work.groups == 1 and self.work.dilation[1] == 1 and self.inputs < 32

    @property
    def length(self) -> int:
        """Neighbours that a tap (or a row of taps) sees."""
        return self.work.channels * (self.work.taps[1] if self.joined else 1)

    @property
    def width(self) -> int:
        """Output channels of a group, in whole vectors."""
        return -(-self.work.results // self.lanes) * self.lanes

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Neighbours and vectors of output channels in a register tile of sums."""
        return best_tile(self.length, self.width // self.lanes, self.lanes)

    @cached_property
    def input_blocks(self) -> StripBlocks:
        """Strips of the image; rows of joined taps need the pixels of a row as they are."""
        if self.joined:
            return StripBlocks(self.strips, 1, self.inputs, self.inputs)
        return StripBlocks(self.strips, self.work.groups, self.work.channels, self.tile[0])

    @property
    def tiles(self) -> int:
        """Number of tiles of the output channels of a group."""
        return -(-self.width // self.step)

    @property
    def block(self) -> int:
        """Elements of a partial sum that belong to the output channels of a tile."""
        return self.work.taps[0] * self.work.taps[1] * self.work.channels * self.step

    @property
    def size(self) -> int:
        """Elements of a partial sum: [group][tile][row][column][channel][output channel]."""
        return self.work.groups * self.tiles * self.block

    @property
    def sums(self) -> int:
        """Partial sums; the same for any number of threads."""
        most = SUM_BYTES // max(1, self.size * self.dtype.itemsize)
        wanted = min(strips_wanted(self.work), max(FEW_SUMS, MOST_SUMS // self.tiles))
        return min(max(2, min(wanted, most)), self.strips.items)

    @property
    def splits(self) -> int:
        """Number of parts of the output channels, for more threads than partial sums."""
        return max(1, min(self.tiles, -(-thread_count() // max(1, self.sums))))

    @property
    def parts(self) -> int:
        """Workers that may take part."""
        return self.workers * self.splits


@dataclass(frozen=True)
class DepthwiseGradient(StripGradient):
    """The gradient with its tile, a few taps by a few vectors of channels."""

    @property
    def channels(self) -> int:
        """Channels of a pixel, on both sides."""
        return self.work.groups

    @property
    def output_channels(self) -> tuple[int, int]:
        """One group with all channels."""
        return 1, self.channels

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Taps and vectors of channels in a register tile of sums."""
        accumulators = 12 if host_target().registers >= 32 else 6
        vectors = min(4 if accumulators > 6 else 2, -(-self.channels // self.lanes))
        taps = self.work.taps[0] * self.work.taps[1]
        # The last tile repeats taps: as few as possible.
        most = max(1, min(accumulators // vectors, taps))
        together = min(range(max(1, most // 2), most + 1), key=lambda n: (-taps % n, -n))
        return together, vectors

    @property
    def taps(self) -> int:
        """Taps in whole tiles."""
        taps = self.work.taps[0] * self.work.taps[1]
        return -(-taps // self.tile[0]) * self.tile[0]

    @cached_property
    def input_blocks(self) -> StripBlocks:
        """Strips of the image."""
        return StripBlocks(self.strips, 1, self.channels, self.step)

    @property
    def size(self) -> int:
        """Elements of a partial sum: [block][tap][channel]."""
        return self.input_blocks.count * self.taps * self.step

    @property
    def sums(self) -> int:
        """Partial sums; the same for any number of threads."""
        return min(strips_wanted(self.work), self.strips.items)

    def tap_table(self) -> np.ndarray:
        """Return the offsets of the taps' inputs from the first one; the last is repeated."""
        rows, columns = self.work.taps
        held = self.input_blocks
        steps_of = (0, held.row_step * self.work.dilation[0], held.width * self.work.dilation[1])
        places = pixel_table(1, rows, columns, steps_of)
        return np.pad(places, (0, self.taps - len(places)), mode="edge")


def best_tile(length: int, vectors: int, lanes: int) -> tuple[int, int]:
    """Return the tile that takes the fewest cycles per pixel, including partial tiles at edges."""
    registers = 24 if host_target().registers >= 32 else 12

    def cycles(neighbours: int, own: int) -> float:
        loads = own + (neighbours // lanes + neighbours % lanes if by_lanes() else neighbours)
        return max(neighbours * own / 2, loads / 2, 4.0) + 1.0 if neighbours and own else 0.0

    def cost(tile: tuple[int, int]) -> float:
        (whole, rest), (blocks, left) = divmod(length, tile[0]), divmod(vectors, tile[1])
        total = whole * blocks * cycles(*tile) + blocks * cycles(rest, tile[1])
        total += whole * cycles(tile[0], left) + cycles(rest, left)
        # Code for partial tiles also has to be compiled: only if that pays.
        return total * (1.015 if rest else 1.0) * (1.015 if left else 1.0)

    tiles = [
        (neighbours, own)
        for neighbours in range(1, min(length, 12) + 1)
        for own in range(1, min(vectors, 4) + 1)
        if neighbours * own <= registers
    ]
    return min(tiles, key=cost)
