"""Which parts of a step may run at the same time, decided from the memory they touch.

Between two phases all blocks meet, which costs about a microsecond; within a phase parts run side
by side. A part goes to the first phase in which nothing that it reads is still to be written, and
nothing that it writes is still to be read; one that is `late` goes to the last such phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from caldera.core.memory.software import address_of
from caldera.kernels.cuda.codegen.kernel import Array

Range = tuple[int, int]


class Touching(Protocol):
    """Something that reads and writes memory."""

    @property
    def reads(self) -> Sequence[Array]: ...

    @property
    def writes(self) -> Sequence[Array]: ...


T = TypeVar("T", bound=Touching)


def span(array: Array) -> Range:
    """The addresses between which an array lies.

    >>> import numpy as np
    >>> numbers = np.zeros((4, 4), np.float32)
    >>> first, last = span(numbers[::-1, 1:3])
    >>> first - span(numbers)[0], last - first
    (4, 56)
    """
    if array.size == 0:
        return (0, 0)
    first = last = address_of(array)
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        first += min(reach, 0)
        last += max(reach, 0)
    return first, last + array.itemsize


def meet(some: Iterable[Array], others: Iterable[Array]) -> bool:
    """Whether any array of the one group shares memory with one of the other."""
    ranges = [span(each) for each in others]
    return any(
        first < end and start < last for first, last in map(span, some) for start, end in ranges
    )


def conflict(earlier: Touching, later: Touching) -> bool:
    """Whether the later one must wait for the earlier one."""
    return (
        meet(earlier.writes, later.reads)
        or meet(earlier.writes, later.writes)
        or meet(earlier.reads, later.writes)
    )


def in_phases(parts: Sequence[T], late: Callable[[T], bool] = lambda part: False) -> list[list[T]]:
    """The parts, given in an order in which they are right, as phases."""
    levels: list[int] = []
    for index, part in enumerate(parts):
        before = (levels[j] for j in range(index) if conflict(parts[j], part))
        levels.append(max(before, default=-1) + 1)
    count = max(levels, default=-1) + 1
    for index in reversed(range(len(parts))):
        if late(parts[index]):
            after = range(index + 1, len(parts))
            waiting = (levels[j] for j in after if conflict(parts[index], parts[j]))
            levels[index] = min(waiting, default=count) - 1
    return [
        [part for part, level in zip(parts, levels, strict=True) if level == number]
        for number in range(count)
    ]


def early_in(phases: Sequence[Sequence[Touching]], number: int) -> Callable[[Array], bool]:
    """Whether an array is as a phase wants it before the phase before has ended.

    The first phase of a step comes after the last one of the step before.
    """
    written = [span(array) for part in phases[number - 1] for array in part.writes]

    def early(array: Array) -> bool:
        first, last = span(array)
        return not any(first < end and start < last for start, end in written)

    return early
