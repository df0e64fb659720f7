"""Things made in order by threads that come and go: nothing is lost, swapped or left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera.data.loading.prefetch import Prefetcher


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "caldera-data"]


def slower_at_first(number: int) -> int:
    """Those that begin together end in the opposite order."""
    time.sleep(0.001 * (3 - number % 4))
    return number * number


@given(
    count=st.integers(0, 30),
    changes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=6),
)
@settings(max_examples=30, deadline=None)
def test_whatever_the_threads_the_order_is_that_of_the_jobs(
    count: int, changes: list[tuple[int, int]]
) -> None:
    found = []
    with Prefetcher(iter(range(count)), slower_at_first) as feeder:
        feeder.resize(*changes[0])
        for number, made in enumerate(feeder):
            found.append(made)
            feeder.resize(*changes[number % len(changes)])
    assert found == [number**2 for number in range(count)]
    assert not threads()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_so_many_work_at_once_and_no_further_ahead(workers: int) -> None:
    together = threading.Barrier(workers, timeout=10)
    started: list[int] = []

    def make(number: int) -> int:
        started.append(number)
        if number < workers:
            # All of the workers have to be here at once, or this breaks.
            together.wait()
        return number

    with Prefetcher(iter(range(100)), make) as feeder:
        feeder.resize(workers, prefetch=workers + 1)
        assert next(feeder) == 0
        assert next(feeder) == 1
        time.sleep(0.05)
        assert max(started) < 2 + workers + 1
        assert len(threads()) == workers


def test_without_workers_the_caller_makes_them_when_asked() -> None:
    made_by: list[threading.Thread] = []
    asked: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(3):
            asked.append(number)
            yield number

    def make(number: int) -> int:
        made_by.append(threading.current_thread())
        return number

    with Prefetcher(jobs(), make) as feeder:
        assert next(feeder) == 0
        assert asked == [0]
        assert list(feeder) == [1, 2]
    assert set(made_by) == {threading.current_thread()}


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_comes_in_its_place(workers: int) -> None:
    def make(number: int) -> int:
        if number == 3:
            raise ValueError("three is bad")
        return number

    with Prefetcher(iter(range(6)), make) as feeder:
        feeder.resize(workers, 4)
        assert [next(feeder) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three is bad"):
            next(feeder)
    assert not threads()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_jobs_comes_in_its_place(workers: int) -> None:
    def jobs() -> Iterator[int]:
        yield 0
        yield 1
        raise OSError("the disk is gone")

    with Prefetcher(jobs(), slower_at_first) as feeder:
        feeder.resize(workers, 4)
        assert [next(feeder), next(feeder)] == [0, 1]
        with pytest.raises(OSError, match="the disk is gone"):
            next(feeder)
    assert not threads()


def test_closing_waits_for_what_is_being_made() -> None:
    ended = threading.Event()
    begun = threading.Event()

    def make(number: int) -> int:
        begun.set()
        time.sleep(0.05)
        ended.set()
        return number

    feeder = Prefetcher(iter(range(100)), make)
    feeder.resize(1, 4)
    assert begun.wait(10)
    feeder.close()
    assert ended.is_set()
    assert not threads()
