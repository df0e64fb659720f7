"""Placement of nodes on two devices as a minimum cut, and its costs.

Each node has a cost on either side, and a value that is read on the other side costs its copy,
once, however many nodes read it there. The minimum of the total is the minimum cut of a network
(Dinic's algorithm), so it is exact for additive times.

The cost of a node is its measured time on this machine, or the prediction of a model trained on
such measurements; without either it follows from operations and bytes, at half of the device's
peak.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from caldera.base.config import settings
from caldera.compiler.plan.timing import CARD, LAUNCH_S, REACHED, Peaks, cpu_peaks, link_bandwidth
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, detached
from caldera.core.memory import Device
from caldera.errors import DeviceError
from caldera.kernels.tuning.choose import choices

USUAL_CPU = Peaks(float32=1e11, float64=5e10, bfloat16=1e11, bandwidth=2e10)
"""A processor, where nothing may be measured."""
VIEWS = frozenset({"reshape", "broadcast_to", "transpose", "slice"})
"""Ops that usually take no time at all."""
OVERHEAD_S = 2e-6
"""Of a kernel, on any device."""


class Costs(Protocol):
    """What a choice of devices goes by."""

    def seconds(self, node: Node, device: Device) -> float:
        """How long a node takes on a device."""

    def copied(self, nbytes: int, source: Device, target: Device) -> float:
        """How long a value takes from one device to another."""


class MeasuredCosts:
    """Times that were measured or learnt on this machine, else what the roofline says."""

    def __init__(self) -> None:
        self.seconds = cache(self._seconds)

    def _seconds(self, node: Node, device: Device) -> float:
        if node.op is ITEM or node.op.kind == "leaf" or node.op.name in VIEWS:
            return 0.0
        try:
            choice = choices.choose(detached(node), device.kernels, measure=False)
            known = (choice.times or {}).get(choice.kernel.name)
        except DeviceError:
            # An op that passes take apart before it meets a kernel.
            known = None
        return self._estimated(node, device) if known is None else known

    def _estimated(self, node: Node, device: Device) -> float:
        made = sum(spec.nbytes for spec in node.outputs)
        read = sum(spec.nbytes for given in node.inputs for spec in given.outputs)
        # Of a table only those rows are read that are asked for.
        nbytes = 2 * made if node.op.kind == "movement" else made + read
        peaks = CARD
        if device.kernels == "cpu":
            peaks = USUAL_CPU if settings.deterministic else cpu_peaks()
        flops = node.op.count_flops(node)
        return peaks.least_seconds(flops, nbytes, node.outputs[0].dtype) / REACHED + OVERHEAD_S

    def copied(self, nbytes: int, source: Device, target: Device) -> float:
        """What was measured between host and device; two devices meet on the host."""
        return sum(
            LAUNCH_S + nbytes / link_bandwidth(device)
            for device in dict.fromkeys((source, target))
            if not device.is_host and source is not target
        )


NEVER = float("inf")
_NOTHING = 1e-15
"""Seconds that are left by rounding."""


class FlowNetwork:
    """Edges with capacities, from `source` to `sink`.

    >>> network = FlowNetwork(2)
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
