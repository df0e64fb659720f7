"""LU with partial pivoting on a grid of ranks, block-cyclic, right-looking; solving with it.

The ranks in a column of the grid gather a panel and factorise it redundantly, by LAPACK. This sends
a single message per panel instead of a message per column, and finds exactly the pivots of
single-process LU. Rows are then exchanged along the columns of the grid, all exchanges of a panel
in a single message. A panel is factorised and sent while all ranks update the matrix behind it
(look-ahead).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.compiler.sharding.algorithms.lapack import (
    lu_factor,
    solve_triangular,
    subtract_product,
)
from caldera.compiler.sharding.algorithms.process_grid import (
    Broadcast,
    ProcessGrid,
    cyclic_count,
    cyclic_indices,
    gather_rows,
)
from caldera.errors import DataError


@dataclass
class Cyclic:
    """Block-cyclic indices of a matrix on a grid: this rank's indices, and their owners."""

    shape: tuple[int, int]
    block: int
    grid: ProcessGrid

    def __post_init__(self) -> None:
        grid, block = self.grid, self.block
        self.rows = cyclic_indices(self.shape[0], block, grid.rows, grid.row)
        self.columns = cyclic_indices(self.shape[1], block, grid.columns, grid.column)
        # Number of local indices before an index, read many times per panel.
        self._rows_before = _counts_before(self.rows, self.shape[0])
        self._columns_before = _counts_before(self.columns, self.shape[1])

    def row_owner(self, row: int | np.ndarray) -> int | np.ndarray:
        """Return the row of the grid that owns a row of the matrix."""
        return (row // self.block) % self.grid.rows

    def column_owner(self, column: int) -> int:
        """Return the column of the grid that owns a column of the matrix."""
        return (column // self.block) % self.grid.columns

    def local_rows(self, begin: int, end: int) -> slice:
        """Return this rank's rows of a range."""
        return slice(self._rows_before[begin], self._rows_before[end])

    def local_columns(self, begin: int, end: int) -> slice:
        """Return this rank's columns of a range."""
        return slice(self._columns_before[begin], self._columns_before[end])

    def row_counts(self, begin: int) -> list[int]:
        """Return the number of matrix rows from `begin` on in each row of the grid."""
        block, parts, m = self.block, self.grid.rows, self.shape[0]
        return [
            cyclic_count(m, block, parts, part) - cyclic_count(begin, block, parts, part)
            for part in range(parts)
        ]


def _counts_before(indices: np.ndarray, length: int) -> list[int]:
    return np.searchsorted(indices, np.arange(length + 1)).tolist()


@dataclass
class LUPanel:
    """Panel of L and U being sent along the rows of the grid.

    It has this rank's rows, the upper block, and the previous indices of the rows from `begin` on.
    """

    begin: int
    end: int
    rows: np.ndarray
    top: np.ndarray
    moved: np.ndarray
    arriving: Broadcast


def _panel(a: np.ndarray, begin: int, where: Cyclic) -> LUPanel:
    """Factorise a panel in place, and start to send it to the remaining ranks."""
    grid, n = where.grid, where.shape[0]
    end = min(begin + where.block, n)
    owner = where.column_owner(begin)
    rest = where.local_rows(begin, n)
    rows = np.empty((rest.stop - rest.start, end - begin), a.dtype)
    top = np.empty((end - begin, end - begin), a.dtype)
    moved = np.arange(begin, n)
    if grid.column == owner:
        whole = _whole_panel(a[rest, where.local_columns(begin, end)], begin, where)
        factors, exchanged = lu_factor(whole)
        for row, other in enumerate(exchanged):
            moved[[row, other]] = moved[[other, row]]
        rows[:], top[:] = factors[where.rows[rest] - begin], factors[: end - begin]
    arriving = Broadcast([moved, top, rows], owner, grid.along_row)
    return LUPanel(begin, end, rows, top, moved, arriving)


def lu(part: np.ndarray, n: int, block: int, grid: ProcessGrid) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's part of L (without its diagonal of ones) and U in one matrix, and the rows
    of A in the order in which L U has them."""
    a = np.ascontiguousarray(part).copy()
    where = Cyclic((n, n), block, grid)
    order = np.arange(n)
    ahead = _panel(a, 0, where) if n else None
    while ahead is not None:
        panel, ahead = ahead, None
        begin, end = panel.begin, panel.end
        panel.arriving.wait()
        order[begin:] = order[panel.moved]
        exchange_rows(a, begin, panel.moved, where)
        if grid.column == where.column_owner(begin):
            a[where.local_rows(begin, n), where.local_columns(begin, end)] = panel.rows
        upper = _upper(a, panel, where)
        below, right = where.local_rows(end, n), where.local_columns(end, n)
        lower = panel.rows[below.start - where.local_rows(begin, n).start :]
        soon = where.local_columns(end, min(end + block, n))
        width = soon.stop - soon.start
        if end < n:
            # The next panel is sent while all ranks update the matrix behind it.
            subtract_product(a[below, soon], lower, upper[:, :width])
            ahead = _panel(a, end, where)
        subtract_product(a[below, soon.stop : right.stop], lower, upper[:, width:])
    return a, order


def _upper(a: np.ndarray, panel: LUPanel, where: Cyclic) -> np.ndarray:
    """Return the rows of U right of a panel, on all ranks of this column of the grid."""
    grid, owner = where.grid, int(where.row_owner(panel.begin))
    right = where.local_columns(panel.end, where.shape[1])
    upper = np.empty((panel.end - panel.begin, right.stop - right.start), a.dtype)
    if grid.row == owner:
        own = where.local_rows(panel.begin, panel.end)
        upper[:] = solve_triangular(panel.top, a[own, right], lower=True, unit=True)
        a[own, right] = upper
    grid.along_column.Bcast(upper, owner)
    return upper


def _whole_panel(part: np.ndarray, begin: int, where: Cyclic) -> np.ndarray:
    """All rows of a panel from `begin` on, on every rank of this column of the grid."""
    grid, n = where.grid, where.shape[0]
    owner = np.asarray(where.row_owner(np.arange(begin, n)))
    gathered = gather_rows(part, where.row_counts(begin), grid.along_column)
    whole = np.empty((n - begin, part.shape[1]), part.dtype)
    whole[np.argsort(owner, kind="stable")] = gathered
    return whole


def exchange_rows(a: np.ndarray, begin: int, moved: np.ndarray, where: Cyclic) -> None:
    """Row begin + i becomes row moved[i], which another rank of the column of the grid may have."""
    target = begin + np.arange(len(moved))
    target, source = target[moved != target], moved[moved != target]
    if not len(target):
        return
    rows, grid = where.rows, where.grid
    giver, taker = np.asarray(where.row_owner(source)), np.asarray(where.row_owner(target))
    leaving, arriving = giver == grid.row, taker == grid.row
    width = a.shape[1]
    # Rank by rank, and for each in the order of the targets, on both sides.
    out = source[leaving][np.argsort(taker[leaving], kind="stable")]
    to = target[arriving][np.argsort(giver[arriving], kind="stable")]
    sent = a[np.searchsorted(rows, out)]
    received = np.empty((len(to), width), a.dtype)
    if grid.rows == 1:
        received = sent
    else:
        grid.along_column.Alltoall(
            sent,
            received,
            (np.bincount(taker[leaving], minlength=grid.rows) * width).tolist(),
            (np.bincount(giver[arriving], minlength=grid.rows) * width).tolist(),
        )
    a[np.searchsorted(rows, to)] = received


def solve_lu(
    factors: np.ndarray,
    order: np.ndarray,
    b: np.ndarray,
    columns: int,
    block: int,
    grid: ProcessGrid,
) -> np.ndarray:
    """Return this rank's part of x with A x = b, both block-cyclic on the grid of the factors."""
    n = len(order)
    of_b = Cyclic((n, columns), block, grid)
    x = np.ascontiguousarray(b).copy()
    exchange_rows(x, 0, order, of_b)
    triangular_solve(factors, x, n, block, grid, lower=True, unit=True)
    triangular_solve(factors, x, n, block, grid, lower=False)
    return x


def triangular_solve(
    a: np.ndarray,
    x: np.ndarray,
    n: int,
    block: int,
    grid: ProcessGrid,
    *,
    lower: bool,
    unit: bool = False,
) -> None:
    """x becomes the solution for a triangle of `a` and the right side x, panel by panel."""
    where = Cyclic((n, n), block, grid)
    begins = range(0, n, block)
    for begin in begins if lower else reversed(begins):
        end = min(begin + block, n)
        owner_row, owner_column = int(where.row_owner(begin)), where.column_owner(begin)
        rest = where.local_rows(begin, n) if lower else where.local_rows(0, end)
        panel = np.empty((rest.stop - rest.start, end - begin), a.dtype)
        if grid.column == owner_column:
            panel[:] = a[rest, where.local_columns(begin, end)]
        grid.along_row.Bcast(panel, owner_column)
        found = np.empty((end - begin, x.shape[1]), x.dtype)
        own = where.local_rows(begin, end)
        if grid.row == owner_row:
            diagonal = panel[own.start - rest.start : own.stop - rest.start]
            found[:] = solve_triangular(diagonal, x[own], lower=lower, unit=unit)
            x[own] = found
        grid.along_column.Bcast(found, owner_row)
        others = where.local_rows(end, n) if lower else where.local_rows(0, begin)
        part = panel[others.start - rest.start : others.stop - rest.start]
        subtract_product(x[others], part, found)


def diagonal_of(
    part: np.ndarray, shape: tuple[int, int], block: int, grid: ProcessGrid
) -> np.ndarray:
    """Return the diagonal of a block-cyclic matrix, on all ranks."""
    where = Cyclic(shape, block, grid)
    found = np.zeros(min(shape), part.dtype)
    both, row, column = np.intersect1d(where.rows, where.columns, return_indices=True)
    found[both] = part[row, column]
    grid.comm.Allreduce(found, found)
    return found


def slogdet(factors: np.ndarray, order: np.ndarray, block: int, grid: ProcessGrid) -> tuple:
    """Return the sign of the determinant, of length 1 or 0, and the logarithm of its magnitude."""
    diagonal = diagonal_of(factors, (len(order), len(order)), block, grid)
    size = np.abs(diagonal)
    if np.any(size == 0):
        return diagonal.dtype.type(0), size.dtype.type(-np.inf)
    sign = np.prod(diagonal / size) * _parity(order)
    return diagonal.dtype.type(sign), np.sum(np.log(size))


def _parity(order: np.ndarray) -> int:
    """1 for an even permutation and -1 for an odd one: an exchange less than its length a cycle."""
    seen, sign = np.zeros(len(order), bool), 1
    for first in range(len(order)):
        at, length = first, 0
        while not seen[at]:
            seen[at] = True
            at, length = order[at], length + 1
        if length and length % 2 == 0:
            sign = -sign
    return sign


def check_invertible(factors: np.ndarray, n: int, block: int, grid: ProcessGrid) -> None:
    """Refuse, on all ranks, a matrix for which a pivot is 0."""
    diagonal = diagonal_of(factors, (n, n), block, grid)
    if np.any(diagonal == 0):
        raise DataError.build(
            "dmath.solve",
            expected="an invertible matrix",
            got=f"one whose pivot {int(np.argmin(np.abs(diagonal)))} is 0",
            hint="add a multiple of the identity to it, or use dmath.lstsq",
        )
