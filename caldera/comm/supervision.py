"""Supervision of a job: its ranks are started again after a failure, or when machines come and go.

A warning (SIGTERM, SIGUSR1) reaches ranks that may start again as SIGUSR1: `fit` saves a checkpoint
and exits with `REQUEUED`. Ranks that still run after the grace period are ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import FrameType

from caldera.comm.processes import REQUEUE, REQUEUED, LaunchCommand
from caldera.comm.slots import hosts_text, live_slots, local_slots
from caldera.errors import CommError

_SAVE = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""The signal that mpiexec passes on to its ranks."""
WARNINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


def report(line: str) -> None:
    """Write a line about the supervision of a job."""
    print(f"caldera run: {line}", file=sys.stderr, flush=True)


@dataclass
class Supervisor:
    """Starts a job again until it is complete, or has failed more than `restarts` times.

    - `start`: starts the given number of ranks on these machines; None is this machine, or all.
    - `least`, `most`: the numbers of ranks that the job can have. If they are equal, machines are
      not counted.
    - `grace_s`: seconds between a warning and the end of the ranks.
    - `look_s`: seconds between two counts of the machines; `wait_s`: the longest wait for `least`
      ranks.
    """

    start: Callable[[int, str | None], LaunchCommand]
    least: int
    most: int
    restarts: int = 0
    hosts: str | None = None
    grace_s: float = 30.0
    look_s: float = 30.0
    wait_s: float = 600.0
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    received: signal.Signals | None = field(default=None, init=False)

    def run(self) -> int:
        """Return the exit status of the last attempt; 128 + number for a signal."""
        failures = 0
        for attempt in count():
            ranks, hosts = self._available()
            if attempt or self.is_elastic:
                report(f"attempt {attempt + 1} with {ranks} ranks" + (f" on {hosts}" * bool(hosts)))
            status, grew = self._attempt(self.start(ranks, hosts), attempt, ranks)
            if self.received is not None:
                return status if status == REQUEUED else 128 + self.received
            if status == 0:
                return 0
            if grew and status == REQUEUED:
                continue
            failures += 1
            if failures > self.restarts:
                return status
            report(f"ended with status {status}; restart {failures} of {self.restarts}")
        raise AssertionError("count() does not end")

    @property
    def is_elastic(self) -> bool:
        """True if the number of ranks follows the live machines."""
        return self.least < self.most

    @property
    def is_supervised(self) -> bool:
        """True if ranks that save on a warning are started again."""
        return self.restarts > 0 or self.is_elastic

    def _available(self) -> tuple[int, str | None]:
        """Return the number of ranks and their machines, after a wait for the fewest."""
        if not self.is_elastic:
            return self.most, self.hosts
        deadline = time.monotonic() + self.wait_s
        while True:
            slots = live_slots(self.hosts, self.environment)
            there = self._total(slots)
            if there >= self.least:
                ranks = min(self.most, there)
                return ranks, None if slots is None else hosts_text(slots, ranks)
            if time.monotonic() > deadline:
                raise CommError.build(
                    "run --ranks",
                    expected=f"machines for {self.least} ranks or more",
                    got=f"machines for {there} after {self.wait_s:.0f} s",
                    hint="start the machines, or lower the first number of --ranks",
                )
            time.sleep(min(self.look_s, self.wait_s / 4))

    @staticmethod
    def _total(slots: Mapping[str, int] | None) -> int:
        return local_slots() if slots is None else sum(slots.values())

    def _attempt(self, job: LaunchCommand, attempt: int, ranks: int) -> tuple[int, bool]:
        """Run all ranks once; return their status, and True if they were ended to become more."""
        if self.is_supervised:
            job = LaunchCommand(job.command, {**job.environment, REQUEUE: "1"})
        process = job.start(attempt)
        ends: list[float] = []

        def warn(number: int, frame: FrameType | None) -> None:
            self.received = signal.Signals(number)
            # A program that is not restarted may handle SIGTERM differently.
            is_asked_to_save = self.is_supervised and number != signal.SIGINT
            process.send_signal(_SAVE if is_asked_to_save else number)
            if number != signal.SIGINT:
                ends.append(time.monotonic() + self.grace_s)

        before = {each: signal.signal(each, warn) for each in (signal.SIGINT, *WARNINGS)}
        grew, looked = False, time.monotonic()
        try:
            while (status := _waited(process)) is None:
                now = time.monotonic()
                if ends and now > ends[0]:
                    process.terminate()
                    ends.clear()
                if self.is_elastic and not grew and now > looked + self.look_s:
                    looked = now
                    if ranks < min(self.most, self._total(self._live())):
                        report("more machines are there: the ranks save and start again")
                        grew = True
                        process.send_signal(_SAVE)
                        ends.append(now + self.grace_s)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        # A process that a signal has ended has its negative number; a shell adds it to 128.
        return (128 - status if status < 0 else status), grew

    def _live(self) -> dict[str, int] | None:
        return live_slots(self.hosts, self.environment)


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status, or None if the process still runs after a second."""
    try:
        return process.wait(1.0)
    except subprocess.TimeoutExpired:
        return None
