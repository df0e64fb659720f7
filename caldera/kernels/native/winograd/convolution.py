"""The convolution by Winograd's algorithm, and its input gradient.

The gradient is the convolution of the output's gradient with the filters turned by 180 degrees, so
both are one kernel: points of tiles, times points of filters, back to tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.kernels.native.blas import blas, gemm
from caldera.kernels.native.compiler import compiled
from caldera.kernels.native.convolution.geometry import kind_of
from caldera.kernels.native.convolution.tiles import Tile
from caldera.kernels.native.emit import I64, Emitter, Number, Pointer, Value, natural_lanes
from caldera.kernels.native.program import NativeCall, native_call
from caldera.kernels.native.winograd.filters import filter_points
from caldera.kernels.native.winograd.layout import Layout
from caldera.kernels.native.winograd.tiles import (
    IMAGE_SLOTS,
    Image,
    Points,
    Tiles,
    collect,
    image_arguments,
    spread,
)

# The arguments of all kernels here are the same; these are their slots.
_SOURCE = 0
_TARGET = IMAGE_SLOTS
(
    _DOWN, _ACROSS, _FIRST, _END, _BLOCK, _FILTERS, _FILTER_STEP, _POINTS, _STEP, _INNER,
    _PRODUCTS, _PRODUCT_STEP, _WIDTH, _BORDER, _BORDER_STEP, _GEMM, _AREA, _CHUNKS,
) = range(2 * IMAGE_SLOTS, 2 * IMAGE_SLOTS + 18)  # fmt: skip

Rows = tuple[Number, Value]


class _Arguments:
    """What a kernel is given, and what its phases do with it."""

    def __init__(self, k: Emitter, size: int, kind: str, lanes: int) -> None:
        number = kind_of(kind)
        self.k = k
        self.lanes = lanes
        # Read, though it is known: LLVM would write loops over points out if it knew it.
        self.area = k.integer(_AREA)
        self.source = Image.read(k, _SOURCE, number)
        self.target = Image.read(k, _TARGET, number)
        self.tiles = Tiles(size, k.integer(_DOWN), k.integer(_ACROSS))
        self.range = k.integer(_FIRST), k.integer(_END)
        self.filters = Points(
            k.pointer(_FILTERS, number), k.integer(_FILTER_STEP), k.integer(_WIDTH)
        )
        self.border = k.pointer(_BORDER, number).at(k.part * k.integer(_BORDER_STEP))

    def scratch(self, number: Number) -> tuple[Points, Points]:
        """The points of the source, and their products, in one of the scratch memories."""
        first, second = (
            Points.read(self.k, slot, self.border.type, self.area * number)
            for slot in (_POINTS, _PRODUCTS)
        )
        return first, second

    def spread(self, points: Points, numbers: tuple[Value, Value]) -> None:
        """Transform tiles of the source."""
        spread(self.k, "points", self.tiles, self.source, points, numbers, self.border, self.lanes)

    def collect(self, products: Points, numbers: tuple[Value, Value]) -> None:
        """Write tiles of the target."""
        collect(
            self.k, "outputs", self.tiles, products, self.target, numbers, self.border, self.lanes
        )

    def multiply(
        self,
        scratch: tuple[Points, Points],
        rows: Rows,
        point: Value,
        register_tile: tuple[int, int] | None,
    ) -> None:
        """Multiply rows `rows[0]` to `rows[1]` of a point's matrix with the filters' matrix."""
        k = self.k
        points, products = scratch
        begin = k.constant(rows[0], I64)
        left, right = points.at(begin).of(point), self.filters.of(point)
        target = products.at(begin).of(point)
        count = rows[1] - begin
        if register_tile is not None:
            _by_panels(k, left, points.width, right, target, products.width, count, register_tile)
            return
        gemm(
            k, k.integer(_GEMM), (count, products.width, points.width), (left, points.width),
            (right, products.width), (target, products.width),
        )  # fmt: skip


def _by_panels(
    k: Emitter,
    left: Pointer,
    inner: Value,
    right: Pointer,
    target: Pointer,
    width: Value,
    rows: Value,
    register_tile: tuple[int, int],
) -> None:
    """target = left @ right for a right matrix in panels as wide as the tile in registers."""
    height, vectors = register_tile
    with (
        k.loop(0, width // (vectors * natural_lanes(left.type))) as number,
        k.loop(0, rows, height) as top,
    ):
        # Below the last row that row is computed again.
        lines = [k.minimum(top + line, rows - 1) for line in range(height)]
        tile = Tile(k, height, vectors, [left.at(line * inner) for line in lines])
        tile.add(right.at(number * tile.width * inner), 0, inner)
        tile.store([target.at(line * width + number * tile.width) for line in lines])


def _apart(
    k: Emitter, size: int, kind: str, lanes: int, register_tile: tuple[int, int] | None
) -> None:
    """Blocks of tiles, each by one worker from beginning to end."""
    given = _Arguments(k, size, kind, lanes)
    scratch = given.scratch(k.part)
    first, end = given.range
    block = k.integer(_BLOCK)
    with k.loop(*k.share((end - first + block - 1) // block)) as index:
        begin = first + index * block
        numbers = begin, k.minimum(begin + block, end)
        given.spread(scratch[0], numbers)
        with k.loop(0, given.area) as point:
            given.multiply(scratch, (0, numbers[1] - begin), point, register_tile)
        given.collect(scratch[1], numbers)


def _spread_together(k: Emitter, size: int, kind: str, lanes: int) -> None:
    given = _Arguments(k, size, kind, lanes)
    first, end = given.range
    begin, stop = k.share(end - first)
    given.spread(given.scratch(0)[0].at(begin), (first + begin, first + stop))


def _multiply_together(
    k: Emitter, size: int, kind: str, lanes: int, register_tile: tuple[int, int] | None
) -> None:
    given = _Arguments(k, size, kind, lanes)
    chunks = k.integer(_CHUNKS)
    rows = given.range[1] - given.range[0]
    with k.loop(*k.share(chunks * given.area)) as index:
        point = index // chunks
        chunk = index - point * chunks
        some = rows * chunk // chunks, rows * (chunk + 1) // chunks
        given.multiply(given.scratch(0), some, point, register_tile)


def _collect_together(k: Emitter, size: int, kind: str, lanes: int) -> None:
    given = _Arguments(k, size, kind, lanes)
    first, end = given.range
    begin, stop = k.share(end - first)
    given.collect(given.scratch(0)[1].at(begin), (first + begin, first + stop))


def convolution_calls(
    layout: Layout, memory: list[np.ndarray], arrays: list[np.ndarray]
) -> list[NativeCall]:
    """The calls that convolve one group: a source, filters and a target.

    Images lie channels last; `memory` has the lengths that the layout says.
    """
    source, filters, target = arrays
    transformed, points, products, border = memory
    kind = source.dtype.name
    how: dict[str, Any] = {"size": layout.size, "kind": kind, "lanes": layout.lanes}
    tiled = {**how, "register_tile": layout.register_tile}
    known = blas()
    multiply = 0 if known is None else known.gemm(kind_of(kind))

    def call(
        build: Callable[..., None], end: int, parts: int, first: int = 0, **parameters: Any
    ) -> NativeCall:
        return native_call(
            compiled(build, **parameters), *image_arguments(source, *layout.padding),
            *image_arguments(target, 0, 0), *layout.grid, first, end, layout.block, transformed,
            layout.filter_step, points, layout.step, layout.inner, products, layout.other_step,
            layout.width, border, layout.border, multiply, layout.points,
            layout.chunks, parts=parts,
        )  # fmt: skip

    if layout.is_gradient:
        filters = filters[:, :, ::-1, ::-1].swapaxes(0, 1)
    matrices = transformed.reshape(layout.points, layout.filter_step)
    calls = [filter_points(filters, matrices, layout)]
    if layout.is_apart:
        return [*calls, call(_apart, layout.tiles, layout.workers, **tiled)]
    for first in range(0, layout.tiles, layout.block):
        end = min(first + layout.block, layout.tiles)
        products_at_once = layout.points * layout.chunks
        calls.append(call(_spread_together, end, layout.workers, first, **how))
        calls.append(call(_multiply_together, end, products_at_once, first, **tiled))
        calls.append(call(_collect_together, end, layout.workers, first, **how))
    return calls
