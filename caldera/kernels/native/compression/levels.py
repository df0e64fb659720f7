"""Rounding to a few levels by chance, and back: the quantiser of QSGD with the largest as scale.

A bucket of elements shares one scale, its largest magnitude M. An element x lies between two of
the levels M * i / s for i = -s, ..., s; it becomes the upper one with the probability that makes
the expectation x. Codes are i + s, one byte each. A bucket that holds an infinity or a nan has it
as its scale, and comes back without a number in it.
"""

from __future__ import annotations

import numpy as np

from caldera.kernels.native.compression.draws import ALIGNED, Draws, draws_of, with_draws
from caldera.kernels.native.compression.run import kernel, run
from caldera.kernels.native.emit import F32, I8, I32, Emitter, Pointer, Value, natural_lanes, vector

_WORTH_SPLITTING = 1 << 13
_CODES_AT_ONCE = 16
_SMALLEST_SCALE = 2.0**-100
"""Below it a bucket is nothing but zeros: 1 / scale must stay a number."""


def to_levels(
    values: np.ndarray, levels: int, bucket: int, draws: Draws
) -> tuple[np.ndarray, np.ndarray]:
    """Codes (uint8) and scales (float32, one a bucket) of float32 values.

    `bucket` is a multiple of 64. The same draws give the same codes.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import from_levels, to_levels
    >>> from caldera.kernels.native.compression.draws import Draws
    >>> codes, scales = to_levels(np.array([-2, 0, 2], np.float32), 7, 64, Draws(0, 0, 0))
    >>> codes.tolist(), scales.tolist(), from_levels(codes, scales, 7, 64).tolist()
    ([0, 7, 14], [2.0], [-2.0, 0.0, 2.0])
    """
    codes = np.empty(values.size, np.uint8)
    scales = np.empty(-(-values.size // bucket), np.float32)
    address = kernel(_build_to, levels=levels)
    work = (values, codes, scales, values.size, bucket)
    run(address, *work, *draws, size=values.size, worth=_WORTH_SPLITTING)
    return codes, scales


def from_levels(
    codes: np.ndarray,
    scales: np.ndarray,
    levels: int,
    bucket: int,
    *,
    count: int | None = None,
    width: int = 8,
) -> np.ndarray:
    """The float32 values that codes and scales stand for.

    With a `width` of 2 or 4 bits, `count` codes are packed as `pack_bits` does.
    """
    size = codes.size if count is None else count
    values = np.empty(size, np.float32)
    address = kernel(_build_from, levels=levels, width=width)
    run(address, codes, values, scales, size, bucket, size=size, worth=_WORTH_SPLITTING)
    return values


def _build_to(k: Emitter, levels: int) -> None:
    """Slots: values, codes, scales, size, bucket, then the draws."""
    values, codes, scales = k.pointer(0, F32), k.pointer(1, I8), k.pointer(2, F32)
    size, bucket = k.integer(3), k.integer(4)
    draws = draws_of(k, 5)
    begin, end = k.share((size + bucket - 1) // bucket)
    with k.loop(begin, end) as number:
        first = number * bucket
        last = k.minimum(first + bucket, size)
        scale = _largest_magnitude(k, values, first, last)
        scales.store(number, scale)
        inverse = k.select(scale >= _SMALLEST_SCALE, levels / scale, 0.0)

        def code(value: Value, word: Value, inverse: Value = inverse) -> Value:
            level = k.intrinsic("llvm.fabs", value) * inverse
            # No nan may be converted, and rounding must not lead past the last level.
            level = k.select(level < levels, level, float(levels))
            lower = k.convert(level, I32)
            part = level - k.convert(lower, F32)
            chance = k.convert(k.shift_right(word, 8), F32) * 2.0**-24
            rounded = lower + k.convert(chance < part, I32)
            signed = k.select(k.bitcast(value, word.type) < 0, -rounded, rounded)
            return k.convert(signed + levels, I8)

        with_draws(k, draws, (first, last), values, codes, code)


def _largest_magnitude(k: Emitter, values: Pointer, first: Value, last: Value) -> Value:
    """As integers: an infinity is larger than all numbers, and a nan larger still."""
    lanes = natural_lanes(I32)
    bits = values.cast(I32)
    several = k.variable(0, vector(I32, lanes))
    single = k.variable(0, I32)

    def look(i: Value, count: int) -> None:
        kept = several if count > 1 else single
        kept.value = k.maximum(kept.value, bits.load(i, count) & 0x7FFFFFFF)

    k.in_vectors(first, last, lanes, look)
    largest = k.maximum(k.total(several.value, k.maximum), single.value)
    return k.bitcast(largest, F32)


def _build_from(k: Emitter, levels: int, width: int) -> None:
    """Slots: codes, values, scales, size, bucket."""
    codes, values, scales = k.pointer(0, I8), k.pointer(1, F32), k.pointer(2, F32)
    size, bucket = k.integer(3), k.integer(4)
    begin, end = k.share(size, ALIGNED)
    first = begin // bucket
    with k.loop(first, k.select(begin < end, (end + bucket - 1) // bucket, first)) as number:
        unit = scales.load(number) / levels

        def store(i: Value, count: int, unit: Value = unit) -> None:
            level = k.convert(_codes(k, codes, i, count, width), I32, unsigned=True) - levels
            values.store(i, k.convert(level, F32) * unit)

        low = k.maximum(number * bucket, begin)
        k.in_vectors(low, k.minimum((number + 1) * bucket, end), _CODES_AT_ONCE, store)


def _codes(k: Emitter, packed: Pointer, i: Value, count: int, width: int) -> Value:
    """One code or several from the i-th on, which then begins a byte; one byte each."""
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
