"""Start of ranks by mpiexec, and their joint end after a failure.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from caldera.base.children import start_program
from caldera.base.launchers import ATTEMPT
from caldera.base.machine import usable_cores
from caldera.comm.communicator import Communicator
from caldera.comm.local_sockets import SocketCommunicator
from caldera.comm.mpi import MpiCommunicator
from caldera.comm.mpi_library import launcher, many_threads
from caldera.comm.slots import read_hosts
from caldera.comm.watchdog import Watchdog
from caldera.errors import ConfigError

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
    if survive and not mpi.survives:
        raise ConfigError.build(
            "run --survive",
            expected="an MPI with ULFM (Open MPI 5)",
            got=f"{mpi} ({starter.path})",
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
