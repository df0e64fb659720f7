"""Cholesky on a grid of ranks, block-cyclic, right-looking.

A step factorises the block on the diagonal, solves for the panel below it, and takes the panel's
product with itself off what remains. A rank needs the panel's rows that are its rows (sent along
the row of the grid) and those that are its columns (gathered along the column of the grid): n² / 2
numbers over the number of rows, and as many over that of columns.
"""

from __future__ import annotations

import numpy as np

from caldera.errors import DataError
from caldera.sharding.algorithms.lapack import solve_right, subtract_product
from caldera.sharding.algorithms.process_grid import ProcessGrid, cyclic_indices, gather_rows

ROWS_AT_A_TIME = 256
"""Of what is left: the more rows, the more is computed above the diagonal for nothing."""


def cholesky(part: np.ndarray, n: int, block: int, grid: ProcessGrid) -> np.ndarray:
    """This rank's part of the lower triangular L with L Lᴴ = A, of whose upper triangle nothing is
    read; all parts are block-cyclic with square blocks."""
    a = np.ascontiguousarray(part).copy()
    rows = cyclic_indices(n, block, grid.rows, grid.row)
    columns = cyclic_indices(n, block, grid.columns, grid.column)
    failed = -1
    for begin in range(0, n, block):
        end = min(begin + block, n)
        owner_row, owner_column = (begin // block) % grid.rows, (begin // block) % grid.columns
        below, right = np.searchsorted(rows, end), np.searchsorted(columns, end)
        panel = np.empty((len(rows) - below, end - begin), a.dtype)
        if grid.column == owner_column:
            here = slice(*np.searchsorted(columns, (begin, end)))
            diagonal = np.empty((end - begin, end - begin), a.dtype)
            if grid.row == owner_row:
                _factorise(a, slice(*np.searchsorted(rows, (begin, end))), here, diagonal)
            grid.along_column.Bcast(diagonal, owner_row)
            if failed < 0 and np.isnan(diagonal[0, 0]):
                failed = end
            solve_right(a[below:, here], diagonal, lower=True, adjoint=True)
            panel[:] = a[below:, here]
        grid.along_row.Bcast(panel, owner_column)
        across = _rows_that_are_columns(panel, rows[below:], n, end, block, grid)
        top = across.conj().T
        for first in range(below, len(rows), ROWS_AT_A_TIME):
            # Only what lies below the diagonal is ever read.
            last = min(first + ROWS_AT_A_TIME, len(rows))
            until = np.searchsorted(columns, rows[last - 1], side="right")
            left = panel[first - below : last - below]
            subtract_product(a[first:last, right:until], left, top[:, : until - right])
    _check(failed, grid)
    a[rows[:, None] < columns] = 0
    return a


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
