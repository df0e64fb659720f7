"""Convolution of few channels on planes: vectors contain adjacent pixels, not channels.

Kernels whose vectors contain output channels leave most lanes of a wide vector empty if there are
fewer channels than lanes (LeNet-5 has 6 channels for 16 lanes). Here a strip of the image is first
split into planes, and the results are interleaved again, both in registers. In the forward
direction, a tile is a few output channels by a few vectors of places. For the weight gradient,
every lane sums over different places until the very end.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import size
from caldera.kernels.common.geometry import Geometry, forward, input_phases, steps
from caldera.kernels.native.codegen import (
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    Pointer,
    RegisterValue,
    host_target,
    integers,
    itemsize,
    native_kernel,
    natural_lanes,
    offer,
    vector,
)
from caldera.kernels.native.convolution import COPY, PEAK, PRIORITY
from caldera.kernels.native.convolution.planes.layout import (
    FEW,
    PlaneCorrelation,
    PlaneFilling,
    write_row,
)
from caldera.kernels.native.convolution.reorder import (
    CopyLoop,
    ScratchMemory,
    bind_staged,
    gather,
    is_uniform,
    scratch_bytes,
    staging_bytes,
)
from caldera.kernels.native.convolution.tiling import padded_images
from caldera.kernels.table import Call, Runner


def pack_filters(
    planes: PlaneCorrelation, filters: np.ndarray, target: np.ndarray, strides: tuple[int, ...]
) -> NativeCall:
    """Return filters as [block][channel][row][column][output channel]. `filters` begins at the
    first tap; `strides` lead to the next output channel, input channel, row and column of taps."""
    work, width = planes.work, planes.tile[0]
    rows, columns = work.taps
    of_output, of_input, of_row, of_column = strides
    return gather(
        filters,
        target,
        (
            CopyLoop(1, 0, 0),
            CopyLoop(work.channels, of_input, rows * columns * width),
            CopyLoop(rows, of_row, columns * width),
            CopyLoop(columns, of_column, width),
        ),
        length=work.results,
        neighbour=of_output,
        width=width,
        block_step=planes.terms * width,
        padded=True,
    )


def filling_of(planes: PlaneCorrelation, source: np.ndarray) -> dict[str, Any]:
    """Return the arguments for splitting a strip of the input into planes."""
    work = planes.work
    return {
        "channels": work.channels,
        "plane": planes.input_plane,
        "pitch": planes.pitch,
        "images": padded_images(source, work.start),
    }


_Numbers = Annotated[
    Any,
    integers(
        "items a_image rows target_rows target_columns target_image_step target_row_step "
        "reach_rows output_plane scratch blocks terms tap_rows tap_row_step "
        "dilation_columns"
    ),
]
"""The strips, the planes and the taps, in numbers and distances."""


def correlate(
    planes: PlaneCorrelation,
    source: np.ndarray,
    filters: np.ndarray,
    target: np.ndarray,
    scratch: np.ndarray,
) -> NativeCall:
    """Return the correlation of `source` with packed filters, written to `target`; both are images
    (N, C, H, W) whose pixels follow each other, channels last."""
    work, own = planes.work, steps(target)
    numbers = {
        "items": planes.items,
        "a_image": planes.a_image,
        "rows": planes.rows,
        "target_rows": work.target[0],
        "target_columns": work.target[1],
        "target_image_step": work.target[0] * work.target[1] * work.results,
        "target_row_step": own[2] if work.target[0] > 1 else 0,
        "reach_rows": work.reach[0],
        "output_plane": planes.output_plane,
        "scratch": planes.scratch,
        "blocks": -(-work.results // planes.tile[0]),
        "terms": planes.terms,
        "tap_rows": work.taps[0],
        "tap_row_step": work.dilation[0] * planes.pitch,
        "dilation_columns": work.dilation[1],
    }
    return _correlate.call(
        source=source,
        filters=filters,
        target=target,
        scratch=scratch,
        filling=filling_of(planes, source),
        n=numbers,
        tile=planes.tile,
        results=work.results,
        few=work.channels if work.channels <= FEW else 0,
        tap_columns=work.taps[1],
        parts=planes.parts,
    )


@native_kernel
def _correlate(
    k: Emitter,
    source: Pointer,
    filters: Pointer,
    target: Pointer,
    scratch: Pointer,
    filling: PlaneFilling,
    n: _Numbers,
    tile: tuple[int, int],
    results: int,
    few: int,
    tap_columns: int,
) -> None:
    channels, vectors = tile
    width = vectors * natural_lanes(source.type)
    planes = scratch.at(k.part * n.scratch)
    outputs = planes.at(filling.channels * filling.plane)
    with k.loop(*k.part_range(n.items)) as item:
        image, row = item // n.a_image, item % n.a_image * n.rows
        rows = k.minimum(n.rows, n.target_rows - row)
        filling.fill(k, planes, source, image, row, rows + n.reach_rows - 1, few)
        places = (rows - 1) * filling.pitch + n.target_columns
        with k.loop(0, n.blocks) as block:
            taps = filters.at(block * n.terms * channels)
            own = outputs.at(block * channels * n.output_plane)
            with k.loop(0, places, width) as place:
                sums = _Sums(k, tile, source)
                with k.loop(0, filling.channels) as channel, k.loop(0, n.tap_rows) as tap_row:
                    seen = channel * filling.plane + tap_row * n.tap_row_step + place
                    term = (channel * n.tap_rows + tap_row) * tap_columns
                    sums.add_row(
                        planes.at(seen), taps.at(term * channels), n.dilation_columns, tap_columns
                    )
                sums.store(own.at(place), n.output_plane)
        to = target.at(image * n.target_image_step + row * n.target_row_step)
        with k.loop(0, rows) as y:
            write_row(
                k,
                outputs.at(y * filling.pitch),
                n.output_plane,
                to.at(y * n.target_row_step),
                n.target_columns,
                results,
            )


class _Sums:
    """A tile of outputs: channels by vectors of places."""

    def __init__(self, k: Emitter, tile: tuple[int, int], source: Pointer) -> None:
        self.k = k
        self.channels, self.vectors = tile
        self.lanes = natural_lanes(source.type)
        zero = k.constant(0.0, vector(source.type, self.lanes))
        self.sums = [[k.variable(zero) for _ in range(tile[1])] for _ in range(tile[0])]

    def add_row(self, seen: Pointer, taps: Pointer, dilation: RegisterValue, count: int) -> None:
        """Add the products with a row of taps."""
        k = self.k
        for column in range(count):
            start = seen.at(dilation * column)
            given = [start.load(v * self.lanes, self.lanes) for v in range(self.vectors)]
            for i, row in enumerate(self.sums):
                weight = k.splat(taps.load(column * self.channels + i), self.lanes)
                for total, each in zip(row, given, strict=True):
                    total.value = k.fma(each, weight, total.value)

    def store(self, to: Pointer, plane: RegisterValue) -> None:
        """Write each channel to its plane."""
        for i, row in enumerate(self.sums):
            own = to.at(plane * i)
            for v, total in enumerate(row):
                own.store(v * self.lanes, total.value)


_WeightNumbers = Annotated[
    Any,
    integers("items a_image rows target_rows target_columns reach_rows scratch blocks groups size"),
]
"""The strips, the planes and the partial sums, in numbers and distances."""


def _sum_call(
    planes: PlaneCorrelation, x: np.ndarray, y: np.ndarray, partial: np.ndarray, scratch: np.ndarray
) -> NativeCall:
    work = planes.work
    results, taps = planes.sum_tile
    groups = -(-planes.terms // taps)
    numbers = {
        "items": planes.items,
        "a_image": planes.a_image,
        "rows": planes.rows,
        "target_rows": work.target[0],
        "target_columns": work.target[1],
        "reach_rows": work.reach[0],
        "scratch": planes.scratch,
        "blocks": planes.whole(results) // results,
        "groups": groups,
        "size": planes.sum_size,
    }
    y_filling = {
        "channels": work.results,
        "plane": planes.output_plane,
        "pitch": planes.pitch,
        "images": padded_images(y, (0, 0)),
    }
    return _sum.call(
        x=x,
        y=y,
        partial=partial,
        scratch=scratch,
        offsets=_offsets(planes, groups * taps),
        x_filling=filling_of(planes, x),
        y_filling=y_filling,
        n=numbers,
        tile=planes.sum_tile,
        few=tuple(each if each <= FEW else 0 for each in (work.channels, work.results)),
        parts=planes.sums,
    )


def _offsets(planes: PlaneCorrelation, count: int) -> np.ndarray:
    """Return the offset of each tap of each channel from an output's place.

    The last offset is repeated to fill up a tile.
    """
    work = planes.work
    channel, row, column = np.meshgrid(
        np.arange(work.channels), np.arange(work.taps[0]), np.arange(work.taps[1]), indexing="ij"
    )
    places = (
        channel * planes.input_plane
        + row * work.dilation[0] * planes.pitch
        + column * work.dilation[1]
    ).reshape(-1)
    return np.pad(places, (0, count - places.size), mode="edge").astype(np.int64)


@native_kernel
def _sum(
    k: Emitter,
    x: Pointer,
    y: Pointer,
    partial: Pointer,
    scratch: Pointer,
    offsets: Pointer,
    x_filling: PlaneFilling,
    y_filling: PlaneFilling,
    n: _WeightNumbers,
    tile: tuple[int, int],
    few: tuple[int, int],
) -> None:
    results, taps = tile
    lanes = natural_lanes(x.type)
    x_planes = scratch.at(k.part * n.scratch)
    y_planes = x_planes.at(x_filling.channels * x_filling.plane)
    sums = partial.at(k.part * n.size)
    k.clear_bytes(sums, n.size * itemsize(x.type))
    # Planes that fill up a tile of output channels stay empty.
    k.clear_bytes(y_planes, n.blocks * results * y_filling.plane * itemsize(x.type))
    with k.loop(*k.part_range(n.items)) as item:
        image, row = item // n.a_image, item % n.a_image * n.rows
        rows = k.minimum(n.rows, n.target_rows - row)
        x_filling.fill(k, x_planes, x, image, row, rows + n.reach_rows - 1, few[0])
        y_filling.fill(k, y_planes, y, image, row, rows, few[1])
        places = (rows - 1) * y_filling.pitch + n.target_columns
        with k.loop(0, n.blocks) as block, k.loop(0, n.groups) as group:
            seen = [x_planes.at(offsets.load(group * taps + t)) for t in range(taps)]
            first = y_planes.at(block * results * y_filling.plane)
            given = [first.at(y_filling.plane * i) for i in range(results)]
            zero = k.constant(0.0, vector(x.type, lanes))
            totals = [[k.variable(zero) for _ in range(taps)] for _ in range(results)]
            with k.loop(0, places, lanes) as place:
                columns = [each.load(place, lanes) for each in given]
                for t, each in enumerate(seen):
                    inputs = each.load(place, lanes)
                    for i, column in enumerate(columns):
                        totals[i][t].value = k.fma(inputs, column, totals[i][t].value)
            to = sums.at((block * n.groups + group) * (results * taps * lanes))
            for i, own in enumerate(totals):
                for t, total in enumerate(own):
                    index = (i * taps + t) * lanes
                    to.store(index, to.load(index, lanes) + total.value)


def _write_call(planes: PlaneCorrelation, partial: np.ndarray, out: np.ndarray) -> NativeCall:
    """Return the sum of all lanes of all partial sums as (K, C, R, S)."""
    results, taps = planes.sum_tile
    groups = -(-planes.terms // taps)
    places = np.arange(out.size).reshape(out.shape)
    output, term = np.divmod(places, max(1, planes.terms))
    tile = (output // results * groups + term // taps) * results * taps
    sources = (tile + output % results * taps + term % taps) * planes.lanes
    axes = np.meshgrid(*(np.arange(length) for length in out.shape), indexing="ij")
    targets = sum(axis * step for axis, step in zip(axes, steps(out), strict=True))
    return _write.call(
        partial=partial,
        out=out,
        sources=np.ascontiguousarray(sources.reshape(-1), np.int64),
        targets=np.ascontiguousarray(np.reshape(targets, -1), np.int64),
        count=out.size,
        sums=planes.sums,
        size=planes.sum_size,
    )


@native_kernel
def _write(
    k: Emitter,
    partial: Pointer,
    out: ElementPointer,
    sources: Pointer,
    targets: Pointer,
    count: Integer,
    sums: Integer,
    size: Integer,
) -> None:
    lanes = natural_lanes(partial.type)
    with k.loop(0, count) as index:
        read = partial.at(sources.load(index))
        total = k.variable(k.constant(0.0, vector(partial.type, lanes)))
        with k.loop(0, sums) as number:
            total.value = total.value + read.load(number * size, lanes)
        out.store(targets.load(index), k.reduce_lanes(total.value, lambda a, b: a + b))


MOST_TERMS = 512
"""Terms of a sum: longer ones round more than other kernels' do."""
EFFICIENCY = 0.6
"""Efficiency of a tile relative to the peak of a core."""


