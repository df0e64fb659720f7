"""Moves between two ways to cut an axis over the ranks: each element goes to its owner at once."""

from __future__ import annotations

import itertools

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.process_grid import Cuts


def move_rows(part: np.ndarray, before: Cuts, after: Cuts, comm: Communicator) -> np.ndarray:
    """Rows that were cut one way, cut another way.

    The second may end before the first one does, and what is behind it is left away; or after it,
    and there are zeros.
    """
    if before == after:
        return part
    rank, width = comm.rank, int(np.prod(part.shape[1:], dtype=np.int64))
    end = min(before[-1], after[-1])
    leaving = [_common(before, rank, after, other, end) for other in range(comm.size)]
    arriving = [_common(after, rank, before, other, end) for other in range(comm.size)]
    # Both variants cover everything up to the end: what leaves and what comes lie in one piece.
    sent = part[: sum(b - a for a, b in leaving)]
    found = np.zeros((after[rank + 1] - after[rank], *part.shape[1:]), part.dtype)
    received = found[: sum(b - a for a, b in arriving)]
    comm.Alltoall(
        np.ascontiguousarray(sent),
        received,
        [(b - a) * width for a, b in leaving],
        [(b - a) * width for a, b in arriving],
    )
    return found


def _common(mine: Cuts, rank: int, others: Cuts, other: int, end: int) -> tuple[int, int]:
    begin = max(mine[rank], others[other])
    return begin, max(min(mine[rank + 1], others[other + 1], end), begin)


def rows_to_columns(part: np.ndarray, rows: Cuts, columns: Cuts, comm: Communicator) -> np.ndarray:
    """From some rows of a matrix, whole, to some columns of it; more axes may follow."""
    if comm.size == 1:
        return part
    height, width = rows[-1], columns[comm.rank + 1] - columns[comm.rank]
    more = part.shape[2:]
    each = int(np.prod(more, dtype=np.int64))
    pieces = [part[:, a:b].reshape(-1) for a, b in itertools.pairwise(columns)]
    sent = np.concatenate(pieces)
    received = np.empty((height, width, *more), part.dtype)
    comm.Alltoall(
        sent,
        received,
        [piece.size for piece in pieces],
        [int(h) * width * each for h in np.diff(rows)],
    )
    return received


def columns_to_rows(part: np.ndarray, rows: Cuts, columns: Cuts, comm: Communicator) -> np.ndarray:
    """From some columns of a matrix, whole, to some rows of it."""
    turned = rows_to_columns(part.swapaxes(0, 1), columns, rows, comm)
    return turned.swapaxes(0, 1)
