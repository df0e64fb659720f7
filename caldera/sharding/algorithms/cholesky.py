"""Cholesky on a grid of ranks, block-cyclic, right-looking.

A step factorises the block on the diagonal, solves for the panel below it, and takes the panel's
product with itself off what remains: first off the next panel, which is factorised and sent while
all ranks work on the rest (look-ahead). A rank needs the panel's rows that are its rows and those
that are its columns. Who has found them sends it both, so that nobody has to wait for one to pass
on the other: n² / 2 numbers over the number of rows, and as many over that of columns.

Only the lower triangle is read. Where that of (A + Aᴴ) / 2 is wanted, each number above the
diagonal goes to who has the one below it, all of two ranks in one message, and none the other way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from caldera.comm.request import Request
from caldera.errors import DataError
from caldera.sharding.algorithms.lapack import (
    cholesky_factor,
    solve_right,
    subtract_product,
)
from caldera.sharding.algorithms.lu import Cyclic
from caldera.sharding.algorithms.process_grid import (
    Broadcast,
    ProcessGrid,
    cyclic_count,
    cyclic_indices,
)

ROWS_AT_A_TIME = 256
"""Of what is left: the more rows, the more is computed above the diagonal for nothing."""
Places = slice | np.ndarray
Tile = tuple[tuple[int, int], tuple[int, int]]
"""Where the rows and the columns of a block begin and end."""
ALL, NONE = slice(None), slice(0, 0)
_PANEL, _ABOVE = 4, 5
"""The tags of a panel's rows, and of what lies above the diagonal."""


@dataclass
class Panel:
    """The rows below a block of the diagonal that are this rank's rows, and by row of the grid
    those that are its columns, on their way to it and from it."""

    begin: int
    end: int
    rows: np.ndarray
    pieces: dict[int, np.ndarray] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)


