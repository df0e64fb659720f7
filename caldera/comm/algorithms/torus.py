"""A torus of rows and columns: rings that are shorter than one ring over all ranks.

Reduce-scatter along the row, allreduce of the own part along the column, allgather along the row:
the bytes of the ring, and about 2 (rows + columns) messages instead of 2 n.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.partition import bounds, even_counts
from caldera.comm.algorithms.ring import ring, ring_allgather, ring_reduce_scatter
from caldera.comm.reduction import finish

if TYPE_CHECKING:
    from caldera.comm.point_to_point import PointToPoint


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
    """Rows and columns, as nearly equal as the number of ranks allows.

    >>> sides(12), sides(7)
    ((3, 4), (1, 7))
    """
    rows = next(side for side in range(math.isqrt(ranks), 0, -1) if ranks % side == 0)
    return rows, ranks // rows
