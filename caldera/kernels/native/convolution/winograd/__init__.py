"""Winograd's convolution: F(2x2, 3x3) and F(4x4, 3x3), forward and both gradients.

A tile of 2x2 outputs takes 16 products a pair of channels instead of 36, one of 4x4 takes 36
instead of 144. The smaller rounds no more than a plain sum does; the larger about ten times as
much, so it is offered only where `settings.accuracy` is "fast".

The input gradient is the convolution of the output's gradient with the filters turned by 180
degrees, so both are one kernel: points of tiles, times points of filters, back to tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.core.graph.node import Node
from caldera.kernels.native.codegen import (
    I64,
    Emitter,
    Integer,
    NativeCall,
    Number,
    Pointer,
    RegisterValue,
    native_kernel,
    natural_lanes,
    offer,
)
from caldera.kernels.native.codegen.matrix_multiply import blas, gemm
from caldera.kernels.native.convolution import PRIORITY
from caldera.kernels.native.convolution.correlation_blocking import PixelTile
from caldera.kernels.native.convolution.reorder import (
    ScratchMemory,
    bind_staged,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.native.convolution.winograd.arguments import (
    Arguments,
    WinogradSizes,
    steps_of,
    winograd_call,
)
from caldera.kernels.native.convolution.winograd.layout import WinogradTiling
from caldera.kernels.native.convolution.winograd.tiles import Cursor, Points, inverse_transform
from caldera.kernels.native.convolution.winograd.transforms import SIZES, TAPS
from caldera.kernels.native.convolution.winograd.weight import filter_points, weight_calls
from caldera.kernels.native.normalisation.loops import BlockSums
from caldera.kernels.table import Call, Runner

Rows = tuple[Number, RegisterValue]
_WRITTEN_OUT = 16
"""Vectors of filters up to which a product is written without a loop."""


@dataclass(frozen=True)
class _Arguments(Arguments):
    """Arguments with source and target as images, and transformed filters as matrices."""

    def inverse_transform(self, products: Points, cursor: Cursor, number: RegisterValue) -> None:
        """Write the next tiles of the target."""
        inverse_transform(
            self.k,
            "outputs",
            self.tiles,
            products,
            self.images[1],
            cursor,
            number,
            self.borders,
            self.lanes,
        )

    def multiply(
        self,
        scratch: tuple[Points, Points],
        rows: Rows,
        point: RegisterValue,
        register_tile: tuple[int, int] | None,
        channels: int,
        padded: bool = False,
    ) -> None:
        """Multiply rows `rows[0]` to `rows[1]` of a point's matrix with the filters' matrix."""
        k = self.k
        points, products = scratch
        begin = k.constant(rows[0], I64)
        left, right = points.at(begin).of(point), self.matrices.of(point)
        target = products.at(begin).of(point)
        count = rows[1] - begin
        if register_tile is not None:
            _by_panels(
                k,
                left,
                points.width,
                right,
                target,
                products.width,
                count,
                register_tile,
                channels,
                padded,
            )
            return
        gemm(
            k,
            self.gemm,
            (count, products.width, points.width),
            (left, points.width),
            (right, products.width),
            (target, products.width),
        )


def _by_panels(
    k: Emitter,
    left: Pointer,
    inner: RegisterValue,
    right: Pointer,
    target: Pointer,
    width: RegisterValue,
    rows: RegisterValue,
    register_tile: tuple[int, int],
    channels: int,
    padded: bool,
) -> None:
    """target = left @ right for a right matrix in panels of the width of the register tile.

    If the length of sums is known as `channels`, one address serves all rows of a tile. If the
    matrices are `padded` with rows up to a whole tile, the padding is multiplied as well, with
    arbitrary content: computing the address of a last row takes longer.
    """
    height, vectors = register_tile
    columns = vectors * natural_lanes(left.type)
    with k.loop(0, width // columns) as number, k.loop(0, rows, height) as top:
        panel = right.at(number * columns * inner)
        first, goal = left.at(top * inner), target.at(top * width + number * columns)
        if vectors == 1:
            # Each number is a memory operand of its multiplication: used once, so it is not loaded
            # first.
            first = k.in_register(first)

        def multiply(lines: Sequence[Number], length: Number) -> None:
            tile = PixelTile(k, height, vectors, [first.at(line * length) for line in lines])
            if isinstance(length, int) and length * vectors <= _WRITTEN_OUT:
                tile.add_known(panel, k.constant(0, I64), length)
            else:
                tile.add(panel, 0, k.constant(length, I64))
            tile.store([goal.at(line * width) for line in lines])

        def multiply_last() -> None:
            # Below the last row that row is computed again.
            left = rows - 1 - top
            multiply([k.minimum(k.constant(i, I64), left) for i in range(height)], inner)

        if padded:
            multiply(range(height), channels or inner)
        elif channels:
            with k.if_else(top + height <= rows) as (whole, partial):
                with whole:
                    multiply(range(height), channels)
                with partial:
                    multiply_last()
        else:
            multiply_last()


@native_kernel
def _apart(
    k: Emitter,
    given: _Arguments,
    register_tile: tuple[int, int] | None,
    channels: int,
    padded: bool,
    numbers: WinogradSizes | None,
    grain: Integer,
    sums: BlockSums | None,
) -> None:
    """Process blocks of tiles, each in a single worker from start to end.

    Parts have tiles in multiples of `grain`. If `sums` are computed, `grain` tiles write a block of
    rows.
    """
    given = given.known(numbers)
    if sums is not None and numbers is not None:
        sums = sums.with_channels(numbers.channels[1])
    with given.own_scratch() as number:
        _blocks_of_part(
            k,
            given.with_border(number),
            given.scratch(number),
            register_tile,
            channels,
            padded,
            grain,
            sums,
        )


def _blocks_of_part(
    k: Emitter,
    given: _Arguments,
    scratch: tuple[Points, Points],
    register_tile: tuple[int, int] | None,
    channels: int,
    padded: bool,
    grain: RegisterValue,
    sums: BlockSums | None,
) -> None:
    first, block = given.first, given.block
    start, stop = k.part_range((given.end - first + grain - 1) // grain)
    end = k.minimum(first + stop * grain, given.end)
    rows = k.variable(start)
    cursor = given.tiles.cursor(k, first + start * grain)
    with k.loop(first + start * grain, end, block) as begin:
        count = k.minimum(block, end - begin)
        given.transform_tiles("points", given.images[0], scratch[0], cursor.copy(k), count)
        with k.loop(0, given.area) as point:
            given.fetch_ahead(begin, point, (False, True), () if sums is None else sums.others)
            given.multiply(scratch, (0, count), point, register_tile, channels, padded)
        given.inverse_transform(scratch[1], cursor, count)
        if sums is not None:
            with k.while_loop(lambda: (rows.value + 1) * grain <= begin + count):
                sums.add_up(k, rows.value)
                rows.value = rows.value + 1


@native_kernel
def _transform_together(k: Emitter, given: _Arguments) -> None:
    given = given.with_border(k.part)
    begin, stop = k.part_range(given.end - given.first)
    points = given.scratch(0)[0].at(begin)
    cursor = given.tiles.cursor(k, given.first + begin)
    given.transform_tiles("points", given.images[0], points, cursor, stop - begin)


@native_kernel
def _multiply_together(
    k: Emitter, given: _Arguments, register_tile: tuple[int, int] | None, channels: int
) -> None:
    chunks = given.chunks
    rows = given.end - given.first
    with k.loop(*k.part_range(chunks * given.area)) as index:
        point = index // chunks
        chunk = index - point * chunks
        some = rows * chunk // chunks, rows * (chunk + 1) // chunks
        given.multiply(given.scratch(0), some, point, register_tile, channels)


@native_kernel
def _inverse_together(k: Emitter, given: _Arguments) -> None:
    given = given.with_border(k.part)
    begin, stop = k.part_range(given.end - given.first)
    products = given.scratch(0)[1].at(begin)
    cursor = given.tiles.cursor(k, given.first + begin)
    given.inverse_transform(products, cursor, stop - begin)


def convolution_calls(
    layout: WinogradTiling,
    memory: list[np.ndarray],
    arrays: list[np.ndarray],
    sums: dict[str, Any] | None = None,
) -> list[NativeCall]:
    """Return the calls that convolve one group: a source, filters and a target.

    Images are channels-last; `memory` has the lengths of the layout. `sums` over blocks of rows of
    the target are computed if the layout has such blocks.
    """
    source, filters, target = arrays
    images = source, target
    tiled: dict[str, Any] = {
        "register_tile": layout.register_tile,
        "channels": layout.known_channels,
    }
    if layout.is_gradient:
        filters = filters[:, :, ::-1, ::-1].swapaxes(0, 1)
    matrices = memory[0].reshape(layout.points, layout.filter_step)
    calls = [filter_points(filters, matrices, layout)]
    if layout.is_apart:
        tiles = 0, layout.tiles
        tiled |= {
            "padded": layout.padded,
            "numbers": steps_of(layout, images),
            "sums": sums,
            "grain": layout.block if sums is None else layout.row_block,
        }
        return [*calls, winograd_call(_apart, layout, images, memory, tiles, layout.parts, **tiled)]
    for first in range(0, layout.tiles, layout.block):
        tiles = first, min(first + layout.block, layout.tiles)
        products = layout.points * layout.chunks
        calls += [
            winograd_call(_transform_together, layout, images, memory, tiles, layout.parts),
            winograd_call(_multiply_together, layout, images, memory, tiles, products, **tiled),
            winograd_call(_inverse_together, layout, images, memory, tiles, layout.parts),
        ]
    return calls


FEWEST_CHANNELS = 8
"""With fewer on either side the transforms cost more than they save."""


def _supports(node: Node, size: int) -> bool:
    layout = WinogradTiling(node, size)
    geometry = layout.geometry
    plain = geometry.taps == (TAPS, TAPS) and geometry.stride == geometry.dilation == (1, 1)
    enough = min(geometry.channels, geometry.results) >= FEWEST_CHANNELS and layout.tiles > 0
    allowed = size == 2 or settings.accuracy == "fast"
    multiplies = layout.register_tile is not None or blas() is not None
    return plain and enough and allowed and multiplies


def _workspace(node: Node, size: int) -> int:
    layout = WinogradTiling(node, size)
    return scratch_bytes(layout.lengths, layout.geometry.dtype) + staging_bytes(node)


def _seconds(node: Node, size: int) -> float:
    return WinogradTiling(node, size).seconds


def bind(call: Call, size: int, sums: dict[str, Any] | None = None) -> Runner:
    """Bind the kernel to arrays, with `sums` over the written image if `takes_sums` is True."""
    layout = WinogradTiling(call.node, size)
    if layout.is_sum:
        calls_for = weight_calls
    else:
        calls_for = partial(convolution_calls, sums=sums if layout.row_block else None)

    def compute(workspace: ScratchMemory, arrays: list[np.ndarray]) -> list[NativeCall]:
        # Groups are processed in order, so the same memory serves all groups.
        memory = [workspace.array(length, layout.geometry.dtype) for length in layout.lengths]
        groups = zip(*_in_groups(layout, arrays), strict=True)
        return [each for group in groups for each in calls_for(layout, memory, list(group))]

    return bind_staged(call, layout.lengths, compute)


def takes_sums(node: Node, size: int) -> bool:
    """Return True if sums over blocks of rows are computed while the rows are written."""
    return WinogradTiling(node, size).row_block is not None


def _in_groups(layout: WinogradTiling, arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Return the part of each array that belongs to each group: channels of images, or filters."""
    filters = 2 if layout.is_sum else 1
    return [
        np.split(array, layout.geometry.groups, axis=0 if index == filters else 1)
        for index, array in enumerate(arrays)
    ]


KERNELS = {f"winograd {size}x{size}": size for size in SIZES}
"""The sizes of tiles, by the names of kernels."""

for _name, _size in KERNELS.items():
    offer(
        ("conv2d", "conv2d_input", "conv2d_weight"),
        _name,
        partial(bind, size=_size),
        partial(_supports, size=_size),
        partial(_workspace, size=_size),
        PRIORITY,
        estimate=partial(_seconds, size=_size),
    )
