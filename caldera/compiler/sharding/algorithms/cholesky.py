"""Cholesky on a grid of ranks, block-cyclic, right-looking.

A step factorises the block on the diagonal, solves for the panel below it, and subtracts the
panel's product with itself from the remaining matrix. The next panel is updated first: it is
factorised and sent while all ranks work on the rest (look-ahead). A rank needs the rows of the
panel at the indices of its rows and at the indices of its columns. The rank that has computed them
sends both, so that no rank waits for another to forward one: n² / 2 numbers over the number of
rows, and n² / 2 over the number of columns. On one machine they are read from the memory of their
owner.

Only the lower triangle is read. To factorise (A + Aᴴ) / 2, each number above the diagonal is sent
to the owner of its counterpart below the diagonal. A pair of ranks exchanges all its numbers in one
message, in one direction only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from caldera.compiler.sharding.algorithms.lapack import (
    cholesky_factor,
    solve_right,
    subtract_product,
)
from caldera.compiler.sharding.algorithms.lu import Cyclic
from caldera.compiler.sharding.algorithms.panels import ALL, NONE, Arriving, Places, carrier
from caldera.compiler.sharding.algorithms.process_grid import (
    ProcessGrid,
    cyclic_count,
    cyclic_indices,
)
from caldera.errors import DataError

ROWS_AT_A_TIME = 256
"""Rows of the remaining matrix updated at a time; more rows waste work above the diagonal."""
Tile = tuple[tuple[int, int], tuple[int, int]]
"""Ranges (begin, end) of the rows and the columns of a block."""
_PANEL, _ABOVE, _DIAGONAL = 4, 5, 6
"""Tags of a panel's rows, of blocks above the diagonal, and of a block on the diagonal."""


@dataclass
class CholeskyPanel:
    """Rows of a panel below its block on the diagonal, being received or sent.

    `rows` are at the indices of this rank's rows; `pieces` has, by row of the grid, the rows at the
    indices of its columns.
    """

    begin: int
    end: int
    rows: np.ndarray
    arriving: Arriving | None = None
    pieces: dict[int, Arriving] = field(default_factory=dict)


