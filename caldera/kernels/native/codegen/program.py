"""Run native kernels: sequences of calls without Python in between, on the pool's threads.

The calling thread iterates over the calls and publishes each call that has several parts. Each
thread first takes the part with its own number. From call to call, and from run to run, it thus
finds the data that it read and wrote before in its own caches, and in the memory next to it, which
it touched first. Free threads then claim the remaining parts. The calling thread therefore never
waits for a worker that is busy elsewhere, and does all parts itself if no worker joins. Workers are
threads of the single pool: they join while there is work, wait a moment for the next program, and
then return to the pool.

`traced` creates calls that report the thread and the time of each part.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

import numpy as np
from llvmlite import ir

from caldera.base.config import settings
from caldera.base.threads import is_worker, parallel_for, submit
from caldera.kernels.native.codegen.emitter import I32, I64, Emitter, Pointer, RegisterValue
from caldera.kernels.native.codegen.kernel import (
    ENTRY,
    Integer,
    NativeCall,
    NativeKernel,
    native_kernel,
    waiting_calls,
)
from caldera.kernels.table import Runner


class NativeRunner:
    """A kernel bound to memory: one native call or several, in order. Plans join them."""

    def __init__(self, calls: Sequence[NativeCall]) -> None:
        self.calls = list(calls)
        self._program: NativeProgram | None = None

    @property
    def program(self) -> NativeProgram:
        """The calls as one function."""
        if self._program is None:
            self._program = NativeProgram(self.calls)
        return self._program

    def __call__(self) -> None:
        self.program()


def run_now(kernel: NativeKernel, *, elements: int = 0, worth: int = 1, **given: Any) -> None:
    """Call a kernel once, on all threads if `elements` are at least `worth` that.

    On one thread that takes no program, which takes longer to build than a small kernel to run.
    """
    if elements >= worth and settings.threads > 1:
        NativeRunner([kernel.call(parts=settings.threads, **given)])()
        return
    slots, form = kernel.packed(given)
    entry = _entries.get((kernel, form))
    if entry is None:
        entry = _entries[kernel, form] = ENTRY(kernel.address(form))
    entry((ctypes.c_int64 * len(slots))(*slots), 0, 1)


_entries: dict[Any, Callable[..., None]] = {}
"""Entry points of kernels that are called directly, without creating a named call.

Messages are too frequent for the cost of naming a call.
"""


@contextmanager
def compiled_together() -> Iterator[None]:
    """Context that compiles the kernels of its calls at the end, on all threads.

    A kernel that is run inside is compiled immediately.
    """
    waiting: dict[Any, list[NativeCall]] = {}
    before = waiting_calls.set(waiting)
    try:
        yield
    finally:
        waiting_calls.reset(before)
    rest = iter(waiting.values())

    def compile_rest(worker: int, workers: int) -> None:
        if worker == 0:
            _functions()
        for calls in rest:
            for call in calls:
                _ = call.address

    parallel_for(compile_rest, len(waiting))


def in_sequence(runners: Iterable[Runner]) -> Runner:
    """Return one runner that runs these in order; native if all are native."""
    joined = joined_runs(runners)
    if len(joined) == 1:
        return joined[0]

    def run() -> None:
        for each in joined:
            each()

    return run


def joined_runs(runners: Iterable[Runner]) -> list[Runner]:
    """Return the same runners, with native ones that follow each other made one."""
    result: list[Runner] = []
    calls: list[NativeCall] = []
    for runner in runners:
        if isinstance(runner, NativeRunner):
            calls.extend(runner.calls)
            continue
        if calls:
            result.append(NativeRunner(calls))
            calls = []
        result.append(runner)
    if calls or not result:
        result.append(NativeRunner(calls))
    return result


# --- running them

_ADDRESS, _SLOTS, _PARTS, _STATUS, _ROW = 0, 1, 2, 3, 4
"""Columns of the table of calls, and their number."""
_TICKET, _DONE, _JOBS, _YIELD, _RUNNING, _MEMBERS, _CLAIMS = 0, 8, 16, 24, 32, 33, 40
"""Offsets of the words of a team; frequently written words have separate cache lines.

