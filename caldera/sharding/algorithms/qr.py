"""QR on a grid of ranks, block-cyclic, communication-avoiding.

A panel is factorised by TSQR along its column of the grid, log2(rows) messages instead of one for
each of its columns, and its Householder vectors are found from Q (Ballard et al., Reconstructing
Householder vectors from TSQR, 2014). They update what is right of the panel as in LAPACK:
H = I - Y T Yᴴ, by products alone. A panel is factorised and sent while all ranks reflect what lies
behind it (look-ahead).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.sharding.algorithms.lapack import (
    solve_right,
    solve_triangular,
    subtract_product,
)
from caldera.sharding.algorithms.lu import Cyclic, diagonal_of
from caldera.sharding.algorithms.process_grid import Broadcast, ProcessGrid, sum_over
from caldera.sharding.algorithms.tsqr import tsqr


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
        some = np.ascontiguousarray(q[rows, right])
        step.apply(some, grid, adjoint=False)
        q[rows, right] = some
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
    grid, m = where.grid, where.shape[0]
    owner_row, owner_column = int(where.row_owner(begin)), where.column_owner(begin)
    rows, own = where.local_rows(begin, m), where.local_rows(begin, end)
    y = np.empty((rows.stop - rows.start, end - begin), a.dtype)
    t = np.empty((end - begin, end - begin), a.dtype)
    if grid.column == owner_column:
        here = where.local_columns(begin, end)
        q, r = tsqr(a[rows, here], grid.along_column)
        is_top = grid.row == owner_row
        top = q[: end - begin] if is_top else np.empty_like(t)
        factors, sign = _signed_lu(top) if is_top else (np.empty_like(t), np.empty(len(t), t.dtype))
        grid.along_column.Bcast(factors, owner_row)
        grid.along_column.Bcast(sign, owner_row)
        upper = np.triu(factors)
        y[:] = q
        solve_right(y, upper, lower=False)
        lower = np.tril(factors, -1) + np.eye(len(t), dtype=t.dtype)
        t[:] = -solve_triangular(lower, (upper * sign.conj()).conj().T, lower=True).conj().T
        if is_top:
            y[: end - begin] = lower
            a[own, here] = sign[:, None] * r
    return Reflectors(begin, y, t), Broadcast([y, t], owner_column, grid.along_row)


def _signed_lu(top: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """L and U of top - diag(sign), with signs that make every pivot 1 or more: no exchanges."""
    a, sign = top.copy(), np.empty(len(top), top.dtype)
    for step in range(len(a)):
        pivot = a[step, step]
        size = abs(pivot)
        sign[step] = -pivot / size if size else -1
        a[step, step] = pivot - sign[step]
        a[step + 1 :, step] /= a[step, step]
        a[step + 1 :, step + 1 :] -= np.outer(a[step + 1 :, step], a[step, step + 1 :])
    return a, sign


def _with_positive_diagonal(
    q: np.ndarray, r: np.ndarray, shape: tuple[int, int], block: int, grid: ProcessGrid
) -> tuple[np.ndarray, np.ndarray]:
    where = Cyclic(shape, block, grid)
    diagonal = diagonal_of(r, shape, block, grid)
    size = np.abs(diagonal)
    sign = np.where(size == 0, 1, diagonal / np.where(size == 0, 1, size)).astype(r.dtype)
    r = r * sign.conj()[where.rows, None]
    if np.iscomplexobj(r):
        # What rounding left beside the real diagonal.
        r[where.rows[:, None] == where.columns] = size[np.intersect1d(where.rows, where.columns)]
    columns = Cyclic((1, shape[0]), block, grid).columns
    return q * sign[columns], r
