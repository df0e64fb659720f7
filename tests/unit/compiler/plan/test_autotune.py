"""Of several captured forms of a step the fastest stays, and nobody waits to find out."""

from __future__ import annotations

from typing import Self

from caldera.compiler.plan.order import HYSTERESIS, ROUNDS, AutotunedGraph
from caldera.core.memory import device
from caldera.core.memory.host import LoopbackStream
from caldera.core.memory.interface import CapturedGraph, TimingEvent


class _Clock(LoopbackStream):
    """A stream whose time passes as its graphs say."""

    def __init__(self) -> None:
        super().__init__("clock", device("cpu").counters)
        self.now = 0.0
        self.has_arrived = True

    def record_timing(self) -> TimingEvent:
        return _Point(self)


class _Point(TimingEvent):
    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self._seconds = clock.now

    def done(self) -> bool:
        return self._clock.has_arrived

    def since(self, earlier: Self) -> float:
        assert self.done()
        return self._seconds - earlier._seconds


class _Form(CapturedGraph):
    def __init__(self, clock: _Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self.replays = 0

    def replay(self) -> None:
        # What runs for the first time takes longer.
        self._clock.now += self._seconds * (1 if self.replays else 50)
        self.replays += 1


def _replayed(*seconds: float, arrived: bool = True) -> tuple[list[int], AutotunedGraph]:
    clock = _Clock()
    clock.has_arrived = arrived
    forms = [_Form(clock, each) for each in seconds]
    graph = AutotunedGraph(clock, forms)
    for _ in range(100):
        graph.replay()
    return [form.replays for form in forms], graph


def test_the_faster_one_stays() -> None:
    counts, graph = _replayed(2.0, 1.0)
    assert counts == [ROUNDS, 100 - ROUNDS]
    assert len(graph.forms) == 1


def test_the_first_one_stays_if_the_other_is_not_clearly_faster() -> None:
    assert _replayed(1.0, 1.0 - HYSTERESIS / 2)[0] == [100 - ROUNDS, ROUNDS]
    assert _replayed(1.0, 2.0)[0] == [100 - ROUNDS, ROUNDS]


def test_nobody_waits_for_the_times() -> None:
    counts, graph = _replayed(2.0, 1.0, arrived=False)
    assert counts == [100 - ROUNDS, ROUNDS]
    assert len(graph.forms) == 2