class Factorisation:
    """A rank's part of the matrix, which is overwritten, while it is factorised, and who has which
    indices."""

    def __init__(self, part: np.ndarray, n: int, block: int, grid: ProcessGrid) -> None:
        self.a = part
        self.n, self.block, self.grid = n, block, grid
        self.where = Cyclic((n, n), block, grid)
        self.failed = -1
        self._shared: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}
        # Half of a rank's part at most is above the diagonal, and half below, but for blocks on it.
        rows, columns = (cyclic_count(n, block, count, 0) for count in (grid.rows, grid.columns))
        most = rows * columns + 3 * block * max(rows, columns)
        self.carrier = carrier(grid.comm, most * self.a.itemsize)

    def shared(self, row: int, column: int, begin: int) -> tuple[Places, Places]:
        """Return the positions of the indices that a row and a column of the grid share.

        The first positions are among the indices from `begin` on of the row, the second among the
        indices from `begin` on of the column.
        """
        grid, block = self.grid, self.block
        if grid.rows == grid.columns:
            # Blocks on the diagonal are on the diagonal of the grid.
            return (ALL, ALL) if row == column else (NONE, NONE)
        if (row, column) not in self._shared:
            rows = cyclic_indices(self.n, block, grid.rows, row)
            columns = cyclic_indices(self.n, block, grid.columns, column)
            found = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)
            self._shared[row, column] = found
        both, at_rows, at_columns = self._shared[row, column]
        first = int(np.searchsorted(both, begin))
        if first == len(both):
            return NONE, NONE
        return (
            at_rows[first:] - cyclic_count(begin, block, grid.rows, row),
            at_columns[first:] - cyclic_count(begin, block, grid.columns, column),
        )

    def _rows_of(self, row: int, begin: int, places: Places) -> int:
        """Return the number of rows that a row of the grid has at these places."""
        if not isinstance(places, slice):
            return len(places)
        if places == NONE:
            return 0
        n, block, rows = self.n, self.block, self.grid.rows
        return cyclic_count(n, block, rows, row) - cyclic_count(begin, block, rows, row)

    def average(self) -> None:
        """Replace the lower triangle by the lower triangle of (A + Aᴴ) / 2."""
        grid = self.grid
        here, dtype = (grid.row, grid.column), self.a.dtype
        others = [(row, column) for row in range(grid.rows) for column in range(grid.columns)]
        others.remove(here)
        arriving = []
        for place in others:
            tiles = list(self._tiles(place, here))
            if tiles:
                shape = (sum(_size(*tile) for tile in tiles),)
                rank = grid.rank_at(*place)
                arriving.append((tiles, self.carrier.receive(shape, dtype, ALL, rank, _ABOVE)))
        for place in others:
            tiles = list(self._tiles(here, place))
            if tiles:
                ends = (0, *accumulate(_size(*tile) for tile in tiles))
                sent = self.carrier.place(ends[-1:], dtype)
                for (begin, end), tile in zip(pairwise(ends), tiles, strict=True):
                    sent[begin:end].reshape(_length(tile[0]), -1)[:] = self._above(*tile)
                self.carrier.send(sent, ALL, grid.rank_at(*place), _ABOVE)
        for tile in self._tiles(here, here):
            self._take(*tile, self._above(*tile).copy())
        for tiles, arrived in arriving:
            numbers, taken = arrived(), 0
            for tile in tiles:
                count = _size(*tile)
                self._take(*tile, numbers[taken : taken + count].reshape(_length(tile[0]), -1))
                taken += count

    def _tiles(self, source: tuple[int, int], target: tuple[int, int]) -> Iterator[Tile]:
        """Yield the blocks on the diagonal and above it that a place of the grid has, and another
        what lies as far below it."""
        grid, block, n = self.grid, self.block, self.n
        for row in range(-(-n // block)):
            if (row % grid.rows, row % grid.columns) != (source[0], target[1]):
                continue
            for column in range(row, -(-n // block)):
                if (column % grid.rows, column % grid.columns) == (target[0], source[1]):
                    yield (
                        (row * block, min((row + 1) * block, n)),
                        (column * block, min((column + 1) * block, n)),
                    )

    def _above(self, rows: tuple[int, int], columns: tuple[int, int]) -> np.ndarray:
        return self.a[self.where.local_rows(*rows), self.where.local_columns(*columns)]

    def _take(self, rows: tuple[int, int], columns: tuple[int, int], above: np.ndarray) -> None:
        """Average a block below the diagonal with its counterpart above it.

        The block above is contiguous: caches keep it while it is transposed, unlike parts of rows
        of some thousand numbers.
        """
        below = self.a[self.where.local_rows(*columns), self.where.local_columns(*rows)]
        below += above.conj().T
        below *= below.dtype.type(0.5)

    def panel(self, begin: int) -> CholeskyPanel:
        """Factorise a panel in place, and start to send it to the remaining ranks."""
        grid, where = self.grid, self.where
        end = min(begin + self.block, self.n)
        below, owner = where.local_rows(end, self.n), where.column_owner(begin)
        shape, dtype = (below.stop - below.start, end - begin), self.a.dtype
        if grid.column == owner:
            panel = CholeskyPanel(begin, end, self.carrier.place(shape, dtype))
            self._solve(panel, below)
            self._send(panel)
        else:
            panel = CholeskyPanel(begin, end, np.empty((0, end - begin), dtype))
            if shape[0]:
                rank = grid.rank_at(grid.row, owner)
                panel.arriving = self.carrier.receive(shape, dtype, ALL, rank, _PANEL)
        for row in range(grid.rows):
            places = self.shared(row, grid.column, end)[0]
            if row != grid.row and self._rows_of(row, end, places):
                shape = (self._rows_of(row, end, ALL), end - begin)
                rank = grid.rank_at(row, owner)
                panel.pieces[row] = self.carrier.receive(shape, dtype, places, rank, _PANEL)
        return panel

    def _solve(self, panel: CholeskyPanel, below: slice) -> None:
        """The block on the diagonal, then the rows below it."""
        a, grid, where, width = self.a, self.grid, self.where, panel.end - panel.begin
        here = where.local_columns(panel.begin, panel.end)
        owner = int(where.row_owner(panel.begin))
        if grid.row == owner:
            own = where.local_rows(panel.begin, panel.end)
            diagonal = self.carrier.place((width, width), a.dtype)
            # nan, which all ranks of the column will see, if it has none.
            diagonal[:] = cholesky_factor(a[own, here])
            for row in range(grid.rows):
                if row != owner:
                    self.carrier.send(diagonal, ALL, grid.rank_at(row, grid.column), _DIAGONAL)
            a[own, here] = diagonal
        else:
            rank = grid.rank_at(owner, grid.column)
            diagonal = self.carrier.receive((width, width), a.dtype, ALL, rank, _DIAGONAL)()
        if self.failed < 0 and np.isnan(diagonal[0, 0]):
            self.failed = panel.end
        panel.rows[:] = a[below, here]
        solve_right(panel.rows, diagonal, lower=True, adjoint=True)
        a[below, here] = panel.rows

    def _send(self, panel: CholeskyPanel) -> None:
        """Send each rank the rows at the indices of its rows or of its columns.

        The ranks that factorise the next panel come first.
        """
        grid = self.grid
        for step in range(1, grid.columns + 1):
            column = (grid.column + step) % grid.columns
            piece = self.shared(grid.row, column, panel.end)[0]
            for row in range(grid.rows):
                places, rank = ALL if row == grid.row else piece, grid.rank_at(row, column)
                if self._rows_of(grid.row, panel.end, places) and rank != grid.comm.rank:
                    self.carrier.send(panel.rows, places, rank, _PANEL)

    def arrived(self, panel: CholeskyPanel) -> np.ndarray:
        """Waits for a panel: the adjoint of its rows at the indices of this rank's columns."""
        if panel.arriving is not None:
            panel.rows = panel.arriving()
        pieces = {row: arrived() for row, arrived in panel.pieces.items()}
        grid, end = self.grid, panel.end
        columns = self.where.local_columns(end, self.n)
        count = columns.stop - columns.start
        pieces[grid.row] = panel.rows[self.shared(grid.row, grid.column, end)[0]]
        found = next((each for each in pieces.values() if len(each) == count), None)
        if found is None:
            found = np.empty((count, end - panel.begin), self.a.dtype)
            for row, piece in pieces.items():
                found[self.shared(row, grid.column, end)[1]] = piece
        return found.conj().T

    def update(self, panel: CholeskyPanel, top: np.ndarray, begin: int, end: int) -> None:
        """Take a panel's product with itself off the columns from `begin` to `end`; `top` has its
        rows at the indices of this rank's columns."""
        where = self.where
        below = where.local_rows(panel.end, self.n)
        after = where.local_columns(panel.end, begin).start
        columns = where.local_columns(begin, end)
        for first in range(below.start, below.stop, ROWS_AT_A_TIME):
            # Only elements below the diagonal are ever read.
            last = min(first + ROWS_AT_A_TIME, below.stop)
            left = columns.start
            until = where.local_columns(begin, min(int(where.rows[last - 1]) + 1, end)).stop
            if until > left:
                own = panel.rows[first - below.start : last - below.start]
                part = top[:, left - after : until - after]
                subtract_product(self.a[first:last, left:until], own, part)


def _length(part: tuple[int, int]) -> int:
    return part[1] - part[0]


def _size(rows: tuple[int, int], columns: tuple[int, int]) -> int:
    return _length(rows) * _length(columns)


def cholesky(
    part: np.ndarray, n: int, block: int, grid: ProcessGrid, *, average: bool = False
) -> np.ndarray:
    """Return this rank's part of the lower triangular L with L Lᴴ = A.

    The upper triangle of A is not read; with `average`, L Lᴴ = (A + Aᴴ) / 2. All parts are
    block-cyclic with square blocks.
    """
    made = np.array(part, order="C")
    factorise(made, n, block, grid, average=average)
    return made


def factorise(
    part: np.ndarray, n: int, block: int, grid: ProcessGrid, *, average: bool = False
) -> None:
    """Factorise in place like `cholesky`; the rows of the part must be contiguous."""
    found = Factorisation(part, n, block, grid)
    if average:
        found.average()
    ahead = found.panel(0) if n else None
    while ahead is not None:
        panel, ahead = ahead, None
        top, end = found.arrived(panel), panel.end
        done = min(end + block, n)
        if end < n:
            # The next panel is sent while all ranks update the matrix behind it.
            found.update(panel, top, end, done)
            ahead = found.panel(end)
        found.update(panel, top, done, n)
    found.carrier.finish()
    # After this collective, no rank reads posted arrays.
    _check(found.failed, grid)
    where = found.where
    for begin in range(0, n, block):
        # Blocks on the diagonal have zeros of LAPACK.
        end = min(begin + block, n)
        found.a[where.local_rows(begin, end), where.local_columns(end, n)] = 0


def _check(failed: int, grid: ProcessGrid) -> None:
    """Raise an error on all ranks if one has failed, checked once at the end."""
    found = np.array([failed], np.int64)
    grid.comm.Allreduce(found, found, "max")
    if found[0] >= 0:
        raise DataError.build(
            "dmath.cholesky",
            expected="a symmetric positive definite matrix",
            got=f"one whose leading {found[0]} rows and columns are none",
            hint="add a small multiple of the identity to it",
        )
