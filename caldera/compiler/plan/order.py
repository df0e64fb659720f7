"""Execution order of a plan's nodes, and assignment of its pieces to streams.

Small kernels leave most of a GPU idle. The critical path of a step stays on stream 0. Work with
slack, such as the gradients of weights, which are not read before the update, is assigned to the
remaining streams. Each stream keeps the order of its pieces. Results are bit-identical: the same
kernels compute with the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caldera.core.graph import Node, topological
from caldera.core.graph.ops.collective import Number, start, turn
from caldera.core.graph.ops.control import scan
from caldera.core.memory.interface import StreamCall
from caldera.kernels.table import StepPiece


def in_order(nodes: Sequence[Node], written: Mapping[Any, Node]) -> list[Node]:
    """Return these nodes and all their dependencies, inputs before users.

    `written` maps symbols to their new values. Messages to other ranks are sent as early as
    possible, to overlap with computation. Messages from other ranks are received at their first
    use.

    Results that only loops read, such as gradients of parameters and metric counts, are computed as
    soon as possible, and so are the nodes given. Their inputs can then be released, and a gradient
    may be written over the scores it is computed from. All readers of a variable come before it is
    overwritten.
    """
    order = topological(nodes)
    sent = [node for node in order if node.op is start or node.op is turn]
    early: list[Node] = []
    for node in sorted(sent, key=_number):
        message = node.attrs.get("message")
        if message is None or message.kind != "gather":
            # A collective that is awaited immediately comes late, but its inputs are computed
            # early.
            early += node.inputs[:-1] if message is not None and message.now else [node]
    depth: dict[Node, float] = {}
    for node in order:
        depth[node] = 1 + max((depth[given] for given in node.inputs), default=0)
    leads_on: set[Node] = set()
    for node in reversed(order):
        if node in leads_on or is_heavy(node):
            leads_on.update(node.inputs)
    soon = {
        node: depth[node]
        for node in order
        if node not in leads_on and (is_heavy(node) or node.op.kind == "reduction")
    }
    after = {node: depth[node] for node in nodes}
    for node in order:
        for given in node.inputs:
            changed = written.get(given.attrs.get("symbol"))
            if changed is not None and is_heavy(node):
                soon[node] = depth[node]
                after[changed] = max(after[changed], depth[node] + 0.5)
    soon |= after
    return topological([*early, *sorted(soon, key=soon.__getitem__)])


def is_heavy(node: Node) -> bool:
    """Return True for products and other nodes that are more than a loop over elements."""
    return node.op.kind in ("product", "other") or node.op is scan


def _number(node: Node) -> Number:
    """The place of a message or a turn in their order."""
    return node.attrs["number"] if node.op is turn else node.attrs["message"].number


STREAMS = 3
"""Number of streams; with more, synchronisation is too frequent."""
_HOP_SECONDS = 1.5e-6
"""Seconds to wait for another stream."""


@dataclass(frozen=True)
class _Times:
    """Earliest start of each piece, and time from its start to the end of the run."""

    head: list[float]
    tail: list[float]

    @classmethod
    def of(cls, pieces: Sequence[StepPiece]) -> _Times:
        head = [0.0] * len(pieces)
        for number, piece in enumerate(pieces):
            ends = (head[other] + pieces[other].seconds for other in piece.after)
            head[number] = max(ends, default=0.0)
        after = [0.0] * len(pieces)
        for number in reversed(range(len(pieces))):
            for other in pieces[number].after:
                after[other] = max(after[other], after[number] + pieces[number].seconds)
        tail = [rest + piece.seconds for rest, piece in zip(after, pieces, strict=True)]
        return cls(head, tail)

    @property
    def longest(self) -> float:
        """Duration of the run if only the order constrained it."""
        return max((a + b for a, b in zip(self.head, self.tail, strict=True)), default=0.0)


@dataclass
class _Streams:
    """Pieces assigned to streams so far."""

    pieces: Sequence[StepPiece]
    free: list[float]
    stream: list[int] = field(default_factory=list)
    end: list[float] = field(default_factory=list)

    def start(self, number: int, stream: int) -> float:
        """Return the earliest start time of a piece on a stream."""
        ready = (
            self.end[other] + _HOP_SECONDS * (self.stream[other] != stream)
            for other in self.pieces[number].after
        )
        return max([self.free[stream], *ready])

    def put(self, number: int, stream: int) -> None:
        self.end.append(self.start(number, stream) + self.pieces[number].seconds)
        self.stream.append(stream)
        self.free[stream] = self.end[-1]


def assign_streams(pieces: Sequence[StepPiece], count: int = STREAMS) -> list[StreamCall]:
    """Return the pieces in their order, each assigned to one of `count` streams.

    >>> def piece(*after: int) -> StepPiece:
    ...     return StepPiece(lambda: None, frozenset(after), 1e-5)
    >>> chain = [piece(), piece(0), piece(0), piece(2), piece(1, 3)]
    >>> [(call.stream, call.after) for call in assign_streams(chain, 2)]
    [(0, ()), (1, (0,)), (0, ()), (0, ()), (0, (1,))]
    """
    times, streams = _Times.of(pieces), _Streams(pieces, [0.0] * count)
    longest, late = times.longest, 0.0
    for number in range(len(pieces)):
        start = {stream: streams.start(number, stream) for stream in range(count)}
        aside = min(range(1, count), key=start.__getitem__, default=0)
        # The allowed delay of the end is the delay of stream 0 so far.
        latest = longest - times.tail[number] + late
        if start[aside] + _HOP_SECONDS > latest:
            aside = min(start, key=start.__getitem__)
        streams.put(number, aside)
        if aside == 0:
            late = max(late, start[0] - times.head[number])
    return [
        StreamCall(pieces[number].run, streams.stream[number], after)
        for number, after in enumerate(_waits(pieces, streams.stream))
    ]


def _waits(pieces: Sequence[StepPiece], stream: Sequence[int]) -> list[tuple[int, ...]]:
    """Return for each piece the pieces on other streams that it must wait for.

    Pieces for which an earlier wait suffices are omitted.
    """
    waits = []
    # For each piece, the last one of each stream that is done before it ends.
    done: list[dict[int, int]] = []
    last: dict[int, int] = {}
    for number, piece in enumerate(pieces):
        own = stream[number]
        known = dict(done[last[own]]) if own in last else {}
        found = []
        for other in sorted(piece.after, reverse=True):
            if known.get(stream[other], -1) < other:
                if stream[other] != own:
                    found.append(other)
                for each, until in done[other].items():
                    known[each] = max(known.get(each, -1), until)
        known[own] = number
        waits.append(tuple(sorted(found)))
        done.append(known)
        last[own] = number
    return waits
