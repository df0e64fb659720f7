"""Running many native calls on the pool's threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest

import caldera as cd
from caldera.base.threads import submit
from caldera.errors import DataError
from caldera.kernels.native.codegen.emitter import Emitter, Pointer
from caldera.kernels.native.codegen.kernel import ENTRY, Integer, native_kernel
from caldera.kernels.native.codegen.matrix_multiply import blas
from caldera.kernels.native.codegen.program import (
    NativeRunner,
    in_sequence,
    joined_runs,
)


@native_kernel
def _count(k: Emitter, counts: Pointer, seen: Pointer) -> None:
    """Each part adds one to its own counter and notes how many parts there are."""
    counts.store(k.part, counts.load(k.part) + 1)
    seen.store(k.part, k.parts)


@native_kernel
def _prefix(k: Emitter, x: Pointer, y: Pointer, n: Integer) -> None:
    """y[i] = x[i] + y[i - 1] of the call before: wrong if calls overlapped."""
    begin, end = k.part_range(n)
    with k.loop(begin, end) as i:
        y.store(i, x.load((i + 7919) % n) + 1.0)


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_each_part_runs_exactly_once(parts: int, threads: int) -> None:
    counts, seen = np.zeros(8, np.int64), np.zeros(8, np.int64)
    runner = NativeRunner([_count.call(counts=counts, seen=seen, parts=parts)] * 50)
    with cd.settings.override(threads=threads):
        for _ in range(20):
            runner()
    assert counts.tolist() == [1000] * parts + [0] * (8 - parts)
    assert seen.tolist() == [parts] * parts + [0] * (8 - parts)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_call_sees_all_that_the_one_before_wrote(threads: int) -> None:
    n = 10_000
    places = [np.zeros(n), np.zeros(n)]
    calls = [
        _prefix.call(x=places[i % 2], y=places[(i + 1) % 2], n=n, parts=threads) for i in range(200)
    ]
    with cd.settings.override(threads=threads):
        NativeRunner(calls)()
    assert (places[0] == 200).all()


def test_programs_of_several_threads_do_not_mix() -> None:
    def work(result: list[np.ndarray]) -> None:
        counts = np.zeros(8, np.int64)
        seen = np.zeros(8, np.int64)
        runner = NativeRunner([_count.call(counts=counts, seen=seen, parts=4)] * 25)
        for _ in range(40):
            runner()
        result.append(counts)

    results: list[np.ndarray] = []
    threads = [threading.Thread(target=work, args=(results,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [counts.tolist() for counts in results] == [[1000] * 4 + [0] * 4] * 4


def test_inside_a_worker_of_the_pool_and_with_all_workers_busy() -> None:
    counts, seen = np.zeros(8, np.int64), np.zeros(8, np.int64)
    runner = NativeRunner([_count.call(counts=counts, seen=seen, parts=4)] * 10)
    release = threading.Event()
    busy = [submit(release.wait) for _ in range(cd.settings.threads)]
    runner()
    release.set()
    for each in busy:
        each.result()
    submit(runner).result()
    assert counts.tolist() == [20] * 4 + [0] * 4


def _runner(log: list[str], name: str) -> Callable[[], None]:
    return lambda: log.append(name)


def test_native_runs_are_joined_and_others_stay_between_them() -> None:
    counts, seen = np.zeros(8, np.int64), np.zeros(8, np.int64)
    native = NativeRunner([_count.call(counts=counts, seen=seen)])
    log: list[str] = []
    joined = joined_runs([native, native, _runner(log, "a"), native, _runner(log, "b")])
    assert [isinstance(each, NativeRunner) for each in joined] == [True, False, True, False]
    in_sequence(joined)()
    assert log == ["a", "b"]
    assert counts[0] == 3
    assert isinstance(in_sequence([native, native]), NativeRunner)


def test_nothing_to_run() -> None:
    in_sequence([])()


def test_the_blas_is_known_and_named() -> None:
    known = blas()
    if known is None:
        pytest.skip("NumPy is linked to a BLAS that is not known here")
    assert known.integer_bits in (32, 64)
    assert known.name


@native_kernel
def _fail_at(k: Emitter, counter: Pointer, status: Pointer) -> None:
    """Counts its runs, and fails at the third."""
    counter.store(0, counter.load(0) + 1)
    with k.if_then(counter.load(0).equals(3)):
        status.store(0, 1)


def test_a_program_stops_at_the_call_that_fails_and_raises_its_error() -> None:
    counter, status = np.zeros(1, np.int64), np.zeros(1, np.int64)

    def refuse() -> NoReturn:
        raise DataError("the third run fails")

    call = replace(_fail_at.call(counter=counter, status=status), refuse=refuse)
    runner = NativeRunner([call] * 5)
    with pytest.raises(DataError, match="the third run fails"):
        runner()
    assert counter[0] == 3
    runner()
    assert counter[0] == 8


def test_each_thread_keeps_its_part_from_call_to_call() -> None:
    """A part that wanders is read from and written to another core's cache."""
    threads, calls = 4, 20
    together = threading.Barrier(threads)
    found: list[set[int]] = [set() for _ in range(threads)]

    def run(slots: int, part: int, parts: int) -> None:
        found[part].add(threading.get_ident())
        # So that no thread can do two parts of a call.
        together.wait(timeout=60)

    callback = ENTRY(run)
    call = _count.call(counts=np.zeros(8, np.int64), seen=np.zeros(8, np.int64), parts=threads)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    with cd.settings.override(threads=threads):
        NativeRunner([replace(call, locate=lambda: address)] * calls)()
    assert found[0] == {threading.get_ident()}
    assert [len(each) for each in found] == [1] * threads
    assert len(set.union(*found)) == threads
