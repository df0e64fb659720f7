"""Node, then between nodes: only one rank of a node uses the network.

The ranks of a node reduce to the first of them, those do a ring among themselves, and each
hands the result on inside its node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.ring import ring
from caldera.comm.algorithms.segments import (
    combine_from,
    start_receive,
    start_send,
    wait_all,
)
from caldera.comm.reduction import finish

if TYPE_CHECKING:
    from caldera.comm.point_to_point import PointToPoint


def hierarchical(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place; `comm.nodes` says who is where.

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
    step = "sum" if op == "mean" else op
    if comm.rank != own[0]:
        wait_all(start_send(comm, buffer, own[0]))
        wait_all(start_receive(comm, buffer, own[0]))
        return
    for other in own[1:]:
        combine_from(comm, buffer, other, step)
    ring(comm, buffer, step, leaders)
    finish(buffer, op, comm.size)
    wait_all([request for other in own[1:] for request in start_send(comm, buffer, other)])
