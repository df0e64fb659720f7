"""Loops that normalisation, softmax and losses share: over rows of channels, and over planes.

Sums are taken in blocks of a fixed size, float32 inside a block and float64 between blocks, so
they are accurate, and the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from caldera.kernels.native.codegen.dtypes import computed_type, stored
from caldera.kernels.native.codegen.emitter import (
    F64,
    I64,
    Emitter,
    Number,
    Pointer,
    Value,
    itemsize,
    natural_lanes,
    vector,
)
from caldera.kernels.native.codegen.target import CACHE_LINE

BLOCK_ROWS = 256
"""Rows that are added up in float32."""
BLOCK_ELEMENTS = 2048
"""Elements of a plane that are added up in float32."""
_ROWS_TOGETHER = 4
"""Rows that are added up before a sum in memory is touched."""
_VECTORS_TOGETHER = 4

Terms = tuple[Value, Value, Value]
"""a, b, c: to the first sum goes a, to the second b * c."""
OfRow = Callable[[Value], Terms]
"""What a row adds to both sums."""
Prepare = Callable[[Value, int], OfRow]
"""For a channel and a number of lanes, what all rows share is prepared once."""


def in_powers(
    k: Emitter, begin: Number, end: Number, widest: int, body: Callable[[Value, int], None]
) -> None:
    """`body(index, lanes)` for vectors of `widest` elements, then for ones of a quarter as many,
    and so on to single elements.

    Every width is code of its own, which takes time to compile; a few turns of a loop do not.
    """
    first, last = k.constant(begin, I64), k.constant(end, I64)
    count = widest
    while True:
        middle = first + (last - first) // count * count if count > 1 else last
        with k.loop(first, middle, count) as index:
            body(index, count)
        if count == 1:
            return
        first = middle
        count = max(1, count // 4)


def line(kind: ir.Type) -> int:
    """Elements that are handled at once: at least a cache line.

    Processors are slow to write lines in pieces.
    """
    return max(natural_lanes(kind), CACHE_LINE // itemsize(kind))


def over_rows(
    k: Emitter,
    rows: tuple[Number, Number],
    channels: Value,
    kind: ir.Type,
    visit: Callable[[Value, Value, int], None],
) -> None:
    """`visit(row, channel, lanes)` for all channels of all rows."""
    with k.loop(*rows) as row:
        in_powers(k, 0, channels, line(kind), lambda c, n: visit(row, c, n))


def column_sums(
    k: Emitter,
    totals: Pointer,
    rows: tuple[Number, Number],
    channels: Value,
    terms: Prepare,
) -> None:
    """Two sums over some rows for each channel, to totals[0:channels] and after these."""
    kind = totals.type
    k.clear_bytes(totals, channels * (2 * itemsize(kind)))

    def visit(several: list[Value], channel: Value, count: int) -> None:
        of_row = terms(channel, count)
        found = [of_row(row) for row in several]
        one = pairwise([a for a, _, _ in found])
        halves = [_products(k, found[i::2]) for i in range(min(2, len(found)))]
        two = pairwise(halves)
        totals.store(channel, totals.load(channel, count) + one)
        place = channel + channels
        totals.store(place, totals.load(place, count) + two)

    def together(row: Value, count: int) -> None:
        several = [row + i for i in range(count)]
        in_powers(k, 0, channels, line(kind), lambda c, n: visit(several, c, n))

    first, last = (k.constant(each, I64) for each in rows)
    middle = first + (last - first) // _ROWS_TOGETHER * _ROWS_TOGETHER
    with k.loop(first, middle, _ROWS_TOGETHER) as row:
        together(row, _ROWS_TOGETHER)
    with k.loop(middle, last) as row:
        together(row, 1)


def build_column_totals(k: Emitter, name: str, parameters: str) -> None:
    """The sums of `column_sums` over all blocks: those of products first, then the plain ones."""
    partial, blocks, channels = k.pointer(0, computed_type(name)), k.integer(1), k.integer(2)
    products, plain = stored(k, 3, parameters), stored(k, 4, parameters)
    widest = line(partial.type)
    begin, end = k.share(channels, widest)

    def add_up(channel: Value, count: int) -> None:
        for output, place in ((plain, channel), (products, channel + channels)):
            total = block_total(k, partial, place, count, blocks, channels)
            output.store(channel, k.convert(total, computed_type(parameters)))

    in_powers(k, begin, end, widest, add_up)


def block_total(
    k: Emitter, partial: Pointer, place: Value, count: int, blocks: Value, channels: Value
) -> Value:
    """The sum over all blocks of what lies at `place` in each, in float64."""
    total = k.variable(k.convert(partial.load(place, count), F64))
    with k.loop(1, blocks) as block:
        more = partial.load(block * channels * 2 + place, count)
        total.value = total.value + k.convert(more, F64)
    return total.value


def _products(k: Emitter, found: Sequence[Terms]) -> Value:
    _, b, c = found[0]
    total = b * c
    for _, b, c in found[1:]:
        total = k.fma(b, c, total)
    return total


def pairwise(values: Sequence[Value]) -> Value:
    """The sum of a few values, added up in pairs."""
    several = list(values)
    while len(several) > 1:
        pairs = [a + b for a, b in zip(several[::2], several[1::2], strict=False)]
        several = pairs + several[2 * len(pairs) :]
    return several[0]


def plane_sums(
    k: Emitter, count: Value, kind: ir.Type, terms: Callable[[Value, int], Terms]
) -> tuple[Value, Value]:
    """Two sums over the elements of a plane, in float64; `terms(index, lanes)` is what to add."""
    lanes = natural_lanes(kind)
    wide = vector(kind, lanes)
    step = lanes * _VECTORS_TOGETHER
    totals = [k.variable(0.0, F64) for _ in range(2)]
    partial = [[k.variable(0.0, wide) for _ in range(_VECTORS_TOGETHER)] for _ in range(2)]

    def add_up(index: Value, n: int) -> None:
        a, b, c = terms(index, n)
        products = b * c
        for total, value in zip(totals, (a, products), strict=True):
            one = k.total(value, lambda x, y: x + y)
            total.value = total.value + k.convert(one, F64)

    whole = count // step * step
    with k.loop(0, whole, BLOCK_ELEMENTS // step * step) as begin:
        end = k.minimum(begin + BLOCK_ELEMENTS // step * step, whole)
        for each in (*partial[0], *partial[1]):
            each.value = 0.0
        with k.loop(begin, end, step) as index:
            for i in range(_VECTORS_TOGETHER):
                a, b, c = terms(index + i * lanes, lanes)
                one, two = partial[0][i], partial[1][i]
                one.value = one.value + a
                two.value = k.fma(b, c, two.value)
        for total, several in zip(totals, partial, strict=True):
            joined = k.total(pairwise([each.value for each in several]), lambda x, y: x + y)
            total.value = total.value + k.convert(joined, F64)
    in_powers(k, whole, count, lanes, add_up)
    return totals[0].value, totals[1].value


def over_plane(k: Emitter, count: Value, kind: ir.Type, body: Callable[[Value, int], None]) -> None:
    """`body(index, lanes)` over the elements of a plane, several vectors at a time."""
    lanes = natural_lanes(kind)
    step = lanes * _VECTORS_TOGETHER
    whole = count // step * step
    with k.loop(0, whole, step) as index:
        for i in range(_VECTORS_TOGETHER):
            body(index + i * lanes, lanes)
    in_powers(k, whole, count, lanes, body)


def finite_or_zero(k: Emitter, value: Value) -> Value:
    """The number itself, and 0 in place of an infinity or a nan."""
    return k.select((value - value).equals(0.0), value, 0.0)


def moments(k: Emitter, one: Value, two: Value, pivot: Value, share: Value) -> tuple[Value, Value]:
    """Mean and variance (float64) from the sums of x - pivot and of its squares."""
    shift = one * share
    variance = two * share - shift * shift
    # Rounding may make it negative; a nan stays one.
    return pivot + shift, k.select(variance < 0.0, 0.0, variance)


def inverse_deviation(k: Emitter, variance: Value, eps: Value) -> Value:
    """1 / sqrt(variance + eps), in float64."""
    root = k.intrinsic("llvm.sqrt", k.convert(variance, F64) + eps)
    return k.constant(1.0, F64) / root
