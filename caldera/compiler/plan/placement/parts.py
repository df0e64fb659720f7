"""Partition of a program that runs on several devices, into parts that each run on one.

Each part is a separate program, so passes, kernels, memory and capture are specific to its device.
A value that one part computes and another reads is stored in a tensor with a host and a device
side. The earlier part writes one side, the later part reads the opposite side, and the copy between
them is launched as soon as the value is ready. Reads see the values before the run, as everywhere:
a variable is written by a part after its last reader, or at the end of the run.

Work of the host is split into pieces, so that it starts when the first operands have arrived. The
updates of an optimizer on the host read gradients that a GPU has computed. They are independent:
while the first updates are computed, the remaining gradients are copied, and so are new weights
back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caldera.compiler.plan.explain import Copied
from caldera.compiler.plan.operands import can_reach
from caldera.core.graph import Node, Program, Spec, Symbol, users_of
from caldera.core.graph.ops.base import tensor as tensor_leaf
from caldera.core.memory import HOST, MANAGED, Device, find_device
from caldera.core.tensor import Tensor

SMALL = 1 << 12
"""Maximum bytes of values computed once for all pieces, such as the rate of this step."""
LEAST = 4 << 20
"""Bytes that a piece is given to read."""
PIECES = 8
"""Maximum number of pieces."""
Groups = list[tuple[Device, list[Node]]]


def split_host_work(groups: Sequence[tuple[Device, list[Node]]]) -> Groups:
    """Split groups on the host into pieces if they wait for much data from a GPU."""
    found: Groups = []
    for number, (device, nodes) in enumerate(groups):
        waits = device.is_host and number > 0
        found += [(device, piece) for piece in (_pieces(nodes) if waits else [nodes])]
    return found


def _pieces(nodes: list[Node]) -> list[list[Node]]:
    parent = _components(nodes)
    inside = set(nodes)
    components: dict[Node, list[Node]] = {}
    head: list[Node] = []
    for node in nodes:
        (components.setdefault(_root(parent, node), []) if node in parent else head).append(node)
    bytes_of = {
        root: sum(
            given.outputs[0].nbytes for node in each for given in node.inputs if given not in inside
        )
        for root, each in components.items()
    }
    enough = max(LEAST, sum(bytes_of.values()) // PIECES)
    pieces, size = [head], 0
    for root, each in components.items():
        if size >= enough:
            pieces.append([])
            size = 0
        pieces[-1] += each
        size += bytes_of[root]
    return [piece for piece in pieces if piece]


def _components(nodes: Sequence[Node]) -> dict[Node, Node]:
    """Return the connected nodes as a union-find forest.

    Small nodes with small inputs are left out.
    """
    inside, parent = set(nodes), {}
    for node in nodes:
        own = [given for given in node.inputs if given in inside]
        is_small = all(spec.nbytes <= SMALL for spec in node.outputs)
        reads_little = all(spec.nbytes <= SMALL for given in node.inputs for spec in given.outputs)
        if is_small and reads_little and not any(given in parent for given in own):
            continue
        parent[node] = node
        for given in own:
            if given in parent:
                parent[_root(parent, given)] = _root(parent, node)
    return parent


def _root(parent: dict[Node, Node], node: Node) -> Node:
    while parent[node] is not node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


Places = Mapping[Node, Device]


def is_held(node: Node) -> bool:
    """Return True if the node is a tensor, which has a home device."""
    symbol = node.attrs.get("symbol")
    return symbol is not None and symbol.role in ("variable", "tensor")


def is_free(node: Node) -> bool:
    """Return True if any part can have the node without cost.

    Inputs are fed to all parts and constants are kept by all, including constants that are only
    repeated or turned.
    """
    if not node.inputs:
        return node.op.kind == "leaf" and not is_held(node)
    return (
        node.op.kind == "movement"
        and all(given.op.kind != "leaf" or given.op.name == "constant" for given in node.inputs)
        and all(map(is_free, node.inputs))
    )


def home_of(symbol: Symbol) -> Device:
    """Return the device whose kernels use the symbol's tensor."""
    tensor = symbol.value
    return find_device("cpu") if tensor.kind is HOST else tensor.device


@dataclass
class Subgraph:
    """Part of a program that runs on one device without a break.

    `outputs` has the indices of its results among the results of the whole program. `relays` are
    pairs of tensors, of which the first is copied to the second before the part runs. `sent` are
    tensors whose copy to the opposite side is started after launch.
    """

    device: Device
    program: Program
    outputs: tuple[int, ...] = ()
    relays: list[tuple[Symbol, Symbol]] = field(default_factory=list)
    sent: list[Symbol] = field(default_factory=list)
    copies: list[Copied] = field(default_factory=list)


