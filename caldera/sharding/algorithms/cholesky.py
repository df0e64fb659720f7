"""Cholesky on a grid of ranks, block-cyclic, right-looking.

A step factorises the block on the diagonal, solves for the panel below it, and takes the panel's
product with itself off what remains: first off the next panel, which is factorised and sent while
all ranks work on the rest (look-ahead). A rank needs the panel's rows that are its rows (sent along
the row of the grid) and those that are its columns (gathered along the column of the grid): n² / 2
numbers over the number of rows, and as many over that of columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.errors import DataError
from caldera.sharding.algorithms.lapack import solve_right, subtract_product
from caldera.sharding.algorithms.process_grid import (
    Broadcast,
    ProcessGrid,
    cyclic_indices,
    gather_rows,
)

ROWS_AT_A_TIME = 256
"""Of what is left: the more rows, the more is computed above the diagonal for nothing."""


@dataclass
class Panel:
    """The rows below a block of the diagonal, on their way along the rows of the grid."""

    begin: int
    end: int
    rows: np.ndarray
    arriving: Broadcast


class Factorisation:
    """A rank's part of the matrix while it is factorised, and the indices it has."""

    def __init__(self, part: np.ndarray, n: int, block: int, grid: ProcessGrid) -> None:
        self.a = np.ascontiguousarray(part).copy()
        self.n, self.block, self.grid = n, block, grid
        self.rows = cyclic_indices(n, block, grid.rows, grid.row)
        self.columns = cyclic_indices(n, block, grid.columns, grid.column)
        self.failed = -1

    def panel(self, begin: int) -> Panel:
        """Factorise a panel where it is, and begin to send it to the others."""
        a, grid = self.a, self.grid
        end = min(begin + self.block, self.n)
        owner_row = (begin // self.block) % grid.rows
        owner_column = (begin // self.block) % grid.columns
        below = int(np.searchsorted(self.rows, end))
        found = np.empty((len(self.rows) - below, end - begin), a.dtype)
        if grid.column == owner_column:
            here = slice(*np.searchsorted(self.columns, (begin, end)))
            diagonal = np.empty((end - begin, end - begin), a.dtype)
            if grid.row == owner_row:
                _factorise(a, slice(*np.searchsorted(self.rows, (begin, end))), here, diagonal)
            grid.along_column.Bcast(diagonal, owner_row)
            if self.failed < 0 and np.isnan(diagonal[0, 0]):
                self.failed = end
            solve_right(a[below:, here], diagonal, lower=True, adjoint=True)
            found[:] = a[below:, here]
        return Panel(begin, end, found, Broadcast([found], owner_column, grid.along_row))

    def update(self, panel: Panel, top: np.ndarray, begin: int, end: int) -> None:
        """Take a panel's product with itself off the columns from `begin` to `end`; `top` has its
        rows at the indices of this rank's columns."""
        below = int(np.searchsorted(self.rows, panel.end))
        after, left, right = np.searchsorted(self.columns, (panel.end, begin, end))
        for first in range(below, len(self.rows), ROWS_AT_A_TIME):
            # Only what lies below the diagonal is ever read.
            last = min(first + ROWS_AT_A_TIME, len(self.rows))
            until = min(np.searchsorted(self.columns, self.rows[last - 1], side="right"), right)
            if until > left:
                own = panel.rows[first - below : last - below]
                part = top[:, left - after : until - after]
                subtract_product(self.a[first:last, left:until], own, part)


def cholesky(part: np.ndarray, n: int, block: int, grid: ProcessGrid) -> np.ndarray:
    """This rank's part of the lower triangular L with L Lᴴ = A, of whose upper triangle nothing is
    read; all parts are block-cyclic with square blocks."""
    found = Factorisation(part, n, block, grid)
    ahead = found.panel(0) if n else None
    while ahead is not None:
        panel, ahead = ahead, None
        panel.arriving.wait()
        end = panel.end
        across = _rows_that_are_columns(
            panel.rows, found.rows[np.searchsorted(found.rows, end) :], n, end, block, grid
        )
        top = across.conj().T
        done = min(end + block, n)
        if end < n:
            # The next panel is on its way while all ranks update what lies behind it.
            found.update(panel, top, end, done)
            ahead = found.panel(end)
        found.update(panel, top, done, n)
    _check(found.failed, grid)
    found.a[found.rows[:, None] < found.columns] = 0
    return found.a


def _factorise(a: np.ndarray, rows: slice, columns: slice, diagonal: np.ndarray) -> None:
    """The block on the diagonal; nan, which all ranks of the column will see, if it has none."""
    lower = np.tril(a[rows, columns])
    try:
        diagonal[:] = np.linalg.cholesky(lower + np.tril(lower, -1).conj().T)
    except np.linalg.LinAlgError:
        diagonal[:] = np.nan
    a[rows, columns] = diagonal


def _check(failed: int, grid: ProcessGrid) -> None:
    """All ranks learn at the end that one has failed: none of them waits for it meanwhile."""
    found = np.array([failed], np.int64)
    grid.comm.Allreduce(found, found, "max")
    if found[0] >= 0:
        raise DataError.build(
            "dmath.cholesky", expected="a symmetric positive definite matrix",
            got=f"one whose leading {found[0]} rows and columns are none",
            hint="add a small multiple of the identity to it",
        )  # fmt: skip


def _rows_that_are_columns(
    panel: np.ndarray, rows: np.ndarray, n: int, begin: int, block: int, grid: ProcessGrid
) -> np.ndarray:
    """The rows of a panel at the indices of this rank's columns, from `begin` on."""
    wanted = cyclic_indices(n, block, grid.columns, grid.column)
    wanted = wanted[np.searchsorted(wanted, begin) :]
    owner = (wanted // block) % grid.rows
    own = panel[np.searchsorted(rows, wanted[owner == grid.row])]
    gathered = gather_rows(own, np.bincount(owner, minlength=grid.rows).tolist(), grid.along_column)
    # They come rank by rank.
    found = np.empty_like(gathered)
    found[np.argsort(owner, kind="stable")] = gathered
    return found
