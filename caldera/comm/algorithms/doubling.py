"""Recursive doubling: in step k ranks that differ in bit k exchange everything they have.

log2(n) messages of the whole buffer: the quickest for buffers so short that only the number of
messages counts. Ranks beyond a power of two hand their numbers to another one before, and get the
result after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.segments import (
    combine_from,
    start_receive,
    start_send,
    wait_all,
)
from caldera.comm.reduction import finish

if TYPE_CHECKING:
    from caldera.comm.point_to_point import PointToPoint


def doubling(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     number = np.array([float(comm.rank)])
    ...     doubling(comm, number, "max")
    ...     return number.item()
    >>> run_virtual_ranks(3, work)
    [2.0, 2.0, 2.0]
    """
    core, extra = core_ranks(comm.size)
    if fold_in(comm, buffer, op):
        distance = 1
        while distance < core:
            partner = comm.rank ^ distance
            leaving = buffer.copy()
            requests = start_send(comm, leaving, partner)
            combine_from(comm, buffer, partner, op, theirs_first=partner < comm.rank)
            wait_all(requests)
            distance *= 2
        finish(buffer, op, comm.size)
    fold_out(comm, buffer, extra)


def core_ranks(size: int) -> tuple[int, int]:
    """The largest power of two that is not above `size`, and how many ranks are beyond it.

    >>> core_ranks(6)
    (4, 2)
    """
    core = 1 << (size.bit_length() - 1)
    return core, size - core


def fold_in(comm: PointToPoint, buffer: np.ndarray, op: str) -> bool:
    """Ranks beyond the power of two give what they have away; whether this rank goes on."""
    core, extra = core_ranks(comm.size)
    if comm.rank >= core:
        wait_all(start_send(comm, buffer, comm.rank - core))
        return False
    if comm.rank < extra:
        combine_from(comm, buffer, comm.rank + core, op)
    return True


def fold_out(comm: PointToPoint, buffer: np.ndarray, extra: int) -> None:
    """Ranks beyond the power of two get the result."""
    core = comm.size - extra
    if comm.rank >= core:
        wait_all(start_receive(comm, buffer, comm.rank - core))
    elif comm.rank < extra:
        wait_all(start_send(comm, buffer, comm.rank + core))
