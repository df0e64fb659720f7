"""Increasing places by Rice's code: gaps divided by 2**r in unary, what is left over in r bits.

Unary and rest are two strings of bits. In the first every place has a one, with as many zeros
before it as the quotient says; in the second its remainder, the lowest bits first.
"""

from __future__ import annotations

import numpy as np

from caldera.errors import DataError
from caldera.kernels.native.compression.run import kernel, run
from caldera.kernels.native.emit import I1, I8, I32, I64, Emitter, Value

_SLACK = 8
"""Bytes after a string of bits that are read with its last ones."""
TRIED = 3
"""How many parameters are compared."""


def rice_sizes(places: np.ndarray, first: int) -> tuple[list[int], int]:
    """The bits of the unary part with r = first, first + 1, ...; and how many runs there are.

    A run is a place without the one before it, and all that follow without a gap.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression.rice import rice_sizes
    >>> rice_sizes(np.array([4, 5, 9], np.int32), 0)
    ([10, 6, 4], 2)
    """
    found = np.zeros(TRIED + 1, np.int64)
    run(kernel(_build_sizes), places, places.size, first, found)
    *sums, runs = found.tolist()
    return [places.size + each for each in sums], runs


def rice_write(places: np.ndarray, rest: int, unary: int) -> tuple[np.ndarray, np.ndarray]:
    """The two strings as bytes; `unary` is how many bits the first has.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression.rice import rice_read, rice_write
    >>> places = np.array([4, 5, 9], np.int32)
    >>> [string.tolist() for string in rice_write(places, 1, 6)]
    [[44], [4]]
    >>> rice_read(*rice_write(places, 1, 6), count=3, rest=1)
    array([4, 5, 9], dtype=int32)
    """
    ones = np.zeros(unary // 64 + 1, np.int64)
    low = np.zeros(places.size * rest // 32 + 1, np.int32)
    run(kernel(_build_write), places, places.size, rest, ones, low)
    bytes_of_low = -(-places.size * rest // 8)
    return ones.view(np.uint8)[: -(-unary // 8)], low.view(np.uint8)[:bytes_of_low]


def rice_read(ones: np.ndarray, low: np.ndarray, count: int, rest: int) -> np.ndarray:
    """The places (int32) of the two strings; refused if there are not so many."""
    words = np.zeros(-(-ones.size // 8), np.int64)
    words.view(np.uint8)[: ones.size] = ones
    padded = np.zeros(low.size + _SLACK, np.uint8)
    padded[: low.size] = low
    places = np.empty(count, np.int32)
    found = np.zeros(1, np.int64)
    if low.size * 8 < count * rest:
        raise DataError.build("rice_read", expected=f"{count * rest} bits", got=f"{low.size} bytes")
    run(kernel(_build_read), words, words.size, padded, rest, places, count, found)
    if found[0] != count:
        raise DataError.build("rice_read", expected=f"{count} places", got=f"{found[0]}")
    return places


def _build_sizes(k: Emitter) -> None:
    """Slots: places, count, first r, found."""
    places, count, first, found = k.pointer(0, I32), k.integer(1), k.integer(2), k.pointer(3, I64)
    before = k.variable(-1, I64)
    sums = [k.variable(0, I64) for _ in range(TRIED)]
    runs = k.variable(0, I64)
    # The first place begins a run even where there is none before it.
    linked = k.variable(-2, I64)
    with k.loop(0, count) as i:
        place = k.convert(places.load(i), I64)
        gap = place - before.value - 1
        for turn, total in enumerate(sums):
            total.value = total.value + k.shift_right(gap, first + turn)
        runs.value = runs.value + k.convert(place.differs(linked.value + 1), I64)
        before.value = place
        linked.value = place
    for index, total in enumerate([*sums, runs]):
        found.store(index, total.value)


def _build_write(k: Emitter) -> None:
    """Slots: places, count, r, ones (zeros), low."""
    places, count, rest = k.pointer(0, I32), k.integer(1), k.integer(2)
    ones, low = k.pointer(3, I64), k.pointer(4, I32)
    mask = (k.constant(1, I64) << rest) - 1
    before = k.variable(-1, I64)
    # Both strings are put together in registers, and written a word at a time.
    following, word, held = (k.variable(0, I64) for _ in range(3))
    written, filled, lower = (k.variable(0, I64) for _ in range(3))
    with k.loop(0, count) as i:
        place = k.convert(places.load(i), I64)
        gap = place - before.value - 1
        before.value = place
        one = following.value + k.shift_right(gap, rest)
        following.value = one + 1
        with k.when(k.shift_right(one, 6).differs(word.value)):
            ones.store(word.value, held.value)
            word.value = k.shift_right(one, 6)
            held.value = 0
        held.value = held.value | (k.constant(1, I64) << (one & 63))
        lower.value = lower.value | ((gap & mask) << filled.value)
        filled.value = filled.value + rest
        with k.when(filled.value >= 32):
            low.store(written.value, k.convert(lower.value, I32))
            lower.value = k.shift_right(lower.value, 32)
            written.value = written.value + 1
            filled.value = filled.value - 32
    ones.store(word.value, held.value)
    low.store(written.value, k.convert(lower.value, I32))


def _build_read(k: Emitter) -> None:
    """Slots: words, how many, low, r, places, count, found."""
    words, length, low, rest = k.pointer(0, I64), k.integer(1), k.pointer(2, I8), k.integer(3)
    places, count = k.pointer(4, I32), k.integer(5)
    mask = (k.constant(1, I64) << rest) - 1
    found = k.variable(0, I64)
    before = k.variable(-1, I64)
    place = k.variable(-1, I64)
    left = k.variable(0, I64)
    with k.loop(0, length) as number:
        left.value = words.load(number)
        with k.repeat_while(lambda: left.value.differs(0) & (found.value < count)):
            one = number * 64 + Value(k, k.ir.cttz(left.value.raw, I1(0)))
            left.value = left.value & (left.value - 1)
            bit = found.value * rest
            lower = k.shift_right(_unaligned(k, low.bytes_on(bit // 8).raw), bit & 7) & mask
            gap = ((one - before.value - 1) << rest) | lower
            before.value = one
            place.value = place.value + gap + 1
            places.store(found.value, k.convert(place.value, I32))
            found.value = found.value + 1
        # More ones than places: one too many is enough to be refused.
        found.value = k.select(left.value.differs(0), count + 1, found.value)
    k.pointer(6, I64).store(0, found.value)


def _unaligned(k: Emitter, address: object) -> Value:
    """Eight bytes that begin anywhere."""
    return Value(k, k.ir.load(address, typ=I64, align=1))