def groups_of(program: Program, places: Places, first: Device) -> list[tuple[Device, list[Node]]]:
    """Return the nodes that are computed, in as long runs on one device as their order allows."""
    nodes = [node for node in program.order() if node in places]
    users = users_of(program.order())
    missing = {node: sum(given in places for given in set(node.inputs)) for node in nodes}
    # By device, in the order of the program.
    ready: dict[Device, list[Node]] = {first: []}
    for node in nodes:
        ready.setdefault(places[node], [])
        if not missing[node]:
            ready[places[node]].append(node)
    groups: list[tuple[Device, list[Node]]] = []
    device = first
    while any(ready.values()):
        if not ready[device]:
            device = max(ready, key=lambda each: len(ready[each]))
        taken: list[Node] = []
        pending = ready[device]
        while pending:
            batch, pending = pending, []
            ready[device] = pending
            for node in batch:
                taken.append(node)
                for user in users[node]:
                    if user in missing:
                        missing[user] -= 1
                        if not missing[user]:
                            ready[places[user]].append(user)
        groups.append((device, taken))
    return groups


def parts_of(program: Program, groups: Sequence[tuple[Device, list[Node]]]) -> list[Subgraph]:
    """Return the parts in the order in which they are launched."""
    return _Partitioner(program, split_host_work(groups)).parts


