"""From tiles of images to points, and from points to tiles of images: what native kernels emit.

Images lie channels last, with any distances between pixels, rows and images; vectors run along the
channels. A tile that reaches over the border reads zeros there, and writes to nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

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

Pixels = list[list[Pointer]]
"""Where the pixels of a tile are, row by row."""


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

    def with_channels(self, count: int) -> Image:
        """The same, if it is known when code is written that so many channels lie side by side,
        and pixels as well."""
        number = self.memory.k.constant(count, I64)
        return replace(self, channels=number, pixel_step=number)


@dataclass(frozen=True)
class Points:
    """Transformed tiles in a kernel: for each point a matrix with a row a tile."""

    memory: Pointer
    step: Integer
    """From one point to the next, in elements."""
    width: Integer
    """From one tile to the next."""

    def with_steps(self, step: int, width: int) -> Points:
        """The same, if its distances are known when code is written."""
        return Points(self.memory, *(self.memory.k.constant(each, I64) for each in (step, width)))

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
class Place:
    """Where a tile lies: the number of its image, and its first row and column there."""

    image: Value
    row: Value
    column: Value


@dataclass(frozen=True)
class Tiles:
    """How the tiles of all images are numbered: image by image, row by row."""

    size: int
    down: Value
    across: Value

    @contextmanager
    def loop(self, k: Emitter, numbers: tuple[Value, Value]) -> Iterator[tuple[Value, Place]]:
        """A loop over tiles: how many came before, and where each lies.

        Only the first is looked for: to divide takes longer than to transform a vector.
        """
        begin, end = numbers
        within = self.down * self.across
        image = _quotient(begin, within)
        rest = begin - image * within
        row = _quotient(rest, self.across)
        place = [k.variable(each) for each in (image, row, rest - row * self.across)]
        with k.loop(0, end - begin) as count:
            image, row, column = (each.value for each in place)
            yield count, Place(image, row * self.size, column * self.size)
            is_last = (column + 1).equals(self.across)
            is_lowest = is_last & (row + 1).equals(self.down)
            place[0].value = k.select(is_lowest, image + 1, image)
            place[1].value = k.select(is_lowest, 0, k.select(is_last, row + 1, row))
            place[2].value = k.select(is_last, 0, column + 1)


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
    with tiles.loop(k, numbers) as (number, place):
        row = points.at(number).memory

        def transform(pixels: Pixels) -> None:
            with overlapping(k, image.channels, lanes) as c:
                in_two_dimensions(
                    k, name, tiles.size,
                    lambda i, j: pixels[i][j].load(c, lanes),
                    lambda i, j, value: row.store(places[i * count + j] + c, value),
                )  # fmt: skip

        _with_pixels(k, image, place, side, zeros, transform)


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
    with tiles.loop(k, numbers) as (number, place):
        row = points.at(number).memory

        def transform(pixels: Pixels) -> None:
            with overlapping(k, image.channels, lanes) as c:
                in_two_dimensions(
                    k, name, tiles.size,
                    lambda i, j: row.load(places[i * count + j] + c, lanes),
                    lambda i, j, value: pixels[i][j].store(c, value),
                )  # fmt: skip

        _with_pixels(k, image, place, side, nowhere, transform)


@contextmanager
def overlapping(k: Emitter, count: Value, lanes: int) -> Iterator[Value]:
    """A loop over vectors of `lanes` of at least as many elements; the last may do some of them
    again, which takes less code than doing what is left one by one."""
    with k.loop(0, count, lanes) as index:
        yield k.minimum(index, count - lanes)


def _with_pixels(
    k: Emitter, image: Image, place: Place, side: int, outside: Pointer,
    body: Callable[[Pixels], None],
) -> None:  # fmt: skip
    """`body` with the places of a tile's pixels; `outside` for those that are not in the image.

    It is written twice: for tiles within the image, whose pixels lie at the same distances from
    each other, and for those over its border, whose places are looked up one by one, which takes
    as long as transforming a vector of channels.
    """
    top, left = place.row - image.top, place.column - image.left
    first = image.memory.at(place.image * image.image_step + left * image.pixel_step)
    rows_inside = (top >= 0) & (top + side <= image.height)
    with k.if_else(rows_inside & (left >= 0) & (left + side <= image.width)) as (inside, across):
        with inside:
            rows = [first.at((top + i) * image.row_step) for i in range(side)]
            body([[row.at(image.pixel_step * j) for j in range(side)] for row in rows])
        with across:
            body(_pixels_at_border(k, image, first, (top, left), side, outside))


def _pixels_at_border(
    k: Emitter, image: Image, first: Pointer, corner: tuple[Value, Value], side: int,
    outside: Pointer,
) -> Pixels:  # fmt: skip
    places = k.alloca(I64, side * side)
    top, left = corner

    def is_within(place: Value, end: Value) -> Value:
        return k.compare("<", place, end, unsigned=True)

    # Loops over pixels, and not a copy of their body for each of them: code is short.
    with k.loop(0, side) as down:
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
