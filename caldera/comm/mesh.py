"""Ranks as a grid with named axes, and a communicator along each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from caldera.comm.communicator import Communicator
from caldera.errors import CommError


class Mesh:
    """The ranks of a communicator as a grid: `Mesh(world, {"data": 2, "model": 2})`.

    Ranks that follow each other are neighbours along the last axis. One axis may have the length
    -1: whatever the number of ranks leaves for it.

    - `shape`: the length of each axis; `coordinates`: where this rank is on each.
    - `communicator`: all ranks of the grid; `axes`: the communicator along each axis.

    >>> from caldera.comm import Mesh, run_virtual_ranks
    >>> def work(comm):
    ...     mesh = Mesh(comm, {"data": -1, "model": 2})
    ...     return mesh.coordinates, mesh.axis("data").gather_objects(comm.rank)
    >>> run_virtual_ranks(4, work)[1]
    ({'data': 0, 'model': 1}, [1, 3])
    """

    def __init__(self, communicator: Communicator, axes: Mapping[str, int]) -> None:
        self.communicator = communicator
        self.shape = _lengths(dict(axes), communicator.size)
        self.coordinates: dict[str, int] = {}
        self.axes: dict[str, Communicator] = {}
        stride = communicator.size
        for name, length in self.shape.items():
            stride //= length
            self.coordinates[name] = communicator.rank // stride % length
        stride = communicator.size
        for name, length in self.shape.items():
            stride //= length
            first = communicator.rank - self.coordinates[name] * stride
            made = communicator.Split(first, self.coordinates[name])
            assert made is not None
            self.axes[name] = made

    def axis(self, name: str) -> Communicator:
        """The ranks that differ from this one along that axis alone; its rank there is its
        coordinate."""
        if name not in self.axes:
            raise CommError.build(
                "mesh", expected="one of the axes " + ", ".join(self.axes), got=repr(name)
            )
        return self.axes[name]

    def together(self, *names: str) -> Communicator:
        """The ranks that differ from this one along those axes alone; all ranks have to ask.

        >>> from caldera.comm import Mesh, run_virtual_ranks
        >>> def work(comm):
        ...     mesh = Mesh(comm, {"data": 2, "pipeline": 2, "model": 2})
        ...     return mesh.together("data", "model").gather_objects(comm.rank)
        >>> run_virtual_ranks(8, work)[2]
        [2, 3, 6, 7]
        """
        group = 0
        for name, length in self.shape.items():
            if name not in names:
                group = group * length + self.coordinates[name]
        made = self.communicator.Split(group, self.communicator.rank)
        assert made is not None
        return made

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={length}' for name, length in self.shape.items())})"


def _lengths(axes: dict[str, int], ranks: int) -> dict[str, int]:
    open_axes = [name for name, length in axes.items() if length == -1]
    given = math.prod(length for length in axes.values() if length != -1)
    if len(open_axes) == 1 and given > 0 and ranks % given == 0:
        axes[open_axes[0]] = ranks // given
    if not axes or min(axes.values()) < 1 or math.prod(axes.values()) != ranks:
        raise CommError.build(
            "mesh",
            expected=f"axes whose lengths multiply to {ranks} ranks",
            got=str(axes),
            hint="the length of one axis may be -1",
        )
    return axes
