"""Workers on this machine: forked processes or threads, and their share of its resources.

A forked process has the user's functions and data as they are: nothing has to be sent or imported
again, and unchanged memory is shared. A GPU does not survive a fork. Where one is in use, threads
share it, or ranks that `caldera run` starts use one GPU each.

Threads share the memory, the GPU and the pool of computing threads, and require no transfers and
no start-up. A thread cannot be killed: one that hangs is abandoned, and another replaces it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from caldera.base.config import settings
from caldera.base.machine import WORKER
from caldera.core.memory import device
from caldera.core.memory.gpus import card_count
from caldera.errors import ConfigError
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.search.job import SearchJob
from caldera.search.workers.pool import PoolMember, WorkerPool
from caldera.search.workers.worker import MessageStream, TrialWorker

FOR_TRIALS = 0.9
"""The part of a card's memory that its workers share; the rest is for the driver and libraries."""

_HIDDEN = ("", "-1")
"""What `CUDA_VISIBLE_DEVICES` is where nobody shall use a card."""


def share_machine(place: int, workers: int) -> None:
    """In the process of a worker: take the share of one of so many, and the card of its place.

    Threads are divided, the BLAS gets one (plans split its work over ours anyway), and of a card
    that several share each may fill its part; `settings.memory_limit` stays what the user said.
    """
    settings.threads = max(1, settings.threads // workers)
    single_threaded_blas.__enter__()
    os.environ[WORKER] = str(place)
    share_card(workers)


def share_card(workers: int) -> None:
    """Limit this process to its part of a card that several workers of the machine use."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        # To count them would load CuPy, which takes longer than a worker takes to start.
        return
    cards = card_count()
    if not cards or settings.memory_limit is not None:
        return
    memory, sharing = device().memory_bytes, -(-workers // cards)
    if memory is not None and sharing > 1:
        settings.memory_limit = int(FOR_TRIALS * memory / sharing)


ENDS_WITHIN_S = 5.0
"""After that a process which was asked to end is killed."""
_PR_SET_PDEATHSIG = 1


class ProcessWorkers(WorkerPool):
    """So many processes; one that dies or is killed is replaced."""

    def __init__(self, job: SearchJob, count: int) -> None:
        super().__init__()
        _check_that_a_fork_works()
        self._job = job
        self._count = count
        self._started = 0
        self._processes: dict[PoolMember, tuple[int, int]] = {}

    def start(self) -> None:
        for place in range(self._count):
            self._start_one(place)

    def drop(self, member: PoolMember, reason: str) -> str:
        """Kill it if it lives, say how it ended if it does not, and start another."""
        process, place = self._processes.pop(member)
        # One that has died closes its connection a moment before it can be waited for.
        status = _status(process) if reason else _status_within(process, ENDS_WITHIN_S)
        spoken = super().drop(member, reason if status is None else _spoken(process, status))
        if status is None:
            _kill(process)
        self._start_one(place)
        return spoken

    def end(self, *, at_once: bool) -> None:
        super().end(at_once=at_once)
        until = time.monotonic() + (0.0 if at_once else ENDS_WITHIN_S)
        for process, _ in self._processes.values():
            if _status_within(process, until - time.monotonic()) is None:
                _kill(process)

    def _start_one(self, place: int) -> None:
        ours, theirs = socket.socketpair()
        self._started += 1
        # What is waiting to be written would be written twice.
        sys.stdout.flush()
        sys.stderr.flush()
        master, ask = os.getpid(), _death_signal()
        process = os.fork()
        if process == 0:
            ours.close()
            self._become_worker(place, theirs, master, ask)
        theirs.close()
        member = PoolMember(f"process {process}", [MessageStream(ours)])
        self._processes[member] = (process, place)
        self._add(member)

    def _become_worker(
        self, place: int, connection: socket.socket, master: int, ask: Callable[..., int] | None
    ) -> NoReturn:
        """In the child: nothing after this belongs to the program that was copied."""
        status = 1
        try:
            # Ctrl-C is for the master, which ends its workers.
            os.setsid()
            if ask is not None:
                ask(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != master:
                os._exit(1)
            # As long as a copy of the master's ends is open, nobody would see that it has died.
            for member in self.members:
                for channel in member.channels:
                    channel.abandon()
            self._selector.close()
            share_machine(place, self._count)
            worker = TrialWorker(
                MessageStream(connection),
                self._job,
                name=f"process {os.getpid()}",
                alone=lambda: os._exit(1),
            )
            worker.serve()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            # Not by an exception: what the program has yet to do is its own.
            os._exit(status)


def _check_that_a_fork_works() -> None:
    hint = "use threads, as in workers='threads:4', or start ranks: caldera run -n 5 search.py"
    if not hasattr(os, "fork"):
        raise ConfigError.build(
            "search workers",
            expected="a system that can fork for processes",
            got=sys.platform,
            hint=hint,
        )
    if card_count.cache_info().currsize and card_count():
        raise ConfigError.build(
            "search workers",
            expected="no card in use before processes are copied",
            got="a card that this process has opened",
            hint=hint,
        )


def _death_signal() -> Callable[..., int] | None:
    """What asks Linux to end a child with its parent; elsewhere a child notices by itself that
    nobody speaks to it any more. Found before the fork: a child must not load anything."""
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _status(process: int) -> int | None:
    """How a process ended; None if it still runs."""
    try:
        found, status = os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        # Somebody else has waited for it.
        return 0
    return status if found else None


def _status_within(process: int, seconds: float) -> int | None:
    until = time.monotonic() + seconds
    while (status := _status(process)) is None and time.monotonic() < until:
        time.sleep(0.001)
    return status


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(process, 0)


def _spoken(process: int, status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"process {process} was ended by {signal.Signals(-code).name}"
    return f"process {process} ended with status {code}"


class ThreadWorkers(WorkerPool):
    """So many threads, each with its own end of a socket."""

    def __init__(self, job: SearchJob, count: int) -> None:
        super().__init__()
        self._job = job
        self._count = count
        self._started = 0
        self._threads: dict[PoolMember, threading.Thread] = {}

    def start(self) -> None:
        for _ in range(self._count):
            self._start_one()

    def drop(self, member: PoolMember, reason: str) -> str:
        del self._threads[member]
        self._start_one()
        return super().drop(member, reason)

    def end(self, *, at_once: bool) -> None:
        super().end(at_once=at_once)
        if not at_once:
            for thread in self._threads.values():
                thread.join()

    def _start_one(self) -> None:
        ours, theirs = socket.socketpair()
        member = PoolMember(f"thread {self._started}", [MessageStream(ours)])
        self._started += 1
        worker = TrialWorker(MessageStream(theirs), self._job, name=member.name)
        # A trial that hangs must not keep the program from ending.
        thread = threading.Thread(target=worker.serve, name=member.name, daemon=True)
        self._threads[member] = thread
        self._add(member)
        thread.start()
