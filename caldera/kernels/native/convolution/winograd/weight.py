"""Winograd's algorithm for the gradient of filters, and the transforms of filters.

The algorithm uses the transposed transforms. Points of the image's tiles are multiplied by points
of the output gradient's tiles and summed over all tiles. The sums are then transformed to taps.
Filters may have any layout and any floating-point dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.kernels.common.geometry import steps
from caldera.kernels.native.codegen import (
    I64,
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    Number,
    Pointer,
    RegisterValue,
    native_kernel,
    natural_lanes,
    vector,
)
from caldera.kernels.native.codegen.matrix_multiply import gemm
from caldera.kernels.native.convolution.correlation_blocking import by_lanes
from caldera.kernels.native.convolution.winograd.arguments import (
    Arguments,
    WinogradSizes,
    steps_of,
    winograd_call,
)
from caldera.kernels.native.convolution.winograd.layout import WinogradTiling
from caldera.kernels.native.convolution.winograd.tiles import Cursor, Points, overlapping
from caldera.kernels.native.convolution.winograd.transforms import in_two_dimensions, lengths, reach

_CHUNK = 4
"""Vectors of columns that are done side by side, so that whole cache lines are written."""


def filter_points(filters: np.ndarray, points: np.ndarray, layout: WinogradTiling) -> NativeCall:
    """Transform filters (columns, inner, 3, 3) to matrices of `inner` rows, one for each point.

    A matrix is stored as consecutive panels of columns, each row major.
    """
    columns, inner = filters.shape[:2]
    of_column, of_inner, of_row, of_tap = steps(filters)
    return _filter_points.call(
        filters=filters,
        points=points,
        step=points.shape[1],
        width=layout.panel,
        columns=columns,
        inner=inner,
        of_column=of_column,
        of_inner=of_inner,
        of_row=of_row,
        of_tap=of_tap,
        size=layout.size,
        parts=layout.filter_workers,
    )


@native_kernel
def _filter_points(
    k: Emitter,
    filters: ElementPointer,
    points: Pointer,
    step: Integer,
    width: Integer,
    columns: Integer,
    inner: Integer,
    of_column: Integer,
    of_inner: Integer,
    of_row: Integer,
    of_tap: Integer,
    size: int,
) -> None:
    _, count = lengths("filter", size)
    lanes = natural_lanes(points.type)
    chunk = lanes * _CHUNK

    def transform(row: RegisterValue, column: RegisterValue, lanes: int) -> None:
        first = filters.at(row * of_inner + column * of_column)
        panel = column // width
        place = points.at(panel * width * inner + row * width + (column - panel * width))

        def load(i: int, j: int) -> RegisterValue:
            tap = first.at(of_row * i + of_tap * j)
            return k.vector_of([tap.load(of_column * lane) for lane in range(lanes)])

        def store(i: int, j: int, value: RegisterValue) -> None:
            place.store(step * (i * count + j), value)

        in_two_dimensions(k, "filter", size, load, store)

    with k.loop(*k.part_range((columns + chunk - 1) // chunk * inner)) as number:
        block = number // inner
        left, row = block * chunk, number - block * inner
        right = k.minimum(left + chunk, columns)
        for column, some in k.vectors(left, right, lanes, 1):
            transform(row, column, some)


def filter_gradient(sums: np.ndarray, layout: WinogradTiling, gradient: np.ndarray) -> NativeCall:
    """The gradient (K, C, 3, 3) of filters from sums (workers, points, K * C and some more)."""
    step = sums.shape[2]
    results, channels = gradient.shape[:2]
    of_result, of_channel, of_row, of_tap = steps(gradient)
    return _filter_gradient.call(
        gradient=gradient,
        sums=sums,
        step=step,
        terms=len(sums),
        term_step=step * sums.shape[1],
        results=results,
        channels=channels,
        of_result=of_result,
        of_channel=of_channel,
        of_row=of_row,
        of_tap=of_tap,
        points=layout.points,
        size=layout.size,
        lanes=layout.lanes,
        parts=layout.filter_workers,
    )


@native_kernel
def _filter_gradient(
    k: Emitter,
    gradient: ElementPointer,
    sums: Pointer,
    step: Integer,
    terms: Integer,
    term_step: Integer,
    results: Integer,
    channels: Integer,
    of_result: Integer,
    of_channel: Integer,
    of_row: Integer,
    of_tap: Integer,
    points: Integer,
    size: int,
    lanes: int,
) -> None:
    count, _ = lengths("taps", size)
    with k.loop(*k.part_range(results)) as result:
        source = sums.at(result * channels)
        # The number of points is constant, but LLVM would unroll the loop if it were a literal.
        with k.loop(0, points) as point:
            _add_terms(k, source.at(step * point), channels, terms, term_step)
        with overlapping(k, channels, lanes) as channel:
            target = gradient.at(result * of_result + channel * of_channel)

            def load(i: int, j: int) -> RegisterValue:
                return source.load(step * (i * count + j) + channel, lanes)

            def store(i: int, j: int, value: RegisterValue) -> None:
                place = target.at(of_row * i + of_tap * j)
                for lane in range(lanes):
                    place.store(of_channel * lane, value.lane(lane))

            in_two_dimensions(k, "taps", size, load, store)


def _add_terms(
    k: Emitter, first: Pointer, count: RegisterValue, terms: RegisterValue, step: RegisterValue
) -> None:
    """Add what other workers summed up to the sums of the first."""
    with k.loop(1, terms) as term:
        for index, lanes in k.vectors(0, count, natural_lanes(first.type), 1):
            first.store(index, first.load(index, lanes) + first.load(term * step + index, lanes))


@dataclass(frozen=True)
class _Arguments(Arguments):
    """The images are the image and the output's gradient, the matrices sums of their products."""

    def transform_both(
        self,
        scratch: tuple[Points, Points],
        cursor: Cursor,
        number: RegisterValue,
        only: int | None = None,
    ) -> None:
        """Transform the next tiles of the image and of the gradient."""
        image, gradient = self.images
        self.transform_tiles("points", image, scratch[0], cursor.copy(self.k), number, only)
        self.transform_tiles("gradient", gradient, scratch[1], cursor, number, only)

    def add(
        self,
        scratch: tuple[Points, Points],
        tiles: RegisterValue,
        rows: tuple[Number, RegisterValue],
        place: RegisterValue,
        point: RegisterValue,
        is_first: RegisterValue,
        register_tile: tuple[int, int] | None,
    ) -> None:
        """Add the product over the tiles of a block to rows `rows[0]` to `rows[1]` of a sum."""
        k = self.k
        image, gradient = scratch
        begin = k.constant(rows[0], I64)
        sums = self.matrices.of(place)
        if register_tile is not None:
            _by_registers(k, scratch, point, tiles, sums, is_first, register_tile)
            return
        keep = k.select(is_first, k.constant(0.0, sums.type), 1.0)
        gemm(
            k,
            self.gemm,
            (rows[1] - begin, image.width, tiles),
            (gradient.of(point).at(begin), gradient.width),
            (image.of(point), image.width),
            (sums.at(image.width * begin), image.width),
            ta=True,
            beta=keep,
        )


