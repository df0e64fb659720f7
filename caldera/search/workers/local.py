"""Workers on this machine: forked processes or threads, and their share of its resources.

A forked process has the user's functions and data as they are: no transfer or second import is
required, and unchanged memory is shared. A GPU does not survive a fork. Where one is in use,
threads share it, or ranks that `caldera run` starts use one GPU each.

Threads share the memory, the GPU and the pool of computing threads, and require no transfers and no
start-up. A thread cannot be killed: one that hangs is abandoned, and another replaces it.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading

from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.base.launchers import WORKER
from caldera.comm.places.local import ForkPlace
from caldera.core.memory import device
from caldera.core.memory.gpus import card_count
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.search.job import SearchJob
from caldera.search.workers.dispatcher import PoolMember, WorkerPool
from caldera.search.workers.places import PlaceWorkers, serve_trials
from caldera.search.workers.worker import MessageStream, TrialWorker

FOR_TRIALS = 0.9
"""Fraction of a GPU's memory that its workers share; the driver and libraries use the rest."""

_HIDDEN = ("", "-1")
"""Values of `CUDA_VISIBLE_DEVICES` that hide all GPUs."""


def share_machine(place: int, workers: int) -> None:
    """Use one of `workers` shares of the machine, and the GPU of `place`, in a worker process.

    Threads are divided, and the BLAS gets one thread, since plans split its work over our threads.
    If several workers share a GPU, each may fill its share of the memory; a `settings.memory_limit`
    set by the user is kept.
    """
    settings.threads = max(1, settings.threads // workers)
    single_threaded_blas.__enter__()
    os.environ[WORKER] = str(place)
    share_card(workers)


def share_card(workers: int) -> None:
    """Limit this process to its share of a GPU that several workers of the machine use."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        # To count them would load CuPy, which takes longer than a worker takes to start.
        return
    cards = card_count()
    if not cards or settings.memory_limit is not None:
        return
    memory, sharing = device().memory_bytes, -(-workers // cards)
    if memory is not None and sharing > 1:
        settings.memory_limit = int(FOR_TRIALS * memory / sharing)


class ProcessWorkers(PlaceWorkers):
    """Copies of this process; one that dies or is killed is replaced."""

    def __init__(self, job: SearchJob, count: int) -> None:
        _check_fork()
        self._count = count
        self._slots: dict[int, int] = {}
        self._children = ForkPlace(self._abandon)
        super().__init__(self._children, job)

    @property
    def size(self) -> int:
        return self._count

    def _start(self, count: int) -> None:
        for _ in range(count):
            used = {slot for number, slot in self._slots.items() if number in self._members}
            slot = min(set(range(self._count)) - used)
            (number,) = self._children.start(1, self._work, [slot])
            self._members[number], self._slots[number] = None, slot

    def _name(self, number: int, host: str) -> str:
        return f"process {self._children.process(number)}"

    def _abandon(self) -> None:
        """Close the master's connections in a child: none would seem to end while it has them."""
        for member in self.members:
            for channel in member.channels:
                channel.abandon()
        self._listener.abandon()
        self._selector.close()

    def _work(self, number: int, slot: int) -> None:
        """Serve trials in the child."""
        # Ctrl-C is for the master, which ends its workers.
        os.setsid()
        share_machine(slot, self._count)
        serve_trials(number, self._offer, self._job)


def _check_fork() -> None:
    hint = "use threads, as in workers='threads:4', or start ranks: caldera run -n 5 search.py"
    require(
        hasattr(os, "fork"),
        "search workers",
        "a system that can fork for processes",
        sys.platform,
        hint=hint,
    )
    require(
        not card_count.cache_info().currsize or not card_count(),
        "search workers",
        "no GPU in use before processes are forked",
        "a GPU that this process has opened",
        hint=hint,
    )


class ThreadWorkers(WorkerPool):
    """Threads of this process, each with its own end of a socket."""

    def __init__(self, job: SearchJob, count: int) -> None:
        super().__init__()
        self._job, self._count = job, count
        self._threads: dict[PoolMember, threading.Thread] = {}
        self._started = itertools.count()

    def start(self) -> None:
        for _ in range(self._count):
            self._start_one()

    def drop(self, member: PoolMember, reason: str) -> str:
        del self._threads[member]
        self._start_one()
        return super().drop(member, reason)

    def end(self, *, at_once: bool) -> None:
        super().end(at_once=at_once)
        for thread in () if at_once else self._threads.values():
            thread.join()

    def _start_one(self) -> None:
        ours, theirs = socket.socketpair()
        name = f"thread {next(self._started)}"
        worker = TrialWorker(MessageStream(theirs), self._job, name=name)
        # A trial that hangs must not keep the program from ending.
        thread = threading.Thread(target=worker.serve, name=name, daemon=True)
        member = PoolMember(name, [MessageStream(ours)])
        self._threads[member] = thread
        self._add(member)
        thread.start()
