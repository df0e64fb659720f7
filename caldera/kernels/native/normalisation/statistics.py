"""Statistics of normalisation, from sums over rows of channels and over planes.

The forward sums are of x less a pivot and of its square, so a mean that is large compared with the
deviation costs no accuracy. The backward sums are of the gradient and of its product with x less
the mean. Sums are computed in blocks of a fixed size, with float32 inside a block and float64
between blocks. They are therefore accurate, and the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from llvmlite import ir

from caldera.kernels.native.codegen import (
    F64,
    ElementPointer,
    Emitter,
    Integer,
    Number,
    Pointer,
    RegisterValue,
    itemsize,
    line_lanes,
    native_kernel,
    natural_lanes,
    shrinking,
    vector,
)
from caldera.kernels.native.normalisation.layout import ChannelRows

BLOCK_ROWS = 256
"""Rows that are added up in float32."""
BLOCK_ELEMENTS = 2048
"""Elements of a plane that are added up in float32."""
VECTORS_TOGETHER = 4
"""Number of vectors of a plane that are processed together."""
_ROWS_TOGETHER = 4
"""Rows that are added up before a sum is touched."""
_FEW_VECTORS = 4
"""Vectors of channels up to which sums stay in registers."""

Terms = tuple[RegisterValue, RegisterValue, RegisterValue]
"""a, b, c: to the first sum goes a, to the second b * c."""
OfRow = Callable[[RegisterValue], Terms]
"""Contribution of a row to both sums."""
Prepare = Callable[[RegisterValue, int], OfRow]
"""For a channel and a number of lanes, what all rows share is prepared once."""
OfVector = Callable[[RegisterValue, int], Terms]
"""Contribution of some elements of a plane to both sums."""
Place = tuple[RegisterValue, ...]
"""Row and channel of `ChannelRows`, or the index of a pointer."""
Mask = tuple[RegisterValue, RegisterValue]
"""Factor and shift from which a relu's input is recomputed."""
Load = Callable[[RegisterValue, int], RegisterValue]
"""From an index and a number of lanes to the values there."""


class Operand(Protocol):
    """Rows of channels, or a plane: elements at a `Place`, some at a time."""

    def load(self, *place: Any, **more: Any) -> RegisterValue:
        """Return the elements from a place on; the last argument is their number."""

    def store(self, *place: Any, **more: Any) -> None:
        """Write elements from a place on; the last argument is their value."""


# --- what is added up


def _pivoted(x: Operand, place: Place, count: int, pivot: RegisterValue) -> Terms:
    """x less a pivot, and the square of that."""
    difference = x.load(*place, count) - pivot
    return difference, difference, difference


def _centred(
    k: Emitter,
    g: Operand,
    x: Operand,
    place: Place,
    count: int,
    mean: RegisterValue,
    mask: Mask | None = None,
) -> Terms:
    """Return the gradient, and its product with x less the mean."""
    centred = x.load(*place, count) - mean
    slope = masked(k, g.load(*place, count), centred, mask)
    return slope, slope, centred


def pivoted_rows(x: ChannelRows, pivots: Load) -> Prepare:
    """Return the terms of x less a pivot for each channel."""

    def terms(channel: RegisterValue, count: int) -> OfRow:
        pivot = pivots(channel, count)
        return lambda row: _pivoted(x, (row, channel), count, pivot)

    return terms


def gradient_rows(k: Emitter, g: ChannelRows, x: ChannelRows, means: Load) -> Prepare:
    """Return the terms of a gradient, with a mean for each channel."""

    def terms(channel: RegisterValue, count: int) -> OfRow:
        mean = means(channel, count)
        return lambda row: _centred(k, g, x, (row, channel), count, mean)

    return terms


def pivoted_sums(
    k: Emitter,
    planes: tuple[Number, Number],
    plane: Callable[[RegisterValue], ElementPointer],
    pixels: RegisterValue,
    pivot: RegisterValue,
) -> tuple[RegisterValue, RegisterValue]:
    """Return the sums over several planes of x less the pivot, and of the square of that."""

    def terms(number: RegisterValue) -> OfVector:
        x = plane(number)
        return lambda index, count: _pivoted(x, (index,), count, pivot)

    return _over_planes(k, planes, pixels, terms, pivot.type)


def gradient_sums(
    k: Emitter,
    planes: tuple[Number, Number],
    pair: Callable[[RegisterValue], tuple[ElementPointer, ElementPointer]],
    pixels: RegisterValue,
    mean: RegisterValue,
    mask: Mask | None = None,
) -> tuple[RegisterValue, RegisterValue]:
    """The sums over several planes of the gradient, and of its product with x less the mean."""

    def terms(number: RegisterValue) -> OfVector:
        g, x = pair(number)
        return lambda index, count: _centred(k, g, x, (index,), count, mean, mask)

    return _over_planes(k, planes, pixels, terms, mean.type)


