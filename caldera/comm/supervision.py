"""Start of ranks by mpiexec, their joint end, and their restart after failures.

A warning (SIGTERM, SIGUSR1) reaches ranks that may start again as SIGUSR1: `fit` saves a checkpoint
and exits with `REQUEUED`. Ranks that still run after the grace period are ended.

Ranks are started with the mpiexec that belongs to this Python. A rank that raises writes its
number, host and traceback, and aborts the job. A rank that exits while others wait for it is
detected by their watchdogs, so no rank waits forever for one that has failed or left.
"""

from __future__ import annotations

import atexit
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import FrameType, TracebackType

from caldera.base.arguments import require
from caldera.base.children import start_program
from caldera.base.launchers import ATTEMPT
from caldera.base.machine import usable_cores
from caldera.comm.communicator import Communicator
from caldera.comm.hosts import hosts_text, live_slots, local_slots, read_hosts
from caldera.comm.local_sockets import SocketCommunicator
from caldera.comm.mpi import MpiCommunicator
from caldera.comm.mpi_library import launcher, many_threads
from caldera.comm.watchdog import Watchdog
from caldera.errors import CommError

RESTART = ATTEMPT[0]
"""Variable with the number of restarts, set by `caldera run`."""
REQUEUE = "CALDERA_REQUEUE"
"""Variable that job scripts set: a run that a warning has stopped exits with `REQUEUED`."""
REQUEUED = 85
"""Exit status of a run that saved its checkpoint and continues when the job starts again."""
_SENT = ("CALDERA_", "MPI4PY_", "OMPI_MCA_", "OMP_", "OPENBLAS_", "PYTHON")
"""Variables that ranks on other machines need as well."""


@dataclass(frozen=True)
class LaunchCommand:
    """A command that starts all ranks, and the environment it needs."""

    command: list[str]
    environment: dict[str, str]

    def start(self, attempt: int = 0) -> subprocess.Popen[bytes]:
        """Start it. On Linux the system ends it if this process is killed before it is over."""
        # mpiexec ends all ranks on SIGTERM.
        environment = {**self.environment, RESTART: str(attempt)}
        return start_program(self.command, environment, signal.SIGTERM)


def launch(
    ranks: int,
    program: Sequence[str],
    *,
    hosts: str | None = None,
    survive: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> LaunchCommand:
    """Return the command that starts a program as several ranks; a .py file is run by this Python.

    `hosts` are machines with the ranks each takes, as in "a:4,b:4". With `survive` the remaining
    ranks continue when one dies, if this MPI supports it.
    """
    slots = None if hosts is None else read_hosts(hosts)
    starter = launcher(environment)
    mpi = starter.implementation
    require(
        not survive or mpi.survives,
        "run --survive",
        "an MPI with ULFM (Open MPI 5)",
        f"{mpi} ({starter.path})",
        hint="--restarts starts all ranks again",
    )
    defaults = {name: value for name, value in mpi.defaults.items() if name not in environment}
    added = {**mpi.variables, **defaults}
    added["CALDERA_THREADS"] = environment.get("CALDERA_THREADS") or str(_threads(ranks, slots))
    survives = mpi.survives if survive else ()
    command = [starter.path, "-n", str(ranks), *mpi.arguments, *survives]
    if hosts is not None:
        names = [name for name in {*environment, *added, RESTART} if name.startswith(_SENT)]
        sent = [word for name in sorted(names) for word in (mpi.sends, name) if mpi.sends]
        command += [mpi.hosts, hosts, *sent]
    return LaunchCommand([*command, *python_command(program)], {**environment, **added})


def python_command(program: Sequence[str], python: str | None = None) -> list[str]:
    """Return the command line of a program; Python runs a file that ends in .py.

    >>> python_command(["train.py", "--epochs", "3"], "python")
    ['python', 'train.py', '--epochs', '3']
    """
    return [python or sys.executable, *program] if program[0].endswith(".py") else list(program)


def _threads(ranks: int, slots: Mapping[str, int] | None) -> int:
    """Return the threads per rank: the cores of a machine divided by its ranks.

    Thread pools that each occupy all cores would only wait for each other.
    """
    ranks = ranks if slots is None else max(slots.values())
    return max(1, usable_cores() // ranks)


FAILED = 1
READ_WITHIN_S, ENDED_WITHIN_S = 0.1, 5.0


def end_together(communicator: MpiCommunicator | SocketCommunicator) -> None:
    """End all ranks after an uncaught error of any rank from now on."""

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        head = (
            f"\nrank {communicator.rank} of {communicator.size} on {platform.node()} "
            f"(process {os.getpid()}) failed:\n"
        )
        # One write, so that the lines of two ranks do not mix.
        sys.stderr.write(head + "".join(traceback.format_exception(kind, error, trace)))
        end_all(communicator)

    sys.excepthook = report
    if isinstance(communicator, SocketCommunicator):
        atexit.register(communicator.endpoint.close)
    elif many_threads():
        watchdog = Watchdog(communicator, give_up=lambda: end_all(communicator))
        # Runs before mpi4py ends MPI, which waits for all ranks.
        atexit.register(watchdog.leave)


def end_all(communicator: Communicator) -> None:
    """End every rank of the job, this one included."""
    sys.stdout.flush()
    sys.stderr.flush()
    # MPICH's mpiexec exits immediately, and unread output of its ranks is lost.
    time.sleep(READ_WITHIN_S)
    communicator._abort(FAILED)
    # MPICH's Abort returns, and this process is killed from outside a little later.
    time.sleep(ENDED_WITHIN_S)
    os._exit(FAILED)


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
                        report("more machines are available: the ranks save and start again")
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
