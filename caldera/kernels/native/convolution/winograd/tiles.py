"""From tiles of images to points, and from points to tiles of images: what native kernels emit.

Images lie channels last, with any distances between pixels, rows and images; vectors run along the
channels. A tile that reaches over the border reads zeros there, and writes to nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from caldera.kernels.common.geometry import steps
from caldera.kernels.native.codegen import (
    I32,
    I64,
    Emitter,
    Integer,
    MutableRegister,
    Pointer,
    RegisterValue,
    itemsize,
)
from caldera.kernels.native.convolution.winograd.transforms import (
    TRANSFORMS,
    Vector,
    in_two_dimensions,
    lengths,
    transform_rows,
)

Pixels = list[list[Pointer]]
"""Addresses of the pixels of a tile, column by column."""


def image_arguments(array: np.ndarray, top: int, left: int) -> dict[str, np.ndarray | int]:
    """Return an image (N, C, H, W) that lies channels last, as a kernel is given it.

    The first tile starts `top` rows above and `left` columns left of the image.
    """
    _, channels, height, width = array.shape
    image_step, _, row_step, pixel_step = steps(array)
    return {
        "memory": array,
        "image_step": image_step,
        "row_step": row_step,
        "pixel_step": pixel_step,
        "channels": channels,
        "height": height,
        "width": width,
        "top": top,
        "left": left,
    }


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
        """Return the same image with a compile-time number of channels and contiguous pixels."""
        number = self.memory.k.constant(count, I64)
        return replace(self, channels=number, pixel_step=number)


@dataclass(frozen=True)
class Points:
    """Transformed tiles in a kernel: for each point a matrix with a row a tile."""

    memory: Pointer
    step: Integer
    """Stride between points, in elements."""
    width: Integer
    """Stride between tiles, in elements."""

    def with_steps(self, step: int, width: int) -> Points:
        """Return the points with compile-time strides."""
        return Points(self.memory, *(self.memory.k.constant(each, I64) for each in (step, width)))

    def passed(self, number: RegisterValue) -> Points:
        """Return the points that begin `number` matrices further on."""
        return Points(self.memory.at(self.step * number), self.step, self.width)

    def at(self, row: RegisterValue) -> Points:
        """Return the points that begin at a row of the matrices."""
        return Points(self.memory.at(row * self.width), self.step, self.width)

    def of(self, point: RegisterValue) -> Pointer:
        """Return the matrix of a point."""
        return self.memory.at(self.step * point)


@dataclass(frozen=True)
class TileRun:
    """Adjacent tiles in a row of tiles.

    `before` is the number of preceding tiles, `image` the number of their image, `row` and `column`
    the position of the first tile, in tiles, and `count` the number of tiles.
    """

    before: RegisterValue
    image: RegisterValue
    row: RegisterValue
    column: RegisterValue
    count: RegisterValue


@dataclass(frozen=True)
class Cursor:
    """Position of a tile: its image, its row and its column."""

    image: MutableRegister
    row: MutableRegister
    column: MutableRegister

    def copy(self, k: Emitter) -> Cursor:
        """Return a new cursor at the same tile."""
        return Cursor(*(k.variable(each.value) for each in (self.image, self.row, self.column)))

    def move_to(self, other: Cursor) -> None:
        """Move to the tile of another cursor."""
        self.image.value = other.image.value
        self.row.value = other.row.value
        self.column.value = other.column.value


@dataclass(frozen=True)
class Tiles:
    """Numbering of the tiles of all images: image by image, row by row."""

    size: int
    down: RegisterValue
    across: RegisterValue

    def cursor(self, k: Emitter, number: RegisterValue) -> Cursor:
        """Look for a tile: to divide takes longer than to transform a vector, so it is done once,
        and from there on tiles are counted."""
        within = self.down * self.across
        image = _quotient(number, within)
        rest = number - image * within
        row = _quotient(rest, self.across)
        return Cursor(*(k.variable(each) for each in (image, row, rest - row * self.across)))

    @contextmanager
    def runs(self, k: Emitter, cursor: Cursor, count: RegisterValue) -> Iterator[TileRun]:
        """Loop over the rows that contain the next `count` tiles; advance the cursor past them."""
        image, row, column = cursor.image, cursor.row, cursor.column
        before = k.variable(0, I64)
        with k.while_loop(lambda: before.value < count):
            some = k.minimum(count - before.value, self.across - column.value)
            yield TileRun(before.value, image.value, row.value, column.value, some)
            before.value = before.value + some
            after = column.value + some
            is_last = after.equals(self.across)
            is_lowest = k.select(is_last, row.value + 1, row.value).equals(self.down)
            column.value = k.select(is_last, 0, after)
            row.value = k.select(is_lowest, 0, k.select(is_last, row.value + 1, row.value))
            image.value = k.select(is_lowest, image.value + 1, image.value)


def _quotient(a: RegisterValue, b: RegisterValue) -> RegisterValue:
    """a // b for numbers of tiles, which fit into 32 bits: processors divide those much sooner."""
    k = a.k
    short = [k.convert(each, I32).raw for each in (a, b)]
    return k.convert(RegisterValue(k, k.ir.udiv(*short)), I64, unsigned=True)


