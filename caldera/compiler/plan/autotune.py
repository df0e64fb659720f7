"""Several captured forms of one step, of which the fastest stays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from caldera.compiler.plan.step_fusion import execute
from caldera.compiler.plan.stream_assignment import assign_streams
from caldera.core.memory import Stream
from caldera.core.memory.capture import capture
from caldera.core.memory.interface import CapturedGraph, TimingEvent
from caldera.kernels.step_launch import Piece

ROUNDS = 6
"""How often each form is timed; the first time does not count."""
HYSTERESIS = 0.02
"""How much faster another form must be than the first one: less is within the noise."""


class AutotunedGraph(CapturedGraph):
    """Forms of a step that differ in nothing but their time.

    Replays take turns until each form has been timed, and nobody waits for that. As results are the
    same in all bits, it does not matter to them, in deterministic runs either, which one wins.
    """

    def __init__(self, stream: Stream, forms: Sequence[CapturedGraph]) -> None:
        self._stream = stream
        self._forms = list(forms)
        self._times: list[tuple[TimingEvent, TimingEvent]] = []

    @property
    def forms(self) -> list[CapturedGraph]:
        """Those that may still win."""
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
        # The others go, and what the device keeps for them.
        self._forms = [self._forms[best]]
        self._times = []


def captured(stream: Stream, pieces: Sequence[Piece]) -> CapturedGraph:
    """The pieces one after the other, or on several streams where that proves to be faster."""
    graph = capture(stream, partial(stream.launch, partial(execute, pieces)))
    calls = assign_streams(pieces) if stream.has_side_streams else []
    if not any(each.stream for each in calls):
        return graph
    return AutotunedGraph(
        stream, [graph, capture(stream, partial(stream.launch_on_streams, calls))]
    )