def _by_registers(
    k: Emitter,
    scratch: tuple[Points, Points],
    point: RegisterValue,
    tiles: RegisterValue,
    sums: Pointer,
    is_first: RegisterValue,
    register_tile: tuple[int, int],
) -> None:
    """Add the product over all tiles to a sum, whose sides are multiples of the register tile."""
    height, vectors = register_tile
    image, gradient = scratch
    lanes = natural_lanes(sums.type)
    zero = k.constant(0.0, vector(sums.type, lanes))
    with (
        k.loop(0, gradient.width, height) as top,
        k.loop(0, image.width, vectors * lanes) as left,
    ):
        totals = [[k.variable(zero) for _ in range(vectors)] for _ in range(height)]
        rows, columns = gradient.of(point).at(top), image.of(point).at(left)
        with k.loop(0, tiles) as tile:
            down = _broadcast_rows(k, rows.at(tile * gradient.width), height, lanes)
            across = columns.at(tile * image.width)
            factors = [across.load(lanes * i, lanes) for i in range(vectors)]
            k.add_outer_product(totals, down, factors)
        for row, line in enumerate(totals):
            place = sums.at((top + row) * image.width + left)
            for i, total in enumerate(line):
                before = k.select(is_first, zero, place.load(lanes * i, lanes))
                place.store(lanes * i, before + total.value)