@dataclass(frozen=True)
class Strip:
    """Rows of an image that contain a run of tiles, starting at the first tile's first column.

    A row outside the image is a single pixel of memory, `outside`, repeated. `within` is the range
    (begin, end) of the tiles that are inside their rows at both ends. `right` is the end of the
    tiles that do not extend beyond the right end.
    """

    size: int
    side: int
    rows: list[Pointer]
    steps: list[RegisterValue]
    left: RegisterValue
    width: RegisterValue
    outside: Pointer
    run: TileRun
    within: tuple[RegisterValue, RegisterValue]
    right: RegisterValue

    @classmethod
    def of(
        cls, k: Emitter, size: int, side: int, image: Image, run: TileRun, outside: Pointer
    ) -> Self:
        """Return the strip of tiles with `side` pixels and a stride of `size` along an axis."""
        top, left = run.row * size - image.top, run.column * size - image.left
        origin = image.memory.at(run.image * image.image_step + left * image.pixel_step)
        rows, steps = [], []
        for i in range(side):
            inside = k.compare("<", top + i, image.height, unsigned=True)
            rows.append(k.either(inside, origin.at((top + i) * image.row_step), outside))
            steps.append(k.select(inside, image.pixel_step, 0))
        by = size.bit_length() - 1
        begin = k.minimum(k.maximum((-left + (size - 1)) >> by, 0), run.count)
        right = k.minimum(k.maximum(((image.width - side - left) >> by) + 1, 0), run.count)
        within = begin, k.maximum(begin, right)
        return cls(size, side, rows, steps, left, image.width, outside, run, within, right)

    def column(self, tile: RegisterValue, number: int) -> list[Pointer]:
        """Return the pixels of a column of a tile, where that reaches over neither end of a row."""
        place = tile * self.size + number
        return [row.at(step * place) for row, step in zip(self.rows, self.steps, strict=True)]

    def pixels(self, tile: RegisterValue) -> Pixels:
        """Return all pixels of an inner tile, column by column."""
        return [self.column(tile, number) for number in range(self.side)]

    def checked_column(self, k: Emitter, tile: RegisterValue, number: int) -> list[Pointer]:
        """Return the pixels of a column of any tile."""
        place = self.left + tile * self.size + number
        inside = k.compare("<", place, self.width, unsigned=True)
        return [k.either(inside, pixel, self.outside) for pixel in self.column(tile, number)]

    def end_of_inner(self, k: Emitter, number: int) -> RegisterValue:
        """Return the end of the tiles whose columns from `number` on are inside the image.

        It is 0 if such a column of the first tile is left of the image.
        """
        return k.select(self.left + number < 0, 0, self.right)

    @contextmanager
    def over_ends(self, k: Emitter) -> Iterator[tuple[RegisterValue, Pixels]]:
        """A loop over the tiles that reach over an end: which it is, and where its pixels are."""
        begin, end = self.within
        with k.loop(0, begin + self.run.count - end) as index:
            tile = k.select(index < begin, index, index - begin + end)
            yield tile, [self.checked_column(k, tile, number) for number in range(self.side)]


def transform_tiles(
    k: Emitter,
    name: str,
    tiles: Tiles,
    image: Image,
    points: Points,
    cursor: Cursor,
    number: RegisterValue,
    zeros: Pointer,
    lanes: int,
    only: int | None = None,
) -> None:
    """Transform the next `number` tiles of an image; `zeros` is memory for its channels.

    `points` starts with the row of the first tile. It has all points, or only the points of row
    `only`. If adjacent tiles overlap, the transformed columns that the next tile shares stay in
    registers.
    """
    k.clear_bytes(zeros, image.channels * itemsize(zeros.type))
    side, count = lengths(name, tiles.size)
    places = [points.step * index for index in range(count * count)]
    rows = range(count) if only is None else range(only, only + 1)
    with tiles.runs(k, cursor, number) as run:
        strip = Strip.of(k, tiles.size, side, image, run, zeros)
        steps = _StripTransform(k, name, strip, points, places, rows, count, image.channels, lanes)
        if side > tiles.size:
            steps.in_a_row()
        else:
            steps.one_by_one()


