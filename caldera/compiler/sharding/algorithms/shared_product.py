"""A product on a grid of ranks that have memory in common: nothing travels.

In each step the ranks of a row of the grid write a panel of A side by side to memory that all of
them see, the ranks of a column one of B below each other, all meet once, and each rank multiplies
the two panels where they lie: one product for a step, so that the block of C is read and written as
seldom as possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from caldera.comm.algorithms.shared_exchange import room_bytes, shared_exchange
from caldera.compiler.sharding.algorithms.lapack import accumulate_product
from caldera.compiler.sharding.algorithms.process_grid import Cuts, ProcessGrid
from caldera.compiler.sharding.algorithms.product import NARROWEST, Slice, stretches_of


def steps_in_memory(
    rows: int, columns: int, inner_a: Cuts, inner_b: Cuts, itemsize: int, ranks: int
) -> int:
    """In how many steps panels of the inner axis fit into the room that ranks have, for matrices A
    of so many rows and B of so many columns; 0 if they would be too narrow.

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


@dataclass(frozen=True)
class Factors:
    """A rank's blocks of A and B, and how both matrices are cut."""

    a: np.ndarray
    b: np.ndarray
    grid: ProcessGrid
    rows: Cuts
    inner_a: Cuts
    inner_b: Cuts
    columns: Cuts

    def panels(self, slices: list[Slice], room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """That of A for this rank's row of the grid, and that of B for its column."""
        width = sum(each.end - each.begin for each in slices)
        first, last = self.rows[self.grid.row], self.rows[self.grid.row + 1]
        left, right = self.columns[self.grid.column], self.columns[self.grid.column + 1]
        # Those of A for one row after the other, then those of B.
        of_a = room[first * width : last * width]
        of_b = room[(self.rows[-1] + left) * width : (self.rows[-1] + right) * width]
        return of_a.reshape(last - first, width), of_b.reshape(width, right - left)

    def write(self, slices: list[Slice], room: np.ndarray) -> None:
        """What this rank has of both panels."""
        of_a, of_b = self.panels(slices, room)
        before_a, before_b = self.inner_a[self.grid.column], self.inner_b[self.grid.row]
        begin = 0
        for each in slices:
            end = begin + each.end - each.begin
            if each.column == self.grid.column:
                of_a[:, begin:end] = self.a[:, each.begin - before_a : each.end - before_a]
            if each.row == self.grid.row:
                of_b[begin:end] = self.b[each.begin - before_b : each.end - before_b]
            begin = end

    def read_by_others(self, slices: list[Slice]) -> tuple[int, int]:
        """Bytes of what this rank writes that others read, and by how many."""
        grid = self.grid
        of_a, of_b = (
            sum(each.end - each.begin for each in slices if is_own(each))
            for is_own in (lambda s: s.column == grid.column, lambda s: s.row == grid.row)
        )
        elements = len(self.a) * of_a * (grid.columns - 1)
        elements += self.b.shape[1] * of_b * (grid.rows - 1)
        return elements * self.a.itemsize, grid.columns + grid.rows - 2


def multiply_in_memory(
    c: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    grid: ProcessGrid,
    rows: Cuts,
    inner_a: Cuts,
    inner_b: Cuts,
    columns: Cuts,
    steps: int,
) -> None:
    """c = this rank's block of A B, as `product.stationary_c` has it, in so many steps."""
    factors = Factors(a, b, grid, rows, inner_a, inner_b, columns)
    stretches, exchange = stretches_of(inner_a, inner_b), shared_exchange(grid.comm)
    for step in range(steps):
        slices = [each.share(step, steps) for each in stretches]
        room = exchange.together(a.dtype, partial(factors.write, slices))
        of_a, of_b = factors.panels(slices, room)
        with grid.comm.traffic.operation("post"):
            grid.comm.traffic.sent(*factors.read_by_others(slices))
        if step:
            accumulate_product(c, of_a, of_b)
        else:
            np.matmul(of_a, of_b, out=c)
