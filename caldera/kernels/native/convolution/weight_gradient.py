"""Direct weight gradient of convolutions, depthwise or dense: pixel sums in registers.

A tile is a few adjacent inputs of a pixel by a few vectors of output channels. For a depthwise
gradient, it is a few taps by a few vectors of channels, so that a pixel of the output's gradient is
loaded once for all taps of the tile. The tile iterates over all pixels of a strip before its sums
are added to memory. Strips are assigned to a fixed number of partial sums for any number of
threads, and these are added in a fixed order at the end. The result therefore does not depend on
the assignment of work to threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from caldera.core.graph.node import Node
from caldera.kernels.common.geometry import Geometry, forward, seen_pixels, steps
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    NativeCall,
    Pointer,
    RegisterValue,
    integers,
    native_kernel,
    natural_lanes,
    vector,
)
from caldera.kernels.native.convolution.correlation_blocking import (
    BlockedFilling,
    by_lanes,
)
from caldera.kernels.native.convolution.reorder import (
    ONCE,
    CopyLoop,
    ScratchMemory,
    bind_staged,
    is_uniform,
    scatter,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.native.convolution.weight_blocking import (
    DepthwiseGradient,
    GradientStrips,
    WeightGradientTile,
)
from caldera.kernels.table import Call, Runner


@native_kernel
def _sum_channels(
    k: Emitter,
    x: Pointer,
    y: Pointer,
    partial: Pointer,
    input_scratch: Pointer,
    output_scratch: Pointer,
    places: Pointer,
    taps: Pointer,
    x_blocks: BlockedFilling,
    y_blocks: BlockedFilling,
    strips: GradientStrips,
    tap_count: Integer,
    together: int,
    vectors: int,
) -> None:
    width = vectors * natural_lanes(x.type)
    own_x = input_scratch.at(k.part * strips.x_length)
    own_y = output_scratch.at(k.part * strips.y_length)
    with strips.of_worker(k, k.part, k.parts) as (start, own, adds):
        sums = partial.at(start)
        x_blocks.fill(k, width, own_x, x, own.image, own.images, own.source_row, own.source_rows)
        y_blocks.fill(k, width, own_y, y, own.image, own.images, own.row, own.rows)
        with k.loop(0, x_blocks.count) as block, k.loop(0, tap_count, together) as tap:
            seen = own_x.at(block * x_blocks.block_step)
            inputs = [seen.at(taps.load(tap + i)) for i in range(together)]
            given = own_y.at(block * y_blocks.block_step)
            place = sums.at((block * tap_count + tap) * width)
            count = own.images * own.rows * strips.target_columns
            _tile(k, vectors, inputs, given, places, count, place, adds)


def _tile(
    k: Emitter,
    vectors: int,
    inputs: list[Pointer],
    given: Pointer,
    places: Pointer,
    count: RegisterValue,
    place: Pointer,
    adds: RegisterValue,
) -> None:
    """Sum over `count` pixels for the taps whose inputs these are."""
    lanes = natural_lanes(given.type)
    width = vectors * lanes
    zero = k.constant(0.0, vector(given.type, lanes))
    totals = [[k.variable(zero) for _ in range(vectors)] for _ in inputs]
    with k.loop(0, count) as pixel:
        at = places.load(pixel)
        outputs = [given.load(pixel * width + j * lanes, lanes) for j in range(vectors)]
        for row, source in zip(totals, inputs, strict=True):
            for j, total in enumerate(row):
                total.value = k.fma(source.load(at + j * lanes, lanes), outputs[j], total.value)
    for i, row in enumerate(totals):
        for j, total in enumerate(row):
            target = place.at(i * width + j * lanes)
            before = k.select(adds, target.load(0, lanes), zero)
            target.store(0, before + total.value)


def _write_channels(
    gradient: DepthwiseGradient, partial: np.ndarray, out: np.ndarray
) -> NativeCall:
    rows, columns = gradient.work.taps
    of_channel, _, of_row, of_column = steps(out)
    width = gradient.step
    return scatter(
        partial,
        out,
        (ONCE, ONCE, CopyLoop(rows, columns * width, of_row), CopyLoop(columns, width, of_column)),
        length=gradient.channels,
        neighbour=of_channel,
        width=width,
        block_step=gradient.taps * width,
        sums=gradient.sums,
        sum_step=gradient.size,
    )


_Numbers = Annotated[
    Any,
    integers(
        "groups tap_rows tap_columns tap_row_step tap_column_step length padded block workers "
        "splits x_group x_tile y_group y_copied"
    ),
]
"""The taps and the blocks of a partial sum, in numbers and distances."""


def _write_call(gradient: WeightGradientTile, partial: np.ndarray, out: np.ndarray) -> NativeCall:
    """Return the sum of all partial sums as (K, C, R, S)."""
    work = gradient.work
    (rows, columns), step = work.taps, gradient.step
    of_output, of_input, of_row, of_column = steps(out)
    tap = work.channels * step
    return scatter(
        partial,
        out,
        (
            CopyLoop(work.groups, gradient.tiles * gradient.block, work.results * of_output),
            CopyLoop(work.channels, step, of_input),
            CopyLoop(rows, columns * tap, of_row),
            CopyLoop(columns, tap, of_column),
        ),
        length=work.results,
        neighbour=of_output,
        width=step,
        block_step=gradient.block,
        sums=gradient.sums,
        sum_step=gradient.size,
    )


def _sum_call(
    gradient: WeightGradientTile, x: np.ndarray, y: np.ndarray, scratch: list[np.ndarray]
) -> NativeCall:
    work, joined = gradient.work, gradient.joined
    x_blocks, y_blocks = gradient.input_blocks, gradient.output_blocks
    neighbours, vectors = gradient.tile
    values = {
        "groups": work.groups,
        "tap_rows": work.taps[0],
        "tap_columns": 1 if joined else work.taps[1],
        "tap_row_step": x_blocks.row_step * work.dilation[0],
        "tap_column_step": x_blocks.width * work.dilation[1],
        "length": gradient.length,
        "padded": gradient.width,
        "block": gradient.block,
        "workers": gradient.workers,
        "splits": gradient.splits,
        "x_group": x_blocks.count * x_blocks.block_step,
        "x_tile": neighbours if joined else x_blocks.block_step,
        "y_group": y_blocks.count * y_blocks.block_step,
        # Where a tile has all channels, pixels that follow each other are a strip as they are.
        "y_copied": not (work.groups == 1 and work.results == gradient.step and is_uniform(y)),
    }
    return _sum.call(
        **gradient.arguments(x, y, scratch),
        n=values,
        neighbours=neighbours,
        vectors=vectors,
        neighbours_left=gradient.length % neighbours,
        vectors_left=gradient.width // gradient.lanes % vectors,
        joined=x_blocks.width if joined else 0,
    )


@native_kernel
def _sum(
    k: Emitter,
    x: Pointer,
    y: Pointer,
    partial: Pointer,
    input_scratch: Pointer,
    output_scratch: Pointer,
    places: Pointer,
    x_blocks: BlockedFilling,
    y_blocks: BlockedFilling,
    strips: GradientStrips,
    n: _Numbers,
    neighbours: int,
    vectors: int,
    neighbours_left: int,
    vectors_left: int,
    joined: int,
) -> None:
    step = vectors * natural_lanes(x.type)
    worker, split = k.part // n.splits, k.part % n.splits
    own_x = input_scratch.at(k.part * strips.x_length)
    own_y = output_scratch.at(k.part * strips.y_length)
    whole = n.padded // step
    tiles = (n.padded + (step - 1)) // step
    first_tile, end_tile = tiles * split // n.splits, tiles * (split + 1) // n.splits
    with strips.of_worker(k, worker, n.workers) as (start, own, adds):
        sums = partial.at(start)
        x_width = joined or neighbours
        x_blocks.fill(k, x_width, own_x, x, own.image, own.images, own.source_row, own.source_rows)
        with k.if_then(n.y_copied.differs(0)):
            own_tiles = (first_tile, end_tile)
            y_blocks.fill(k, step, own_y, y, own.image, own.images, own.row, own.rows, own_tiles)
        in_place = y_blocks.images.pixel(y, own.image, own.row, 0)
        given = k.either(n.y_copied.differs(0), own_y, in_place)
        with (
            k.loop(0, n.groups) as group,
            k.loop(0, n.tap_rows) as tap_row,
            k.loop(0, n.tap_columns) as tap_column,
        ):
            taps = tap_row * n.tap_row_step + tap_column * n.tap_column_step
            tap = (tap_row * n.tap_columns + tap_column) * n.length * step
            at_tap = _Tap(
                k,
                n,
                y_blocks.block_step,
                (neighbours, neighbours_left),
                step,
                own_x.at(group * n.x_group + taps),
                given.at(group * n.y_group),
                sums.at(group * tiles * n.block + tap),
                places,
                own.images * own.rows * strips.target_columns,
                adds,
            )
            with k.loop(first_tile, k.minimum(end_tile, whole)) as tile:
                at_tap.column(tile, vectors)
            if vectors_left:
                with k.if_then(end_tile > whole):
                    at_tap.column(whole, vectors_left)


@dataclass(frozen=True)
class _Tap:
    """Contribution of a strip to the gradient of a tap, or a row of taps, of a group."""

    k: Emitter
    n: _Numbers
    y_tile: RegisterValue
    """Distance between the gradients of consecutive tiles of output channels."""
    neighbours: tuple[int, int]
    """Number of neighbours in a tile, and in the partial tile at the end."""
    step: int
    seen: Pointer
    given: Pointer
    sums: Pointer
    places: Pointer
    pixels: RegisterValue
    adds: RegisterValue

    def column(self, tile: RegisterValue, vectors: int) -> None:
        """Add the products of all inputs with the output channels of a tile."""
        neighbours, left = self.neighbours
        with self.k.loop(0, self.n.length // neighbours) as index:
            self._block(tile, vectors, index, neighbours)
        if left:
            self._block(tile, vectors, self.n.length // neighbours, left)

    def _block(self, tile: RegisterValue, vectors: int, index: RegisterValue, count: int) -> None:
        n = self.n
        seen, given = self.seen.at(index * n.x_tile), self.given.at(tile * self.y_tile)
        total = _Sums(self.k, count, vectors, seen, given)
        total.run(self.places, self.step, self.pixels)
        place = self.sums.at(tile * n.block + index * self.neighbours[0] * self.step)
        total.add_to(place, self.step, self.adds)


class _Sums:
    """A tile of the gradient: neighbouring inputs by vectors of output channels."""

    def __init__(self, k: Emitter, neighbours: int, vectors: int, x: Pointer, y: Pointer) -> None:
        self.k = k
        self.neighbours, self.vectors = neighbours, vectors
        self.x, self.y = x, y
        self.lanes = natural_lanes(x.type)
        zero = k.constant(0.0, vector(x.type, self.lanes))
        self.sums = [[k.variable(zero) for _ in range(vectors)] for _ in range(neighbours)]

    def run(self, places: Pointer, step: int, count: RegisterValue) -> None:
        """Sum over the pixels of a strip; where their inputs lie is in a table."""
        with self.k.loop(0, count) as pixel:
            self._pixel(self.x.at(places.load(pixel)), self.y.at(pixel * step))

    def _pixel(self, x: Pointer, y: Pointer) -> None:
        k = self.k
        given = [y.load(j * self.lanes, self.lanes) for j in range(self.vectors)]
        start = self.neighbours // self.lanes * self.lanes if by_lanes() else 0
        for first in range(0, start, self.lanes):
            loaded = x.load(first, self.lanes)
            inputs = [k.broadcast_lane(loaded, lane) for lane in range(self.lanes)]
            for lane, value in enumerate(inputs):
                self._multiply(first + lane, value, given)
        # One by one, just before each is used: the registers are too few for all of the inputs.
        for index in range(start, self.neighbours):
            self._multiply(index, k.splat(x.load(index), self.lanes), given)

    def _multiply(self, neighbour: int, value: RegisterValue, given: list[RegisterValue]) -> None:
        for total, outputs in zip(self.sums[neighbour], given, strict=True):
            total.value = self.k.fma(value, outputs, total.value)

    def add_to(self, place: Pointer, row_step: int, adds: RegisterValue) -> None:
        """Write the sums, or add them to the stored sums."""
        k = self.k

        def each(store: Callable[[Pointer, int, RegisterValue], None]) -> None:
            for i, row in enumerate(self.sums):
                target = place.at(i * row_step)
                for j, total in enumerate(row):
                    store(target, j * self.lanes, total.value)

        with k.if_else(adds) as (more, first):
            with more:
                each(lambda p, i, value: p.store(i, p.load(i, self.lanes) + value))
            with first:
                each(lambda p, i, value: p.store(i, value))


def _layout(geometry: Geometry) -> DepthwiseGradient | WeightGradientTile:
    kind = DepthwiseGradient if geometry.is_depthwise else WeightGradientTile
    return kind(forward(geometry.unstrided), geometry.dtype)


def workspace(node: Node) -> int:
    """Return bytes of partial sums and strips, and of images that have to be copied."""
    geometry = Geometry.of(node)
    return scratch_bytes(_layout(geometry).lengths, geometry.dtype) + staging_bytes(node)


def bind(call: Call) -> Runner:
    """Sum over strips, then add up and write row major."""
    geometry = Geometry.of(call.node)
    gradient = _layout(geometry)

    def compute(workspace: ScratchMemory, arrays: list[np.ndarray]) -> list[NativeCall]:
        x, y, out = arrays
        x = seen_pixels(geometry, x)
        scratch = [workspace.array(length, geometry.dtype) for length in gradient.lengths]
        if isinstance(gradient, DepthwiseGradient):
            together, vectors = gradient.tile
            sums = _sum_channels.call(
                **gradient.arguments(x, y, scratch),
                taps=gradient.tap_table(),
                tap_count=gradient.taps,
                together=together,
                vectors=vectors,
            )
            return [sums, _write_channels(gradient, scratch[0], out)]
        return [_sum_call(gradient, x, y, scratch), _write_call(gradient, scratch[0], out)]

    return bind_staged(call, gradient.lengths, compute)
