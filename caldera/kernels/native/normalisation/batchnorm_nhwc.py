"""Batch normalisation of images that lie channels last, and of matrices.

Three calls: sums of blocks of rows; from them the statistics and the factors of each channel; then
all rows. Sums are taken of differences from the first row, so a mean that is large against the
deviation costs no accuracy.
"""

from __future__ import annotations

from caldera.kernels.native.codegen.dtypes import ElementPointer, computed_type, stored
from caldera.kernels.native.codegen.emitter import F64, Emitter, Pointer, Value, natural_lanes
from caldera.kernels.native.codegen.math import at_least
from caldera.kernels.native.normalisation.statistics import (
    BLOCK_ROWS,
    OfRow,
    Prepare,
    Terms,
    block_total,
    column_sums,
    finite_or_zero,
    in_powers,
    inverse_deviation,
    moments,
    over_rows,
)

FACTORS = 4
"""Numbers a channel that the loop over all elements works with."""


# --- sums of blocks of rows


def build_sums(k: Emitter, name: str) -> None:
    """Of x less its first row, and of the squares of that."""
    x, stride = stored(k, 0, name), k.integer(1)
    rows, channels, partial = k.integer(2), k.integer(3), k.pointer(4, computed_type(name))

    def terms(channel: Value, count: int) -> OfRow:
        pivot = finite_or_zero(k, x.load(channel, count))

        def of_row(row: Value) -> Terms:
            difference = x.load(row * stride + channel, count) - pivot
            return difference, difference, difference

        return of_row

    _sum_blocks(k, partial, rows, channels, terms)


def build_gradient_sums(k: Emitter, name: str, relu: bool) -> None:
    """Of the gradient, and of its product with x less the mean."""
    g, g_stride = stored(k, 0, name), k.integer(1)
    x, x_stride = stored(k, 2, name), k.integer(3)
    rows, channels, partial = k.integer(4), k.integer(5), k.pointer(6, computed_type(name))
    means = k.pointer(7, computed_type(name))
    given = k.pointer(8, computed_type(name)) if relu else None

    def terms(channel: Value, count: int) -> OfRow:
        mean = means.load(channel, count)
        mask = None
        if given is not None:
            mask = [given.load(channel + channels * i, count) for i in (1, 2)]

        def of_row(row: Value) -> Terms:
            centred = x.load(row * x_stride + channel, count) - mean
            slope = g.load(row * g_stride + channel, count)
            if mask is not None:
                slope = masked(k, slope, centred, *mask)
            return slope, slope, centred

        return of_row

    _sum_blocks(k, partial, rows, channels, terms)


def masked(k: Emitter, slope: Value, centred: Value, factor: Value, shift: Value) -> Value:
    """The gradient before a relu: 0 where what the relu was given was not positive.

    That is computed again, from the factors that made it.
    """
    return k.select(k.fma(centred, factor, shift) > 0.0, slope, 0.0)


def _sum_blocks(k: Emitter, partial: Pointer, rows: Value, channels: Value, terms: Prepare) -> None:
    blocks = (rows + (BLOCK_ROWS - 1)) // BLOCK_ROWS
    with k.loop(*k.share(blocks)) as block:
        first = block * BLOCK_ROWS
        last = k.minimum(first + BLOCK_ROWS, rows)
        column_sums(k, partial.at(block * channels * 2), (first, last), channels, terms)


# --- from the sums to what each channel needs


def _total_blocks(
    k: Emitter, partial: Pointer, rows: Value, channels: Value, totals: Pointer
) -> tuple[Value, Value]:
    """This worker's channels; their sums over all blocks go to `totals`, in float64."""
    blocks = (rows + (BLOCK_ROWS - 1)) // BLOCK_ROWS
    lanes = 4 * natural_lanes(partial.type)
    begin, end = k.share(channels, lanes)

    def add_up(channel: Value, count: int) -> None:
        for place in (channel, channel + channels):
            totals.store(place, block_total(k, partial, place, count, blocks, channels))

    in_powers(k, begin, end, lanes, add_up)
    return begin, end


def build_statistics(k: Emitter, name: str, parameters: str) -> None:
    """Mean, variance, and the factors of y = (x - mean) * factor + shift."""
    kind = computed_type(name)
    x, rows, channels = stored(k, 0, name), k.integer(1), k.integer(2)
    partial, totals, eps = k.pointer(3, kind), k.pointer(4, F64), k.number(5)
    scale, scale_stride = stored(k, 6, parameters), k.integer(7)
    shift, shift_stride = stored(k, 8, parameters), k.integer(9)
    means, variances, factors = k.pointer(10, kind), k.pointer(11, kind), k.pointer(12, kind)
    share = k.constant(1.0, F64) / k.convert(rows, F64)
    begin, end = _total_blocks(k, partial, rows, channels, totals)
    with k.loop(begin, end) as channel:
        pivot = k.convert(finite_or_zero(k, x.load(channel)), F64)
        one, two = totals.load(channel), totals.load(channel + channels)
        mean, variance = (k.convert(value, kind) for value in moments(k, one, two, pivot, share))
        factor = factor_of(k, scale.load(channel * scale_stride), variance, eps)
        offset = shift.load(channel * shift_stride)
        means.store(channel, mean)
        variances.store(channel, variance)
        for index, value in enumerate((mean, factor, offset)):
            factors.store(channel + channels * index, k.convert(value, kind))


