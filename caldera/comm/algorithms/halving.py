"""Recursive halving and doubling, after Rabenseifner: as few bytes as the ring, fewer messages.

First partners at distance n/2, n/4, ... 1 each take half of what they share; then the halves come
together again in the opposite order. Ranks beyond a power of two join before and after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.doubling import core_ranks, fold_in, fold_out
from caldera.comm.algorithms.partition import bounds, even_counts
from caldera.comm.algorithms.segments import combine_from, exchange, start_send, wait_all
from caldera.comm.reduction import finish

if TYPE_CHECKING:
    from caldera.comm.point_to_point import PointToPoint


def halving(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     numbers = np.arange(5.0)
    ...     halving(comm, numbers)
    ...     return numbers.tolist()
    >>> run_virtual_ranks(4, work)[3]
    [0.0, 4.0, 8.0, 12.0, 16.0]
    """
    core, extra = core_ranks(comm.size)
    if fold_in(comm, buffer, op):
        _halve_and_double(comm, buffer, op, core)
    fold_out(comm, buffer, extra)


def _halve_and_double(comm: PointToPoint, buffer: np.ndarray, op: str, core: int) -> None:
    parts = bounds(even_counts(buffer.size, core))

    def stretch(first: int, count: int) -> np.ndarray:
        return buffer[parts[first][0] : parts[first + count - 1][1]]

    distance = core // 2
    first = 0
    while distance:
        partner = comm.rank ^ distance
        mine, theirs = first, first + distance
        if comm.rank & distance:
            mine, theirs = theirs, mine
        requests = start_send(comm, stretch(theirs, distance), partner)
        combine_from(comm, stretch(mine, distance), partner, op)
        wait_all(requests)
        first = mine
        distance //= 2
    finish(stretch(first, 1), op, comm.size)
    distance = 1
    while distance < core:
        partner = comm.rank ^ distance
        other = first ^ distance
        exchange(comm, stretch(first, distance), partner, stretch(other, distance), partner)
        first = min(first, other)
        distance *= 2