class Factorisation:
    """A rank's part of the matrix while it is factorised, and who has which indices."""

    def __init__(self, part: np.ndarray, n: int, block: int, grid: ProcessGrid) -> None:
        self.a = np.array(part, order="C")
        self.n, self.block, self.grid = n, block, grid
        self.where = Cyclic((n, n), block, grid)
        self.failed = -1
        self._shared: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}

    def shared(self, row: int, column: int, begin: int) -> tuple[Places, Places]:
        """Where the indices from `begin` on that a row and a column of the grid have in common are
        among all from there that the row has, and among those of the column."""
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
        """How many rows those are that a row of the grid has at some places."""
        if not isinstance(places, slice):
            return len(places)
        if places == NONE:
            return 0
        n, block, rows = self.n, self.block, self.grid.rows
        return cyclic_count(n, block, rows, row) - cyclic_count(begin, block, rows, row)

    def average(self) -> None:
        """The lower triangle becomes that of (A + Aᴴ) / 2."""
        grid = self.grid
        here, dtype = (grid.row, grid.column), self.a.dtype
        others = [(row, column) for row in range(grid.rows) for column in range(grid.columns)]
        others.remove(here)
        arriving, leaving = [], []
        for place in others:
            tiles = list(self._tiles(place, here))
            if tiles:
                numbers = np.empty(sum(_size(*tile) for tile in tiles), dtype)
                request = grid.comm.Irecv(numbers, grid.rank_at(*place), _ABOVE)
                arriving.append((tiles, numbers, request))
        for place in others:
            above = [self._above(*tile).reshape(-1) for tile in self._tiles(here, place)]
            if above:
                sent = np.concatenate(above)
                leaving.append(grid.comm.Isend(sent, grid.rank_at(*place), _ABOVE))
        for tile in self._tiles(here, here):
            self._take(*tile, self._above(*tile).copy())
        for tiles, numbers, request in arriving:
            request.wait()
            taken = 0
            for tile in tiles:
                count = _size(*tile)
                self._take(*tile, numbers[taken : taken + count].reshape(_length(tile[0]), -1))
                taken += count
        for request in leaving:
            request.wait()

    def _tiles(self, source: tuple[int, int], target: tuple[int, int]) -> Iterator[Tile]:
        """The blocks on the diagonal and above it that a place of the grid has, and another what
        lies as far below it."""
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
        """Average a block below the diagonal with that above it, which lies in one piece: caches
        keep it while it is turned, and not what is a part of rows of some thousand numbers."""
        below = self.a[self.where.local_rows(*columns), self.where.local_columns(*rows)]
        below += above.conj().T
        below *= below.dtype.type(0.5)

    def panel(self, begin: int) -> Panel:
        """Factorise a panel where it is, and begin to send it to the others."""
        grid, where = self.grid, self.where
        end = min(begin + self.block, self.n)
        below, owner = where.local_rows(end, self.n), where.column_owner(begin)
        panel = Panel(begin, end, np.empty((below.stop - below.start, end - begin), self.a.dtype))
        if grid.column == owner:
            self._solve(panel, below)
            self._send(panel)
        elif panel.rows.size:
            panel.requests.append(
                grid.comm.Irecv(panel.rows, grid.rank_at(grid.row, owner), _PANEL)
            )
        for row in range(grid.rows):
            if row == grid.row:
                continue
            count = self._rows_of(row, end, self.shared(row, grid.column, end)[0])
            if count:
                piece = panel.pieces[row] = np.empty((count, end - begin), self.a.dtype)
                panel.requests.append(grid.comm.Irecv(piece, grid.rank_at(row, owner), _PANEL))
        return panel

    def _solve(self, panel: Panel, below: slice) -> None:
        """The block on the diagonal, then the rows below it."""
        a, grid, where, width = self.a, self.grid, self.where, panel.end - panel.begin
        here = where.local_columns(panel.begin, panel.end)
        owner = int(where.row_owner(panel.begin))
        diagonal = np.empty((width, width), a.dtype)
        if grid.row == owner:
            own = where.local_rows(panel.begin, panel.end)
            # nan, which all ranks of the column will see, if it has none.
            diagonal[:] = cholesky_factor(a[own, here])
            a[own, here] = diagonal
        Broadcast([diagonal], owner, grid.along_column).wait()
        if self.failed < 0 and np.isnan(diagonal[0, 0]):
            self.failed = panel.end
        panel.rows[:] = a[below, here]
        solve_right(panel.rows, diagonal, lower=True, adjoint=True)
        a[below, here] = panel.rows

    def _send(self, panel: Panel) -> None:
        """To each rank the rows that are its rows, or else those that are its columns: first to
        those who factorise the next panel."""
        grid = self.grid
        for step in range(1, grid.columns + 1):
            column = (grid.column + step) % grid.columns
            piece = panel.rows[self.shared(grid.row, column, panel.end)[0]]
            for row in range(grid.rows):
                sent = panel.rows if row == grid.row else piece
                rank = grid.rank_at(row, column)
                if sent.size and rank != grid.comm.rank:
                    panel.requests.append(grid.comm.Isend(sent, rank, _PANEL))

    def arrived(self, panel: Panel) -> np.ndarray:
        """Waits for a panel: the adjoint of its rows at the indices of this rank's columns."""
        for request in panel.requests:
            request.wait()
        grid, end = self.grid, panel.end
        columns = self.where.local_columns(end, self.n)
        count = columns.stop - columns.start
        panel.pieces[grid.row] = panel.rows[self.shared(grid.row, grid.column, end)[0]]
        found = next((each for each in panel.pieces.values() if len(each) == count), None)
        if found is None:
            found = np.empty((count, end - panel.begin), self.a.dtype)
            for row, piece in panel.pieces.items():
                found[self.shared(row, grid.column, end)[1]] = piece
        return found.conj().T

    def update(self, panel: Panel, top: np.ndarray, begin: int, end: int) -> None:
        """Take a panel's product with itself off the columns from `begin` to `end`; `top` has its
        rows at the indices of this rank's columns."""
        where = self.where
        below = where.local_rows(panel.end, self.n)
        after = where.local_columns(panel.end, begin).start
        columns = where.local_columns(begin, end)
        for first in range(below.start, below.stop, ROWS_AT_A_TIME):
            # Only what lies below the diagonal is ever read.
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
    """This rank's part of the lower triangular L with L Lᴴ = A, of whose upper triangle nothing is
    read, or with L Lᴴ = (A + Aᴴ) / 2; all parts are block-cyclic with square blocks."""
    found = Factorisation(part, n, block, grid)
    if average:
        found.average()
    ahead = found.panel(0) if n else None
    while ahead is not None:
        panel, ahead = ahead, None
        top, end = found.arrived(panel), panel.end
        done = min(end + block, n)
        if end < n:
            # The next panel is on its way while all ranks update what lies behind it.
            found.update(panel, top, end, done)
            ahead = found.panel(end)
        found.update(panel, top, done, n)
    _check(found.failed, grid)
    where = found.where
    for begin in range(0, n, block):
        # Blocks on the diagonal have zeros of LAPACK.
        end = min(begin + block, n)
        found.a[where.local_rows(begin, end), where.local_columns(end, n)] = 0
    return found.a


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
