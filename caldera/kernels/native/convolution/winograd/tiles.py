"""From tiles of images to points, and from points to tiles of images: what native kernels emit.

Images lie channels last, with any distances between pixels, rows and images; vectors run along the
channels. A tile that reaches over the border reads zeros there, and writes to nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from caldera.kernels.common.geometry import steps
from caldera.kernels.native.codegen.emitter import (
    I32,
    I64,
    Emitter,
    Pointer,
    Value,
    itemsize,
)
from caldera.kernels.native.codegen.kernel import Integer
from caldera.kernels.native.convolution.winograd.transforms import in_two_dimensions, lengths


def image_arguments(array: np.ndarray, top: int, left: int) -> dict[str, np.ndarray | int]:
    """An image (N, C, H, W) that lies channels last, as a kernel is given it.

    The first tile starts `top` rows above and `left` columns left of the image.
    """
    _, channels, height, width = array.shape
    image_step, _, row_step, pixel_step = steps(array)
    return {
        "memory": array, "image_step": image_step, "row_step": row_step, "pixel_step": pixel_step,
        "channels": channels, "height": height, "width": width, "top": top, "left": left,
    }  # fmt: skip


@dataclass(frozen=True)
class Image:
    """An image in a kernel."""

    memory: Pointer
    image_step: Integer
    row_step: Integer
    pixel_step: Integer
    channels: Integer
    height: Integer
    width: Integer
    top: Integer
    left: Integer


@dataclass(frozen=True)
class Points:
    """Transformed tiles in a kernel: for each point a matrix with a row a tile."""

    memory: Pointer
    step: Integer
    """From one point to the next, in elements."""
    width: Integer
    """From one tile to the next."""

    def passed(self, number: Value) -> Points:
        """The same behind so many matrices."""
        return Points(self.memory.at(self.step * number), self.step, self.width)

    def at(self, row: Value) -> Points:
        """The same from a row on."""
        return Points(self.memory.at(row * self.width), self.step, self.width)

    def of(self, point: Value) -> Pointer:
        """The matrix of one point."""
        return self.memory.at(self.step * point)


@dataclass(frozen=True)
class Tiles:
    """How the tiles of all images are numbered: image by image, row by row."""

    size: int
    down: Value
    across: Value

    def origin(self, image: Image, tile: Value) -> tuple[Value, Value, Value]:
        """The number of the image a tile lies in, and its first row and column there."""
        within = self.down * self.across
        number = _quotient(tile, within)
        rest = tile - number * within
        row = _quotient(rest, self.across)
        column = rest - row * self.across
        return number, row * self.size - image.top, column * self.size - image.left


def _quotient(a: Value, b: Value) -> Value:
    """a // b for numbers of tiles, which fit into 32 bits: processors divide those much sooner."""
    k = a.k
    short = [k.convert(each, I32).raw for each in (a, b)]
    return k.convert(Value(k, k.ir.udiv(*short)), I64, unsigned=True)


def transform_tiles(
    k: Emitter,
    name: str,
    tiles: Tiles,
    image: Image,
    points: Points,
    numbers: tuple[Value, Value],
    zeros: Pointer,
    lanes: int,
) -> None:
    """Transform tiles `numbers[0]` to `numbers[1]` of an image; `zeros` is room for its channels.

    `points` starts with the row of the first of them.
    """
    k.clear_bytes(zeros, image.channels * itemsize(zeros.type))
    side, count = lengths(name, tiles.size)
    places = [points.step * index for index in range(count * count)]
    with k.loop(*numbers) as tile:
        row = points.at(tile - numbers[0]).memory
        pixels = _pixels(k, tiles, image, tile, side, zeros)
        with overlapping(k, image.channels, lanes) as c:
            in_two_dimensions(
                k, name, tiles.size,
                lambda i, j: pixels[i][j].load(c, lanes),
                lambda i, j, value: row.store(places[i * count + j] + c, value),
            )  # fmt: skip


def inverse_transform(
    k: Emitter,
    name: str,
    tiles: Tiles,
    points: Points,
    image: Image,
    numbers: tuple[Value, Value],
    nowhere: Pointer,
    lanes: int,
) -> None:
    """Write tiles `numbers[0]` to `numbers[1]` of an image; `nowhere` is room for its channels."""
    count, side = lengths(name, tiles.size)
    places = [points.step * index for index in range(count * count)]
    with k.loop(*numbers) as tile:
        row = points.at(tile - numbers[0]).memory
        pixels = _pixels(k, tiles, image, tile, side, nowhere)
        with overlapping(k, image.channels, lanes) as c:
            in_two_dimensions(
                k, name, tiles.size,
                lambda i, j: row.load(places[i * count + j] + c, lanes),
                lambda i, j, value: pixels[i][j].store(c, value),
            )  # fmt: skip


@contextmanager
def overlapping(k: Emitter, count: Value, lanes: int) -> Iterator[Value]:
    """A loop over vectors of `lanes` of at least as many elements; the last may do some of them
    again, which takes less code than doing what is left one by one."""
    with k.loop(0, count, lanes) as index:
        yield k.minimum(index, count - lanes)


def _pixels(
    k: Emitter, tiles: Tiles, image: Image, tile: Value, side: int, outside: Pointer
) -> list[list[Pointer]]:
    """The places of a tile's pixels, row by row; `outside` for those that are not in the image.

    Most tiles lie within: to look at their pixels one by one would take as long as transforming a
    vector of channels.
    """
    number, top, left = tiles.origin(image, tile)
    first = image.memory.at(number * image.image_step + left * image.pixel_step)
    places = k.alloca(I64, side * side)
    columns = [image.pixel_step * j for j in range(side)]

    def is_within(place: Value, end: Value) -> Value:
        return k.compare("<", place, end, unsigned=True)

    rows_inside = (top >= 0) & (top + side <= image.height)
    with k.if_else(rows_inside & (left >= 0) & (left + side <= image.width)) as (inside, across):
        with inside:
            for i in range(side):
                row = first.at((top + i) * image.row_step)
                for j, column in enumerate(columns):
                    places.store(i * side + j, k.pointer_to_int(row.at(column)))
        # Loops over pixels, and not a copy of their body for each of them: code is short.
        with across, k.loop(0, side) as down:
            row = first.at((top + down) * image.row_step)
            in_rows = is_within(top + down, image.height)
            with k.loop(0, side) as right:
                within = in_rows & is_within(left + right, image.width)
                there = k.pointer_to_int(row.at(image.pixel_step * right))
                place = k.select(within, there, k.pointer_to_int(outside))
                places.store(down * side + right, place)
    kind = image.memory.type
    return [
        [k.int_to_pointer(places.load(i * side + j), kind) for j in range(side)]
        for i in range(side)
    ]
