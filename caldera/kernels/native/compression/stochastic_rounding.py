"""Stochastic rounding of float32, and vector loops with a random word per element.

The expectation of the rounded value is the original. A value between two neighbours of the format
becomes the upper one with probability proportional to its distance from the lower one: a random
number is added below the last kept bit, and the bits after it are cut off. In the subnormal range
of the format the neighbours are equally far apart, and the same is done with numbers instead of
bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from caldera.kernels.native.codegen import (
    F32,
    I32,
    Emitter,
    Integer,
    Pointer,
    RegisterValue,
    itemsize,
    native_kernel,
    natural_lanes,
    run_now,
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
        """The draws that follow so many.

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
        """The generator that they name, and the first word."""
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
        # The last few go through vectors of their own: what lies behind them is not ours.
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
    """float32 numbers that the format can hold, near `values` and equal to them on average.

    What is larger than the largest number becomes that; infinities and nans stay.

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
    """The bits of a multiple of the smallest number."""
    smallest = 2.0 ** (form.least_exponent - form.fraction)
    count = k.bitcast(magnitude, k.convert(word, F32).type) / smallest
    lower = k.convert(k.convert(count, I32), F32)
    chance = k.convert(k.shift_right(word, 8), F32) * 2.0**-24
    rounded = k.select(chance < count - lower, lower + 1.0, lower) * smallest
    return k.bitcast(rounded, word.type)