def _over_planes(
    k: Emitter,
    planes: tuple[Number, Number],
    pixels: RegisterValue,
    terms: Callable[[RegisterValue], OfVector],
    kind: ir.Type,
) -> tuple[RegisterValue, RegisterValue]:
    one, two = k.variable(0.0, F64), k.variable(0.0, F64)
    with k.loop(*planes) as number:
        a, b = plane_sums(k, pixels, kind, terms(number))
        one.value = one.value + a
        two.value = two.value + b
    return one.value, two.value


def masked(
    k: Emitter,
    slope: RegisterValue,
    centred: RegisterValue,
    factors: Mask | None,
) -> RegisterValue:
    """Return the gradient before a relu: 0 where the input of the relu was not positive.

    That input is recomputed from its factor and shift.
    """
    if factors is None:
        return slope
    return k.select(k.fma(centred, *factors) > 0.0, slope, 0.0)


# --- sums over rows


def column_sums(
    k: Emitter,
    totals: Pointer,
    rows: tuple[Number, Number],
    channels: RegisterValue,
    terms: Prepare,
    known: int = 0,
) -> None:
    """Compute two sums over some rows for each channel, in totals[0:channels] and after these.

    Sums of a few channels stay in registers, vector by vector. With many channels, rows are read in
    memory order. If the number of channels is `known`, only one of the two variants is compiled.
    """
    lanes = line_lanes(totals.type)
    if 0 < known <= _FEW_VECTORS * lanes:
        _sums_in_registers(k, totals, rows, channels, terms, whole=known % lanes == 0)
        return
    with k.if_else(channels <= _FEW_VECTORS * lanes) as (few, many):
        with few:
            _sums_in_registers(k, totals, rows, channels, terms)
        with many:
            _sums_in_memory(k, totals, rows, channels, terms)


def _sums_in_registers(
    k: Emitter,
    totals: Pointer,
    rows: tuple[Number, Number],
    channels: RegisterValue,
    terms: Prepare,
    *,
    whole: bool = False,
) -> None:
    """Compute the sums of a few channels, with accumulators in registers.

    `whole` means that the number of channels is a multiple of the lanes.
    """
    lanes = line_lanes(totals.type)
    for channel, count in k.vectors(0, channels, *((lanes,) if whole else shrinking(lanes))):
        of_row = terms(channel, count)
        kind = vector(totals.type, count) if count > 1 else totals.type
        one, two = (k.variable(0.0, kind) for _ in range(2))
        for several in _over_rows(k, rows):
            a, b = _added(k, [of_row(row) for row in several])
            one.value = one.value + a
            two.value = two.value + b
        totals.store(channel, one.value)
        totals.store(channel + channels, two.value)


def _sums_in_memory(
    k: Emitter,
    totals: Pointer,
    rows: tuple[Number, Number],
    channels: RegisterValue,
    terms: Prepare,
) -> None:
    kind = totals.type
    k.clear_bytes(totals, channels * (2 * itemsize(kind)))
    for several in _over_rows(k, rows):
        for channel, count in k.vectors(0, channels, *shrinking(line_lanes(kind))):
            of_row = terms(channel, count)
            one, two = _added(k, [of_row(row) for row in several])
            totals.store(channel, totals.load(channel, count) + one)
            place = channel + channels
            totals.store(place, totals.load(place, count) + two)


def _over_rows(k: Emitter, rows: tuple[Number, Number]) -> Iterator[list[RegisterValue]]:
    """Yield loops over rows, a few at a time, for a `for` statement."""
    for row, count in k.vectors(*rows, _ROWS_TOGETHER, 1):
        yield [row + i for i in range(count)] if count > 1 else [row]


def _added(k: Emitter, found: list[Terms]) -> tuple[RegisterValue, RegisterValue]:
    """Return the contribution of a few rows to both sums."""
    halves = [_products(k, found[i::2]) for i in range(min(2, len(found)))]
    return pairwise([a for a, _, _ in found]), pairwise(halves)


def image_sums(
    k: Emitter,
    totals: Pointer,
    block: Pointer,
    pixels: RegisterValue,
    channels: RegisterValue,
    terms: Prepare,
) -> None:
    """The two sums of each channel over all rows of an image, in float64."""
    k.clear_bytes(totals, channels * 16)
    with k.loop(0, pixels, BLOCK_ROWS) as begin:
        column_sums(k, block, (begin, k.minimum(begin + BLOCK_ROWS, pixels)), channels, terms)
        for index, count in k.vectors(0, channels * 2, *shrinking(line_lanes(F64))):
            more = k.convert(block.load(index, count), F64)
            totals.store(index, totals.load(index, count) + more)