def _planes(node: Node) -> PlaneCorrelation:
    geometry = Geometry.of(node)
    work = forward(geometry)
    if node.op.name == "conv2d_input":
        ((_, _, work),) = input_phases(geometry)
    return PlaneCorrelation(work, geometry.dtype)


def _supports(node: Node) -> bool:
    geometry = Geometry.of(node)
    plain = geometry.groups == 1 and geometry.stride == (1, 1) and geometry.taps != (1, 1)
    if not (host_target().has_masks and plain and geometry.is_usual):
        return False
    if not (size(geometry.image) and size(geometry.output) and size(geometry.filters)):
        return False
    planes = _planes(node)
    return planes.work.results <= planes.lanes and planes.terms <= MOST_TERMS


def _lengths(node: Node, planes: PlaneCorrelation) -> list[int]:
    """Return partial sums or packed filters, and the planes of all workers."""
    if node.op.name == "conv2d_weight":
        return [planes.sums * planes.sum_size, planes.sums * planes.scratch]
    return [planes.filters, planes.parts * planes.scratch]


def _workspace(node: Node) -> int:
    lengths = _lengths(node, _planes(node))
    return scratch_bytes(lengths, Geometry.of(node).dtype) + staging_bytes(node)


def _seconds(node: Node) -> float:
    geometry, planes = Geometry.of(node), _planes(node)
    places = planes.items * planes.vectors * planes.lanes
    moved = (size(geometry.image) + size(geometry.output)) * geometry.dtype.itemsize
    flops = 2 * places * planes.terms * planes.work.results
    return flops / (PEAK * EFFICIENCY) + moved / COPY


def _bind(call: Call) -> Runner:
    op, dtype = call.node.op.name, Geometry.of(call.node).dtype
    planes = _planes(call.node)
    lengths = _lengths(call.node, planes)

    def compute(workspace: ScratchMemory, arrays: list[np.ndarray]) -> list[NativeCall]:
        first, scratch = (workspace.array(length, dtype) for length in lengths)
        source, filters, target = arrays
        if op == "conv2d_weight":
            sums = _sum_call(planes, source, filters, first, scratch)
            return [sums, _write_call(planes, first, target)]
        of_output, of_input, of_row, of_column = steps(filters)
        strides = (of_output, of_input, of_row, of_column)
        if op == "conv2d_input":
            # The taps in reverse order, from the last one on.
            filters = filters[:, :, filters.shape[2] - 1 :, filters.shape[3] - 1 :]
            strides = (of_input, of_output, -of_row, -of_column)
        return [
            pack_filters(planes, filters, first, strides),
            correlate(planes, source, first, target, scratch),
        ]

    return bind_staged(call, lengths, compute, is_uniform)


offer(
    ("conv2d", "conv2d_input", "conv2d_weight"),
    "planes",
    _bind,
    _supports,
    _workspace,
    PRIORITY,
    estimate=_seconds,
)
