"""The phases of a convolution by Fourier transforms, each one native kernel of BLAS products.

Points of tiles lie point by point; for each a real and an imaginary matrix with a row a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    Number,
    Pointer,
    RegisterValue,
    native_kernel,
)
from caldera.kernels.native.codegen.matrix_multiply import gemm


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
        """The real and the imaginary matrix of a frequency: of tiles, filters and others."""
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
    """Filters (count, taps), their points, and the matrix from the one to the other."""

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


@native_kernel
def transform_tiles(k: Emitter, given: TileTransform) -> None:
    """Transform tiles of an image whose pixels lie side by side."""
    address, channels, length = given.gemm, given.channels, given.length
    twice = given.half * 2
    workspace = given.workspace.at(k.part * given.workspace_step)
    first = given.first
    begin, stop = k.part_range(given.end - first)
    with k.loop(begin, stop) as index:
        tile = _Tile(k, given, first + index)
        line = tile.columns * channels
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
    twice = given.half * 2
    workspace = given.workspace.at(k.part * given.workspace_step)
    first = given.first
    begin, stop = k.part_range(given.end - first)
    with k.loop(begin, stop) as index:
        tile = _Tile(k, given, first + index)
        line = tile.columns * channels
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

        def product(a: Pointer, b: Pointer, c: Pointer, alpha: float, beta: float) -> None:
            gemm(
                k,
                given.gemm,
                (given.tiles, columns, inner),
                (a, inner),
                (b, distance),
                (c, columns),
                tb=transposed,
                alpha=alpha,
                beta=beta,
            )

        product(x[0], w[0], y[0], 1.0, 0.0)
        product(x[1], w[1], y[0], 1.0, 1.0)
        product(x[1], w[0], y[1], 1.0, 0.0)
        product(x[0], w[1], y[1], -1.0, 1.0)


@native_kernel
def add(k: Emitter, given: PointProducts) -> None:
    """Add points of tiles times the conjugates of the gradient's points, over all tiles."""
    inner, columns = given.inner, given.columns
    one = k.constant(1.0, given.points.type)
    keep = k.select(given.is_first.differs(0), k.constant(0.0, one.type), one)
    with k.loop(*k.part_range(given.pairs)) as pair:
        x, w, y = given.parts(pair)

        def product(a: Pointer, b: Pointer, c: Pointer, alpha: float, beta: Number) -> None:
            gemm(
                k,
                given.gemm,
                (columns, inner, given.tiles),
                (a, columns),
                (b, inner),
                (c, inner),
                ta=True,
                alpha=alpha,
                beta=beta,
            )

        product(y[0], x[0], w[0], 1.0, keep)
        product(y[1], x[1], w[0], 1.0, one)
        product(y[0], x[1], w[1], 1.0, keep)
        product(y[1], x[0], w[1], -1.0, one)


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