The ticket contains the number of the call and, in its last 16 bits, its number of parts. The claim
of a part is the number of the last call in which a thread took this part. The addresses of the
current call and the previous one are kept. While a program runs, workers stay even during long
waits for a call.
"""
_MOST_PARTS = 1 << 12
_SPINS = 64
"""Number of polls before a thread yields the processor."""
_LINGER = 400
"""Number of yields before a worker without work returns to the pool."""
_PATIENCE = 16 * _SPINS
"""Number of polls before a worker without a part claims the part of another worker."""


class _Team:
    """State shared by a program's thread and the workers that joined it."""

    _of_thread = threading.local()

    def __init__(self) -> None:
        memory = np.zeros(_CLAIMS + _MOST_PARTS + 8, np.int64)
        start = (-memory.ctypes.data % 64) // 8
        self.words = memory[start : start + _CLAIMS + _MOST_PARTS]
        self.words[_YIELD] = _address_of_yield()
        self.address = self.words.ctypes.data
        self._inside: set[int] = set()
        self._slots: dict[int, np.ndarray] = {}
        self._running = False
        self._lock = threading.Lock()

    @classmethod
    def of_this_thread(cls) -> _Team:
        team: _Team | None = getattr(cls._of_thread, "team", None)
        if team is None:
            team = cls._of_thread.team = cls()
        return team

    def begin(self, workers: int) -> None:
        """Request workers from the pool. No thread waits for them: they join when they can."""
        with self._lock:
            self._running = True
            self.words[_MEMBERS] = settings.threads
            missing = _numbers(workers) - self._inside
            self._inside |= missing
        for number in sorted(missing):
            submit(partial(self._join, number))

    def end(self) -> None:
        """The program is over: workers may go when they have waited for the next in vain."""
        self._running = False

    def _join(self, number: int) -> None:
        slots = self._slots.get(number)
        if slots is None:
            # Kept, because workers that join in sequence would otherwise wait for Python code to
            # finish.
            slots = self._slots[number] = _slots(_follow, team=self.words, member=number)
        while True:
            _functions()[1](slots.ctypes.data, 0, 1)
            with self._lock:
                # A program that began while this worker was leaving counts on it.
                if not self._running:
                    self._inside.remove(number)
                    return


@lru_cache
def _numbers(workers: int) -> frozenset[int]:
    """Return the numbers of the members of a team except the calling thread, which is number 0."""
    return frozenset(range(1, workers + 1))


class NativeProgram:
    """A list of native calls as one function of no arguments."""

    def __init__(self, calls: Sequence[NativeCall]) -> None:
        self._calls = list(calls)
        self._table = np.zeros((len(self._calls), _ROW), np.int64)
        for row, call in zip(self._table, self._calls, strict=True):
            status = 0 if call.status is None else call.status.ctypes.data
            row[:] = call.address, call.slots.ctypes.data, min(call.parts, _MOST_PARTS), status
        self._failing = [call for call in self._calls if call.status is not None]
        self._workers = max((call.parts for call in self._calls), default=1) - 1
        self._slots = _slots(_lead, table=self._table, count=len(self._calls), team=0)
        self._address = self._slots.ctypes.data
        self._lead, _ = _functions()

    def __call__(self) -> None:
        if not self._workers and not self._failing:
            self._lead(self._address, 0, 1)
            return
        workers = min(self._workers, settings.threads - 1)
        if workers > 0 and not is_worker():
            team = _Team.of_this_thread()
            self._slots[_TEAM] = team.address
            team.begin(workers)
            self._lead(self._address, 0, 1)
            team.end()
        else:
            self._slots[_TEAM] = 0
            self._lead(self._address, 0, 1)
        for call in self._failing:
            self._check(call)

    @staticmethod
    def _check(call: NativeCall) -> None:
        assert call.status is not None
        assert call.refuse is not None
        if call.status[0]:
            call.status[0] = 0
            call.refuse()


def _slots(kernel: NativeKernel, **given: Any) -> np.ndarray:
    return np.array(kernel.packed(given)[0], np.int64)


@lru_cache(maxsize=1)
def _functions() -> tuple[Callable[[int, int, int], None], Callable[[int, int, int], None]]:
    """Return the functions that lead a program (its own thread) and follow it (workers)."""
    words = np.zeros(1, np.int64)
    lead, follow = _lead.call(table=words, count=0, team=0), _follow.call(team=words, member=1)
    return ENTRY(lead.address), ENTRY(follow.address)


@lru_cache(maxsize=1)
def _address_of_yield() -> int:
    """Return the function by which a thread lets others run.

    0 where the system has no such name.
    """
    function = getattr(ctypes.CDLL(None), "sched_yield", None) if os.name == "posix" else None
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0


@native_kernel
def _lead(k: Emitter, table: Pointer, count: Integer, team: Integer) -> None:
    no_team, words = team.equals(0), k.int_to_pointer(team, I64)
    with k.if_then(~no_team):
        _exchange(k, words.at(_RUNNING), k.constant(1, I64))
    next_call = k.variable(0, I64)
    with k.while_loop(lambda: next_call.value < count):
        row = table.at(next_call.value * _ROW)
        next_call.value = next_call.value + 1
        parts = row.load(_PARTS)
        with k.if_else(no_team | parts.equals(1)) as (alone, together):
            with alone, k.loop(0, parts) as part:
                _run(k, row, part, parts)
            with together:
                generation = _publish(k, words, row, parts)
                _take_parts(k, words, k.constant(0, I64), generation, parts)
                _wait(k, lambda: _acquire(k, words.at(_DONE)) < parts, words)
        status = row.load(_STATUS)
        with (
            k.if_then(status.differs(0)),
            k.if_then(k.int_to_pointer(status, I64).load().differs(0)),
        ):
            next_call.value = count
    with k.if_then(~no_team):
        _exchange(k, words.at(_RUNNING), k.constant(0, I64))


