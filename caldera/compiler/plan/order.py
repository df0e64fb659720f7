"""Execution order of a plan's nodes on streams, and steps fused into fewer launches.

Small kernels leave most of a GPU idle. The critical path of a step stays on stream 0. Work with
slack, such as the gradients of weights, which are not read before the update, is assigned to the
remaining streams. Each stream keeps the order of its pieces. Results are bit-identical: the same
kernels compute with the same numbers.

Consecutive or similar calls are joined, and on devices that support it all calls of a small
network's step become one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np

from caldera.compiler.plan.schedule import Lookup, StepSchedule
from caldera.core.graph import Node, topological
from caldera.core.graph.ops.collective import Number, start, turn
from caldera.core.graph.ops.control import scan
from caldera.core.memory import (
    Block,
    CapturedGraph,
    Device,
    Stream,
    TimingEvent,
    address_of,
)
from caldera.core.memory.capture import capture
from caldera.core.memory.interface import StreamCall
from caldera.core.tensor import Shape, Tensor
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.native.codegen.program import joined_runs
from caldera.kernels.table import (
    LAUNCH_GROUPERS,
    STEP_FUSERS,
    Array,
    Call,
    Runner,
    StepPiece,
    Steps,
)


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
    """Return the place of a message or a turn in their order."""
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


MOST_BYTES = 64 << 20
"""Maximum bytes of values between the calls, each with separate memory here."""


def grouped(family: str, bound: Sequence[tuple[Call, Runner]]) -> list[StepPiece]:
    """Return runners of these calls, combined into the fewest pieces the device family supports."""
    if family in LAUNCH_GROUPERS:
        return LAUNCH_GROUPERS[family](bound)
    runners = joined_runs(runner for _, runner in bound)
    return [StepPiece(runner, frozenset({n - 1} if n else ())) for n, runner in enumerate(runners)]


def execute(pieces: Sequence[StepPiece]) -> None:
    """Run the pieces in order."""
    # Infinities and nans are values here, not news.
    with single_threaded_blas, np.errstate(all="ignore"):
        for piece in pieces:
            piece.run()


class FusedStep(CapturedGraph):
    """A step that is one launch, or a part of a launch of many."""

    def __init__(self, stream: Stream, steps: Steps, kept: object) -> None:
        self._stream = stream
        self._steps = cache(steps)
        self._kept = kept
        # Machine code is made or found now.
        self._steps(1)

    def replay(self) -> None:
        self._stream.repeat(self._times)

    def _times(self, count: int) -> Runner:
        """Return the runner of `count` steps.

        As a bound method, it keeps the memory of a deferred launch alive.
        """
        return self._steps(count)


def can_fuse_step(device: Device, schedule: StepSchedule) -> bool:
    """Return True if fusion is possible: the device supports it, and the values fit."""
    return device.kernels in STEP_FUSERS and 0 < schedule.naive_bytes <= MOST_BYTES


def fuse_step(
    device: Device, schedule: StepSchedule, lookup: Callable[[Block], Lookup], communicator: Any
) -> FusedStep | None:
    """Return a schedule's steps as one launch, without reuse of memory; None if not possible.

    `lookup(block)` finds arrays, with the arena's arrays in that block.
    """
    block = device.allocate(schedule.arena_bytes, owner="joined steps")
    kept: list[Tensor] = []

    def fresh(shape: Shape, dtype: str) -> Array:
        kept.append(Tensor(shape, dtype=dtype, device=device, name="joined steps"))
        return kept[-1].device_array()

    def is_scratch(array: np.ndarray[Any, np.dtype[Any]]) -> bool:
        return block.address <= address_of(array) < block.address + block.nbytes

    calls = [(kernel.op, call) for kernel, call in schedule.calls(lookup(block), communicator)]
    steps = STEP_FUSERS[device.kernels](calls, fresh, is_scratch)
    return None if steps is None else FusedStep(device.stream, steps, (block, kept, calls))


ROUNDS = 6
"""Number of timings per form; the first timing is ignored."""
HYSTERESIS = 0.02
"""Minimum relative gain of another form over the first one; smaller gains are noise."""


class AutotunedGraph(CapturedGraph):
    """Forms of a step that differ only in speed.

    Replays alternate between the forms until each form has been timed, without waiting for results.
    All forms return bit-identical results, so the choice does not affect them, in deterministic
    runs either.
    """

    def __init__(self, stream: Stream, forms: Sequence[CapturedGraph]) -> None:
        self._stream = stream
        self._forms = list(forms)
        self._times: list[tuple[TimingEvent, TimingEvent]] = []

    @property
    def forms(self) -> list[CapturedGraph]:
        """Forms that are still candidates."""
        return self._forms

    def replay(self) -> None:
        if len(self._forms) > 1 and len(self._times) < ROUNDS * len(self._forms):
            turn = len(self._times) % len(self._forms)
            begin = self._stream.record_timing()
            self._forms[turn].replay()
            self._times.append((begin, self._stream.record_timing()))
            return
        if len(self._forms) > 1 and self._times[-1][1].done():
            self._decide()
        self._forms[0].replay()

    def _decide(self) -> None:
        count = len(self._forms)
        seconds = [
            median(end.since(begin) for begin, end in self._times[turn::count][1:])
            for turn in range(count)
        ]
        best = min(range(count), key=seconds.__getitem__)
        if seconds[best] > (1 - HYSTERESIS) * seconds[0]:
            best = 0
        # Drop the remaining forms, with their memory on the device.
        self._forms = [self._forms[best]]
        self._times = []


def captured(stream: Stream, pieces: Sequence[StepPiece]) -> CapturedGraph:
    """Capture the pieces in order, or on several streams where that proves to be faster."""
    graph = capture(stream, partial(stream.launch, partial(execute, pieces)))
    calls = assign_streams(pieces) if stream.has_side_streams else []
    if not any(each.stream for each in calls):
        return graph
    return AutotunedGraph(
        stream, [graph, capture(stream, partial(stream.launch_on_streams, calls))]
    )
