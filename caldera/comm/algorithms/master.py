"""Reduce to a master and broadcast: what everybody compares with.

The master receives and sends the whole buffer once for every other rank, so its link is the limit.
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
    if comm.rank:
        wait_all(start_send(comm, buffer, 0))
        wait_all(start_receive(comm, buffer, 0))
        return
    for other in range(1, comm.size):
        combine_from(comm, buffer, other, op)
    finish(buffer, op, comm.size)
    wait_all([r for other in range(1, comm.size) for r in start_send(comm, buffer, other)])
