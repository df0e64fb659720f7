"""Assignment of nodes to devices, as a minimum cut of their costs.

Pinned nodes run on the device of their pin; a tensor stays on its device. The remaining nodes run
on a selected device (`device=`, `settings.placement`), or on the cheapest: all on either of two
devices, or divided between them by a minimum cut, whichever is predicted to finish first.

Each node has a cost on either side. A value that is read on the opposite side adds the cost of a
single copy, for any number of readers. The minimum of the total is the minimum cut of a network
(Dinic's algorithm), so it is exact for additive times. The cost of a node is its measured time on
this machine, or the prediction of a model trained on such measurements. Without either it follows
from operations and bytes, at half of the device's peak.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from caldera.base.config import settings
from caldera.base.formatting import seconds_text
from caldera.compiler.plan.operands import can_reach
from caldera.compiler.plan.placement.parts import groups_of, home_of, is_free, is_held
from caldera.compiler.plan.timing import CARD, LAUNCH_S, REACHED, Peaks, cpu_peaks, link_bandwidth
from caldera.core.graph import ITEM, Node, Program, Symbol, any_pins, detached
from caldera.core.memory import Device, Kind, find_device
from caldera.errors import DeviceError
from caldera.kernels.tuning.choose import choices

USUAL_CPU = Peaks(float32=1e11, float64=5e10, bfloat16=1e11, bandwidth=2e10)
"""Assumed peaks of a CPU, for use when measurement is not allowed."""
VIEWS = frozenset({"reshape", "broadcast_to", "transpose", "slice"})
"""Ops that usually take no time at all."""
OVERHEAD_S = 2e-6
"""Assumed overhead of a kernel on any device, in seconds."""


class Costs(Protocol):
    """Cost estimates for the choice of devices."""

    def seconds(self, node: Node, device: Device) -> float:
        """Return the time of a node on a device."""

    def copied(self, nbytes: int, source: Device, target: Device) -> float:
        """Return the time to copy a value from one device to another."""


class MeasuredCosts:
    """Times measured or learnt on this machine, otherwise roofline estimates."""

    def __init__(self) -> None:
        self.seconds = cache(self._seconds)

    def _seconds(self, node: Node, device: Device) -> float:
        if node.op is ITEM or node.op.kind == "leaf" or node.op.name in VIEWS:
            return 0.0
        try:
            choice = choices.choose(detached(node), device.kernels, measure=False)
            known = (choice.times or {}).get(choice.kernel.name)
        except DeviceError:
            # Passes decompose this op, so it has no kernel.
            known = None
        return self._estimated(node, device) if known is None else known

    def _estimated(self, node: Node, device: Device) -> float:
        made = sum(spec.nbytes for spec in node.outputs)
        read = sum(spec.nbytes for given in node.inputs for spec in given.outputs)
        # Only the requested rows of a table are read.
        nbytes = 2 * made if node.op.kind == "movement" else made + read
        peaks = CARD
        if device.kernels == "cpu":
            peaks = USUAL_CPU if settings.deterministic else cpu_peaks()
        flops = node.op.count_flops(node)
        return peaks.least_seconds(flops, nbytes, node.outputs[0].dtype) / REACHED + OVERHEAD_S

    def copied(self, nbytes: int, source: Device, target: Device) -> float:
        """Return the copy time from measured bandwidths; two devices exchange data via the host."""
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
        """Add a node, and return its number."""
        self._out.append([])
        return len(self._out) - 1

    def edge(self, begin: int, end: int, capacity: float) -> None:
        """Add an edge with a maximum flow of `capacity`."""
        for here, there, room in ((begin, end, capacity), (end, begin, 0.0)):
            self._out[here].append(len(self._to))
            self._to.append(there)
            self._room.append(room)

    def source_side(self) -> set[int]:
        """Return the nodes on the source side of the minimum cut."""
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
        """Find an augmenting path; iterative, since paths are long."""
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


CLEARLY = 0.97
"""Maximum predicted time of a division, relative to a single device."""
MOST_NODES = 4000
"""Maximum number of nodes for which a cut is computed; above it, only whole devices are compared.
"""
Groups = list[tuple[Device, list[Node]]]


@dataclass(frozen=True)
class DevicePlacement:
    """Nodes in groups, each on one device, in the order in which they run, and why."""

    groups: Groups
    reason: str

    @property
    def devices(self) -> list[Device]:
        """The participating devices."""
        return list(dict.fromkeys(device for device, _ in self.groups))


def default_device(program: Program, device: Device | None) -> tuple[Device, bool]:
    """Return the device of unpinned nodes, and True if it may be changed."""
    if device is not None:
        return device, False
    if settings.placement != "auto":
        return find_device(settings.placement), False
    held: dict[Device, int] = {}
    for symbol in _held_symbols(program):
        home = home_of(symbol)
        held[home] = held.get(home, 0) + symbol.spec.nbytes
    # Data on a GPU take precedence: even a scalar there belongs to a computation on that GPU.
    away = {each: nbytes for each, nbytes in held.items() if not each.is_host}
    if away or held:
        return max(away or held, key=(away or held).__getitem__), True
    return find_device(None), True


def homes(program: Program) -> tuple[tuple[Device, Kind], ...]:
    """Return device and memory kind of all tensors of a program, which determine its placement."""
    held = (symbol.value for symbol in _held_symbols(program))
    return tuple((tensor.device, tensor.kind) for tensor in held)


def is_mixed(program: Program, device: Device) -> bool:
    """Return True if some node or tensor of a program is on another device."""
    if not all(can_reach(device, symbol.value) for symbol in _held_symbols(program)):
        return True
    return any_pins() and any(place is not device for place in _pinned(program).values())


def place_nodes(program: Program, device: Device, costs: Costs | None) -> DevicePlacement:
    """Place the nodes of a mixed program: unpinned nodes on `device`, or according to `costs`."""
    pinned = _pinned(program)
    if costs is None:
        named = "device=" if settings.placement == "auto" else "settings.placement"
        reason = f"{named} {device.name}, except pinned operations and values stored elsewhere"
        groupings = _groupings(program, _assigned(program, pinned, device))
        return DevicePlacement(min(groupings, key=len, default=[]), reason)
    return _cheapest(program, pinned, device, costs)


def _held_symbols(program: Program) -> list[Symbol]:
    found = {node.attrs["symbol"]: None for node in program.order() if is_held(node)}
    return list(found | dict.fromkeys(symbol for symbol, _ in program.updates))


def _pinned(program: Program) -> dict[Node, Device]:
    """Return the device of each pinned node; results of a node share its device."""
    order = program.order()
    return {node: find_device(node.pin) for node in order if node.pin is not None}


def _assigned(
    program: Program,
    pinned: dict[Node, Device],
    device: Device,
    moved: Sequence[Node] = (),
    to: Device | None = None,
) -> dict[Node, Device]:
    """Return the device of each computed node, and of tensors that are outputs."""
    elsewhere = set(moved)
    roots = set(program.outputs)
    places: dict[Node, Device] = {}
    for node in program.order():
        if node.op is ITEM:
            places[node] = places[node.inputs[0]]
        elif is_held(node):
            if node in roots:
                places[node] = home_of(node.attrs["symbol"])
        elif not is_free(node) or node in roots:
            found = to if to is not None and node in elsewhere else device
            places[node] = pinned.get(node, found)
    return places


def _groupings(program: Program, places: dict[Node, Device]) -> list[Groups]:
    """Return the groups for each device to start with."""
    # Among equals, GPUs come first: the host continues while they work.
    starts = sorted(dict.fromkeys(places.values()), key=lambda each: (each.is_host, each.name))
    return [groups_of(program, places, first) for first in starts]


# --- by cost


def _cheapest(
    program: Program, pinned: dict[Node, Device], device: Device, costs: Costs
) -> DevicePlacement:
    others = {home_of(symbol) for symbol in _held_symbols(program)} | set(pinned.values())
    other = find_device("cpu")
    if device.is_host:
        other = min(others - {device}, key=lambda each: each.name, default=device)
    free = [
        node
        for node in program.order()
        if node not in pinned and not is_held(node) and not is_free(node)
    ]
    candidates = {f"all on {device.name}": _assigned(program, pinned, device)}
    if other is not device:
        candidates[f"all on {other.name}"] = _assigned(program, pinned, other)
        if len(free) <= MOST_NODES:
            moved = _cut(program, pinned, device, other, costs)
            divided = _assigned(program, pinned, device, moved, other)
            candidates["divided"] = divided
    times: dict[str, float] = {}
    groups: dict[str, Groups] = {}
    for name, places in candidates.items():
        found = sorted(_groupings(program, places), key=len)
        ends = [predicted(program, each, costs) for each in found]
        # Fewer parts are better, unless more parts let both devices work concurrently.
        quickest = next(i for i, end in enumerate(ends) if CLEARLY * end <= min(ends))
        times[name], groups[name] = ends[quickest], found[quickest]
    best = min((name for name in times if name != "divided"), key=times.__getitem__)
    if "divided" in times and times["divided"] < CLEARLY * times[best]:
        best = "divided"
    said = ", ".join(f"{name} {seconds_text(time)}" for name, time in times.items())
    return DevicePlacement(
        groups[best], f"settings.placement auto: {best}, by predicted time ({said})"
    )


def _cut(
    program: Program, pinned: dict[Node, Device], device: Device, other: Device, costs: Costs
) -> list[Node]:
    """Return the nodes that are cheaper on `other`, including copies."""
    order = [node for node in program.order() if node.op.kind != "leaf" or node.inputs]
    leaves = [node for node in program.order() if is_held(node)]
    feeds = [
        n for n in program.order() if "symbol" in n.attrs and n.attrs["symbol"].role == "input"
    ]
    numbers = {node: i for i, node in enumerate([*order, *leaves, *feeds])}
    network = FlowNetwork(len(numbers))
    host = find_device("cpu")

    def fix(number: int, where: Device) -> None:
        if where is device:
            network.edge(network.source, number, NEVER)
        elif where is other:
            network.edge(number, network.sink, NEVER)

    for node in order:
        number = numbers[node]
        if node.op is ITEM:
            network.edge(number, numbers[node.inputs[0]], NEVER)
            network.edge(numbers[node.inputs[0]], number, NEVER)
        elif node in pinned:
            fix(number, pinned[node])
        else:
            network.edge(network.source, number, costs.seconds(node, other))
            network.edge(number, network.sink, costs.seconds(node, device))
    for node in leaves:
        fix(numbers[node], home_of(node.attrs["symbol"]))
    for node in feeds:
        fix(numbers[node], host)
    readers: dict[Node, list[int]] = {}
    for node in order:
        for given in dict.fromkeys(node.inputs):
            if given in numbers and node.op is not ITEM:
                readers.setdefault(given, []).append(numbers[node])
    for symbol, value in program.updates:
        if value in numbers:
            kept = network.node()
            fix(kept, home_of(symbol))
            readers.setdefault(value, []).append(kept)
    for node, users in readers.items():
        _add_copy(network, numbers[node], users, costs.copied(node.spec.nbytes, device, other))
    with_device = network.source_side()
    return [node for node in order if numbers[node] not in with_device]


def _add_copy(network: FlowNetwork, number: int, users: Sequence[int], seconds: float) -> None:
    """Add the cost of copying a value once to the opposite side for its readers."""
    there, back = network.node(), network.node()
    network.edge(number, there, seconds)
    network.edge(back, number, seconds)
    for user in users:
        network.edge(there, user, NEVER)
        network.edge(user, back, NEVER)


def predicted(program: Program, groups: Groups, costs: Costs) -> float:
    """Return the predicted time of a run.

    GPUs work asynchronously, the host waits for its inputs.
    """
    host = find_device("cpu")
    group_of = {node: i for i, (_, nodes) in enumerate(groups) for node in nodes}
    ends: list[float] = []
    free: dict[Device, float] = {}
    for device, nodes in groups:
        # The host launches all parts.
        begin = max(free.get(device, 0.0), free.get(host, 0.0))
        copies = 0.0
        read = {given: None for node in nodes for given in node.inputs}
        read |= {node: None for node in nodes if is_held(node)}
        for node in read:
            source = _place_of(node, groups, group_of)
            if source is not None and source is not device:
                copies += costs.copied(node.spec.nbytes, source, device)
            if node in group_of and group_of[node] < len(ends):
                begin = max(begin, ends[group_of[node]])
        work = sum(costs.seconds(node, device) for node in nodes if not is_held(node))
        ends.append(begin + copies + work)
        free[device] = ends[-1]
    last = max(ends, default=0.0)
    for symbol, node in program.updates:
        source = _place_of(node, groups, group_of)
        if source is not None and source is not home_of(symbol):
            last += costs.copied(symbol.spec.nbytes, source, home_of(symbol))
    return last


def _place_of(node: Node, groups: Groups, group_of: dict[Node, int]) -> Device | None:
    if is_held(node):
        return home_of(node.attrs["symbol"])
    if node in group_of:
        return groups[group_of[node]][0]
    is_input = "symbol" in node.attrs and node.attrs["symbol"].role == "input"
    return find_device("cpu") if is_input else None
