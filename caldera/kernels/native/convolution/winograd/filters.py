"""Filters to points, and sums of products of points to the gradient of filters.

Filters lie in any way; they are stored in any floating-point dtype.
"""

from __future__ import annotations

import numpy as np

from caldera.kernels.common.geometry import steps
from caldera.kernels.native.codegen import (
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    Pointer,
    RegisterValue,
    native_kernel,
    natural_lanes,
)
from caldera.kernels.native.convolution.winograd.layout import WinogradTiling
from caldera.kernels.native.convolution.winograd.tiles import overlapping
from caldera.kernels.native.convolution.winograd.transforms import in_two_dimensions, lengths

_CHUNK = 4
"""Vectors of columns that are done side by side, so that whole cache lines are written."""


def filter_points(filters: np.ndarray, points: np.ndarray, layout: WinogradTiling) -> NativeCall:
    """Transform filters (columns, inner, 3, 3) to matrices of `inner` rows, one for each point.

    A matrix lies in panels of columns, one after the other, each row major.
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
        k.vector_loop(left, right, lanes, lambda column, lanes: transform(row, column, lanes))


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
        # How many points there are is known, but LLVM would write the loop out if it knew it.
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

    def add(index: RegisterValue, lanes: int) -> None:
        first.store(index, first.load(index, lanes) + first.load(term * step + index, lanes))

    with k.loop(1, terms) as term:
        k.vector_loop(0, count, natural_lanes(first.type), add)
