"""Workers that are threads of this process.

They share its memory, its card and its one pool of computing threads, and need nothing to be sent
or started. A thread cannot be killed: one that hangs is left alone, and another takes its place.
"""

from __future__ import annotations

import socket
import threading

from caldera.search.job import Job
from caldera.search.workers.channel import Channel
from caldera.search.workers.pool import Member, WorkerPool
from caldera.search.workers.worker import Worker


class ThreadWorkers(WorkerPool):
    """So many threads, each with its own end of a socket."""

    def __init__(self, job: Job, count: int) -> None:
        super().__init__()
        self._job = job
        self._count = count
        self._started = 0
        self._threads: dict[Member, threading.Thread] = {}

    def start(self) -> None:
        for _ in range(self._count):
            self._start_one()

    def drop(self, member: Member, reason: str) -> str:
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
        member = Member(f"thread {self._started}", [Channel(ours)])
        self._started += 1
        worker = Worker(Channel(theirs), self._job, name=member.name)
        # A trial that hangs must not keep the program from ending.
        thread = threading.Thread(target=worker.serve, name=member.name, daemon=True)
        self._threads[member] = thread
        self._add(member)
        thread.start()
