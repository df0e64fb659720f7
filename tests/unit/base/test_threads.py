"""The thread pool: parts run once each, errors come back, nesting and forks do not get stuck."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from caldera.base.config import settings
from caldera.base.threads import at_most_threads, parallel_for, part_count, pool, submit


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    with settings.override(threads=4):
        yield


@pytest.mark.parametrize("count", [1, 2, 3, 4, 100])
def test_every_part_runs_exactly_once(count: int) -> None:
    seen: list[tuple[int, int]] = []
    parallel_for(lambda worker, workers: seen.append((worker, workers)), count)
    workers = min(count, 4)
    assert sorted(seen) == [(worker, workers) for worker in range(workers)]


def test_no_work_calls_nothing() -> None:
    parallel_for(lambda worker, workers: pytest.fail("called"), 0)


def test_parts_run_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=20)
    with settings.override(threads=2):
        parallel_for(lambda worker, workers: together.wait(), 2)


def test_exception_of_a_part_is_raised_after_the_others_ended() -> None:
    started = threading.Barrier(2, timeout=20)
    ended: list[int] = []

    def part(worker: int, workers: int) -> None:
        started.wait()
        if worker == 1:
            raise LookupError("part 1")
        ended.append(worker)

    with settings.override(threads=2), pytest.raises(LookupError, match="part 1"):
        parallel_for(part, 2)
    assert ended == [0]


def test_loop_inside_a_worker_runs_in_place() -> None:
    inner: list[tuple[int, int]] = []

    def task() -> None:
        parallel_for(lambda worker, workers: inner.append((worker, workers)), 4)

    submit(task).result(timeout=20)
    assert inner == [(0, 1)]


def test_nested_loops_end() -> None:
    total: list[int] = []

    def outer(worker: int, workers: int) -> None:
        parallel_for(lambda inner, inners: total.append(1), 8)

    parallel_for(outer, 4)
    assert len(total) >= 4


def test_loop_ends_although_every_worker_is_busy() -> None:
    release = threading.Event()
    busy = [submit(lambda: release.wait(20)) for _ in range(8)]
    seen: list[int] = []
    parallel_for(lambda worker, workers: seen.append(worker), 4)
    assert sorted(seen) == [0, 1, 2, 3]
    release.set()
    assert all(future.result(timeout=20) for future in busy)


def test_submit_hands_back_results_and_exceptions() -> None:
    assert submit(lambda: 5).result(timeout=20) == 5
    with pytest.raises(ZeroDivisionError):
        submit(lambda: 1 // 0).result(timeout=20)


def test_pool_is_one_and_follows_the_setting() -> None:
    first = pool()
    assert pool() is first
    assert first.size == 4
    with settings.override(threads=2):
        assert pool().size == 2
        assert submit(lambda: 1).result(timeout=20) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_after_fork_has_working_threads() -> None:
    together = threading.Barrier(2, timeout=20)
    submit(lambda: None).result(timeout=20)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # If the parent's threads were still counted on, the barrier would break.
            signal.alarm(30)
            submit(together.wait)
            together.wait()
            parallel_for(lambda worker, workers: None, 4)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_only_many_threads_have_several_parts_each() -> None:
    assert (part_count(4), part_count(4, each=2)) == (4, 8)
    with settings.override(threads=16):
        assert part_count(16) == part_count(16, each=2) == 64
        # Any thread that is free takes a part: there must not be more than may take part.
        with at_most_threads(12):
            assert part_count(12) == part_count(12, each=2) == 12
