"""QR of a tall matrix whose rows are spread over ranks (TSQR; Demmel et al., 2012).

Each rank factorises its own rows, and the triangles are factorised in pairs along a binary tree:
log2(p) messages of n² numbers up the tree, and as many down it for Q. Parts may be empty.
"""

from __future__ import annotations

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.lapack import householder, reflected

_UP, _DOWN = 1, 2
"""Tags of messages towards the root of the tree and away from it."""


def tsqr(part: np.ndarray, comm: Communicator) -> tuple[np.ndarray, np.ndarray]:
    """This rank's rows of Q, and R, which all ranks have; the diagonal of R is not negative.

    Q has as many columns as the matrix has, or as it has rows where those are fewer.
    """
    columns = part.shape[1]
    y, t, r = householder(part)
    heights = _heights(len(part), columns, comm)
    levels: list[tuple[int, int, np.ndarray, np.ndarray]] = []
    distance = 1
    while distance < comm.size:
        if comm.rank % (2 * distance):
            comm.Send(np.ascontiguousarray(r), comm.rank - distance, _UP)
            break
        other = comm.rank + distance
        if other < comm.size:
            below = np.empty((heights[distance][other], columns), part.dtype)
            comm.Recv(below, other, _UP)
            above = len(r)
            inner_y, inner_t, r = householder(np.concatenate((r, below)))
            levels.append((other, above, inner_y, inner_t))
        distance *= 2
    whole = np.empty((heights[distance if comm.rank == 0 else 0][0], columns), part.dtype)
    if comm.rank == 0:
        r, sign = positive_diagonal(r)
        np.copyto(whole, r)
        factor = np.diag(sign)
    comm.Bcast(whole, 0)
    if comm.rank:
        factor = np.empty((heights[distance][comm.rank], len(whole)), part.dtype)
        comm.Recv(factor, comm.rank - distance, _DOWN)
    for other, above, inner_y, inner_t in reversed(levels):
        product = reflected(inner_y, inner_t, factor)
        comm.Send(np.ascontiguousarray(product[above:]), other, _DOWN)
        factor = product[:above]
    return reflected(y, t, factor), whole


def _heights(rows: int, columns: int, comm: Communicator) -> dict[int, list[int]]:
    """For each step up the tree, the rows of each rank's triangle before it; 0: at the end."""
    own = np.array([min(rows, columns)], np.int64)
    all_rows = np.empty(comm.size, np.int64)
    comm.Allgather(own, all_rows)
    heights = [int(each) for each in all_rows]
    found: dict[int, list[int]] = {}
    distance = 1
    while distance < comm.size:
        found[distance] = heights.copy()
        for rank in range(0, comm.size - distance, 2 * distance):
            heights[rank] = min(heights[rank] + heights[rank + distance], columns)
        distance *= 2
    found[distance] = found[0] = heights
    return found


def positive_diagonal(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R with a diagonal that is not negative, and the factors of the columns of Q for that."""
    diagonal = np.diagonal(r)
    size = np.abs(diagonal)
    sign = np.where(size == 0, 1, diagonal / np.where(size == 0, 1, size)).astype(r.dtype)
    r = r * sign.conj()[:, None]
    np.fill_diagonal(r, size)
    return np.triu(r), sign