def _broadcast_rows(k: Emitter, rows: Pointer, height: int, lanes: int) -> list[RegisterValue]:
    """Broadcast each of `height` neighbours to all lanes of a vector."""
    if not by_lanes():
        return [k.splat(rows.load(i), lanes) for i in range(height)]
    loaded = [rows.load(i, lanes) for i in range(0, height, lanes)]
    return [k.broadcast_lane(loaded[i // lanes], i % lanes) for i in range(height)]


@native_kernel
def _apart(
    k: Emitter,
    given: _Arguments,
    register_tile: tuple[int, int] | None,
    numbers: WinogradSizes | None,
    by_rows: bool,
) -> None:
    """Process blocks of tiles; each part has separate sums."""
    given = given.known(numbers)
    with given.own_scratch() as number:
        scratch = given.scratch(number)
        _blocks_of_part(k, given.with_border(number), scratch, register_tile, by_rows)


def _blocks_of_part(
    k: Emitter,
    given: _Arguments,
    scratch: tuple[Points, Points],
    register_tile: tuple[int, int] | None,
    by_rows: bool,
) -> None:
    first, end, block = given.first, given.end, given.block
    start, stop = k.part_range((end - first + block - 1) // block)
    cursor = given.tiles.cursor(k, first + start * block)
    with k.loop(start, stop) as index:
        begin = first + index * block
        count = k.minimum(block, end - begin)
        after = cursor
        for row in range(reach(given.size)) if by_rows else (None,):
            after = cursor.copy(k)
            given.transform_both(scratch, after, count, row)
            with k.loop(0, given.kept) as number:
                point = number + given.kept * (row or 0)
                given.fetch_ahead(begin, point, (False, False))
                given.add(
                    scratch,
                    count,
                    (0, given.matrices.width),
                    k.part * given.area + point,
                    number,
                    index.equals(start),
                    register_tile,
                )
        cursor.move_to(after)


@native_kernel
def _transform_together(k: Emitter, given: _Arguments) -> None:
    given = given.with_border(k.part)
    first = given.first
    begin, stop = k.part_range(given.end - first)
    image, gradient = given.scratch(0)
    cursor = given.tiles.cursor(k, first + begin)
    given.transform_both((image.at(begin), gradient.at(begin)), cursor, stop - begin)


@native_kernel
def _add_together(k: Emitter, given: _Arguments) -> None:
    chunks, first, end = given.chunks, given.first, given.end
    results = given.matrices.width
    with k.loop(*k.part_range(chunks * given.area)) as index:
        point = index // chunks
        chunk = index - point * chunks
        rows = results * chunk // chunks, results * (chunk + 1) // chunks
        given.add(given.scratch(0), end - first, rows, point, point, first.equals(0), None)


def weight_calls(
    layout: WinogradTiling, memory: list[np.ndarray], arrays: list[np.ndarray]
) -> list[NativeCall]:
    """Return the calls for one group: an image, the output's gradient, the filters' gradient.

    Images are channels-last; `memory` has the lengths of the layout.
    """
    image, gradient, result = arrays
    pair = image, gradient
    calls = []
    if layout.is_apart:
        calls.append(
            winograd_call(
                _apart,
                layout,
                pair,
                memory,
                (0, layout.tiles),
                layout.parts,
                register_tile=layout.register_tile,
                numbers=steps_of(layout, pair),
                by_rows=layout.by_rows,
            )
        )
    else:
        sums = layout.points * layout.chunks
        for first in range(0, layout.tiles, layout.block):
            tiles = first, min(first + layout.block, layout.tiles)
            calls += [
                winograd_call(_transform_together, layout, pair, memory, tiles, layout.parts),
                winograd_call(_add_together, layout, pair, memory, tiles, sums),
            ]
    terms = memory[0].reshape(layout.sums, layout.points, layout.filter_step)
    calls.append(filter_gradient(terms, layout, result))
    return calls
