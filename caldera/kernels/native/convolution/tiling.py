"""Strip mining of convolution batches, zero padding, and the base of tiled layouts.

A strip is a unit of work for a worker: some output rows of an image, or several small images, with
all their input. If padding is needed, the input is copied with zeros around it into the worker's
own memory, so that the innermost loops need no bounds checks. Convolutions in tiles of transformed
images share `TiledLayout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from caldera.core.graph.node import Node
from caldera.kernels.common.geometry import Correlation, Geometry, Pair, steps
from caldera.kernels.native.codegen import (
    CACHE_LINE,
    Emitter,
    Integer,
    Number,
    Pointer,
    RegisterValue,
    itemsize,
)


@dataclass(frozen=True)
class PaddedImages:
    """The size and steps of images, and where in them the strip of the first output begins."""

    height: Integer
    width: Integer
    image_step: Integer
    row_step: Integer
    pixel_step: Integer
    start_row: Integer
    start_column: Integer

    def pixel(self, images: Pointer, image: Number, row: RegisterValue, column: Number) -> Pointer:
        """Return a pixel, counted from where strips begin."""
        down = (row + self.start_row) * self.row_step
        right = (self.start_column + column) * self.pixel_step
        return images.at(self.image_step * image + down + right)

    def columns(self, k: Emitter, count: RegisterValue) -> tuple[RegisterValue, RegisterValue]:
        """Return the range of a strip's columns that are inside the image, as (first, end)."""
        first = between(k, -self.start_column, count)
        return first, k.maximum(between(k, self.width - self.start_column, count), first)


def padded_images(images: np.ndarray, start: Pair) -> dict[str, int]:
    """Return images (N, C, H, W) as a kernel is given them."""
    image_step, _, row_step, pixel_step = steps(images)
    return {
        "height": images.shape[2],
        "width": images.shape[3],
        "image_step": image_step,
        "row_step": row_step,
        "pixel_step": pixel_step,
        "start_row": start[0],
        "start_column": start[1],
    }


def between(k: Emitter, value: RegisterValue, most: Number) -> RegisterValue:
    """Return the value, but at least 0 and at most `most`."""
    return k.minimum(k.maximum(value, 0), most)


STRIP_BYTES = 1 << 18
"""Maximum bytes of a strip: it should stay in the second-level cache with a block of filters."""
FEWEST_PIXELS = 48
"""Output pixels a strip should have at least, or reading the filters costs more than computing."""


