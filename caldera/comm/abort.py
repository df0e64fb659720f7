"""Ending together: no rank ever waits for one that has failed or left.

A rank that raises says who and where it was, and ends the job. A rank that comes to the end of its
program while others wait for it is noticed by their watchdogs.
"""

from __future__ import annotations

import atexit
import os
import platform
import sys
import time
import traceback
from types import TracebackType

from caldera.comm.mpi import MpiCommunicator
from caldera.comm.mpi_library import many_threads, mpi
from caldera.comm.watchdog import Watchdog

FAILED = 1
READ_WITHIN_S, ENDED_WITHIN_S = 0.1, 5.0


def end_together(communicator: MpiCommunicator) -> None:
    """From now on an error that nobody catches ends all ranks."""

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        head = (
            f"\nrank {communicator.rank} of {communicator.size} on {platform.node()} "
            f"(process {os.getpid()}) failed:\n"
        )
        # One write, so that the lines of two ranks do not mix.
        sys.stderr.write(head + "".join(traceback.format_exception(kind, error, trace)))
        end_all()

    sys.excepthook = report
    if many_threads():
        watchdog = Watchdog(communicator, give_up=end_all)
        # Runs before mpi4py ends MPI, which waits for all ranks.
        atexit.register(watchdog.leave)


def end_all() -> None:
    """End every rank of the job, this one included."""
    sys.stdout.flush()
    sys.stderr.flush()
    # MPICH's mpiexec ends at once, and with it goes what it has not yet read and passed on.
    time.sleep(READ_WITHIN_S)
    mpi().COMM_WORLD.Abort(FAILED)
    # MPICH comes back from there, and ends this process from outside a little later.
    time.sleep(ENDED_WITHIN_S)
    os._exit(FAILED)
