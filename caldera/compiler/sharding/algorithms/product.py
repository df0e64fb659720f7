"""Matrix products on a grid of ranks: SUMMA, 2.5-D layers, and shared memory.

C = A B has three matrices, one of which stays in place while parts of the remaining two travel:

- *stationary C*: slices of A travel along the rows of the grid and slices of B along its columns
  (van de Geijn and Watts, SUMMA, 1997). On a single-column grid only B travels, on a single-row
  grid only A. Each rank starts with a different part of the inner axis, as in Cannon's algorithm
  (1969). In each step a rank sends to one rank and receives from one rank, and its own part is
  never copied.
- *stationary B*: panels of A travel along the rows, and sums of C along the columns.
- *stationary A*: the same with rows and columns exchanged.

With several layers (Solomonik and Demmel, 2011) each layer takes a part of the inner axis, and the
layers' sums are added up. With one layer for each rank this is the inner product in one dimension:
neither A nor B travel.

If sums travel, panels take a piece from every owner, so that each rank sends and receives the same
amount. Sums over ranks are formed in the order of `ReduceScatter`: the same bits in each run.

With shared memory no slices travel. In each step the ranks of a row of the grid write a panel of A
to the shared memory side by side. The ranks of a column write a panel of B below each other. After
one synchronisation, each rank multiplies the two panels in place. There is one product per step, so
the block of C is read and written as seldom as possible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from caldera.comm import Communicator, Request
from caldera.comm.algorithms.shared_exchange import room_bytes, shared_exchange
from caldera.compiler.sharding.algorithms.lapack import accumulate_product
from caldera.compiler.sharding.algorithms.process_grid import Cuts, ProcessGrid, gather_rows

PANEL_BYTES = 8 << 20
"""Maximum size of the panels of a step on a rank, except for panels of minimum width."""
NARROWEST = 64
"""A panel this wide is computed at nearly full speed: thinner ones save no time."""
_SLICE = 5
"""The tag of slices."""


def panel_count(length: int, bytes_each: int) -> int:
    """Return the number of panels of an axis of which an index takes that many bytes."""
    widest = max(PANEL_BYTES // max(bytes_each, 1), NARROWEST)
    return -(-length // widest)


def axis_panels(length: int, cuts: Sequence[Cuts], bytes_each: int) -> Iterator[np.ndarray]:
    """Yield the ascending indices of each panel of an axis.

    Each panel has a piece of every part of the axis, for each of several cuts.
    """
    count, segments = panel_count(length, bytes_each), pairwise(sorted({0, length}.union(*cuts)))
    stretches = [(begin, end - begin) for begin, end in segments]
    for panel in range(count):
        yield np.concatenate(
            [
                np.arange(begin + n * panel // count, begin + n * (panel + 1) // count)
                for begin, n in stretches
            ]
        )


def owned(panel: np.ndarray, cuts: Cuts, part: int) -> np.ndarray:
    """Return the indices of a panel that a part has, as local indices."""
    begin, end = np.searchsorted(panel, (cuts[part], cuts[part + 1]))
    return panel[begin:end] - cuts[part]


def counts(panel: np.ndarray, cuts: Cuts) -> list[int]:
    """Return the number of the panel's indices in each part."""
    return [int(each) for each in np.diff(np.searchsorted(panel, cuts))]


