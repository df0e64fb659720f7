"""QR on a grid of ranks, block-cyclic.

The ranks of a grid's column gather a panel and factorise it alike, by LAPACK: one message for each
panel instead of one for each of its columns. (TSQR along the column would compute as much where the
rows of a grid are few: its tree factorises triangles, and its Q has to be made reflections again.)
They update what is right of the panel as in LAPACK: H = I - Y T Yᴴ, by products alone. A panel is
factorised and sent while all ranks reflect what lies behind it (look-ahead).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.compiler.sharding.algorithms.lapack import householder, subtract_product
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
