"""Convolution by Fourier transforms: tiles, and its phases as native kernels of BLAS products.

A tile has at most `length` rows and columns. It is real, so half of its frequencies along the
rows' axis are kept; along the columns' axis, all. Points of tiles lie point by point; for each a
real and an imaginary matrix with a row a tile. Transforms this short take hardly more arithmetic as
products with constant matrices than as fast transforms, and products run at the full speed of the
machine, on vectors of channels, in any layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.tensor import DType, size
from caldera.kernels.common.binding import workspace_limit
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    Pointer,
    RegisterValue,
    native_kernel,
)
from caldera.kernels.native.codegen.matrix_multiply import gemm
from caldera.kernels.native.convolution import PEAK
from caldera.kernels.native.convolution.reorder import staging_bytes
from caldera.kernels.native.convolution.tiling import TiledLayout


@dataclass(frozen=True, eq=False)
class FourierMatrices:
    """Matrices of the transforms of tiles. Angles are positive in inverse transforms."""

    down: np.ndarray
    """(frequency, part) by row: the forward transform along columns of a tile."""
    across: np.ndarray
    """(frequency, part) by (part, column): the forward transform along rows."""
    back_across: np.ndarray
    """(part, column) by (frequency, part): the inverse along rows."""
    back_down: np.ndarray
    """row by (frequency, part): the inverse along columns, whose results are real."""
    filters: np.ndarray
    """(frequency down, frequency across, part) by tap: the forward transform of filters."""
    taps: np.ndarray
    """(frequency down, frequency across, part) by tap: the inverse transform, to taps."""


def frequencies(length: int) -> int:
    """Return the number of frequencies of a real signal that are kept.

    >>> frequencies(16)
    9
    """
    return length // 2 + 1


@lru_cache(maxsize=64)
def matrices(length: int, taps: tuple[int, int], turned: bool, dtype: DType) -> FourierMatrices:
    """Return the matrices for tiles of this length and filters of this size.

    `turned` transforms filters rotated by 180 degrees, as the input gradient requires.

    >>> found = matrices(16, (7, 7), False, np.dtype("float32"))
    >>> found.down.shape, found.across.shape, found.filters.shape
    ((18, 16), (32, 32), (288, 49))
    """
    places = np.arange(length)
    half = np.arange(frequencies(length))
    angles = 2 * np.pi / length * (np.outer(places, places) % length)
    cosines, sines = np.cos(angles), np.sin(angles)
    # All frequencies except the first and, for even lengths, the last represent two.
    weights = np.where((half == 0) | (2 * half == length), 1.0, 2.0) / length**2

    down = np.stack([cosines[half], -sines[half]], axis=1)
    across = np.stack(
        [np.stack([cosines, sines], axis=1), np.stack([-sines, cosines], axis=1)], axis=1
    )
    back_across = np.stack(
        [np.stack([cosines, -sines], axis=2), np.stack([sines, cosines], axis=2)], axis=0
    )
    weighted = weights[:, None] * np.stack([cosines[half], -sines[half]], axis=0)
    back_down = weighted.transpose(2, 1, 0)
    rows, columns = (np.arange(count)[::-1] if turned else np.arange(count) for count in taps)
    of_row, of_column = np.outer(half, rows), np.outer(places, columns)
    phases = of_row[:, None, :, None] + of_column[None, :, None, :]
    turns = 2 * np.pi / length * (phases % length)
    both = np.stack([np.cos(turns), -np.sin(turns)], axis=2)

    def dense(matrix: np.ndarray, *shape: int) -> np.ndarray:
        return np.ascontiguousarray(matrix.reshape(shape), dtype)

    count = taps[0] * taps[1]
    return FourierMatrices(
        dense(down, 2 * len(half), length),
        dense(across, 2 * length, 2 * length),
        dense(back_across, 2 * length, 2 * length),
        dense(back_down, length, 2 * len(half)),
        dense(both, -1, count),
        dense(both * weights[:, None, None, None, None], -1, count),
    )


LENGTHS = (16, 24, 32, 48, 64)
"""Supported lengths of tiles and their transforms, along either axis."""
_BLOCKS = (64, 32, 16, 8, 4)
"""Tiles in a block, the most first."""


@dataclass(frozen=True)
class FourierTiling(TiledLayout):
    """Sizes and memory layout of a call."""

    @cached_property
    def length(self) -> int:
        """The length of the transforms that takes the least time."""
        widest = max(self.geometry.taps)
        return min((each for each in LENGTHS if each > widest), key=self._seconds)

    def steps(self, length: int) -> tuple[int, int]:
        """Return rows and columns of outputs that a tile has."""
        rows, columns = self.geometry.taps
        return length - rows + 1, length - columns + 1

    def grid(self, length: int) -> tuple[int, int]:
        """Return tiles from top to bottom and from left to right."""
        shape = self.geometry.image if self.is_gradient else self.geometry.output
        rows, columns = self.steps(length)
        return -(-shape[2] // rows), -(-shape[3] // columns)

    @property
    def seconds(self) -> float:
        """Estimated time on one core with the speed assumed by all estimates."""
        return self._seconds(self.length)

    def _seconds(self, length: int) -> float:
        half = frequencies(length)
        down, across = self.grid(length)
        products = 8 * half * length * self.inner * self.columns
        transforms = 12 * half * length * length * (self.inner + self.columns)
        filters = 4 * half * length * size(self.geometry.filters)
        tile = products / (0.8 * PEAK) + transforms / (0.35 * PEAK)
        return self.geometry.batch * down * across * tile + filters / (0.8 * PEAK)

    @cached_property
    def tiles(self) -> int:
        """Number of tiles in all images."""
        down, across = self.grid(self.length)
        return self.geometry.batch * down * across

    @property
    def points(self) -> int:
        """Matrices of the points: real and imaginary parts of all frequencies that are kept."""
        return 2 * frequencies(self.length) * self.length

    @cached_property
    def block(self) -> int:
        """Tiles in a block: as many as pay and fit into the workspace allowed."""
        limit = workspace_limit() - staging_bytes(self.node)
        itemsize = self.geometry.dtype.itemsize
        fitting = (n for n in _BLOCKS if sum(self._lengths(n)) * itemsize <= limit)
        return min(next(fitting, _BLOCKS[-1]), self.tiles)

    @property
    def workers(self) -> int:
        """Number of parts of the work."""
        return thread_count()

    # --- memory, in elements

    @property
    def filter_step(self) -> int:
        """Stride between points of the filters, in elements."""
        return self._step(self.inner * self.columns)

    @property
    def step(self) -> int:
        """Stride between points of a block of transformed tiles, in elements."""
        return self._step(self.block * self.inner)

    @property
    def other_step(self) -> int:
        """Distance between points in a block of the second set of tiles."""
        return self._step(self.block * self.columns)

    @property
    def workspace(self) -> int:
        """Scratch memory of a worker: a tile that is transformed along one axis."""
        channels = max(self.inner, self.columns)
        return self._step(2 * frequencies(self.length) * self.length * channels)

    @property
    def lengths(self) -> tuple[int, int, int, int]:
        """Lengths of the memory for filters, both sets of transformed tiles, and workers."""
        return self._lengths(self.block)

    def _lengths(self, block: int) -> tuple[int, int, int, int]:
        points, others = (self._step(block * each) for each in (self.inner, self.columns))
        return (
            self.points * self.filter_step,
            self.points * points,
            self.points * others,
            self.workers * self.workspace,
        )


@dataclass(frozen=True)
class TileTransform:
    """Tiles of an image, the matrices they are multiplied with, and their points.

    The first tile begins `top` and `left` of the image, the next `tile_rows` and `tile_columns`
    further on; a tile sees `side_rows` and `side_columns`.
    """

    gemm: Integer
    image: Pointer
    image_step: Integer
    row_step: Integer
    channels: Integer
    height: Integer
    width: Integer
    top: Integer
    left: Integer
    tile_rows: Integer
    tile_columns: Integer
    side_rows: Integer
    side_columns: Integer
    down: Integer
    across: Integer
    first: Integer
    end: Integer
    matrix: Pointer
    other_matrix: Pointer
    length: Integer
    half: Integer
    points: Pointer
    step: Integer
    workspace: Pointer
    workspace_step: Integer


@dataclass(frozen=True)
class PointProducts:
    """Pairs of points of tiles, of others and of filters, each a row of matrices."""

    gemm: Integer
    pairs: Integer
    tiles: Integer
    inner: Integer
    columns: Integer
    filters: Pointer
    filter_step: Integer
    points: Pointer
    step: Integer
    others: Pointer
    other_step: Integer
    is_first: Integer

    def parts(self, pair: RegisterValue) -> list[tuple[Pointer, Pointer]]:
        """Return the real and the imaginary matrix of a frequency: of tiles, filters and others."""
        return [
            (pointer.at(step * 2 * pair), pointer.at(step * 2 * pair + step))
            for pointer, step in (
                (self.points, self.step),
                (self.filters, self.filter_step),
                (self.others, self.other_step),
            )
        ]


@dataclass(frozen=True)
class Filters:
    """Filters (count, taps), their points, and the matrix that transforms them."""

    gemm: Integer
    filters: Pointer
    points: Pointer
    step: Integer
    matrix: Pointer
    rows: Integer
    count: Integer
    taps: Integer


class _Tile:
    """The part of a tile that lies inside its image."""

    def __init__(self, k: Emitter, given: TileTransform, tile: RegisterValue) -> None:
        down, across = given.down, given.across
        image = tile // (down * across)
        rest = tile - image * down * across
        row = rest // across
        top = row * given.tile_rows - given.top
        left = (rest - row * across) * given.tile_columns - given.left
        self.first_row, self.first_column = k.maximum(-top, 0), k.maximum(-left, 0)
        last_row = k.minimum(given.side_rows, given.height - top)
        last_column = k.minimum(given.side_columns, given.width - left)
        self.rows = k.maximum(last_row - self.first_row, 0)
        self.columns = k.maximum(last_column - self.first_column, 0)
        self.memory = given.image.at(
            image * given.image_step
            + (top + self.first_row) * given.row_step
            + (left + self.first_column) * given.channels
        )


@contextmanager
def _tiles_of_part(
    k: Emitter, given: TileTransform
) -> Iterator[tuple[RegisterValue, RegisterValue, Pointer, _Tile, RegisterValue]]:
    """A loop over this worker's tiles: the index, the rows of half of the frequencies, the worker's
    memory, the tile, and the length of its rows."""
    twice = given.half * 2
    workspace = given.workspace.at(k.part * given.workspace_step)
    with k.loop(*k.part_range(given.end - given.first)) as index:
        tile = _Tile(k, given, given.first + index)
        yield index, twice, workspace, tile, tile.columns * given.channels


@native_kernel
def transform_tiles(k: Emitter, given: TileTransform) -> None:
    """Transform tiles of an image whose pixels lie side by side."""
    address, channels, length = given.gemm, given.channels, given.length
    with _tiles_of_part(k, given) as (index, twice, workspace, tile, line):
        gemm(
            k,
            address,
            (twice, line, tile.rows),
            (given.matrix.at(tile.first_row), length),
            (tile.memory, given.row_step),
            (workspace, k.maximum(line, 1)),
        )
        matrix = given.other_matrix.at(tile.first_column)
        with k.loop(0, given.half) as frequency:
            place = given.points.at(frequency * length * 2 * given.step + index * channels)
            for part in (0, 1):
                gemm(
                    k,
                    address,
                    (length * 2, channels, tile.columns),
                    (matrix.at(length * part), length * 2),
                    (workspace.at((frequency * 2 + part) * line), channels),
                    (place, given.step),
                    beta=float(part),
                )


@native_kernel
def inverse_transform(k: Emitter, given: TileTransform) -> None:
    """Transform products back to tiles of an image whose pixels lie side by side."""
    address, channels, length = given.gemm, given.channels, given.length
    with _tiles_of_part(k, given) as (index, twice, workspace, tile, line):
        with k.loop(0, given.half) as frequency:
            place = given.points.at(frequency * length * 2 * given.step + index * channels)
            for part in (0, 1):
                gemm(
                    k,
                    address,
                    (tile.columns, channels, length * 2),
                    (given.other_matrix.at(length * length * 2 * part), length * 2),
                    (place, given.step),
                    (workspace.at((frequency * 2 + part) * line), channels),
                )
        gemm(
            k,
            address,
            (tile.rows, line, twice),
            (given.matrix, twice),
            (workspace, line),
            (tile.memory, given.row_step),
        )


@native_kernel
def multiply(k: Emitter, given: PointProducts, transposed: bool) -> None:
    """Points of tiles times the conjugates of the filters' points.

    Filters lie as matrices (K, C); `transposed` reads them as (C, K).
    """
    inner, columns = given.inner, given.columns
    distance = inner if transposed else columns
    with k.loop(*k.part_range(given.pairs)) as pair:
        x, w, y = given.parts(pair)
        for a, b, c, alpha, beta in (
            (x[0], w[0], y[0], 1.0, 0.0),
            (x[1], w[1], y[0], 1.0, 1.0),
            (x[1], w[0], y[1], 1.0, 0.0),
            (x[0], w[1], y[1], -1.0, 1.0),
        ):
            shape, places = (given.tiles, columns, inner), ((a, inner), (b, distance), (c, columns))
            gemm(k, given.gemm, shape, *places, tb=transposed, alpha=alpha, beta=beta)


@native_kernel
def add(k: Emitter, given: PointProducts) -> None:
    """Add points of tiles times the conjugates of the gradient's points, over all tiles."""
    inner, columns = given.inner, given.columns
    one = k.constant(1.0, given.points.type)
    keep = k.select(given.is_first.differs(0), k.constant(0.0, one.type), one)
    with k.loop(*k.part_range(given.pairs)) as pair:
        x, w, y = given.parts(pair)
        for a, b, c, alpha, beta in (
            (y[0], x[0], w[0], 1.0, keep),
            (y[1], x[1], w[0], 1.0, one),
            (y[0], x[1], w[1], 1.0, keep),
            (y[1], x[0], w[1], -1.0, one),
        ):
            shape, places = (columns, inner, given.tiles), ((a, columns), (b, inner), (c, inner))
            gemm(k, given.gemm, shape, *places, ta=True, alpha=alpha, beta=beta)


@native_kernel
def filter_points(k: Emitter, given: Filters) -> None:
    """Transform filters (count, taps)."""
    taps, step = given.taps, given.step
    begin, end = k.part_range(given.rows)
    with k.if_then(end > begin):
        gemm(
            k,
            given.gemm,
            (end - begin, given.count, taps),
            (given.matrix.at(begin * taps), taps),
            (given.filters, taps),
            (given.points.at(begin * step), step),
            tb=True,
        )


@native_kernel
def filter_taps(k: Emitter, given: Filters) -> None:
    """Transform points back to filters (count, taps)."""
    taps, step = given.taps, given.step
    begin, end = k.part_range(given.count)
    with k.if_then(end > begin):
        gemm(
            k,
            given.gemm,
            (end - begin, taps, given.rows),
            (given.points.at(begin), step),
            (given.matrix, taps),
            (given.filters.at(begin * taps), taps),
            ta=True,
        )
