"""Loops over a vector in which every element has a random word of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from caldera.kernels.native.codegen.emitter import (
    I32,
    Emitter,
    Pointer,
    Value,
    itemsize,
    natural_lanes,
)
from caldera.kernels.native.codegen.kernel import Integer
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

    def generator(self, k: Emitter) -> tuple[Philox, Value]:
        """The generator that they name, and the first word."""
        lanes = max(natural_lanes(I32), _WORDS)
        return Philox(k, lanes, self.seed, self.step, self.stream), self.first * ALIGNED


def with_draws(
    k: Emitter,
    draws: tuple[Philox, Value],
    reach: tuple[Value, Value],
    source: Pointer,
    target: Pointer,
    element: Callable[[Value, Value], Value],
) -> None:
    """target[i] = element(source[i], word[i]) for all i in reach, four lanes at a time.

    The reach begins at a multiple of `ALIGNED`.
    """
    philox, first = draws
    numbers = philox.lanes * _WORDS
    begin, end = reach
    whole = begin + (end - begin) // numbers * numbers

    def step(start: Value, source: Pointer, target: Pointer) -> None:
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
