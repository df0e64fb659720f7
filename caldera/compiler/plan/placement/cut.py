"""The cheapest division of nodes between two sides: a minimum cut.

Each node costs something on either side, and a value that is read on the other side costs its copy,
once, however many read it there. The least sum of all is the minimum cut of a network (Dinic's
algorithm), so it is exact for times that add up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

NEVER = float("inf")
_NOTHING = 1e-15
"""Seconds that are left by rounding."""


class Network:
    """Edges with capacities, from `source` to `sink`.

    >>> network = Network(2)
    >>> network.edge(network.source, 0, 3.0)
    >>> network.edge(0, 1, 1.0)
    >>> network.edge(1, network.sink, 2.0)
    >>> sorted(network.source_side())
    [0]
    """

    def __init__(self, count: int) -> None:
        self.source, self.sink = count, count + 1
        self._to: list[int] = []
        self._room: list[float] = []
        self._out: list[list[int]] = [[] for _ in range(count + 2)]

    def node(self) -> int:
        """A further node."""
        self._out.append([])
        return len(self._out) - 1

    def edge(self, begin: int, end: int, capacity: float) -> None:
        """At most so much flows from one to the other."""
        for here, there, room in ((begin, end, capacity), (end, begin, 0.0)):
            self._out[here].append(len(self._to))
            self._to.append(there)
            self._room.append(room)

    def source_side(self) -> set[int]:
        """The nodes that are with the source when the least is cut."""
        while True:
            level = self._levels()
            if level[self.sink] < 0:
                found = {node for node, far in enumerate(level) if far >= 0}
                return found - {self.source}
            position = [0] * len(self._out)
            while self._augment(level, position):
                pass

    def _levels(self) -> list[int]:
        level = [-1] * len(self._out)
        level[self.source] = 0
        queue = deque([self.source])
        while queue:
            node = queue.popleft()
            for edge in self._out[node]:
                if self._room[edge] > _NOTHING and level[self._to[edge]] < 0:
                    level[self._to[edge]] = level[node] + 1
                    queue.append(self._to[edge])
        return level

    def _augment(self, level: Sequence[int], position: list[int]) -> bool:
        """One more path on which something flows; without recursion, paths are long."""
        path: list[int] = []
        node = self.source
        while node != self.sink:
            edges = self._out[node]
            while position[node] < len(edges):
                edge = edges[position[node]]
                if self._room[edge] > _NOTHING and level[self._to[edge]] == level[node] + 1:
                    break
                position[node] += 1
            else:
                if not path:
                    return False
                node = self._to[path.pop() ^ 1]
                position[node] += 1
                continue
            path.append(edge)
            node = self._to[edge]
        least = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= least
            self._room[edge ^ 1] += least
        return True
