"""Cutting a batch into pieces that fit into the cache, and copying a piece with its padding.

A strip is what one worker convolves at a time: some output rows of an image, or several images if
they are small, with all the input they see. Where padding is needed, the input is copied with zeros
around it into a worker's own memory, so that the innermost loops need not look where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.kernels.common.geometry import Correlation, Pair
from caldera.kernels.native.codegen.emitter import Emitter, Pointer, Value, itemsize
from caldera.kernels.native.codegen.kernel import Integer
from caldera.kernels.native.convolution.padded_images import PaddedImages, padded_images

STRIP_BYTES = 1 << 18
"""What a strip may take: it should stay in the second-level cache, beside a block of filters."""
FEWEST_PIXELS = 48
"""Output pixels a strip should have at least, or reading the filters costs more than computing."""


@dataclass(frozen=True)
class Strips:
    """How a batch is cut, and how a strip lies in memory (all lengths in elements)."""

    images: int
    """Images of a strip; 1 if an image is cut."""
    rows: int
    """Output rows of a strip."""
    a_image: int
    """Strips that an image is cut into."""
    items: int
    """Strips of the whole batch."""
    source_rows: int
    """Input rows of a strip's image."""
    source_columns: int
    pitch: int
    """From one pixel of a strip to the next."""
    slack: int
    """Elements behind the last pixel that may be read, whatever they are."""

    @property
    def row_step(self) -> int:
        """From one row of a strip to the next."""
        return self.source_columns * self.pitch

    @property
    def image_step(self) -> int:
        """From one image of a strip to the next."""
        return self.source_rows * self.row_step

    @property
    def length(self) -> int:
        """The memory of a strip, in whole cache lines."""
        return -(-(self.images * self.image_step + self.slack) // 16) * 16


def cut(
    work: Correlation, channels: int, item: int, wanted: int, *, pitch: int = 0, slack: int = 0
) -> Strips:
    """At least `wanted` strips, if there are enough pixels, for a correlation whose input has
    `channels` in all, of `item` bytes each."""
    height, width = work.target
    pitch = pitch or channels
    columns = (width - 1) * work.stride[1] + work.reach[1]
    row = columns * pitch * item

    def source_rows(rows: int) -> int:
        return (rows - 1) * work.stride[0] + work.reach[0]

    images = max(1, STRIP_BYTES // max(1, source_rows(height) * row))
    images = min(images, max(1, work.batch // wanted))
    rows = height
    if images == 1:
        rows_read = STRIP_BYTES // max(1, row) - work.reach[0]
        rows = rows_read // work.stride[0] + 1
        if work.batch < wanted:
            rows = min(rows, height * work.batch // wanted)
        rows = min(height, max(rows, -(-FEWEST_PIXELS // width)))
        # Strips of an image should have about the same number of rows.
        rows = -(-height // -(-height // rows))
    else:
        # About as many for each worker.
        items = -(-work.batch // images)
        images = -(-work.batch // (-(-items // wanted) * wanted))
    a_image = -(-height // rows)
    items = -(-work.batch // images) if images > 1 else work.batch * a_image
    return Strips(images, rows, a_image, items, source_rows(rows), columns, pitch, slack)


def pixel_table(images: int, rows: int, columns: int, steps: tuple[int, int, int]) -> np.ndarray:
    """Where the output pixels of a strip lie, one after the other."""
    image, row, column = np.meshgrid(
        np.arange(images), np.arange(rows), np.arange(columns), indexing="ij"
    )
    places = image * steps[0] + row * steps[1] + column * steps[2]
    return np.ascontiguousarray(places.reshape(-1), np.int64)


@dataclass(frozen=True)
class Filling:
    """What filling a strip goes by: its rows from image to image, its columns and pitch, and the
    images that it is filled from."""

    rows: Integer
    columns: Integer
    pitch: Integer
    channels: Integer
    images: PaddedImages

    def fill(
        self,
        k: Emitter,
        strip: Pointer,
        images: Pointer,
        first_image: Value,
        count: Value,
        first_row: Value,
        rows: Value,
    ) -> None:
        """Copy `rows` padded rows of `count` images into a strip, from `first_row` on."""
        size = itemsize(strip.type)
        own = self.images
        left, inside = own.columns(k, self.columns)
        dense = own.pixel_step.equals(self.channels) & self.pitch.equals(self.channels)
        with k.loop(0, count) as i, k.loop(0, rows) as j:
            target = strip.at((i * self.rows + j) * self.columns * self.pitch)
            row = first_row + j + own.start_row
            is_inside = (row >= 0) & (row < own.height)
            with k.if_else(is_inside) as (copied, empty):
                with empty:
                    k.clear_bytes(target, self.columns * self.pitch * size)
                with copied:
                    k.clear_bytes(target, left * self.pitch * size)
                    source = own.pixel(images, first_image + i, first_row + j, left)
                    to = target.at(left * self.pitch)
                    with k.if_else(dense) as (at_once, one_by_one):
                        with at_once:
                            k.copy_bytes(to, source, (inside - left) * self.channels * size)
                        with one_by_one, k.loop(0, inside - left) as x:
                            k.copy_bytes(
                                to.at(x * self.pitch),
                                source.at(x * own.pixel_step),
                                self.channels * size,
                            )
                    rest = (self.columns - inside) * self.pitch
                    k.clear_bytes(target.at(inside * self.pitch), rest * size)


def filling(strips: Strips, images: np.ndarray, channels: int, start: Pair) -> dict[str, Any]:
    """A `Filling` as a kernel is given it."""
    return {
        "rows": strips.source_rows,
        "columns": strips.source_columns,
        "pitch": strips.pitch,
        "channels": channels,
        "images": padded_images(images, start),
    }
