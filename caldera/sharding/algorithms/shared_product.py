"""A product on a grid of ranks that have memory in common: nothing travels.

In each step every rank leaves a slice of its block of A and one of its block of B where all others
see them, all meet once, and each multiplies the slices of its row and its column where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.comm.algorithms.shared_exchange import room_bytes, shared_exchange
from caldera.sharding.algorithms.lapack import accumulate_product
from caldera.sharding.algorithms.process_grid import Cuts, ProcessGrid
from caldera.sharding.algorithms.product import NARROWEST, Slice, longest, stretches_of

Shape = tuple[int, int]
Name = tuple[int, str]
"""A stretch of the inner axis, and which matrix."""


def steps_in_memory(
    lengths: tuple[int, int], inner_a: Cuts, inner_b: Cuts, itemsize: int, ranks: int
) -> int:
    """In how many steps slices of the inner axis fit into the room that ranks have, for blocks of
    so many rows of A and columns of B; 0 if they would be too narrow.

    >>> steps_in_memory((1024, 1024), (0, 1024), (0, 1024), 8, 16)
    3
    """
    each = sum(lengths) * itemsize
    widths = [part.end - part.begin for part in stretches_of(inner_a, inner_b)]
    if not widths or not each:
        return 0
    # A rank may have all of them, and each is rounded up.
    widest = room_bytes(ranks) // each - len(widths)
    length = max(longest(inner_a), longest(inner_b))
    return 0 if widest < min(NARROWEST, length) else -(-length // widest)


def slice_shapes(
    row: int, column: int, rows: Cuts, columns: Cuts, parts: Sequence[Slice]
) -> dict[Name, Shape]:
    """Of the slices that a place of the grid leaves, in order."""
    m, n = rows[row + 1] - rows[row], columns[column + 1] - columns[column]
    found: dict[Name, Shape] = {}
    for number, part in enumerate(parts):
        if part.column == column:
            found[number, "a"] = (m, part.end - part.begin)
        if part.row == row:
            found[number, "b"] = (part.end - part.begin, n)
    return found


def views(room: np.ndarray, shapes: dict[Name, Shape]) -> dict[Name, np.ndarray]:
    """Matrices that lie in a room one after the other."""
    found, begin = {}, 0
    for name, (m, n) in shapes.items():
        found[name] = room[begin : begin + m * n].reshape(m, n)
        begin += m * n
    return found


def multiply_in_memory(
    c: np.ndarray, a: np.ndarray, b: np.ndarray, grid: ProcessGrid, rows: Cuts, inner_a: Cuts,
    inner_b: Cuts, columns: Cuts, steps: int,
) -> None:  # fmt: skip
    """c = this rank's block of A B, as `product.stationary_c` has it, in so many steps."""
    stretches = stretches_of(inner_a, inner_b)
    exchange = shared_exchange(grid.comm)
    turn = (grid.row + grid.column) % len(stretches)
    is_first = True
    for step in range(steps):
        parts = [each.share(step, steps) for each in stretches]
        own = slice_shapes(grid.row, grid.column, rows, columns, parts)

        def write(
            room: np.ndarray, parts: Sequence[Slice] = parts, own: dict[Name, Shape] = own
        ) -> None:
            for (number, name), place in views(room, own).items():
                begin, end = parts[number].begin, parts[number].end
                if name == "a":
                    place[:] = a[:, begin - inner_a[grid.column] : end - inner_a[grid.column]]
                else:
                    place[:] = b[begin - inner_b[grid.row] : end - inner_b[grid.row]]

        size = sum(m * n for m, n in own.values())
        found = exchange.gather(size, a.dtype, write)
        with grid.comm.traffic.operation("post"):
            # As many bytes as others read of it.
            for (_, name), (m, n) in own.items():
                others = (grid.columns if name == "a" else grid.rows) - 1
                grid.comm.traffic.sent(m * n * a.itemsize * others, others)
        for number in (*range(turn, len(parts)), *range(turn)):
            part = parts[number]
            places = (grid.row, part.column), (part.row, grid.column)
            of_a, of_b = (
                views(found[grid.rank_at(*place)], slice_shapes(*place, rows, columns, parts))[
                    number, name
                ]
                for place, name in zip(places, "ab", strict=True)
            )
            if is_first:
                np.matmul(of_a, of_b, out=c)
                is_first = False
            else:
                accumulate_product(c, of_a, of_b)
