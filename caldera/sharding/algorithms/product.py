"""Products of matrices on a grid of ranks: SUMMA, and 2.5-D with several layers of it.

C = A B has three matrices, of which one stays where it is while parts of the other two travel:

- *stationary C*: panels of A travel along the rows of the grid and panels of B along its columns
  (van de Geijn and Watts, SUMMA, 1997). On a grid of one column only B travels, of one row only A.
- *stationary B*: panels of A travel along the rows, and sums of C along the columns.
- *stationary A*: the same with rows and columns exchanged.

With several layers (Solomonik and Demmel, 2011) each layer takes a part of the inner axis, and the
layers' sums are added up. One layer for each rank and nothing else is the inner product in one
dimension: neither A nor B travel.

Panels take a piece from every owner, so each of their parts is as long as the others and all ranks
send as much as they receive. Sums over ranks are formed in the order of `ReduceScatter`: the same
bits in each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from caldera.comm import Communicator
from caldera.sharding.algorithms.lapack import accumulate_product
from caldera.sharding.algorithms.process_grid import Cuts, ProcessGrid, gather_rows

PANEL_BYTES = 16 << 20
"""What the panels of one step may take on a rank, unless that is less than a column of them."""
NARROWEST = 64
"""A panel this wide is computed at nearly full speed: thinner ones save no time."""


class Panels:
    """An axis in panels: each has a piece of all parts of it, by several ways to cut it."""

    def __init__(self, length: int, cuts: Sequence[Cuts], bytes_each: int) -> None:
        self._segments = sorted({0, length}.union(*cuts))
        widest = max(PANEL_BYTES // max(bytes_each, 1), NARROWEST)
        self.count = max(-(-length // widest), 1) if length else 0

    def __iter__(self) -> Iterator[np.ndarray]:
        """The indices of each panel, ascending."""
        for panel in range(self.count):
            pieces = [
                np.arange(
                    begin + (end - begin) * panel // self.count,
                    begin + (end - begin) * (panel + 1) // self.count,
                )
                for begin, end in zip(self._segments, self._segments[1:], strict=False)
            ]
            yield np.concatenate(pieces)


def owned(panel: np.ndarray, cuts: Cuts, part: int) -> np.ndarray:
    """Which of these indices a part has, as indices of its own."""
    begin, end = np.searchsorted(panel, (cuts[part], cuts[part + 1]))
    return panel[begin:end] - cuts[part]


def counts(panel: np.ndarray, cuts: Cuts) -> list[int]:
    """How many of these indices each part has."""
    return [int(each) for each in np.diff(np.searchsorted(panel, cuts))]


def stationary_c(
    a: np.ndarray,
    b: np.ndarray,
    grid: ProcessGrid,
    rows: Cuts,
    inner_a: Cuts,
    inner_b: Cuts,
    columns: Cuts,
) -> np.ndarray:
    """This rank's block of A B, for its blocks of A (rows, inner_a) and B (inner_b, columns).

    The first axis of each is cut over the rows of the grid, the second over its columns.
    """
    c = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    bytes_each = (longest(rows) + longest(columns)) * a.itemsize
    for panel in Panels(inner_a[-1], (inner_a, inner_b), bytes_each):
        own_a, own_b = owned(panel, inner_a, grid.column), owned(panel, inner_b, grid.row)
        rows_of_a = gather_rows(_rows(a.T, own_a), counts(panel, inner_a), grid.along_row)
        rows_of_b = gather_rows(_rows(b, own_b), counts(panel, inner_b), grid.along_column)
        accumulate_product(c, rows_of_a.T, rows_of_b)
    return c


def stationary_b(
    a: np.ndarray,
    b: np.ndarray,
    grid: ProcessGrid,
    inner: Cuts,
    m: Cuts,
    columns: Cuts,
    rows: Cuts,
) -> np.ndarray:
    """This rank's block (rows, columns) of Aᵀ B, for its blocks of A (inner, m) and B (inner,
    columns); `m` and `rows` are two ways to cut the same axis.

    The first axis of each is cut over the rows of the grid, the second over its columns.
    """
    c = np.empty((rows[grid.row + 1] - rows[grid.row], b.shape[1]), a.dtype)
    bytes_each = (longest(inner) + 2 * longest(columns)) * a.itemsize
    for panel in Panels(m[-1], (m, rows), bytes_each):
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
    """This rank's block (rows, columns) of A Bᵀ, for its blocks of A (rows, inner) and B (n,
    inner); `n` and `columns` are two ways to cut the same axis.

    The first axis of each is cut over the rows of the grid, the second over its columns.
    """
    return stationary_b(b.T, a.T, grid.transposed, inner, n, rows, columns).T


def sum_over_layers(c: np.ndarray, grid: ProcessGrid, rows: Cuts) -> np.ndarray:
    """This layer's rows of the sum of all layers' blocks; `rows` has where theirs begin."""
    return sum_scatter(c, list(np.diff(rows)), grid.along_layers)


def sum_scatter(x: np.ndarray, rows: Sequence[int], comm: Communicator) -> np.ndarray:
    """This rank's rows of the sum over ranks."""
    if comm.size == 1:
        return x
    width = int(np.prod(x.shape[1:], dtype=np.int64))
    own = np.empty((int(rows[comm.rank]), *x.shape[1:]), x.dtype)
    elements = [int(count) * width for count in rows]
    comm.ReduceScatter(np.ascontiguousarray(x), own, elements)
    return own


def _rows(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Rows by ascending index, without a copy where they follow each other."""
    if len(indices) and indices[-1] - indices[0] + 1 == len(indices):
        return x[indices[0] : indices[0] + len(indices)]
    return x[indices]


def longest(cuts: Cuts) -> int:
    """The length of the longest part."""
    return int(max(np.diff(cuts)))
