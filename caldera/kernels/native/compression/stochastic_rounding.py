"""Stochastic rounding of float32: to floating-point formats, and to a few levels per bucket.

The expectation of the rounded value is the original. A value between two neighbours of the format
becomes the upper one with probability proportional to its distance from the lower one. To this end,
a random number is added below the last kept bit, and the bits after it are dropped. In the
subnormal range of the format, neighbours are equally spaced, and the same is done with numbers
instead of bits.

The quantiser of QSGD, with the largest magnitude M as scale: a bucket of elements shares one scale.
An element x is between two of the levels M * i / s for i = -s, ..., s. It becomes the upper one
with the probability that makes the expectation x. A message contains the scales of its buckets
(float32), then the codes i + s of a few bits each, the lowest bits of a byte first. A bucket that
contains an infinity or a NaN has it as its scale, and decodes to no finite number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from caldera.kernels.native.codegen import (
    F32,
    I8,
    I32,
    I64,
    Emitter,
    Integer,
    Pointer,
    RegisterValue,
    addresses_of,
    itemsize,
    native_kernel,
    natural_lanes,
    run_now,
    vector,
)
from caldera.kernels.native.random import Philox

ALIGNED = 64
"""Loops begin at multiples of this, and so does the first word: whole vectors of blocks fit."""
_WORDS = 4


class Draws(NamedTuple):
    """Which random words a vector takes: the name of a stream, and the first word's index.

    The index counts in steps of `ALIGNED` words, so that 32 bits of ranks or layers fit above it.
    """

    seed: int
    step: int
    stream: int
    first: int = 0

    def after(self, count: int) -> Draws:
        """Return the draws that follow `count` draws.

        >>> Draws(0, 0, 0).after(65)
        Draws(seed=0, step=0, stream=0, first=2)
        """
        return self._replace(first=self.first + -(-count // ALIGNED))


@dataclass(frozen=True)
class DrawsArgument:
    """The numbers of `Draws` in a kernel, given as `draws._asdict()`."""

    seed: Integer
    step: Integer
    stream: Integer
    first: Integer

    def generator(self, k: Emitter) -> tuple[Philox, RegisterValue]:
        """Return the generator of these draws, and the index of its first word."""
        lanes = max(natural_lanes(I32), _WORDS)
        return Philox(k, lanes, self.seed, self.step, self.stream), self.first * ALIGNED


def with_draws(
    k: Emitter,
    draws: tuple[Philox, RegisterValue],
    reach: tuple[RegisterValue, RegisterValue],
    source: Pointer,
    target: Pointer,
    element: Callable[[RegisterValue, RegisterValue], RegisterValue],
) -> None:
    """target[i] = element(source[i], word[i]) for all i in reach, four lanes at a time.

    The reach begins at a multiple of `ALIGNED`.
    """
    philox, first = draws
    numbers = philox.lanes * _WORDS
    begin, end = reach
    whole = begin + (end - begin) // numbers * numbers

    def step(start: RegisterValue, source: Pointer, target: Pointer) -> None:
        words = philox.words((first + start) // _WORDS)
        for index, four in enumerate(words):
            place = start + index * _WORDS
            target.store(place, element(source.load(place, _WORDS), four))

    with k.loop(begin, whole, numbers) as start:
        step(start, source, target)
    with k.if_then(whole < end):
        # The last few elements use separate buffers: memory behind them belongs to other data.
        taken, given = k.alloca(source.type, numbers), k.alloca(target.type, numbers)
        k.clear_bytes(taken, numbers * itemsize(source.type))
        k.copy_bytes(taken, source.at(whole), (end - whole) * itemsize(source.type))
        step(whole, taken.at(-whole), given.at(-whole))
        k.copy_bytes(target.at(whole), given, (end - whole) * itemsize(target.type))


_WORTH_SPLITTING = 1 << 13
_INFINITY = 0x7F800000


class Format(NamedTuple):
    """Bits behind the point, the exponent of the least normal number, the largest number."""

    fraction: int
    least_exponent: int
    largest: float


FORMATS = {
    "bfloat16": Format(7, -126, 255 / 128 * 2.0**127),
    "float16": Format(10, -14, 65504.0),
    "float8_e4m3fn": Format(3, -6, 448.0),
    "float8_e5m2": Format(2, -14, 57344.0),
}


def round_stochastically(values: np.ndarray, name: str, draws: Draws) -> np.ndarray:
    """Round float32 values to numbers of the format that are equal to them on average.

    Values beyond the largest number are clipped to it; infinities and NaNs are unchanged.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import round_stochastically
    >>> from caldera.kernels.native.compression.stochastic_rounding import Draws
    >>> x = np.full(10_000, 1 + 2.0 ** -10, np.float32)
    >>> rounded = round_stochastically(x, "bfloat16", Draws(0, 0, 0))
    >>> sorted(set(rounded.tolist())), abs(rounded.mean() - x[0]) < 1e-4
    ([1.0, 1.0078125], np.True_)
    """
    rounded = np.empty(values.shape, np.float32)
    run_now(
        _round,
        values=values,
        rounded=rounded,
        size=values.size,
        draws=draws._asdict(),
        name=name,
        elements=values.size,
        worth=_WORTH_SPLITTING,
    )
    return rounded


@native_kernel
def _round(
    k: Emitter, values: Pointer, rounded: Pointer, size: Integer, draws: DrawsArgument, name: str
) -> None:
    form = FORMATS[name]
    dropped = 23 - form.fraction

    def element(value: RegisterValue, word: RegisterValue) -> RegisterValue:
        bits = k.bitcast(value, word.type)
        magnitude = bits & 0x7FFFFFFF
        usual = (magnitude + k.shift_right(word, 32 - dropped)) & -(1 << dropped)
        if form.least_exponent > -126:
            usual = k.select(
                magnitude < (form.least_exponent + 127) << 23,
                _subnormal(k, form, magnitude, word),
                usual,
            )
        largest = int(np.float32(form.largest).view(np.int32))
        finite = k.minimum(usual, largest)
        found = k.select(magnitude < _INFINITY, finite, magnitude)
        return k.bitcast(found | (bits & -(1 << 31)), value.type)

    with_draws(k, draws.generator(k), k.part_range(size, ALIGNED), values, rounded, element)


def _subnormal(
    k: Emitter, form: Format, magnitude: RegisterValue, word: RegisterValue
) -> RegisterValue:
    """Return the bits of a multiple of the smallest number."""
    smallest = 2.0 ** (form.least_exponent - form.fraction)
    count = k.bitcast(magnitude, k.convert(word, F32).type) / smallest
    lower = k.convert(k.convert(count, I32), F32)
    chance = k.convert(k.shift_right(word, 8), F32) * 2.0**-24
    rounded = k.select(chance < count - lower, lower + 1.0, lower) * smallest
    return k.bitcast(rounded, word.type)


_CODES_AT_ONCE = 16
_SMALLEST_SCALE = 2.0**-100
"""Minimum scale of a bucket that is not all zeros: 1 / scale must stay finite."""


def quantise(
    values: np.ndarray,
    spans: Sequence[tuple[int, int]],
    messages: Sequence[np.ndarray],
    draws: Draws,
    *,
    levels: int,
    width: int,
    bucket: int,
) -> np.ndarray:
    """Write a message for each span of float32 values, and return the rounding errors.

    Codes have a `width` of 2, 4 or 8 bits. `bucket` is a multiple of 64, and each message starts a
    new bucket. The same draws produce the same codes. The error of values in a bucket with an
    infinity or a NaN counts as 0.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import dequantise, quantise
    >>> from caldera.kernels.native.compression.stochastic_rounding import Draws
    >>> values, message = np.array([-2, 0, 2], np.float32), np.empty(6, np.uint8)
    >>> few = {"levels": 7, "width": 4, "bucket": 64}
    >>> quantise(values, [(0, 3)], [message], Draws(0, 0, 0), **few).tolist()
    [0.0, 0.0, 0.0]
    >>> message[4:].tolist(), dequantise([message], [3], **few).tolist()
    ([112, 14], [-2.0, 0.0, 2.0])
    """
    whole = spans == [(0, values.size)]
    lost = np.empty(values.size, np.float32) if whole else np.zeros(values.size, np.float32)
    run_now(
        _quantise,
        values=values,
        lost=lost,
        spans=np.array(spans, np.int64),
        addresses=addresses_of(messages),
        messages=len(messages),
        bucket=bucket,
        draws=draws._asdict(),
        levels=levels,
        width=width,
        elements=values.size,
        worth=_WORTH_SPLITTING,
    )
    return lost


def dequantise(
    messages: Sequence[np.ndarray],
    counts: Sequence[int],
    *,
    levels: int,
    width: int,
    bucket: int,
) -> np.ndarray:
    """Return the float32 values of messages with `counts` values each, concatenated."""
    total = sum(counts)
    values = np.empty(total, np.float32)
    run_now(
        _dequantise,
        addresses=addresses_of(messages),
        counts=np.array(counts, np.int64),
        messages=len(messages),
        values=values,
        bucket=bucket,
        levels=levels,
        width=width,
        elements=total,
        worth=_WORTH_SPLITTING,
    )
    return values


@native_kernel
def _quantise(
    k: Emitter,
    values: Pointer,
    lost: Pointer,
    spans: Pointer,
    addresses: Pointer,
    messages: Integer,
    bucket: Integer,
    draws: DrawsArgument,
    levels: int,
    width: int,
) -> None:
    generator = draws.generator(k)
    codes = k.alloca(I8, ALIGNED)
    before = k.variable(0, I64)
    with k.loop(0, messages) as message:
        low = spans.load(message * 2)
        size = spans.load(message * 2 + 1) - low
        mine, missed = values.at(low), lost.at(low)
        buckets = (size + bucket - 1) // bucket
        scales = k.int_to_pointer(addresses.load(message), I8)
        packed = scales.at(buckets * 4)
        with k.loop(*k.part_range(buckets)) as number:
            first = number * bucket
            last = k.minimum(first + bucket, size)
            scale = _largest_magnitude(k, mine, first, last)
            k.ir.store(scale.raw, scales.at(number * 4).raw, align=1)
            inverse = k.select(scale >= _SMALLEST_SCALE, levels / scale, 0.0)
            # Words are counted through the buckets of all messages.
            shift = before.value * bucket
            with k.loop(first, last, ALIGNED) as start:
                stop = k.minimum(start + ALIGNED, last)
                reach = (start + shift, stop + shift)
                target = codes.at(-start - shift)

                def code(
                    value: RegisterValue, word: RegisterValue, inverse: RegisterValue = inverse
                ) -> RegisterValue:
                    return _code(k, value, word, inverse, levels)

                k.clear_bytes(codes, ALIGNED)
                with_draws(k, generator, reach, mine.at(-shift), target, code)
                _pack(k, codes, packed.at(start // 8 * width), stop - start, width)
                _lose(
                    k, codes, mine.at(start), missed.at(start), stop - start, scale / levels, levels
                )
        before.value = before.value + buckets


def _code(
    k: Emitter, value: RegisterValue, word: RegisterValue, inverse: RegisterValue, levels: int
) -> RegisterValue:
    level = k.intrinsic("llvm.fabs", value) * inverse
    # No nan may be converted, and rounding must not lead past the last level.
    level = k.select(level < levels, level, float(levels))
    lower = k.convert(level, I32)
    part = level - k.convert(lower, F32)
    chance = k.convert(k.shift_right(word, 8), F32) * 2.0**-24
    rounded = lower + k.convert(chance < part, I32)
    return k.convert(k.select(k.bitcast(value, word.type) < 0, -rounded, rounded) + levels, I8)


def _pack(k: Emitter, codes: Pointer, target: Pointer, count: RegisterValue, width: int) -> None:
    """Pack the first `count` of 64 codes, stored one per byte, into adjacent bits."""
    in_byte = 8 // width
    packed = k.alloca(I8, ALIGNED)
    for start in range(0, ALIGNED, _CODES_AT_ONCE * in_byte):
        some = codes.load(start, _CODES_AT_ONCE * in_byte)
        held = k.shuffle(some, None, range(0, some.lanes, in_byte))
        for place in range(1, in_byte):
            held = held | k.shuffle(some, None, range(place, some.lanes, in_byte)) << place * width
        packed.store(start // in_byte, held)
    with k.if_else(count.equals(ALIGNED)) as (all_of_them, some_of_them):
        with all_of_them:
            k.copy_bytes(target, packed, ALIGNED // in_byte)
        with some_of_them:
            k.copy_bytes(target, packed, (count + in_byte - 1) // in_byte)


def _lose(
    k: Emitter,
    codes: Pointer,
    values: Pointer,
    lost: Pointer,
    count: RegisterValue,
    unit: RegisterValue,
    levels: int,
) -> None:
    for i, lanes in k.vectors(0, count, _CODES_AT_ONCE, 1):
        error = values.load(i, lanes) - _value(k, codes.load(i, lanes), unit, levels)
        lost.store(i, k.select(k.intrinsic("llvm.fabs", error) < math.inf, error, 0.0))


def _value(k: Emitter, codes: RegisterValue, unit: RegisterValue, levels: int) -> RegisterValue:
    return k.convert(k.convert(codes, I32, unsigned=True) - levels, F32) * unit


def _largest_magnitude(
    k: Emitter, values: Pointer, first: RegisterValue, last: RegisterValue
) -> RegisterValue:
    """Return the largest magnitude, compared as integers: finite < infinity < NaN."""
    lanes = natural_lanes(I32)
    bits = values.cast(I32)
    several = k.variable(0, vector(I32, lanes))
    single = k.variable(0, I32)
    for i, count in k.vectors(first, last, lanes, 1):
        kept = several if count > 1 else single
        kept.value = k.maximum(kept.value, bits.load(i, count) & 0x7FFFFFFF)
    return k.bitcast(k.maximum(k.reduce_lanes(several.value, k.maximum), single.value), F32)


@native_kernel
def _dequantise(
    k: Emitter,
    addresses: Pointer,
    counts: Pointer,
    messages: Integer,
    values: Pointer,
    bucket: Integer,
    levels: int,
    width: int,
) -> None:
    before = k.variable(0, I64)
    with k.loop(0, messages) as message:
        size = counts.load(message)
        mine = values.at(before.value)
        buckets = (size + bucket - 1) // bucket
        scales = k.int_to_pointer(addresses.load(message), I8)
        codes = scales.at(buckets * 4)
        with k.loop(*k.part_range(buckets)) as number:
            scale = RegisterValue(k, k.ir.load(scales.at(number * 4).raw, typ=F32, align=1))
            unit = scale / levels
            first = number * bucket
            for i, count in k.vectors(first, k.minimum(first + bucket, size), _CODES_AT_ONCE, 1):
                mine.store(i, _value(k, _codes(k, codes, i, count, width), unit, levels))
        before.value = before.value + size


def _codes(k: Emitter, packed: Pointer, i: RegisterValue, count: int, width: int) -> RegisterValue:
    """Return one code or several from the i-th on, which then begins a byte; one byte each."""
    if width == 8:
        return packed.load(i, count)
    in_byte, mask = 8 // width, (1 << width) - 1
    if count == 1:
        byte = k.convert(packed.load(i // in_byte), I32, unsigned=True)
        return k.convert(k.shift_right(byte, k.convert(i % in_byte * width, I32)) & mask, I8)
    # All first codes of the bytes, all second ones, ...; then side by side again.
    held = packed.load(i // in_byte, count // in_byte)
    apart = [k.shift_right(held, place * width) & mask for place in range(in_byte)]
    while len(apart) > 1:
        half = len(apart) // 2
        lanes = range(apart[0].lanes)
        woven = [lane + side * apart[0].lanes for lane in lanes for side in (0, 1)]
        apart = [k.shuffle(apart[j], apart[j + half], woven) for j in range(half)]
    return apart[0]