@dataclass(frozen=True)
class Strips:
    """Split of a batch into strips, and memory layout of a strip (all lengths in elements)."""

    images: int
    """Number of images in a strip; 1 if an image is split."""
    rows: int
    """Output rows of a strip."""
    a_image: int
    """Number of strips per image."""
    items: int
    """Strips of the whole batch."""
    source_rows: int
    """Input rows of a strip's image."""
    source_columns: int
    pitch: int
    """Stride between pixels of a strip, in elements."""
    slack: int
    """Number of elements behind the last pixel that may be read, with arbitrary content."""

    @property
    def row_step(self) -> int:
        """Stride between rows of a strip, in elements."""
        return self.source_columns * self.pitch

    @property
    def image_step(self) -> int:
        """Stride between images of a strip, in elements."""
        return self.source_rows * self.row_step

    @property
    def length(self) -> int:
        """The memory of a strip, in whole cache lines."""
        return -(-(self.images * self.image_step + self.slack) // 16) * 16

    def numbers(self, work: Correlation) -> dict[str, int]:
        """Return the strips of a correlation as kernel arguments: `StripNumbers`."""
        return {
            "items": self.items,
            "images": self.images,
            "rows": self.rows,
            "a_image": self.a_image,
            "batch": work.batch,
            "target_rows": work.target[0],
            "stride_rows": work.stride[0],
            "reach_rows": work.reach[0],
        }


@dataclass(frozen=True)
class StripNumbers:
    """Split of a batch into strips, in a kernel; see `Strips` and `Correlation`."""

    items: Integer
    images: Integer
    rows: Integer
    a_image: Integer
    batch: Integer
    target_rows: Integer
    stride_rows: Integer
    reach_rows: Integer

    def pixels(self, k: Emitter, item: RegisterValue) -> StripPixels:
        """Return the pixels of the strip with this number."""
        image, row = item // self.a_image * self.images, item % self.a_image * self.rows
        return StripPixels(k, self, image, row, k.minimum(self.images, self.batch - image))


@dataclass(frozen=True)
class StripPixels:
    """A strip in a kernel: its first image and output row, and the number of images.

    Other properties are recomputed at each use, to keep registers free.
    """

    k: Emitter
    strips: StripNumbers
    image: RegisterValue
    row: RegisterValue
    images: RegisterValue

    @property
    def rows(self) -> RegisterValue:
        """The number of output rows."""
        return self.k.minimum(self.strips.rows, self.strips.target_rows - self.row)

    @property
    def source_row(self) -> RegisterValue:
        """The first input row that the outputs see."""
        return self.row * self.strips.stride_rows

    @property
    def source_rows(self) -> RegisterValue:
        """The number of input rows that the outputs see."""
        return (self.rows - 1) * self.strips.stride_rows + self.strips.reach_rows


def cut(
    work: Correlation, channels: int, item: int, wanted: int, *, pitch: int = 0, slack: int = 0
) -> Strips:
    """Return at least `wanted` strips, if there are enough pixels, for a correlation whose input
    has `channels` in all, of `item` bytes each."""
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
        # Distribute strips evenly: about the same number for each worker.
        items = -(-work.batch // images)
        images = -(-work.batch // (-(-items // wanted) * wanted))
    a_image = -(-height // rows)
    items = -(-work.batch // images) if images > 1 else work.batch * a_image
    return Strips(images, rows, a_image, items, source_rows(rows), columns, pitch, slack)


def pixel_table(images: int, rows: int, columns: int, steps: tuple[int, int, int]) -> np.ndarray:
    """Return the offsets of the output pixels of a strip, in order."""
    image, row, column = np.meshgrid(
        np.arange(images), np.arange(rows), np.arange(columns), indexing="ij"
    )
    places = image * steps[0] + row * steps[1] + column * steps[2]
    return np.ascontiguousarray(places.reshape(-1), np.int64)


@dataclass(frozen=True)
class Filling:
    """Arguments for filling a strip from images.

    They are its rows per image, its columns and pitch, and the images from which it is filled.
    """

    rows: Integer
    columns: Integer
    pitch: Integer
    channels: Integer
    images: PaddedImages

    def fill(self, k: Emitter, strip: Pointer, images: Pointer, pixels: StripPixels) -> None:
        """Copy the padded input rows of a strip's pixels into it."""
        first_row = pixels.source_row
        size = itemsize(strip.type)
        own = self.images
        left, inside = own.columns(k, self.columns)
        dense = own.pixel_step.equals(self.channels) & self.pitch.equals(self.channels)
        with k.loop(0, pixels.images) as i, k.loop(0, pixels.source_rows) as j:
            target = strip.at((i * self.rows + j) * self.columns * self.pitch)
            row = first_row + j + own.start_row
            is_inside = (row >= 0) & (row < own.height)
            with k.if_else(is_inside) as (copied, empty):
                with empty:
                    k.clear_bytes(target, self.columns * self.pitch * size)
                with copied:
                    k.clear_bytes(target, left * self.pitch * size)
                    source = own.pixel(images, pixels.image + i, first_row + j, left)
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
    """Return the kernel argument for a `Filling`."""
    return {
        "rows": strips.source_rows,
        "columns": strips.source_columns,
        "pitch": strips.pitch,
        "channels": channels,
        "images": padded_images(images, start),
    }


@dataclass(frozen=True)
class TiledLayout:
    """Roles of the images of a call: the images to transform, and the second set of images."""

    node: Node

    @cached_property
    def geometry(self) -> Geometry:
        """The shapes of the convolution."""
        return Geometry.of(self.node)

    @cached_property
    def is_gradient(self) -> bool:
        """True for the input gradient: a convolution of the output's gradient."""
        return self.node.op.name == "conv2d_input"

    @cached_property
    def is_sum(self) -> bool:
        """True for the weight gradient: sums over all tiles."""
        return self.node.op.name == "conv2d_weight"

    @property
    def padding(self) -> tuple[int, int]:
        """Rows above and columns left of the images that are transformed."""
        top, left = self.geometry.origin
        rows, columns = self.geometry.taps
        return (rows - 1 - top, columns - 1 - left) if self.is_gradient else (top, left)

    @cached_property
    def inner(self) -> int:
        """Channels of the images that are transformed."""
        return self.geometry.results if self.is_gradient else self.geometry.channels

    @cached_property
    def columns(self) -> int:
        """Number of channels of the second set of images.

        It contains the images that are written or, for the weight gradient, the output's gradient.
        """
        return self.geometry.channels if self.is_gradient else self.geometry.results

    def _step(self, elements: int) -> int:
        """Round a matrix up to an odd number of cache lines.

        With an even number, the same row of all matrices would map to the same cache set.
        """
        itemsize = self.geometry.dtype.itemsize
        lines = -(-elements * itemsize // CACHE_LINE)
        return (lines + 1 - lines % 2) * CACHE_LINE // itemsize