@dataclass(frozen=True)
class _StripTransform:
    """Transforms the tiles of a strip to `count` by `count` points, or to some rows of these."""

    k: Emitter
    name: str
    strip: Strip
    points: Points
    places: list[RegisterValue]
    rows: range
    count: int
    channels: RegisterValue
    lanes: int

    def _transformed(self, column: list[Pointer], channel: RegisterValue) -> Vector:
        values = [pixel.load(channel, self.lanes) for pixel in column]
        found = TRANSFORMS[self.name][self.strip.size](self.k, values)
        return [found[row] for row in self.rows]

    def _finish(self, tile: RegisterValue, channel: RegisterValue, columns: list[Vector]) -> None:
        row = self.points.at(self.strip.run.before + tile).memory

        def store(i: int, j: int, value: RegisterValue) -> None:
            row.store(self.places[i * self.count + j] + channel, value)

        transform_rows(self.k, self.name, self.strip.size, columns, store)

    def in_a_row(self) -> None:
        """Tiles that overlap: the columns that the next one shares stay in registers."""
        k, strip, size = self.k, self.strip, self.strip.size
        shared, first = strip.side - size, k.constant(0, I64)
        new = range(shared, strip.side)
        with overlapping(k, self.channels, self.lanes) as c:
            known = [
                [
                    k.variable(each)
                    for each in self._transformed(strip.checked_column(k, first, i), c)
                ]
                for i in range(shared)
            ]

            def transform(tile: RegisterValue, fresh: Pixels) -> None:
                columns = [[each.value for each in column] for column in known]
                columns += [self._transformed(column, c) for column in fresh]
                for column, values in zip(known, columns[size:], strict=True):
                    for variable, value in zip(column, values, strict=True):
                        variable.value = value
                self._finish(tile, c, columns)

            middle = strip.end_of_inner(k, shared)
            with k.loop(0, middle) as tile:
                transform(tile, [strip.column(tile, i) for i in new])
            with k.loop(middle, strip.run.count) as tile:
                transform(tile, [strip.checked_column(k, tile, i) for i in new])

    def one_by_one(self) -> None:
        """Tiles that do not overlap."""
        k, strip = self.k, self.strip

        def transform(tile: RegisterValue, pixels: Pixels) -> None:
            with overlapping(k, self.channels, self.lanes) as c:
                self._finish(tile, c, [self._transformed(column, c) for column in pixels])

        with strip.over_ends(k) as (tile, pixels):
            transform(tile, pixels)
        with k.loop(*strip.within) as tile:
            transform(tile, strip.pixels(tile))


def inverse_transform(
    k: Emitter,
    name: str,
    tiles: Tiles,
    points: Points,
    image: Image,
    cursor: Cursor,
    number: RegisterValue,
    nowhere: Pointer,
    lanes: int,
) -> None:
    """Write the next `number` tiles of an image; `nowhere` is room for its channels."""
    count, side = lengths(name, tiles.size)
    places = [points.step * index for index in range(count * count)]
    with tiles.runs(k, cursor, number) as run:
        strip = Strip.of(k, tiles.size, side, image, run, nowhere)

        def transform(tile: RegisterValue, pixels: Pixels) -> None:
            row = points.at(run.before + tile).memory
            with overlapping(k, image.channels, lanes) as c:
                in_two_dimensions(
                    k,
                    name,
                    tiles.size,
                    lambda i, j: row.load(places[i * count + j] + c, lanes),
                    lambda i, j, value: pixels[j][i].store(c, value),
                )

        with strip.over_ends(k) as (tile, pixels):
            transform(tile, pixels)
        with k.loop(*strip.within) as tile:
            transform(tile, strip.pixels(tile))


@contextmanager
def overlapping(k: Emitter, count: RegisterValue, lanes: int) -> Iterator[RegisterValue]:
    """Loop over vectors of `lanes` elements, of which there must be at least `lanes`.

    The last vector may overlap with the previous one, which needs less code than a loop over single
    elements.
    """
    with k.loop(0, count, lanes) as index:
        yield k.minimum(index, count - lanes)
