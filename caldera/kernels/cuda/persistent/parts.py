"""A part of a step: work in equal units, each done by one block, and the memory it touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.kernels.cuda.persistent.writer import Places

Array = np.ndarray[Any, np.dtype[Any]]

WARPS = 16
THREADS = 32 * WARPS
SHARED_FLOATS = 55 << 10
"""Shared memory that a part may use: most of what a multiprocessor has."""


@dataclass(frozen=True)
class Part:
    """`code(places)` gives the statements that do the unit whose number is in `unit`.

    Statements are run by all threads of a block, so they may meet. Shared memory is `shared`.
    """

    what: str
    units: int
    reads: Sequence[Array]
    writes: Sequence[Array]
    code: Callable[[Places], list[str]]


def units_of(count: int, each: int) -> int:
    """How many units of `each` it takes to do `count`."""
    return -(-count // each)