@native_kernel
def column_totals(
    k: Emitter,
    partial: Pointer,
    blocks: Integer,
    channels: Integer,
    products: ElementPointer,
    plain: ElementPointer,
) -> None:
    """Add the sums of `column_sums` over all blocks: sums of products, and plain sums."""
    widest = line_lanes(partial.type)
    begin, end = k.part_range(channels, widest)
    for channel, count in k.vectors(begin, end, *shrinking(widest)):
        for output, place in ((plain, channel), (products, channel + channels)):
            total = block_total(k, partial, place, count, blocks, channels * 2)
            output.store(channel, k.convert(total, output.computed))


def block_total(
    k: Emitter,
    partial: Pointer,
    place: RegisterValue,
    count: int,
    blocks: RegisterValue,
    width: RegisterValue,
) -> RegisterValue:
    """Return the float64 sum over all blocks of the numbers at `place`, with stride `width`."""
    total = k.variable(k.convert(partial.load(place, count), F64))
    with k.loop(1, blocks) as block:
        more = partial.load(block * width + place, count)
        total.value = total.value + k.convert(more, F64)
    return total.value


def _products(k: Emitter, found: Sequence[Terms]) -> RegisterValue:
    _, b, c = found[0]
    total = b * c
    for _, b, c in found[1:]:
        total = k.fma(b, c, total)
    return total


def pairwise(values: Sequence[RegisterValue]) -> RegisterValue:
    """Return the sum of a few values, added up in pairs."""
    several = list(values)
    while len(several) > 1:
        pairs = [a + b for a, b in zip(several[::2], several[1::2], strict=False)]
        several = pairs + several[2 * len(pairs) :]
    return several[0]


# --- sums over planes


def plane_sums(
    k: Emitter, count: RegisterValue, kind: ir.Type, terms: OfVector
) -> tuple[RegisterValue, RegisterValue]:
    """Return two sums over the elements of a plane, in float64.

    `terms(index, lanes)` is what to add.
    """
    lanes = natural_lanes(kind)
    wide = vector(kind, lanes)
    step = lanes * VECTORS_TOGETHER
    totals = [k.variable(0.0, F64) for _ in range(2)]
    partial = [[k.variable(0.0, wide) for _ in range(VECTORS_TOGETHER)] for _ in range(2)]
    whole = count // step * step
    with k.loop(0, whole, BLOCK_ELEMENTS // step * step) as begin:
        end = k.minimum(begin + BLOCK_ELEMENTS // step * step, whole)
        for each in (*partial[0], *partial[1]):
            each.value = 0.0
        with k.loop(begin, end, step) as index:
            for i in range(VECTORS_TOGETHER):
                a, b, c = terms(index + i * lanes, lanes)
                one, two = partial[0][i], partial[1][i]
                one.value = one.value + a
                two.value = k.fma(b, c, two.value)
        for total, several in zip(totals, partial, strict=True):
            joined = k.reduce_lanes(pairwise([each.value for each in several]), lambda x, y: x + y)
            total.value = total.value + k.convert(joined, F64)
    for index, n in k.vectors(whole, count, *shrinking(lanes)):
        a, b, c = terms(index, n)
        products = b * c
        for total, value in zip(totals, (a, products), strict=True):
            rest = k.reduce_lanes(value, lambda x, y: x + y)
            total.value = total.value + k.convert(rest, F64)
    return totals[0].value, totals[1].value


# --- from sums to statistics


def finite_or_zero(k: Emitter, value: RegisterValue) -> RegisterValue:
    """Return the number itself, and 0 in place of an infinity or a nan."""
    return k.select((value - value).equals(0.0), value, 0.0)


def moments(
    k: Emitter, one: RegisterValue, two: RegisterValue, pivot: RegisterValue, share: RegisterValue
) -> tuple[RegisterValue, RegisterValue]:
    """Return mean and variance (float64) from the sums of x - pivot and of its squares."""
    shift = one * share
    variance = two * share - shift * shift
    # Rounding may make it negative; a nan stays one.
    return pivot + shift, k.select(variance < 0.0, 0.0, variance)


def inverse_deviation(k: Emitter, variance: RegisterValue, eps: RegisterValue) -> RegisterValue:
    """1 / sqrt(variance + eps), in float64."""
    root = k.intrinsic("llvm.sqrt", k.convert(variance, F64) + eps)
    return k.constant(1.0, F64) / root


def gradient_factors(
    one: RegisterValue,
    two: RegisterValue,
    gain: RegisterValue,
    inverse: RegisterValue,
    share: RegisterValue,
) -> tuple[RegisterValue, RegisterValue, RegisterValue]:
    """f, a, b of dx = f * g - a - (x - mean) * b."""
    factor = gain * inverse
    return factor, factor * one * share, factor * two * inverse * inverse * share


def share_of(k: Emitter, count: RegisterValue) -> RegisterValue:
    """1 / count, in float64."""
    return k.constant(1.0, F64) / k.convert(count, F64)
