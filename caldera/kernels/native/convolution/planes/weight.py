"""The weight gradient on planes: every lane sums over places of its own, until the very end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.kernels.common.geometry import steps
from caldera.kernels.native.codegen import (
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    Pointer,
    itemsize,
    native_kernel,
    natural_lanes,
    vector,
)
from caldera.kernels.native.convolution.planes.correlate import filling_of
from caldera.kernels.native.convolution.planes.layout import FEW, PlaneCorrelation, PlaneFilling
from caldera.kernels.native.convolution.tiling import padded_images


@dataclass(frozen=True)
class _Numbers:
    """The strips, the planes and the partial sums, in numbers and distances."""

    items: Integer
    a_image: Integer
    rows: Integer
    target_rows: Integer
    target_columns: Integer
    reach_rows: Integer
    scratch: Integer
    blocks: Integer
    groups: Integer
    size: Integer


def gradient_calls(
    planes: PlaneCorrelation,
    x: np.ndarray,
    y: np.ndarray,
    partial: np.ndarray,
    scratch: np.ndarray,
    out: np.ndarray,
) -> list[NativeCall]:
    """Partial sums, then their sum written to the filters' gradient."""
    return [_sum_call(planes, x, y, partial, scratch), _write_call(planes, partial, out)]


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
    """How far each tap of each channel lies from an output's place; the last once more, to fill up
    a tile."""
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
    n: _Numbers,
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
    begin, end = k.part_range(n.items)
    with k.loop(begin, end) as item:
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
    """The sum of all lanes of all partial sums as (K, C, R, S)."""
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
