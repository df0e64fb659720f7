"""Strips in blocks of channels, each block with all pixels of the strip by itself.

Sums over pixels walk through a strip once for every few channels. Cut into blocks, what they see
lies in one piece: few pages, few cache lines, and none of them shared with other channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from caldera.kernels.common.geometry import Pair
from caldera.kernels.native.codegen.emitter import Emitter, Pointer, Value, itemsize, natural_lanes
from caldera.kernels.native.convolution.slots import Integers
from caldera.kernels.native.convolution.strip_mining import Strips, between


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


NAMES = (
    "groups", "channels", "count", "rows", "columns", "block_step", "height", "width", "image_step",
    "row_step", "pixel_step", "start_row", "start_column",
)  # fmt: skip
"""What filling goes by: the blocks, then the size and steps of the images, and where in them the
strip of the first output begins."""


def values(blocks: Blocks, image: Pair, steps: tuple[int, ...], start: Pair) -> dict[str, int]:
    """The integers named in NAMES."""
    return {
        "groups": blocks.groups, "channels": blocks.channels, "count": blocks.count,
        "rows": blocks.strips.source_rows, "columns": blocks.strips.source_columns,
        "block_step": blocks.block_step, "height": image[0], "width": image[1],
        "image_step": steps[0], "row_step": steps[1], "pixel_step": steps[2],
        "start_row": start[0], "start_column": start[1],
    }  # fmt: skip


def fill(
    k: Emitter,
    n: Integers,
    width: int,
    strip: Pointer,
    images: Pointer,
    first_image: Value,
    image_count: Value,
    first_row: Value,
    row_count: Value,
) -> None:
    """Copy `row_count` padded rows of some images into a strip, from row `first_row` on."""
    left = between(k, -n.start_column, n.columns)
    inside = k.maximum(between(k, n.width - n.start_column, n.columns), left)
    with k.loop(0, image_count) as i, k.loop(0, row_count) as j:
        row = first_row + j + n.start_row
        outside = (row < 0) | (row >= n.height)
        begin = k.select(outside, n.columns, left)
        end = k.select(outside, n.columns, inside)
        start = (first_image + i) * n.image_step + row * n.row_step
        pixels = images.at(start + (begin + n.start_column) * n.pixel_step)
        line = strip.at((i * n.rows + j) * n.columns * width)
        with k.loop(0, n.groups) as group, k.loop(0, n.count) as block:
            to = line.at((group * n.count + block) * n.block_step)
            source = pixels.at(group * n.channels + block * width)
            valid = k.minimum(n.channels - block * width, width)
            _clear(k, to, begin * width)
            with k.either(valid.equals(width)) as (whole, part):
                with whole, k.loop(0, end - begin) as x:
                    _copy(to.at((begin + x) * width), source.at(x * n.pixel_step), width)
                with part, k.loop(0, end - begin) as x, k.loop(0, valid) as c:
                    to.store((begin + x) * width + c, source.load(x * n.pixel_step + c))
            _clear(k, to.at(end * width), (n.columns - end) * width)


def _clear(k: Emitter, place: Pointer, count: Value) -> None:
    with k.when(count > 0):
        k.clear_bytes(place, count * itemsize(place.type))


def _copy(target: Pointer, source: Pointer, count: int) -> None:
    """Copy a number of elements that is known: vectors as long as they fit, then shorter ones."""
    index, size = 0, natural_lanes(source.type)
    while index < count:
        while size > count - index:
            size //= 2
        target.store(index, source.load(index, size))
        index += size
