"""Ranks as a grid of layers, rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caldera.comm import Communicator
from caldera.errors import ShapeError

_PANEL = 3
"""The tag of panels that are sent ahead."""
Cuts = tuple[int, ...]
"""Boundaries of the parts of an axis: n + 1 indices for n parts."""


def even_cuts(length: int, parts: int) -> Cuts:
    """Return parts that differ by one at most, the longer ones first.

    >>> even_cuts(7, 3)
    (0, 3, 5, 7)
    """
    each, rest = divmod(length, parts)
    return tuple(each * part + min(part, rest) for part in range(parts + 1))


def cyclic_indices(length: int, block: int, parts: int, part: int) -> np.ndarray:
    """Return the indices of an axis that a part has, if blocks are dealt to the parts in turns.

    >>> cyclic_indices(10, 2, 3, 0)
    array([0, 1, 6, 7])
    """
    indices = np.arange(length)
    return indices[(indices // block) % parts == part]


def cyclic_count(length: int, block: int, parts: int, part: int) -> int:
    """Return the number of indices below `length` that a part has under cyclic distribution.

    >>> cyclic_count(10, 2, 3, 0)
    4
    """
    rounds, rest = divmod(length, block * parts)
    return rounds * block + min(max(rest - part * block, 0), block)


def gather_rows(part: np.ndarray, counts: Sequence[int], comm: Communicator) -> np.ndarray:
    """Return the concatenated rows of all ranks; rank r has `counts[r]` rows."""
    if comm.size == 1:
        return part
    whole = np.empty((sum(counts), *part.shape[1:]), part.dtype)
    each = int(np.prod(part.shape[1:], dtype=np.int64))
    comm.Allgather(np.ascontiguousarray(part), whole, [count * each for count in counts])
    return whole


class Broadcast:
    """Arrays being sent by one rank to all ranks, without blocking other work.

    The root sends to each rank directly, as a row of the grid has few ranks.
    """

    def __init__(self, arrays: Sequence[np.ndarray], root: int, comm: Communicator) -> None:
        some = [each for each in arrays if each.size]
        if comm.rank == root:
            others = [rank for rank in range(comm.size) if rank != root]
            self._requests = [comm.Isend(each, rank, _PANEL) for rank in others for each in some]
        else:
            self._requests = [comm.Irecv(each, root, _PANEL) for each in some]

    def wait(self) -> None:
        """Wait until the parts have arrived or, at the sender, may be changed again."""
        for request in self._requests:
            request.wait()


def sum_over(part: np.ndarray, comm: Communicator) -> np.ndarray:
    """Return the sum over ranks, on all ranks; in place if the part is contiguous."""
    part = np.ascontiguousarray(part)
    if comm.size > 1:
        comm.Allreduce(part, part)
    return part


@dataclass(frozen=True)
class ProcessGrid:
    """Position of this rank in a grid; ranks are numbered layer by layer, row by row.

    `along_row` connects the ranks of a row (one for each column), `along_column` the ranks of a
    column, and `along_layers` the ranks at the same position of all layers. A rank beyond the grid
    has none.
    """

    shape: tuple[int, int, int]
    place: tuple[int, int, int]
    along_layers: Communicator
    along_column: Communicator
    along_row: Communicator
    comm: Communicator
    is_transposed: bool = False

    @property
    def rows(self) -> int:
        """Number of rows of ranks."""
        return self.shape[1]

    @property
    def columns(self) -> int:
        """Number of columns of ranks."""
        return self.shape[2]

    @property
    def row(self) -> int:
        """Row of this rank."""
        return self.place[1]

    @property
    def column(self) -> int:
        """Column of this rank."""
        return self.place[2]

    def rank_at(self, row: int, column: int) -> int:
        """Return the communicator's rank at a row and a column of this rank's layer."""
        if self.is_transposed:
            return self.transposed.rank_at(column, row)
        return (self.place[0] * self.rows + row) * self.columns + column

    @property
    def transposed(self) -> ProcessGrid:
        """The same ranks, with rows and columns exchanged."""
        layers, rows, columns = self.shape
        layer, row, column = self.place
        return ProcessGrid(
            (layers, columns, rows),
            (layer, column, row),
            self.along_layers,
            self.along_row,
            self.along_column,
            self.comm,
            not self.is_transposed,
        )


def _grids(comm: Communicator) -> dict[tuple[int, int, int], ProcessGrid]:
    """Return the grids of a communicator, stored on it.

    A grid refers back to its communicator, and both are released together.
    """
    return vars(comm).setdefault("_process_grids", {})


def process_grid(comm: Communicator, rows: int, columns: int, layers: int = 1) -> ProcessGrid:
    """Return the ranks of a communicator as a grid.

    Made once for each shape, by all ranks together.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(6, lambda comm: process_grid(comm, 2, 3).place)[4]
    (0, 1, 1)
    """
    if layers * rows * columns != comm.size:
        raise ShapeError.build(
            "process_grid",
            expected=f"a grid of {comm.size} ranks",
            got=f"{layers} x {rows} x {columns}",
        )
    shape = (layers, rows, columns)
    made = _grids(comm)
    if shape not in made:
        layer, place = divmod(comm.rank, rows * columns)
        row, column = divmod(place, columns)
        made[shape] = ProcessGrid(
            shape,
            (layer, row, column),
            _split(comm, place, layers),
            _split(comm, layer * columns + column, rows),
            _split(comm, layer * rows + row, columns),
            comm,
        )
    return made[shape]


def grids_of(comm: Communicator) -> list[ProcessGrid]:
    """Return the grids created for a communicator, which count the traffic along their rows."""
    return list(_grids(comm).values())


def _split(comm: Communicator, color: int, size: int) -> Communicator:
    """Return a communicator for the ranks of a colour, in order.

    If all ranks have this colour, it is the given communicator.
    """
    if size == comm.size:
        return comm
    found = comm.Split(color, comm.rank)
    assert found is not None
    return found


def grid_shapes(ranks: int) -> list[tuple[int, int]]:
    """Return all (rows, columns) with this number of ranks, the squarest first.

    >>> grid_shapes(6)
    [(2, 3), (3, 2), (1, 6), (6, 1)]
    """
    found = [(rows, ranks // rows) for rows in range(1, ranks + 1) if ranks % rows == 0]
    return sorted(found, key=lambda shape: (abs(shape[0] - shape[1]), shape))
