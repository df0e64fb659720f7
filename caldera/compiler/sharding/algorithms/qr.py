"""QR factorisation on ranks: block-cyclic on a grid, and TSQR of tall matrices.

On a grid the ranks of a column gather a panel and factorise it redundantly, by LAPACK: one
message for each panel instead of one for each of its columns. (TSQR along the column would
compute as much on grids with few rows: its tree factorises triangles, and its Q has to be
converted to reflections.) The ranks update the matrix right of the panel as in LAPACK: H = I - Y
T Yᴴ, by products alone. A panel is factorised and sent while all ranks reflect the columns behind
it (look-ahead).

TSQR (Demmel et al., 2012): each rank factorises its own rows, and the triangles are factorised in
pairs along a binary tree: log2(p) messages of n² numbers up the tree, and as many down it for Q.
Parts may be empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.lapack import householder, reflected, subtract_product
from caldera.compiler.sharding.algorithms.lu import Cyclic, diagonal_of
from caldera.compiler.sharding.algorithms.process_grid import (
    Broadcast,
    ProcessGrid,
    gather_rows,
    sum_over,
)


@dataclass
class Reflectors:
    """Some Householder reflections together, I - Y T Yᴴ: this rank's rows of Y, from row `begin` of
    the matrix on, on every rank of a row of the grid."""

    begin: int
    y: np.ndarray
    t: np.ndarray

    def apply(self, x: np.ndarray, grid: ProcessGrid, *, adjoint: bool) -> None:
        """x becomes H x or Hᴴ x; its rows are those of Y."""
        inner = sum_over(self.y.conj().T @ x, grid.along_column)
        factor = self.t.conj().T if adjoint else self.t
        subtract_product(x, self.y, factor @ inner)


def qr(
    part: np.ndarray, shape: tuple[int, int], block: int, grid: ProcessGrid
) -> tuple[np.ndarray, np.ndarray]:
    """This rank's parts of Q and R, reduced, block-cyclic as the matrix is; the diagonal of R is
    not negative."""
    a = np.ascontiguousarray(part).copy()
    m, n = shape
    k = min(m, n)
    where = Cyclic(shape, block, grid)
    found = _reflected(a, k, where)
    of_q = Cyclic((m, k), block, grid)
    q = (of_q.rows[:, None] == of_q.columns).astype(a.dtype)
    for step in reversed(found):
        # What is left of this column has nothing but zeros in the rows that are reflected.
        right = of_q.local_columns(step.begin, k)
        rows = of_q.local_rows(step.begin, m)
        step.apply(q[rows, right], grid, adjoint=False)
    r = a[: where.local_rows(0, k).stop]
    r[where.rows[: len(r), None] > where.columns] = 0
    return _with_positive_diagonal(q, r, (k, n), block, grid)


def _reflected(a: np.ndarray, k: int, where: Cyclic) -> list[Reflectors]:
    """The reflections that make zeros below the diagonal of `a`, which becomes R."""
    grid, (m, n), block = where.grid, where.shape, where.block
    found = []
    ahead = _panel(a, 0, min(block, k), where) if k else None
    while ahead is not None:
        (step, arriving), ahead = ahead, None
        arriving.wait()
        rows, end = where.local_rows(step.begin, m), step.begin + len(step.t)
        right = where.local_columns(end, n)
        if end < k:
            # The next panel is on its way while all ranks reflect what lies behind it.
            soon = where.local_columns(end, min(end + block, k))
            if soon.stop > soon.start:
                step.apply(a[rows, soon], grid, adjoint=True)
            ahead = _panel(a, end, min(end + block, k), where)
            right = slice(soon.stop, right.stop)
        step.apply(a[rows, right], grid, adjoint=True)
        found.append(step)
    return found


def _panel(a: np.ndarray, begin: int, end: int, where: Cyclic) -> tuple[Reflectors, Broadcast]:
    """Factorise a panel where it is, and begin to send its reflections to the others."""
    grid, m, width = where.grid, where.shape[0], end - begin
    owner = where.column_owner(begin)
    rows = where.local_rows(begin, m)
    # T above Y: one message.
    both = np.empty((width + rows.stop - rows.start, width), a.dtype)
    t, y = both[:width], both[width:]
    if grid.column == owner:
        here = where.local_columns(begin, end)
        whole, own = _whole_panel(a[rows, here], begin, where)
        all_y, t[:], r = householder(whole)
        y[:] = all_y[own]
        if grid.row == where.row_owner(begin):
            a[where.local_rows(begin, end), here] = r
    return Reflectors(begin, y, t), Broadcast([both], owner, grid.along_row)


def _whole_panel(part: np.ndarray, begin: int, where: Cyclic) -> tuple[np.ndarray, slice]:
    """All rows of a panel from `begin` on, as LAPACK has them, and which of them are this rank's.

    The first are those of the diagonal; the order of the others is that of the ranks, for it is of
    no consequence to reflections.
    """
    grid, counts = where.grid, where.row_counts(begin)
    gathered = gather_rows(part, counts, grid.along_column)
    total = len(gathered)
    first = sum(counts[: int(where.row_owner(begin))])
    whole = np.empty(gathered.shape, part.dtype, order="F")
    whole[: total - first], whole[total - first :] = gathered[first:], gathered[:first]
    at = (sum(counts[: grid.row]) - first) % max(total, 1)
    return whole, slice(at, at + counts[grid.row])


def _with_positive_diagonal(
    q: np.ndarray, r: np.ndarray, shape: tuple[int, int], block: int, grid: ProcessGrid
) -> tuple[np.ndarray, np.ndarray]:
    where = Cyclic(shape, block, grid)
    diagonal = diagonal_of(r, shape, block, grid)
    size = np.abs(diagonal)
    sign = np.where(size == 0, 1, diagonal / np.where(size == 0, 1, size)).astype(r.dtype)
    r *= sign.conj()[where.rows, None]
    if np.iscomplexobj(r):
        # What rounding left beside the real diagonal.
        r[where.rows[:, None] == where.columns] = size[np.intersect1d(where.rows, where.columns)]
    columns = Cyclic((1, shape[0]), block, grid).columns
    q *= sign[columns]
    return q, r


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
