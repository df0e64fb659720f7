"""Calls on several streams of a card: which stream each is put on, and what waits for what."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from caldera.core.memory import cuda, gpus
from caldera.core.memory.capture import capture
from caldera.core.memory.cuda import CudaStream, launching_side_stream, launching_stream
from caldera.core.memory.gpus import Card
from caldera.core.memory.interface import StreamCall, TransferCounters


class FakeStream:
    """A queue of what a stream was given."""

    made: list[FakeStream]

    def __init__(self, non_blocking: bool = False) -> None:
        self.ptr = len(self.made) + 1
        self.queue: deque[Callable[[], bool]] = deque()
        self.made.append(self)

    def __enter__(self) -> None: ...

    def __exit__(self, *problem: object) -> None: ...

    def wait_event(self, event: FakeEvent) -> None:
        self.queue.append(lambda: event.reached)

    def begin_capture(self) -> None: ...

    def end_capture(self) -> FakeGraph:
        return FakeGraph()


class FakeGraph:
    """What was captured; a launch of it is one call."""

    def launch(self, stream: FakeStream) -> None:
        stream.queue.append(lambda: True)


class FakeEvent:
    """A point of a stream."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.reached = False

    def record(self, stream: FakeStream) -> None:
        def reach() -> bool:
            self.reached = True
            return True

        stream.queue.append(reach)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[FakeStream]:
    """All streams of a card that only notes what it is given."""

    @contextmanager
    def chosen(index: int) -> Iterator[None]:
        yield

    FakeStream.made = []
    parts = SimpleNamespace(Stream=FakeStream, Event=FakeEvent, Device=chosen)
    for module in (gpus, cuda):
        monkeypatch.setattr(module, "cupy", lambda: SimpleNamespace(cuda=parts))
    return FakeStream.made


def _launched(streams: list[FakeStream], seen: list[Any], what: Any) -> Callable[[], None]:
    """A call that puts something on the stream it is launched on."""

    def put() -> bool:
        seen.append(what)
        return True

    return lambda: streams[launching_stream() - 1].queue.append(put)


def _run(streams: list[FakeStream], seed: int) -> None:
    """Work on all streams, in any order in which they may go on."""
    draw = random.Random(seed)
    waiting = 0
    while busy := [stream for stream in streams if stream.queue]:
        stream = draw.choice(busy)
        if stream.queue[0]():
            stream.queue.popleft()
            waiting = 0
        else:
            waiting += 1
            assert waiting < 1000, "all wait for each other"


@pytest.mark.parametrize("seed", range(20))
def test_lanes_begin_after_what_came_before_and_end_before_what_comes_later(
    streams: list[FakeStream], seed: int
) -> None:
    stream = CudaStream(Card(0), TransferCounters())
    seen: list[Any] = []

    def call(what: Any) -> Callable[[], None]:
        return _launched(streams, seen, what)

    stream.launch(call("before"))
    stream.launch_on_streams(
        [
            StreamCall(call(0)),
            StreamCall(call(1), 1, (0,)),
            StreamCall(call(2), 2),
            StreamCall(call(3)),
            StreamCall(call(4), 1, (2,)),
            StreamCall(call(5), 0, (1,)),
            StreamCall(call(6), 2, (5,)),
        ]
    )
    stream.launch(call("after"))
    _run(streams, seed)
    assert seen[0] == "before"
    assert seen[-1] == "after"
    assert sorted(seen[1:-1]) == list(range(7))
    for first, second in [(0, 1), (0, 3), (1, 4), (2, 4), (3, 5), (1, 5), (2, 6), (5, 6)]:
        assert seen.index(first) < seen.index(second)


def test_a_call_knows_its_lane(streams: list[FakeStream]) -> None:
    stream = CudaStream(Card(0), TransferCounters())
    seen: list[int] = []
    calls = [StreamCall(lambda: seen.append(launching_side_stream()), index) for index in (0, 2, 1)]
    stream.launch_on_streams(calls)
    stream.launch(lambda: seen.append(launching_side_stream()))
    assert seen == [0, 2, 1, 0]


def test_a_capture_is_on_streams_of_its_own(streams: list[FakeStream]) -> None:
    """What another thread launches meanwhile goes where it always does, also beside the stream."""
    stream = CudaStream(Card(0), TransferCounters())
    seen: dict[str, list[int]] = {"captured": [], "launched": []}

    def launch(what: str) -> None:
        def note() -> None:
            seen[what].append(launching_stream())

        stream.launch(note)
        stream.launch_on_streams([StreamCall(note), StreamCall(note, 1)])
        assert stream.capturing is (what == "captured")

    def work() -> None:
        launch("captured")
        other = threading.Thread(target=launch, args=("launched",))
        other.start()
        other.join(10)
        launch("captured")

    graph = capture(stream, work)
    assert set(seen["launched"]).isdisjoint(seen["captured"])
    assert len(seen["launched"]) == 3
    assert seen["captured"][:3] == seen["captured"][3:]
    assert seen["launched"][0] == stream.stream.ptr
    before = len(stream.stream.queue)
    graph.replay()
    assert len(stream.stream.queue) == before + 1


def test_a_card_can_be_waited_for_only_between_captures(streams: list[FakeStream]) -> None:
    stream, card = CudaStream(Card(3), TransferCounters()), Card(3)
    got: list[bool] = []

    def attempt() -> None:
        got.append(card.capture_lock.acquire(blocking=False))
        if got[-1]:
            card.capture_lock.release()

    def other_thread() -> None:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join(10)

    capture(stream, other_thread)
    other_thread()
    with pytest.raises(ZeroDivisionError):
        capture(stream, lambda: 1 // 0)
    other_thread()
    assert got == [False, True, True]