def factor_of(k: Emitter, scale: Value, variance: Value, eps: Value) -> Value:
    """scale / sqrt(variance + eps), in float64."""
    return k.convert(scale, F64) * inverse_deviation(k, variance, eps)


def build_given_statistics(k: Emitter, name: str, parameters: str, statistics: str) -> None:
    """The factors from a given mean and variance."""
    kind = computed_type(name)
    channels, eps, factors = k.integer(0), k.number(1), k.pointer(2, kind)
    places = [*(stored(k, slot, parameters) for slot in (3, 5)),
              *(stored(k, slot, statistics) for slot in (7, 9))]  # fmt: skip
    strides = [k.integer(slot) for slot in (4, 6, 8, 10)]
    with k.loop(0, channels) as channel:
        scale, shift, mean, variance = (
            place.load(channel * stride) for place, stride in zip(places, strides, strict=True)
        )
        factor = factor_of(k, scale, variance, eps)
        for index, value in enumerate((mean, factor, shift)):
            factors.store(channel + channels * index, k.convert(value, kind))


def build_gradient_statistics(k: Emitter, name: str, parameters: str) -> None:
    """The gradients of scale and shift, and the factors of that of x."""
    kind = computed_type(name)
    rows, channels = k.integer(0), k.integer(1)
    partial, totals = k.pointer(2, kind), k.pointer(3, F64)
    eps, scale, scale_stride = k.number(4), stored(k, 5, parameters), k.integer(6)
    variances, means = k.pointer(7, kind), k.pointer(8, kind)
    for_scale, for_shift = stored(k, 9, parameters), stored(k, 10, parameters)
    factors = k.pointer(11, kind)
    share = k.constant(1.0, F64) / k.convert(rows, F64)
    begin, end = _total_blocks(k, partial, rows, channels, totals)
    with k.loop(begin, end) as channel:
        one, two = totals.load(channel), totals.load(channel + channels)
        gain = k.convert(scale.load(channel * scale_stride), F64)
        inverse = inverse_deviation(k, variances.load(channel), eps)
        # The outputs may lie where the statistics do: these are kept with the factors.
        factors.store(channel + channels * 3, means.load(channel))
        for index, value in enumerate(gradient_factors(one, two, gain, inverse, share)):
            factors.store(channel + channels * index, k.convert(value, kind))
        for_scale.store(channel, k.convert(two * inverse, computed_type(parameters)))
        for_shift.store(channel, k.convert(one, computed_type(parameters)))


def gradient_factors(
    one: Value, two: Value, gain: Value, inverse: Value, share: Value
) -> tuple[Value, Value, Value]:
    """f, a, b of dx = f * g - a - (x - mean) * b."""
    factor = gain * inverse
    return factor, factor * one * share, factor * two * inverse * inverse * share


# --- all rows


def finished(k: Emitter, y: Value, more: ElementPointer | None, place: Value, relu: bool) -> Value:
    """y, plus what is added to it, through the relu that follows."""
    if more is not None:
        y = y + more.load(place, y.lanes)
    return at_least(k, y, 0.0) if relu else y


def build_rows(k: Emitter, name: str, added: bool, relu: bool) -> None:
    """y = (x - mean) * factor + shift, and what follows."""
    x, x_stride = stored(k, 0, name), k.integer(1)
    y, y_stride = stored(k, 2, name), k.integer(3)
    rows, channels, factors = k.integer(4), k.integer(5), k.pointer(6, computed_type(name))
    more = stored(k, 7, name) if added else None
    more_stride = k.integer(8) if added else x_stride

    def visit(row: Value, channel: Value, count: int) -> None:
        mean, factor, shift = (factors.load(channel + channels * i, count) for i in range(3))
        unit = x.load(row * x_stride + channel, count) - mean
        value = k.fma(unit, factor, shift)
        result = finished(k, value, more, row * more_stride + channel, relu)
        y.store(row * y_stride + channel, result)

    over_rows(k, k.share(rows), channels, computed_type(name), visit)


def build_gradient_rows(k: Emitter, name: str, relu: bool) -> None:
    """dx = f * g - a - (x - mean) * b."""
    g, g_stride = stored(k, 0, name), k.integer(1)
    x, x_stride = stored(k, 2, name), k.integer(3)
    dx, dx_stride = stored(k, 4, name), k.integer(5)
    rows, channels, factors = k.integer(6), k.integer(7), k.pointer(8, computed_type(name))
    given = k.pointer(9, computed_type(name)) if relu else None

    def visit(row: Value, channel: Value, count: int) -> None:
        f, a, b, mean = (factors.load(channel + channels * i, count) for i in range(FACTORS))
        centred = x.load(row * x_stride + channel, count) - mean
        slope = g.load(row * g_stride + channel, count)
        if given is not None:
            slope = masked(k, slope, centred, f, given.load(channel + channels * 2, count))
        dx.store(row * dx_stride + channel, k.fma(slope, f, -k.fma(centred, b, a)))

    over_rows(k, k.share(rows), channels, computed_type(name), visit)
