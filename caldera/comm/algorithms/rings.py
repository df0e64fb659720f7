"""Allreduce by a ring, a torus of rings, node leaders or one master.

- **ring**: every rank sends to its right neighbour and receives from its left one, and the buffer
  is split into one part per rank. In the first n - 1 steps partial sums travel, after which rank r
  has the whole sum of part r; in the next n - 1 steps the sums travel on. Each rank sends 2 (n
- 1) / n of the buffer, the minimum of any algorithm. A segment is forwarded as soon as it has been
  combined, so the link is never idle between steps.
- **torus**: reduce-scatter along the row, allreduce of the own part along the column, allgather
  along the row. It sends the bytes of the ring in about 2 (rows + columns) messages instead of 2 n.
- **hierarchical**: the ranks of a node reduce to its first rank, these ranks run a ring, and each
  broadcasts the result inside its node. Only one rank per node uses the network.
- **master**: reduce to one rank and broadcast, the baseline of comparisons. The master receives and
  sends the whole buffer once for every other rank, so its link is the limit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.segments import (
    WINDOW,
    bounds,
    combine_from,
    even_counts,
    post_receive,
    post_send,
    segment_elements,
    segments,
    start_receive,
    start_send,
    wait_all,
)
from caldera.comm.reduction import combine, finish
from caldera.comm.requests import Request

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
    counts = even_counts(buffer.size, comm.size if group is None else len(group))
    _travel(comm, buffer, counts, op, group, 0, 2)


def ring_reduce_scatter(
    comm: PointToPoint,
    buffer: np.ndarray,
    counts: Sequence[int],
    op: str,
    group: Sequence[int] | None = None,
) -> None:
    """The reduction of part r in rank r's buffer; what its other parts become has no meaning."""
    _travel(comm, buffer, counts, op, group, 0, 1)


def ring_allgather(
    comm: PointToPoint,
    buffer: np.ndarray,
    counts: Sequence[int],
    group: Sequence[int] | None = None,
) -> None:
    """Part r of rank r's buffer in every rank's buffer."""
    _travel(comm, buffer, counts, "", group, 1, 2)


def _travel(
    comm: PointToPoint,
    buffer: np.ndarray,
    counts: Sequence[int],
    op: str,
    group: Sequence[int] | None,
    first: int,
    last: int,
) -> None:
    """In step t, send part r - 1 - t and receive part r - 2 - t.

    Received parts are combined before step n - 1 and copied from then on. `first` and `last` count
    rounds of n - 1 steps.
    """
    members = range(comm.size) if group is None else group
    n, me = len(members), members.index(comm.rank)
    steps = range(first * (n - 1), last * (n - 1))
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


def torus(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place. A prime number of ranks is a ring.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     numbers = np.arange(3.0)
    ...     torus(comm, numbers)
    ...     return numbers.tolist()
    >>> run_virtual_ranks(6, work)[5]
    [0.0, 6.0, 12.0]
    """
    rows, columns = sides(comm.size)
    row, column = divmod(comm.rank, columns)
    own_row = range(row * columns, (row + 1) * columns)
    own_column = range(column, rows * columns, columns)
    counts = even_counts(buffer.size, columns)
    begin, end = bounds(counts)[column]
    # A mean is a sum until all ranks are in it.
    step = "sum" if op == "mean" else op
    ring_reduce_scatter(comm, buffer, counts, step, own_row)
    ring(comm, buffer[begin:end], step, own_column)
    finish(buffer[begin:end], op, comm.size)
    ring_allgather(comm, buffer, counts, own_row)


def sides(ranks: int) -> tuple[int, int]:
    """Return rows and columns, as nearly equal as the number of ranks allows.

    >>> sides(12), sides(7)
    ((3, 4), (1, 7))
    """
    rows = next(side for side in range(math.isqrt(ranks), 0, -1) if ranks % side == 0)
    return rows, ranks // rows


def hierarchical(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place; `comm.nodes` lists the node of each rank.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     numbers = np.arange(3.0)
    ...     hierarchical(comm, numbers)
    ...     return numbers.tolist()
    >>> run_virtual_ranks(5, work, nodes=[0, 0, 1, 1, 1])[4]
    [0.0, 5.0, 10.0]
    """
    own = [rank for rank in range(comm.size) if comm.nodes[rank] == comm.nodes[comm.rank]]
    leaders = [comm.nodes.index(node) for node in sorted(set(comm.nodes))]
    _through_leaders(comm, buffer, op, own, leaders)


def _through_leaders(
    comm: PointToPoint, buffer: np.ndarray, op: str, own: Sequence[int], leaders: Sequence[int]
) -> None:
    """Reduce a group's buffers on its first rank, exchange sums between leaders, and broadcast.

    `own` contains the ranks of this rank's group.
    """
    if comm.rank != own[0]:
        wait_all(start_send(comm, buffer, own[0]))
        wait_all(start_receive(comm, buffer, own[0]))
        return
    step = "sum" if op == "mean" else op
    for other in own[1:]:
        combine_from(comm, buffer, other, step)
    ring(comm, buffer, step, leaders)
    finish(buffer, op, comm.size)
    wait_all([request for other in own[1:] for request in start_send(comm, buffer, other)])


def master(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place; summed in the order of the ranks.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     number = np.array([2.0])
    ...     master(comm, number, "mean")
    ...     return number.item()
    >>> run_virtual_ranks(3, work)
    [2.0, 2.0, 2.0]
    """
    _through_leaders(comm, buffer, op, range(comm.size), [0])
