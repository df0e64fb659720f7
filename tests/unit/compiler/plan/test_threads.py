"""Threads that use one device take turns."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import perf_counter

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.memory import Device
from caldera.core.memory.capture import capture


def test_nobody_launches_into_the_capture_of_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = cd.device("loopback:9")
    x = op.var("x", (3,), fill=np.arange(3.0), device=here)
    doubled = cd.compile([x * 2.0], device=here)
    increased = cd.compile([x + 1.0], device=here)
    found: list[list[float]] = []
    other = threading.Thread(target=lambda: found.append(increased.run()[0].tolist()))
    begin = here.stream.begin_capture

    def begin_and_give_time() -> None:
        begin()
        other.start()
        other.join(0.2)
        assert not found

    monkeypatch.setattr(here.stream, "begin_capture", begin_and_give_time)
    doubled.capture()
    other.join(30)
    assert found == [[1.0, 2.0, 3.0]]
    assert doubled.run()[0].tolist() == [0.0, 2.0, 4.0]


# --- whatever two threads do at the same time

SECONDS = 0.4
"""How long the threads of a test work beside each other."""


class _Threads:
    """Threads that do something again and again; what goes wrong in any of them is raised."""

    def __init__(self, *works: Callable[[], object]) -> None:
        self._deadline = perf_counter() + SECONDS
        self._problems: list[BaseException] = []
        self.rounds = [0] * len(works)
        self._threads = [
            threading.Thread(target=self._repeat, args=(number, work))
            for number, work in enumerate(works)
        ]

    def _repeat(self, number: int, work: Callable[[], object]) -> None:
        try:
            while perf_counter() < self._deadline and not self._problems:
                work()
                self.rounds[number] += 1
        except BaseException as problem:  # raised by `run`
            self._problems.append(problem)

    def run(self) -> None:
        switches = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in self._threads:
                thread.start()
            for thread in self._threads:
                thread.join(30)
        finally:
            sys.setswitchinterval(switches)
        assert not any(thread.is_alive() for thread in self._threads), "they wait for each other"
        if self._problems:
            raise self._problems[0]
        assert all(self.rounds)


def _tune(here: Device, seen: list[int]) -> None:
    """What timing a kernel does: capture some calls, replay them, wait."""
    graph = capture(
        here.stream, lambda: [here.stream.launch(lambda: seen.append(1)) for _ in range(4)]
    )
    before = len(seen)
    graph.replay()
    here.stream.synchronize()
    assert len(seen) == before + 4, "launches of another thread were recorded, or ours were not"


def test_threads_tune_compile_capture_launch_and_read_beside_each_other() -> None:
    here = cd.device("loopback:11")
    served = op.var("served", (4,), fill=np.zeros(4), dtype="float64", device=here)
    given = op.input("given", (4,), dtype="float64")
    serve = cd.compile([op.assign(served, served + given)], device=here)
    trained = op.var("trained", (4,), fill=np.zeros(4), dtype="float64", device=here)
    steps, made = [0], [0]
    seen: list[int] = []

    def server() -> None:
        serve.run({"given": np.ones(4)})
        steps[0] += 1

    def worker() -> None:
        made[0] += 1
        plan = cd.compile(
            [trained * float(made[0]), op.assign(trained, trained + 1.0)], remember=False
        )
        kept = plan.run()[0]
        plan.capture()
        again = plan.run()[0]
        assert kept.tolist() == [(2.0 * made[0] - 2) * made[0]] * 4
        assert again.tolist() == [(2.0 * made[0] - 1) * made[0]] * 4

    def reader() -> None:
        before, found, after = steps[0], served.numpy(), steps[0]
        assert before <= found[0] <= after + 1
        assert (found == found[0]).all()

    _Threads(server, worker, lambda: _tune(here, seen), reader).run()
    assert served.numpy().tolist() == [float(steps[0])] * 4
    assert trained.numpy().tolist() == [2.0 * made[0]] * 4


def test_what_a_thread_holds_back_does_not_go_into_the_capture_of_another() -> None:
    stream = cd.device("loopback:11").new_stream()
    seen: list[int] = []
    started, ended = threading.Event(), threading.Event()

    def repeats() -> None:
        started.wait()
        for _ in range(20):
            stream.repeat(lambda count: lambda: seen.append(count))
        ended.set()

    other = threading.Thread(target=repeats)
    other.start()

    def work() -> None:
        started.set()
        ended.wait(10)
        stream.launch(lambda: seen.append(-1))

    graph = capture(stream, work)
    other.join(10)
    stream.synchronize()
    assert sum(seen) == 20
    graph.replay()
    stream.synchronize()
    assert (seen[-1], sum(seen)) == (-1, 19)


def test_a_capture_that_fails_is_over() -> None:
    stream = cd.device("loopback:11").new_stream()
    with pytest.raises(ZeroDivisionError):
        capture(stream, lambda: 1 // 0)
    assert not stream.capturing
    stream.synchronize()


def test_nobody_takes_for_read_what_is_about_to_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread reads just when the plan of another has said that it will write."""
    here = cd.device("loopback:11")
    x = op.var("x", (2,), fill=np.zeros(2), device=here)
    plan = cd.compile([op.assign(x, x + 1.0)], device=here)
    plan.run()
    x.numpy()
    found: list[list[float]] = []
    other = threading.Thread(target=lambda: found.append(x.numpy().tolist()))
    launch = here.stream.launch

    def launch_later(call: Callable[[], object]) -> None:
        if threading.current_thread() is not other and not other.ident:
            other.start()
            other.join(0.2)
        launch(call)

    monkeypatch.setattr(here.stream, "launch", launch_later)
    plan.run()
    other.join(30)
    assert found == [[2.0, 2.0]]
    assert x.numpy().tolist() == [2.0, 2.0]
