"""Blocking of direct convolution: register tiles, packed memory, strips in channel blocks.

Images are channels-last. The innermost loops compute a few pixels by a few vectors of output
channels, all in registers. Where an instruction can multiply by a single lane of a vector (arm),
inputs are loaded as vectors and used lane by lane. On other machines (x86), single inputs are
loaded into all lanes of a register.

Sums over pixels traverse a strip once for every few channels. In blocks of channels, each with all
pixels of the strip, the data of a traversal is contiguous: few pages, and few cache lines, which
contain no other channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from caldera.base.threads import part_count, thread_count
from caldera.core.tensor.dtype import DType
from caldera.kernels.common.geometry import Correlation, Pair
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    Number,
    Pointer,
    RegisterValue,
    computed_type,
    host_target,
    itemsize,
    natural_lanes,
    vector,
)
from caldera.kernels.native.convolution.tiling import PaddedImages, Strips, cut, padded_images


def by_lanes() -> bool:
    """Return True if this machine multiplies by one lane of a vector."""
    return host_target().triple.startswith(("aarch64", "arm64"))


def shapes() -> tuple[tuple[int, int], ...]:
    """Return tiles that fit into the registers: (pixels, vectors of channels)."""
    if host_target().registers < 32:
        return ((6, 2), (4, 3), (10, 1))
    return ((5, 4), (7, 3), (8, 2), (12, 1)) if by_lanes() else ((6, 4), (8, 3), (12, 2), (12, 1))


def best_shape(results: int, pixels: int, lanes: int) -> tuple[int, int]:
    """Return the tile that wastes least on this many output channels and pixels."""

    def cost(shape: tuple[int, int]) -> float:
        rows, vectors = shape
        loads = vectors + (rows / lanes if by_lanes() else rows)
        # Two multiplications or two loads a cycle; a sum can take its next term after four cycles.
        cycles = max(rows * vectors / 2, loads / 2, 4.0) + 0.25
        return cycles * -(-results // (vectors * lanes)) * -(-pixels // rows)

    return min(shapes(), key=cost)


def depthwise_shape(channels: int, lanes: int) -> tuple[int, int]:
    """Return the tile for filters of a single channel: every product has a different input."""
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
            self._multiply(self._singles(index + place), filters.at(index * self.width))

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
            self._multiply(self._singles(place + index), filters.at(index * self.width))

    def add_alike(self, filters: Pointer, place: RegisterValue) -> None:
        """Add the products of vectors of inputs and vectors of filters, channel by channel."""
        for vector_index in range(self.vectors):
            start = vector_index * self.lanes
            weight = filters.load(start, self.lanes)
            for pixel, source in enumerate(self.source):
                total = self.sums[pixel][vector_index]
                given = source.load(place + start, self.lanes)
                total.value = self.k.fma(given, weight, total.value)

    def _multiply(self, inputs: Iterable[RegisterValue], filters: Pointer) -> None:
        weights = [filters.load(j * self.lanes, self.lanes) for j in range(self.vectors)]
        self.k.add_outer_product(self.sums, inputs, weights)

    def _singles(self, place: RegisterValue) -> Iterator[RegisterValue]:
        """Return the input at `place` of each pixel, loaded just before its use.

        Loading all inputs first would need more registers than there are.
        """
        return (self.k.splat(source.load(place), self.lanes) for source in self.source)

    def clear(self, kept: Pointer) -> None:
        """Set all sums to zero."""
        for index in range(self.pixels * self.vectors):
            kept.store(index * self.lanes, self._zero)

    def keep(self, kept: Pointer) -> None:
        """Add the sums to the stored sums, and reset them."""
        for index, total in enumerate(total for row in self.sums for total in row):
            together = kept.load(index * self.lanes, self.lanes) + total.value
            kept.store(index * self.lanes, together)
            total.value = self._zero

    def take_back(self, kept: Pointer) -> None:
        """Add the stored sums to the sums."""
        for index, total in enumerate(total for row in self.sums for total in row):
            total.value = kept.load(index * self.lanes, self.lanes) + total.value

    def store(self, targets: Sequence[Pointer]) -> None:
        """Write the sums of each pixel to its place."""
        for row, target in zip(self.sums, targets, strict=True):
            for index, total in enumerate(row):
                target.store(index * self.lanes, total.value)


ITEMS_A_THREAD = 4
"""Strips a worker should have at least, so that all finish at about the same time."""
WORTH_SPLITTING = 1 << 17
"""Products from which on a second thread pays."""


@dataclass(frozen=True)
class CorrelationBlock:
    """A correlation, and which pixels of the target it computes: every `step`th from `first` on."""

    work: Correlation
    first: Pair = (0, 0)
    step: Pair = (1, 1)


@dataclass(frozen=True)
class Packing:
    """Correlations of the same images, with their common tile and their memory.

    They differ in their output pixels, and in the number and position of their taps. All are
    computed for a strip before the next one, while the strip and its outputs are in the cache.
    """

    parts: tuple[CorrelationBlock, ...]
    dtype: DType

    @cached_property
    def window(self) -> Correlation:
        """Correlation whose windows cover the windows of all parts."""
        works = [part.work for part in self.parts]
        if len(works) == 1:
            return works[0]
        targets = zip(*(work.target for work in works), strict=True)
        # Parts without taps read no pixels, so their position does not matter.
        works = [work for work in works if work.taps[0]] or works[:1]
        start = tuple(map(min, zip(*(work.start for work in works), strict=True)))
        reach = [
            max(work.start[axis] + work.reach[axis] for work in works) - start[axis]
            for axis in (0, 1)
        ]
        return replace(
            works[0],
            target=tuple(map(max, targets)),
            taps=tuple(reach),
            dilation=(1, 1),
            start=start,
        )

    @property
    def is_depthwise(self) -> bool:
        """True if channels are the lanes of vectors on both sides."""
        return self.window.channels == self.window.results == 1 and self.window.groups > 1

    @property
    def groups(self) -> int:
        """Number of groups of channels that are convolved separately."""
        return 1 if self.is_depthwise else self.window.groups

    @property
    def results(self) -> int:
        """Output channels of such a part."""
        return self.window.groups if self.is_depthwise else self.window.results

    @cached_property
    def lanes(self) -> int:
        """Numbers in a vector."""
        return natural_lanes(computed_type(self.dtype.name))

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Pixels and vectors of output channels."""
        if self.is_depthwise:
            return depthwise_shape(self.results, self.lanes)
        pixels = max(1, self.strips.images * self.strips.rows * self.window.target[1])
        return best_shape(self.results, pixels, self.lanes)

    @property
    def width(self) -> int:
        """Output channels of a block."""
        return self.tile[1] * self.lanes

    @property
    def blocks(self) -> int:
        """Blocks of output channels in a group."""
        return -(-self.results // self.width)

    def panel(self, work: Correlation) -> int:
        """Return elements of a part's filters of a block."""
        return work.taps[0] * work.taps[1] * work.channels * self.width

    @cached_property
    def starts(self) -> list[int]:
        """Offsets of the packed filters of each part, and the end of all filters."""
        blocks = self.groups * self.blocks
        return [0, *accumulate(blocks * self.panel(part.work) for part in self.parts)]

    @property
    def filters(self) -> int:
        """Elements of all packed filters."""
        return self.starts[-1]

    @property
    def products(self) -> int:
        """Number of multiplications, including those by the zeros that pad a block."""
        sizes = (end - start for start, end in pairwise(self.starts))
        return sum(
            part.work.batch * part.work.target[0] * part.work.target[1] * size
            for part, size in zip(self.parts, sizes, strict=True)
        )

    @cached_property
    def strips(self) -> Strips:
        """Split of the batch. Vectors beyond the last channel read the memory behind it."""
        slack = 4 * self.lanes if self.is_depthwise else 0
        channels = self.window.groups * self.window.channels
        wanted = ITEMS_A_THREAD * thread_count()
        return cut(self.window, channels, self.dtype.itemsize, wanted, slack=slack)

    @property
    def reads_in_place(self) -> bool:
        """True if strips are read without a copy."""
        hangs_over = self.is_depthwise and self.results % self.width != 0
        return self.window.needs_no_padding and not hangs_over

    @property
    def chunks(self) -> int:
        """Number of parts into which the blocks are split, if there are not enough strips."""
        wanted, items = self._wanted, self.strips.items
        return 1 if items >= wanted else min(self.groups * self.blocks, -(-wanted // max(1, items)))

    @property
    def workers(self) -> int:
        """Maximum number of workers, each with a separate strip."""
        if self.products < WORTH_SPLITTING:
            return 1
        return max(1, min(self._wanted, self.strips.items * self.chunks))

    @property
    def _wanted(self) -> int:
        """Workers that keep all threads busy to the end."""
        return part_count(thread_count(), each=2)

    @property
    def scratch(self) -> int:
        """Elements of all workers' strips."""
        return 0 if self.reads_in_place else self.workers * self.strips.length


@dataclass(frozen=True)
class StripBlocks:
    """Strips [group][block][image][row][column][width] (lengths in elements)."""

    strips: Strips
    groups: int
    channels: int
    """Channels of a group."""
    width: int
    """Channels of a block; in the last one of a group some may be unused."""

    @property
    def count(self) -> int:
        """Blocks of a group."""
        return -(-self.channels // self.width)

    @property
    def row_step(self) -> int:
        """Stride between rows of a block, in elements."""
        return self.strips.source_columns * self.width

    @property
    def image_step(self) -> int:
        """Stride between images of a block, in elements."""
        return self.strips.source_rows * self.row_step

    @property
    def block_step(self) -> int:
        """Stride between blocks, in elements."""
        return self.strips.images * self.image_step

    @property
    def length(self) -> int:
        """The memory of a strip, in whole cache lines."""
        return -(-self.groups * self.count * self.block_step // 16) * 16


@dataclass(frozen=True)
class BlockedFilling:
    """Arguments of filling: the blocks, and the images from which they are filled."""

    groups: Integer
    channels: Integer
    count: Integer
    rows: Integer
    columns: Integer
    block_step: Integer
    images: PaddedImages

    def fill(
        self,
        k: Emitter,
        width: int,
        strip: Pointer,
        images: Pointer,
        first_image: RegisterValue,
        image_count: RegisterValue,
        first_row: RegisterValue,
        row_count: RegisterValue,
        blocks: tuple[RegisterValue, RegisterValue] | None = None,
    ) -> None:
        """Copy `row_count` padded rows of some images into a strip, starting at row `first_row`.

        All blocks of each group are copied, or only the blocks of a range.
        """
        begin_block, end_block = blocks or (0, self.count)
        own = self.images
        left, inside = own.columns(k, self.columns)
        with k.loop(0, image_count) as i, k.loop(0, row_count) as j:
            row = first_row + j + own.start_row
            outside = (row < 0) | (row >= own.height)
            begin = k.select(outside, self.columns, left)
            end = k.select(outside, self.columns, inside)
            pixels = own.pixel(images, first_image + i, first_row + j, begin)
            line = strip.at((i * self.rows + j) * self.columns * width)
            with k.loop(0, self.groups) as group, k.loop(begin_block, end_block) as block:
                to = line.at((group * self.count + block) * self.block_step)
                source = pixels.at(group * self.channels + block * width)
                valid = k.minimum(self.channels - block * width, width)
                _clear(k, to, begin * width)
                with k.if_else(valid.equals(width)) as (whole, part):
                    with whole, k.loop(0, end - begin) as x:
                        _copy(to.at((begin + x) * width), source.at(x * own.pixel_step), width)
                    with part, k.loop(0, end - begin) as x, k.loop(0, valid) as c:
                        to.store((begin + x) * width + c, source.load(x * own.pixel_step + c))
                _clear(k, to.at(end * width), (self.columns - end) * width)


def filling(blocks: StripBlocks, images: np.ndarray, start: Pair) -> dict[str, Any]:
    """Return the kernel argument for a `BlockedFilling`."""
    return {
        "groups": blocks.groups,
        "channels": blocks.channels,
        "count": blocks.count,
        "rows": blocks.strips.source_rows,
        "columns": blocks.strips.source_columns,
        "block_step": blocks.block_step,
        "images": padded_images(images, start),
    }


def _clear(k: Emitter, place: Pointer, count: RegisterValue) -> None:
    with k.if_then(count > 0):
        k.clear_bytes(place, count * itemsize(place.type))


def _copy(target: Pointer, source: Pointer, count: int) -> None:
    """Copy a number of elements that is known: vectors as long as they fit, then shorter ones."""
    index, size = 0, natural_lanes(source.type)
    while index < count:
        while size > count - index:
            size //= 2
        target.store(index, source.load(index, size))
        index += size
