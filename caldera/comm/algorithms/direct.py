"""Everybody sends its part to the rank that adds it up: one sum, formed in one place.

As few bytes as the ring, in n - 1 messages at once. A sum of float16 or bfloat16 is formed in
float32 from the numbers themselves and rounded once, which no algorithm that passes partial sums on
can do without sending more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.partition import bounds, even_counts
from caldera.comm.algorithms.ring import ring_allgather
from caldera.comm.algorithms.segments import start_receive, start_send, wait_all
from caldera.comm.reduction import combine, downcast, finish, must_widen, upcast

if TYPE_CHECKING:
    from caldera.comm.point_to_point import PointToPoint


def direct(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     numbers = np.full(3, 60000, np.float16)
    ...     direct(comm, numbers, "mean")
    ...     return numbers.tolist()
    >>> run_virtual_ranks(3, work)[0]
    [60000.0, 60000.0, 60000.0]
    """
    counts = even_counts(buffer.size, comm.size)
    begin, end = bounds(counts)[comm.rank]
    buffer[begin:end] = direct_reduce_scatter(comm, buffer, counts, op)
    ring_allgather(comm, buffer, counts)


def direct_reduce_scatter(
    comm: PointToPoint, send: np.ndarray, counts: Sequence[int], op: str
) -> np.ndarray:
    """The reduction of this rank's part, in the order of the ranks."""
    parts = bounds(counts)
    begin, end = parts[comm.rank]
    others = [(comm.rank + distance) % comm.size for distance in range(1, comm.size)]
    received = {rank: np.empty(end - begin, send.dtype) for rank in others}
    # Nearest neighbours first on both sides, so that not all of them send to one rank at once.
    arriving = {rank: start_receive(comm, received[rank], rank) for rank in reversed(others)}
    leaving = [r for rank in others for r in start_send(comm, send[slice(*parts[rank])], rank)]
    received[comm.rank] = send[begin:end]
    halves = must_widen(send.dtype, op)

    def numbers_of(rank: int) -> np.ndarray:
        wait_all(arriving.get(rank, []))
        return upcast(received[rank], comm.size) if halves else received[rank]

    total = numbers_of(0).copy()
    for rank in range(1, comm.size):
        combine(total, numbers_of(rank), op)
    wait_all(leaving)
    if halves:
        return downcast(total, send.dtype, op, comm.size)
    finish(total, op, comm.size)
    return total
