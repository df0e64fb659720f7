"""The ring: every rank sends to its right neighbour and receives from its left one.

The buffer is cut into one part a rank. In the first n - 1 steps partial sums travel, and after
them rank r has the whole sum of part r; in the next n - 1 steps the sums travel on. Each rank sends
2 (n - 1) / n of the buffer, which is the least any algorithm can do. A segment is sent on as soon
as it has been taken in, so the link is never idle between steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.partition import bounds, even_counts, segments
from caldera.comm.algorithms.segments import (
    WINDOW,
    post_receive,
    post_send,
    segment_elements,
    wait_all,
)
from caldera.comm.reduction import combine, finish
from caldera.comm.request import Request

if TYPE_CHECKING:
    from caldera.comm.point_to_point import PointToPoint


def ring(
    comm: PointToPoint, buffer: np.ndarray, op: str = "sum", group: Sequence[int] | None = None
) -> None:
    """Reduce a flat buffer over the ranks of a group, in place.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     numbers = np.arange(5.0) + comm.rank
    ...     ring(comm, numbers)
    ...     return numbers.tolist()
    >>> run_virtual_ranks(3, work)[2]
    [3.0, 6.0, 9.0, 12.0, 15.0]
    """
    members = list(range(comm.size)) if group is None else list(group)
    counts = even_counts(buffer.size, len(members))
    _travel(comm, buffer, counts, op, members, range(2 * len(members) - 2))


def ring_reduce_scatter(
    comm: PointToPoint,
    buffer: np.ndarray,
    counts: Sequence[int],
    op: str,
    group: Sequence[int] | None = None,
) -> None:
    """The reduction of part r in rank r's buffer; what its other parts become has no meaning."""
    members = list(range(comm.size)) if group is None else list(group)
    _travel(comm, buffer, counts, op, members, range(len(members) - 1))


def ring_allgather(
    comm: PointToPoint,
    buffer: np.ndarray,
    counts: Sequence[int],
    group: Sequence[int] | None = None,
) -> None:
    """Part r of rank r's buffer in every rank's buffer."""
    members = list(range(comm.size)) if group is None else list(group)
    _travel(comm, buffer, counts, "", members, range(len(members) - 1, 2 * len(members) - 2))


def _travel(
    comm: PointToPoint,
    buffer: np.ndarray,
    counts: Sequence[int],
    op: str,
    members: list[int],
    steps: range,
) -> None:
    """In step t a rank sends part r - 1 - t and receives part r - 2 - t; before step n - 1 it
    combines what comes, from then on it keeps it."""
    n, me = len(members), members.index(comm.rank)
    if n == 1:
        if op:
            finish(buffer, op, 1)
        return
    left, right = members[me - 1], members[(me + 1) % n]
    piece = segment_elements(comm, buffer)
    parts = bounds(counts)
    arriving = [
        (step, begin, end)
        for step in steps
        for begin, end in segments(parts[(me - 2 - step) % n], piece)
    ]
    scratch = np.empty((min(WINDOW, len(arriving)), piece), buffer.dtype)
    sends: deque[tuple[int, Request]] = deque()

    def send(step: int, begin: int, end: int) -> None:
        sends.append((step, post_send(comm, buffer[begin:end], right)))

    def receive(index: int) -> tuple[Request, np.ndarray]:
        step, begin, end = arriving[index]
        if step < n - 1:
            part = scratch[index % WINDOW, : end - begin]
        else:
            part = buffer[begin:end]
            # This part was sent n - 1 steps ago, and must have left before it is overwritten.
            while sends and sends[0][0] <= step + 1 - n:
                sends.popleft()[1].wait()
        return post_receive(comm, part, left), part

    underway = deque(receive(index) for index in range(len(scratch)))
    for begin, end in segments(parts[(me - 1 - steps[0]) % n], piece):
        send(steps[0], begin, end)
    for index, (step, begin, end) in enumerate(arriving):
        request, part = underway.popleft()
        request.wait()
        if step < n - 1:
            combine(buffer[begin:end], part, op)
        if step == n - 2:
            finish(buffer[begin:end], op, n)
        if step != steps[-1]:
            send(step + 1, begin, end)
        if index + WINDOW < len(arriving):
            underway.append(receive(index + WINDOW))
    wait_all(request for _, request in sends)
