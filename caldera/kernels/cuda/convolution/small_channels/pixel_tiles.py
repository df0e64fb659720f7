"""Tiles of output pixels: some rows and columns of some images, and what these see."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from caldera.kernels.common.geometry import Correlation
from caldera.kernels.cuda.convolution.implicit_gemm import Divider, by_axis

MOST_PIXELS = 1024
FEWEST_PIXELS = 32


class PixelTilesNumbers(ctypes.Structure):
    """`PixelTiles` of small_channels_tiles.cuh."""

    _fields_ = [
        *[(name, Divider) for name in ("across", "down", "width", "area", "height")],
        *[
            (name, ctypes.c_int)
            for name in (
                "tiles",
                "tile_images",
                "tile_height",
                "pixels",
                "images",
                "source_height",
                "source_width",
                "target_height",
                "target_width",
                "stride_y",
                "stride_x",
                "start_y",
                "start_x",
                "pieces",
                "pitch",
                "seen",
            )
        ],
    ]


@dataclass(frozen=True)
class PixelTiles:
    """How the output pixels of a correlation are cut into tiles, all of the same size."""

    work: Correlation
    images: int
    height: int
    width: int
    pixel: int
    """Bytes from one pixel of what a tile sees to the next."""

    @cached_property
    def pixels(self) -> int:
        """Output pixels of a tile."""
        return self.images * self.height * self.width

    @cached_property
    def tiles(self) -> int:
        """How many tiles there are."""
        work = self.work
        rows, columns = work.target[0] // self.height, work.target[1] // self.width
        return -(-work.batch // self.images) * rows * columns

    @property
    def sight(self) -> tuple[int, int]:
        """Rows and columns of an image that a tile sees."""
        stride, reach = self.work.stride, self.work.reach
        return (self.height - 1) * stride[0] + reach[0], (self.width - 1) * stride[1] + reach[1]

    @property
    def pitch(self) -> int:
        """Bytes of a row of what a tile sees."""
        return -(-self.sight[1] * self.pixel // 4) * 4

    @cached_property
    def seen(self) -> int:
        """Bytes of all that a tile sees; words may reach beyond the last pixel."""
        return -(-(self.images * self.sight[0] * self.pitch + 4) // 16) * 16

    def numbers(self, itemsize: int) -> PixelTilesNumbers:
        """What kernels are told of it."""
        work, (rows, columns) = self.work, self.sight
        in_chunks = work.channels * itemsize % 16 == 0
        pieces = work.channels * itemsize // 16 if in_chunks else work.channels
        size = ("height", "width")
        return PixelTilesNumbers(
            across=Divider.by(work.target[1] // self.width),
            down=Divider.by(work.target[0] // self.height),
            width=Divider.by(self.width),
            area=Divider.by(self.height * self.width),
            height=Divider.by(rows),
            tiles=self.tiles,
            tile_images=self.images,
            tile_height=self.height,
            pixels=self.pixels,
            images=work.batch,
            **by_axis("source_", work.source, size),
            **by_axis("target_", work.target, size),
            **by_axis("stride_", work.stride),
            **by_axis("start_", work.start),
            pieces=columns * pieces,
            pitch=self.pitch,
            seen=self.seen,
        )


def pixel_tilings(work: Correlation, pixel: int) -> Iterator[PixelTiles]:
    """The tiles that are worth considering: whole rows, whole images if these are small."""
    height, width = work.target
    for columns in _divisors(width):
        if columns < min(width, 32):
            continue
        for rows in _divisors(height):
            whole = rows == height and columns == width
            for images in (1, 2, 4, 8) if whole else (1,):
                pixel_tiles = PixelTiles(work, images, rows, columns, pixel)
                # Small images together, as many as there are.
                is_small = pixel_tiles.pixels < FEWEST_PIXELS and images * 2 <= work.batch * whole
                if images <= work.batch and not is_small and pixel_tiles.pixels <= MOST_PIXELS:
                    yield pixel_tiles


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
