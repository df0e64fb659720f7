"""A part of a step: work in equal units, each done by one block, and the memory it touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caldera.kernels.cuda.persistent.writer import Places

Array = np.ndarray[Any, np.dtype[Any]]

WARPS = 16
THREADS = 32 * WARPS
SHARED_FLOATS = 55 << 10
"""Shared memory that a block has: most of what a multiprocessor has."""
NUMBERS = 256
"""Row numbers that a part may keep in shared memory beside what it keeps in `room`."""
MASKS = 32
"""Words at the beginning of shared memory, with a bit for each part."""
ROOM_FLOATS = SHARED_FLOATS - NUMBERS - MASKS
"""What is left for a part."""

Early = Callable[[Array], bool]
"""Whether an array is as it must be before the phase before has ended."""


@dataclass(frozen=True)
class Text:
    """Statements that do the unit whose number is in `unit`.

    They are run by all threads of a block, so they may meet. Shared memory is `room`. What is
    `ahead` is run before the blocks meet, and may only read what is there early.
    """

    main: Sequence[str]
    ahead: Sequence[str] = field(default=())


@dataclass(frozen=True, eq=False)
class Part:
    """`code(places, early)` gives the statements. A heavy part wants blocks for itself.

    `load` is how long it keeps one block busy: in units, if these are not unusually large.
    """

    what: str
    units: int
    reads: Sequence[Array]
    writes: Sequence[Array]
    code: Callable[[Places, Early], Text]
    heavy: bool = False
    load: int = 0


def plain(lines: Callable[[Places], list[str]]) -> Callable[[Places, Early], Text]:
    """The code of a part that does nothing ahead."""
    return lambda places, early: Text(lines(places))


def units_of(count: int, each: int) -> int:
    """How many units of `each` it takes to do `count`."""
    return -(-count // each)
