"""Workers on this machine: forked processes or threads, and their share of its resources.

A forked process has the user's functions and data as they are: nothing has to be sent or imported
again, and unchanged memory is shared. A GPU does not survive a fork. Where one is in use, threads
share it, or ranks that `caldera run` starts use one GPU each.

Threads share the memory, the GPU and the pool of computing threads, and require no transfers and
no start-up. A thread cannot be killed: one that hangs is abandoned, and another replaces it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from abc import abstractmethod
from typing import Generic, TypeVar

from caldera.base.children import END_S, ForkedChild, end_child, exit_status, exit_text, fork_child
from caldera.base.config import settings
from caldera.base.launchers import WORKER
from caldera.core.memory import device
from caldera.core.memory.gpus import card_count
from caldera.errors import ConfigError
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.search.job import SearchJob
from caldera.search.workers.dispatcher import PoolMember, WorkerPool
from caldera.search.workers.worker import MessageStream, TrialWorker

Run = TypeVar("Run")
"""What a worker is: a process or a thread."""
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


class _LocalWorkers(WorkerPool, Generic[Run]):
    """So many workers of this machine, each in one of `count` places."""

    def __init__(self, job: SearchJob, count: int) -> None:
        super().__init__()
        self._job, self._count = job, count
        self._runs: dict[PoolMember, tuple[Run, int]] = {}

    def start(self) -> None:
        for place in range(self._count):
            self._start_one(place)

    @abstractmethod
    def _start_one(self, place: int) -> None:
        """Start a worker."""

    def _enter(self, name: str, ours: socket.socket, run: Run, place: int) -> None:
        member = PoolMember(name, [MessageStream(ours)])
        self._runs[member] = run, place
        self._add(member)


class ProcessWorkers(_LocalWorkers[ForkedChild]):
    """So many processes; one that dies or is killed is replaced."""

    def __init__(self, job: SearchJob, count: int) -> None:
        super().__init__(job, count)
        _check_fork()

    def drop(self, member: PoolMember, reason: str) -> str:
        """Kill it if it lives, say how it ended if it does not, and start another."""
        process, place = self._runs.pop(member)
        # One that has died closes its connection a moment before it can be waited for.
        status = exit_status(process, 0.0 if reason else END_S)
        if status is not None:
            reason = f"process {process.pid} {exit_text(status)}"
        spoken = super().drop(member, reason)
        end_child(process)
        self._start_one(place)
        return spoken

    def end(self, *, at_once: bool) -> None:
        super().end(at_once=at_once)
        until = time.monotonic() + (0.0 if at_once else END_S)
        for process, _ in self._runs.values():
            end_child(process, until - time.monotonic())

    def _start_one(self, place: int) -> None:
        ours, theirs = socket.socketpair()

        def work() -> None:
            ours.close()
            self._work(place, theirs)

        process = fork_child(work)
        theirs.close()
        self._enter(f"process {process.pid}", ours, process, place)

    def _work(self, place: int, connection: socket.socket) -> None:
        """Serve trials in the child."""
        # Ctrl-C is for the master, which ends its workers.
        os.setsid()
        # As long as a copy of the master's ends is open, no worker would see that it has died.
        for member in self.members:
            for channel in member.channels:
                channel.abandon()
        self._selector.close()
        share_machine(place, self._count)
        worker = TrialWorker(
            MessageStream(connection),
            self._job,
            name=f"process {os.getpid()}",
            on_lost_master=lambda: os._exit(1),
        )
        worker.serve()


def _check_fork() -> None:
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


class ThreadWorkers(_LocalWorkers[threading.Thread]):
    """So many threads, each with its own end of a socket."""

    def drop(self, member: PoolMember, reason: str) -> str:
        _, place = self._runs.pop(member)
        self._start_one(place + self._count)
        return super().drop(member, reason)

    def end(self, *, at_once: bool) -> None:
        super().end(at_once=at_once)
        for thread, _ in () if at_once else self._runs.values():
            thread.join()

    def _start_one(self, place: int) -> None:
        ours, theirs = socket.socketpair()
        name = f"thread {place}"
        worker = TrialWorker(MessageStream(theirs), self._job, name=name)
        # A trial that hangs must not keep the program from ending.
        thread = threading.Thread(target=worker.serve, name=name, daemon=True)
        self._enter(name, ours, thread, place)
        thread.start()