@native_kernel
def _follow(k: Emitter, team: Pointer, member: Integer) -> None:
    idle, last, patience = (k.variable(0, I64) for _ in range(3))
    with k.while_loop(lambda: idle.value < _LINGER * _SPINS):
        ticket = _acquire(k, team.at(_TICKET))
        generation, parts = k.shift_right(ticket, 16), ticket & 0xFFFF
        is_new = generation.differs(last.value)
        is_due = (member < parts) | patience.value.equals(_PATIENCE)
        with k.if_else(is_new & is_due) as (work, none):
            with work:
                _take_parts(k, team, member, generation, parts)
                last.value = generation
                idle.value = 0
                patience.value = 0
            with none:
                patience.value = k.select(is_new, patience.value + 1, 0)
                idle.value = idle.value + 1
                _rest(k, idle.value, team)
                with k.if_then(_acquire(k, team.at(_RUNNING)).differs(0)):
                    # Within a program the count starts again once it has made others run.
                    idle.value = idle.value % _SPINS


_TEAM = 2
"""The slot of `_lead` that has the team, which may be another in each run."""


def _publish(k: Emitter, team: Pointer, row: Pointer, parts: RegisterValue) -> RegisterValue:
    """Let workers see a call; its number."""
    generation = k.shift_right(team.load(_TICKET), 16) + 1
    # A worker that claimed a part of an earlier call has finished it, or that call would not be
    # over; so the place of the call before last is free.
    team.store((generation & 1) + _JOBS, k.pointer_to_int(row))
    team.store(_DONE, k.constant(0, I64))
    _exchange(k, team.at(_TICKET), (generation << 16) | parts)
    return generation


def _take_parts(
    k: Emitter,
    team: Pointer,
    member: RegisterValue,
    generation: RegisterValue,
    parts: RegisterValue,
) -> None:
    """Run the member's own parts of a call, then all unclaimed parts."""
    members = team.load(_MEMBERS)
    first = k.select(parts > members, member * parts // members, member) % parts
    with k.loop(first, first + parts) as turn:
        part = k.select(turn < parts, turn, turn - parts)
        claim = team.at(part + _CLAIMS)
        # A call is over when all its parts have been claimed. A late worker thus finds no part to
        # take, even if the current call has the same parts.
        with (
            k.if_then(_acquire(k, claim) < generation),
            k.if_then(_raise_to(k, claim, generation) < generation),
        ):
            job = team.load((generation & 1) + _JOBS)
            _run(k, k.int_to_pointer(job, I64), part, parts)
            _add(k, team.at(_DONE), 1)


def _run(k: Emitter, row: Pointer, part: RegisterValue, parts: RegisterValue) -> None:
    slots = row.load(_SLOTS)
    k.call_address(row.load(_ADDRESS), ir.VoidType(), slots, part, parts)


def _wait(k: Emitter, condition: Callable[[], RegisterValue], team: Pointer) -> None:
    turns = k.variable(0, I64)
    with k.while_loop(condition):
        turns.value = turns.value + 1
        _rest(k, turns.value, team)


def _rest(k: Emitter, turns: RegisterValue, team: Pointer) -> None:
    """Yield the processor to other threads at intervals."""
    give_way = team.load(_YIELD)
    with k.if_then((turns % _SPINS).equals(0) & give_way.differs(0)):
        k.call_address(give_way, I32)


def _acquire(k: Emitter, place: Pointer) -> RegisterValue:
    return RegisterValue(k, k.ir.load_atomic(place.raw, "acquire", 8, typ=I64))


def _exchange(k: Emitter, place: Pointer, value: RegisterValue) -> None:
    """Write a word so that others see all that was written before it."""
    k.ir.atomic_rmw("xchg", place.raw, value.raw, "release")


def _add(k: Emitter, place: Pointer, amount: int) -> RegisterValue:
    return RegisterValue(k, k.ir.atomic_rmw("add", place.raw, I64(amount), "acq_rel"))


def _raise_to(k: Emitter, place: Pointer, value: RegisterValue) -> RegisterValue:
    """Raise a word to at least `value` and return the previous value."""
    return RegisterValue(k, k.ir.atomic_rmw("max", place.raw, value.raw, "acq_rel"))


_KIND = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True)
class PartSpan:
    """One part of a native call: who did it, and from when to when (`perf_counter`)."""

    thread: int
    part: int
    parts: int
    begin: float
    end: float


def traced(runner: NativeRunner, note: Callable[[PartSpan], None]) -> NativeRunner:
    """Return the same calls, with each part reported to `note` by the thread that ran it.

    Each part enters and leaves Python code, which costs some microseconds. The kernel itself runs
    without Python, in parallel with other parts.
    """
    return NativeRunner([_traced(call, note) for call in runner.calls])


def _traced(call: NativeCall, note: Callable[[PartSpan], None]) -> NativeCall:
    kernel = _KIND(call.address)

    def run(slots: Any, part: int, parts: int) -> None:
        begin = perf_counter()
        kernel(slots, part, parts)
        note(PartSpan(threading.get_ident(), part, parts, begin, perf_counter()))

    # Kept with the call: the address is only good as long as this object is.
    callback = _KIND(run)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return replace(call, locate=lambda: address, given={**call.given, "traced": callback})
