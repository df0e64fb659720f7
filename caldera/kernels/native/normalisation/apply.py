"""Normalisation applied: the loops over all elements, by factors that statistics gave.

Forward, y = (x - mean) * factor + shift, perhaps with an image added to it and a relu after that;
backward, dx = f * g - a - (x - mean) * b. Rows have their factors in memory, one of each kind for
each channel; a plane has one of each.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from caldera.kernels.native.codegen.dtypes import ElementPointer
from caldera.kernels.native.codegen.emitter import (
    Emitter,
    Number,
    Pointer,
    Value,
    line_lanes,
    natural_lanes,
    shrinking,
)
from caldera.kernels.native.codegen.math import maximum
from caldera.kernels.native.normalisation.layout import Rows
from caldera.kernels.native.normalisation.statistics import VECTORS_TOGETHER, masked

MEAN, FACTOR, SHIFT = range(3)
"""Where the factors of a channel are."""
SLOPE_FACTOR, LEVEL, SLANT, CENTRE = range(4)
"""The same for the gradient: f, a, b and the mean."""
FACTORS = 4
"""How many there are at most."""


def factors_of(
    factors: Pointer, channels: Value, channel: Value, which: range, count: int = 1
) -> list[Value]:
    """Some of the factors of some channels."""
    return [factors.load(channel + channels * i, count) for i in which]


def store_factors(
    k: Emitter, factors: Pointer, channels: Value, channel: Value, values: dict[int, Value]
) -> None:
    """Write some factors of a channel."""
    for index, value in values.items():
        factors.store(channel + channels * index, k.convert(value, factors.type))


# --- rows


def over_rows(
    k: Emitter,
    rows: tuple[Number, Number],
    channels: Value,
    kind: ir.Type,
    visit: Callable[[Value, Value, int], None],
) -> None:
    """`visit(row, channel, lanes)` for all channels of all rows."""
    with k.loop(*rows) as row:
        k.vector_loops(0, channels, shrinking(line_lanes(kind)), lambda c, n: visit(row, c, n))


def apply_to_rows(
    k: Emitter,
    rows: tuple[Number, Number],
    channels: Value,
    x: Rows,
    y: Rows,
    factors: Pointer,
    more: Rows | None = None,
    *,
    relu: bool = False,
) -> None:
    """y = (x - mean) * factor + shift, and what follows."""

    def visit(row: Value, channel: Value, count: int) -> None:
        mean, factor, shift = factors_of(factors, channels, channel, range(3), count)
        value = k.fma(x.load(row, channel, count) - mean, factor, shift)
        if more is not None:
            value = value + more.load(row, channel, count)
        y.store(row, channel, maximum(k, value, 0.0) if relu else value)

    over_rows(k, rows, channels, factors.type, visit)


def gradient_of_rows(
    k: Emitter,
    rows: tuple[Number, Number],
    channels: Value,
    g: Rows,
    x: Rows,
    dx: Rows,
    factors: Pointer,
    given: Pointer | None = None,
) -> None:
    """dx = f * g - a - (x - mean) * b; `given` has the factors of the forward pass with a relu."""

    def visit(row: Value, channel: Value, count: int) -> None:
        f, a, b, mean = factors_of(factors, channels, channel, range(FACTORS), count)
        centred = x.load(row, channel, count) - mean
        slope = g.load(row, channel, count)
        if given is not None:
            slope = masked(k, slope, centred, (f, given.load(channel + channels * SHIFT, count)))
        dx.store(row, channel, k.fma(slope, f, -k.fma(centred, b, a)))

    over_rows(k, rows, channels, factors.type, visit)


# --- planes


def over_plane(k: Emitter, count: Value, kind: ir.Type, body: Callable[[Value, int], None]) -> None:
    """`body(index, lanes)` over the elements of a plane, several vectors at a time."""
    lanes = natural_lanes(kind)
    step = lanes * VECTORS_TOGETHER
    whole = count // step * step
    with k.loop(0, whole, step) as index:
        for i in range(VECTORS_TOGETHER):
            body(index + i * lanes, lanes)
    k.vector_loops(whole, count, shrinking(lanes), body)


def apply_to_plane(
    k: Emitter,
    pixels: Value,
    x: ElementPointer,
    y: ElementPointer,
    factors: list[Value],
    more: ElementPointer | None = None,
    *,
    relu: bool = False,
) -> None:
    """y = (x - mean) * factor + shift, and what follows."""
    mean, factor, shift = (k.convert(each, x.computed) for each in factors)

    def body(index: Value, count: int) -> None:
        value = k.fma(x.load(index, count) - mean, factor, shift)
        if more is not None:
            value = value + more.load(index, count)
        y.store(index, maximum(k, value, 0.0) if relu else value)

    over_plane(k, pixels, x.computed, body)


def gradient_of_plane(
    k: Emitter,
    pixels: Value,
    planes: list[ElementPointer],
    factors: list[Value],
    mask: tuple[Value, Value] | None = None,
) -> None:
    """dx = f * g - a - (x - mean) * b, for the planes of g, x and dx."""
    g, x, dx = planes
    f, a, b, mean = (k.convert(each, x.computed) for each in factors)

    def body(index: Value, count: int) -> None:
        centred = x.load(index, count) - mean
        slope = masked(k, g.load(index, count), centred, mask)
        dx.store(index, k.fma(slope, f, -k.fma(centred, b, a)))

    over_plane(k, pixels, x.computed, body)