class _Partitioner:
    """Builder of parts, which determines the values transferred between them."""

    def __init__(self, program: Program, groups: Sequence[tuple[Device, list[Node]]]) -> None:
        self._groups = groups
        self._devices = [device for device, _ in groups]
        self._number = {node: i for i, (_, nodes) in enumerate(groups) for node in nodes}
        self._carriers: dict[tuple[Node, Device], Symbol] = {}
        self._writes: list[dict[Symbol, Node]] = [{} for _ in groups]
        self._relays: list[dict[Symbol, Symbol]] = [{} for _ in groups]
        self._sent: list[dict[Symbol, None]] = [{} for _ in groups]
        self._copies: list[list[Copied]] = [[] for _ in groups]
        self._new: list[dict[Node, Node]] = [{} for _ in groups]
        self._last_reader: dict[Symbol, int] = {}
        self._seen_from_host: list[tuple[int, Symbol]] = []
        for number, (_, nodes) in enumerate(groups):
            for node in nodes:
                self._rebuild(node, number)
        for _, node in program.updates:
            if is_held(node):
                # Copied at the end; the value must not change before.
                self._last_reader[node.attrs["symbol"]] = len(groups)
        late = self._assign_updates(program)
        self._count_host_reads(late)
        self.parts = [self._part(program, number) for number in range(len(groups))] + late

    def _part(self, program: Program, number: int) -> Subgraph:
        new, device = self._new[number], self._devices[number]
        outputs = [i for i, node in enumerate(program.outputs) if self._number[node] == number]
        updates = [(symbol, new[node]) for symbol, node in self._writes[number].items()]
        relays = [(source, target) for target, source in self._relays[number].items()]
        sent = list(self._sent[number])
        if device.is_host:
            sent += [symbol for symbol, _ in updates if not home_of(symbol).is_host]
        values = tuple(new[program.outputs[i]] for i in outputs)
        written = Program(values, tuple(updates))
        return Subgraph(device, written, tuple(outputs), relays, sent, self._copies[number])

    def _count_host_reads(self, late: Sequence[Subgraph]) -> None:
        """Count the copies of variables that the host reads: what no card writes is there."""
        writes = list(zip(self._devices, self._writes, strict=True))
        writes += [(part.device, dict(part.program.updates)) for part in late]
        by_cards = {symbol for device, each in writes if not device.is_host for symbol in each}
        for number, symbol in self._seen_from_host:
            if symbol in by_cards:
                self._record_copy(number, symbol, home_of(symbol), self._devices[number])

    # --- reading

    def _rebuild(self, node: Node, number: int) -> None:
        new = self._new[number]
        if is_held(node):
            new[node] = self._read(node, number)
            return
        for given in node.inputs:
            if given not in new:
                new[given] = self._read(given, number)
        new[node] = node.op.rebuild(node, tuple(new[given] for given in node.inputs))

    def _read(self, node: Node, number: int) -> Node:
        """Return the node of this part that replaces a node from another part, or from no part."""
        device = self._devices[number]
        if is_held(node):
            symbol: Symbol = node.attrs["symbol"]
            self._last_reader[symbol] = number
            if can_reach(device, symbol.value):
                if device is not home_of(symbol):
                    self._seen_from_host.append((number, symbol))
                return node
            return _leaf(self._relay(node, symbol, number))
        return node if is_free(node) else _leaf(self._carrier_for(node, number))

    def _carrier_for(self, node: Node, number: int) -> Symbol:
        """Return the tensor in which this part finds what another one has computed."""
        device, made = self._devices[number], self._number[node]
        source, carrier = self._carrier_to(node, made, device)
        if source is device:
            return carrier
        if source.is_host or device.is_host:
            if device.is_host:
                self._sent[made][carrier] = None
            self._record_copy(number, carrier, source, device)
            return carrier
        return self._relay(node, carrier, number)

    def _carrier_to(self, node: Node, made: int, reader: Device) -> tuple[Device, Symbol]:
        """Return the device of part `made`, and the tensor it writes for a reader elsewhere."""
        source = self._devices[made]
        key = (node, reader if source.is_host else source)
        carrier = self._carriers.get(key)
        if carrier is None:
            carrier = self._carriers[key] = _carrier(node.spec, node.op.name, key[1])
        self._writes[made][carrier] = node
        return source, carrier

    def _relay(self, node: Node, source: Symbol, number: int) -> Symbol:
        """Return a copy of a tensor that the device of a part cannot reach, made before it runs."""
        device = self._devices[number]
        target = self._carriers.get((node, device))
        if target is None:
            target = _carrier(node.spec, source.name or node.op.name, device)
            self._carriers[node, device] = target
            self._relays[number][target] = source
            self._record_copy(number, source, home_of(source), device)
        return target

    def _record_copy(self, number: int, symbol: Symbol, source: Device, target: Device) -> None:
        what = symbol.name or symbol.role
        copy = Copied(what, symbol.spec.nbytes, source.name, target.name)
        if copy not in self._copies[number]:
            self._copies[number].append(copy)

    # --- writing

    def _assign_updates(self, program: Program) -> list[Subgraph]:
        """Assign each update to a part that may write it; the rest form separate parts."""
        late: dict[Device, dict[Symbol, Node]] = {}
        relays: list[tuple[Symbol, Symbol]] = []
        copies: dict[Device, list[Copied]] = {}
        for symbol, node in program.updates:
            made = self._number.get(node)
            home = home_of(symbol)
            if made is not None and self._may_write(symbol, node, made):
                self._writes[made][symbol] = node
                if self._devices[made] is not home:
                    self._record_copy(made, symbol, self._devices[made], home)
                continue
            value = node
            if made is not None and not is_held(node):
                carrier = self._late_carrier_for(node, made, home, relays)
                value = _leaf(carrier)
                if self._devices[made] is not home:
                    source = self._devices[made].name
                    moved = Copied(symbol.name, symbol.spec.nbytes, source, home.name)
                    copies.setdefault(home, []).append(moved)
            elif is_held(node) and home_of(node.attrs["symbol"]) is not home:
                carrier = _carrier(node.spec, symbol.name, home)
                relays.append((node.attrs["symbol"], carrier))
                value = _leaf(carrier)
            late.setdefault(home, {})[symbol] = value
        parts = [
            Subgraph(home, Program((), tuple(writes.items())), copies=copies.get(home, []))
            for home, writes in late.items()
        ]
        if parts:
            # Before all late parts: a late part may overwrite the source of a relay.
            parts[0].relays += relays
        return parts

    def _may_write(self, symbol: Symbol, node: Node, made: int) -> bool:
        """Return True if the part that computes a new value may write it: no reader follows."""
        is_last = self._last_reader.get(symbol, -1) <= made
        return is_last and not is_held(node) and can_reach(self._devices[made], symbol.value)

    def _late_carrier_for(
        self, node: Node, made: int, home: Device, relays: list[tuple[Symbol, Symbol]]
    ) -> Symbol:
        """Return the tensor in which a part at the end finds what part `made` computes."""
        source, carrier = self._carrier_to(node, made, home)
        if home.is_host and not source.is_host:
            self._sent[made][carrier] = None
        if source is home or source.is_host or home.is_host:
            return carrier
        target = _carrier(node.spec, node.op.name, home)
        relays.append((carrier, target))
        return target


def _carrier(spec: Spec, name: str, device: Device) -> Symbol:
    held = Tensor(spec.shape, dtype=spec.dtype, kind=MANAGED, device=device, name=f"{name} carried")
    return Symbol(name, spec.logical, "tensor", held)


def _leaf(symbol: Symbol) -> Node:
    return tensor_leaf(symbol=symbol)