@dataclass(frozen=True)
class InnerSlice:
    """A stretch of the inner axis, the column of the grid that has it of A, and the row that has it
    of B."""

    begin: int
    end: int
    column: int
    row: int

    def share(self, number: int, count: int) -> InnerSlice:
        """Return slice `number` of `count` equal slices of this stretch."""
        length = self.end - self.begin
        begin, end = (self.begin + length * each // count for each in (number, number + 1))
        return InnerSlice(begin, end, self.column, self.row)


def stretches_of(inner_a: Cuts, inner_b: Cuts) -> list[InnerSlice]:
    """Return the inner axis in stretches that have one owner each."""
    return [
        InnerSlice(begin, end, _owner(inner_a, begin), _owner(inner_b, begin))
        for begin, end in pairwise(sorted({*inner_a, *inner_b}))
    ]


def slices(inner_a: Cuts, inner_b: Cuts, bytes_each: int) -> list[list[InnerSlice]]:
    """Return the stretches of the inner axis that have a single owner, each in equal slices.

    All stretches have the same number of slices. A slice is at most as wide as a panel.

    >>> [(each.begin, each.column, each.row) for (each,) in slices((0, 4, 8), (0, 2, 8), 8)]
    [(0, 0, 0), (2, 0, 1), (4, 1, 1)]
    """
    stretches = stretches_of(inner_a, inner_b)
    count = slices_each(stretches, bytes_each)
    return [[each.share(number, count) for number in range(count)] for each in stretches]


def slices_each(stretches: Sequence[InnerSlice], bytes_each: int) -> int:
    """Return the number of slices of each stretch for `bytes_each` bytes per index.

    >>> slices_each(stretches_of((0, 4, 8), (0, 2, 8)), 8)
    1
    """
    return panel_count(max((each.end - each.begin for each in stretches), default=0), bytes_each)


def _owner(cuts: Cuts, index: int) -> int:
    return bisect_right(cuts, index) - 1


@dataclass(frozen=True)
class Factors:
    """A rank's blocks of A (rows, inner_a) and B (inner_b, columns), and their cuts.

    The first axis of each matrix is partitioned over the rows of the grid, the second over its
    columns.
    """

    a: np.ndarray
    b: np.ndarray
    grid: ProcessGrid
    rows: Cuts
    inner_a: Cuts
    inner_b: Cuts
    columns: Cuts

    def of_a(self, part: InnerSlice) -> np.ndarray:
        """Return this rank's columns of A in a slice."""
        first = self.inner_a[self.grid.column]
        return self.a[:, part.begin - first : part.end - first]

    def of_b(self, part: InnerSlice) -> np.ndarray:
        """Return this rank's rows of B in a slice."""
        first = self.inner_b[self.grid.row]
        return self.b[part.begin - first : part.end - first]

    def panels(self, slices: list[InnerSlice], room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the panels of A for this rank's row of the grid and of B for its column."""
        width = sum(each.end - each.begin for each in slices)
        first, last = self.rows[self.grid.row], self.rows[self.grid.row + 1]
        left, right = self.columns[self.grid.column], self.columns[self.grid.column + 1]
        # The panels of A for all rows of the grid, followed by the panels of B.
        of_a = room[first * width : last * width]
        of_b = room[(self.rows[-1] + left) * width : (self.rows[-1] + right) * width]
        return of_a.reshape(last - first, width), of_b.reshape(width, right - left)

    def write(self, slices: list[InnerSlice], room: np.ndarray) -> None:
        """Write this rank's parts of both panels."""
        of_a, of_b = self.panels(slices, room)
        begin = 0
        for each in slices:
            end = begin + each.end - each.begin
            if each.column == self.grid.column:
                of_a[:, begin:end] = self.of_a(each)
            if each.row == self.grid.row:
                of_b[begin:end] = self.of_b(each)
            begin = end

    def read_by_others(self, slices: list[InnerSlice]) -> tuple[int, int]:
        """Return the bytes this rank writes for other ranks, and the number of these ranks."""
        grid = self.grid
        of_a, of_b = (
            sum(each.end - each.begin for each in slices if is_own(each))
            for is_own in (lambda s: s.column == grid.column, lambda s: s.row == grid.row)
        )
        elements = len(self.a) * of_a * (grid.columns - 1)
        elements += self.b.shape[1] * of_b * (grid.rows - 1)
        return elements * self.a.itemsize, grid.columns + grid.rows - 2


def stationary_c(
    c: np.ndarray, factors: Factors, transposed: tuple[bool, bool] = (False, False)
) -> None:
    """c = this rank's block of A B.

    A matrix that lies `transposed` in memory, on all ranks, travels so.
    """
    travel = _TravellingSlices(factors, transposed)
    if not travel.steps:
        c[...] = 0
        return
    leaving = travel.send(0)
    for step in range(travel.steps):
        of_a, of_b, arriving = travel.receive(step)
        for request in (*arriving, *leaving):
            request.wait()
        # Sent before the product: ranks that are ahead of this rank can continue.
        leaving = travel.send(step + 1) if step + 1 < travel.steps else []
        _accumulate(c, of_a, of_b, step)


def _accumulate(c: np.ndarray, a: np.ndarray, b: np.ndarray, step: int) -> None:
    """c += a b, but in the first step c = a b."""
    if step:
        accumulate_product(c, a, b)
    else:
        np.matmul(a, b, out=c)


class _TravellingSlices:
    """Slices of A and B that ranks send to each other, one of each a step."""

    def __init__(self, factors: Factors, transposed: tuple[bool, bool]) -> None:
        self._own = factors
        self._transposed = transposed
        bytes_each = (longest(factors.rows) + longest(factors.columns)) * factors.a.itemsize
        self._stretches = slices(factors.inner_a, factors.inner_b, bytes_each)
        self._each = len(self._stretches[0]) if self._stretches else 0
        self.steps = len(self._stretches) * self._each

    def _slice_of(self, row: int, column: int, step: int) -> InnerSlice:
        """Return a rank's slice in a step, different for all ranks of a row or column."""
        stretch = self._stretches[(row + column + step // self._each) % len(self._stretches)]
        return stretch[step % self._each]

    def send(self, step: int) -> list[Request]:
        """Send the slices that other ranks multiply in a step; requests keep the data alive."""
        own, grid, found = self._own, self._own.grid, list[Request]()
        for column in range(grid.columns):
            part = self._slice_of(grid.row, column, step)
            if column != grid.column == part.column:
                found += _sent(own.of_a(part), self._transposed[0], column, grid.along_row)
        for row in range(grid.rows):
            part = self._slice_of(row, grid.column, step)
            if row != grid.row == part.row:
                found += _sent(own.of_b(part), self._transposed[1], row, grid.along_column)
        return found

    def receive(self, step: int) -> tuple[np.ndarray, np.ndarray, list[Request]]:
        """Return this rank's slices of a step; they are complete after the requests."""
        own, grid = self._own, self._own.grid
        part = self._slice_of(grid.row, grid.column, step)
        arriving: list[Request] = []
        width = part.end - part.begin
        shape_a, shape_b = (own.a.shape[0], width), (width, own.b.shape[1])
        of_a = (
            own.of_a(part)
            if part.column == grid.column
            else self._arriving(0, shape_a, part.column, grid.along_row, arriving)
        )
        of_b = (
            own.of_b(part)
            if part.row == grid.row
            else self._arriving(1, shape_b, part.row, grid.along_column, arriving)
        )
        return of_a, of_b, arriving

    def _arriving(
        self,
        factor: int,
        shape: tuple[int, int],
        source: int,
        comm: Communicator,
        requests: list[Request],
    ) -> np.ndarray:
        """Return room for a slice of a factor, to which it is on its way."""
        turned = self._transposed[factor]
        room = np.empty(shape[::-1] if turned else shape, self._own.a.dtype)
        if room.size:
            requests.append(comm.Irecv(room, source, _SLICE))
        return room.T if turned else room


def _sent(x: np.ndarray, transposed: bool, dest: int, comm: Communicator) -> list[Request]:
    """Send a matrix contiguously, without a copy if it is contiguous."""
    if not x.size:
        return []
    return [comm.Isend(np.ascontiguousarray(x.T if transposed else x), dest, _SLICE)]


def stationary_b(
    a: np.ndarray,
    b: np.ndarray,
    grid: ProcessGrid,
    inner: Cuts,
    m: Cuts,
    columns: Cuts,
    rows: Cuts,
) -> np.ndarray:
    """Return this rank's block (rows, columns) of Aᵀ B.

    The rank has blocks of A (inner, m) and B (inner, columns); `m` and `rows` are two cuts of the
    same axis. The first axis of each matrix is partitioned over the rows of the grid, the second
    over its columns.
    """
    c = np.empty((rows[grid.row + 1] - rows[grid.row], b.shape[1]), a.dtype)
    bytes_each = (longest(inner) + 2 * longest(columns)) * a.itemsize
    for panel in axis_panels(m[-1], (m, rows), bytes_each):
        columns_of_a = gather_rows(
            _rows(a.T, owned(panel, m, grid.column)), counts(panel, m), grid.along_row
        )
        sums = sum_scatter(columns_of_a @ b, counts(panel, rows), grid.along_column)
        c[owned(panel, rows, grid.row)] = sums
    return c


def stationary_a(
    a: np.ndarray,
    b: np.ndarray,
    grid: ProcessGrid,
    rows: Cuts,
    inner: Cuts,
    n: Cuts,
    columns: Cuts,
) -> np.ndarray:
    """Return this rank's block (rows, columns) of A Bᵀ.

    The rank has blocks of A (rows, inner) and B (n, inner); `n` and `columns` are two cuts of the
    same axis. The first axis of each matrix is partitioned over the rows of the grid, the second
    over its columns.
    """
    return stationary_b(b.T, a.T, grid.transposed, inner, n, rows, columns).T


def sum_scatter(x: np.ndarray, rows: Sequence[int], comm: Communicator) -> np.ndarray:
    """Return this rank's rows of the sum over ranks."""
    if comm.size == 1:
        return x
    width = int(np.prod(x.shape[1:], dtype=np.int64))
    own = np.empty((int(rows[comm.rank]), *x.shape[1:]), x.dtype)
    elements = [int(count) * width for count in rows]
    comm.ReduceScatter(np.ascontiguousarray(x), own, elements)
    return own


def _rows(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return rows by ascending index, without a copy if they are adjacent."""
    if len(indices) and indices[-1] - indices[0] + 1 == len(indices):
        return x[indices[0] : indices[0] + len(indices)]
    return x[indices]


def longest(cuts: Cuts) -> int:
    """Return the length of the longest part."""
    return int(max(np.diff(cuts)))


def steps_in_memory(
    rows: int, columns: int, inner_a: Cuts, inner_b: Cuts, itemsize: int, ranks: int
) -> int:
    """Return the number of steps whose panels of the inner axis fit into the shared memory.

    A has `rows` rows and B has `columns` columns. The result is 0 if the panels would be too
    narrow.

    >>> steps_in_memory(8192, 8192, (0, 4096, 8192), (0, 4096, 8192), 8, 16)
    9
    """
    each, stretches = (rows + columns) * itemsize, stretches_of(inner_a, inner_b)
    if not stretches or not each:
        return 0
    # A slice of each stretch is rounded up.
    widest = room_bytes(ranks) * ranks // each - len(stretches)
    length = inner_a[-1]
    return 0 if widest < min(NARROWEST, length) else -(-length // widest)


def multiply_in_memory(c: np.ndarray, factors: Factors, steps: int) -> None:
    """Compute c = this rank's block of A B like `stationary_c`, in `steps` steps."""
    comm = factors.grid.comm
    stretches = stretches_of(factors.inner_a, factors.inner_b)
    exchange = shared_exchange(comm)
    for step in range(steps):
        slices = [each.share(step, steps) for each in stretches]
        room = exchange.together(factors.a.dtype, partial(factors.write, slices))
        of_a, of_b = factors.panels(slices, room)
        with comm.traffic.operation("post"):
            comm.traffic.sent(*factors.read_by_others(slices))
        _accumulate(c, of_a, of_b, step)
