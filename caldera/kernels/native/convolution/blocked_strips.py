"""Strips in blocks of channels, each block with all pixels of the strip by itself.

Sums over pixels walk through a strip once for every few channels. Cut into blocks, what they see
lies in one piece: few pages, few cache lines, and none of them shared with other channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.kernels.common.geometry import Pair
from caldera.kernels.native.codegen.emitter import Emitter, Pointer, Value, itemsize, natural_lanes
from caldera.kernels.native.codegen.kernel import Integer
from caldera.kernels.native.convolution.padded_images import PaddedImages, padded_images
from caldera.kernels.native.convolution.strip_mining import Strips


@dataclass(frozen=True)
class Blocks:
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
        """From one row of a block to the next."""
        return self.strips.source_columns * self.width

    @property
    def image_step(self) -> int:
        """From one image of a block to the next."""
        return self.strips.source_rows * self.row_step

    @property
    def block_step(self) -> int:
        """From one block to the next."""
        return self.strips.images * self.image_step

    @property
    def length(self) -> int:
        """The memory of a strip, in whole cache lines."""
        return -(-self.groups * self.count * self.block_step // 16) * 16


@dataclass(frozen=True)
class BlockedFilling:
    """What filling goes by: the blocks, and the images that they are filled from."""

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
        first_image: Value,
        image_count: Value,
        first_row: Value,
        row_count: Value,
        blocks: tuple[Value, Value] | None = None,
    ) -> None:
        """Copy `row_count` padded rows of some images into a strip, from row `first_row` on; of
        each group all blocks, or those of a range."""
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


def filling(blocks: Blocks, images: np.ndarray, start: Pair) -> dict[str, Any]:
    """A `BlockedFilling` as a kernel is given it."""
    return {
        "groups": blocks.groups,
        "channels": blocks.channels,
        "count": blocks.count,
        "rows": blocks.strips.source_rows,
        "columns": blocks.strips.source_columns,
        "block_step": blocks.block_step,
        "images": padded_images(images, start),
    }


def _clear(k: Emitter, place: Pointer, count: Value) -> None:
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
