"""MPI itself, through mpi4py: starting it, what it can do, and waiting for its messages."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.config import settings
from caldera.base.registry import optional_import
from caldera.comm.mpi_implementation import MpiImplementation, defaults_for_ranks, implementation
from caldera.comm.requests import PollBackoff, Request
from caldera.errors import CommError

if TYPE_CHECKING:
    from caldera.comm.mpi import MpiCommunicator

PACKAGE = "caldera[mpi]"
STALLS_BEFORE_ABORT = 10
"""After so many times `settings.stall_s` a job is given up."""
SHORTEST_NAP_S, LONGEST_NAP_S = 2e-5, 2e-3
SHORTEST_MESSAGE = 1 << 12
"""Bytes below which a message takes no less time."""
SHORTER = 0.8
"""Of the last nap for a message is tried for the next one of that size."""
LOOKS = 8
"""How often one asks after a nap: Open MPI looks at its sockets in one call of eight."""


@cache
def mpi() -> Any:
    """mpi4py's MPI, imported (and MPI started) when the first communicator is asked for."""
    for name, value in defaults_for_ranks().items():
        os.environ.setdefault(name, value)
    with _all_ranks_start_within(STALLS_BEFORE_ABORT * settings.stall_s):
        return optional_import("mpi4py.MPI", PACKAGE, "training on several processes")


@contextmanager
def _all_ranks_start_within(seconds: float) -> Iterator[None]:
    """MPI starts when all ranks are there. One that came to its end before would be waited for by
    all others, in a call during which no Python runs: so what notices is no Python either."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@cache
def loaded() -> MpiImplementation:
    """Which MPI was loaded."""
    return implementation(mpi().Get_library_version())


@cache
def takes_cards() -> bool:
    """Whether this MPI reads and writes the memory of a card by itself."""
    library = ctypes.CDLL(mpi().__file__)
    try:
        return bool(library.MPIX_Query_cuda_support())
    except AttributeError:
        return False


@cache
def many_threads() -> bool:
    """Whether several threads may communicate at once."""
    return bool(mpi().Query_thread() == mpi().THREAD_MULTIPLE)


@cache
def shares_cores() -> bool:
    """Whether this machine has more ranks than cores: one that waits busily, as MPI does, then
    takes the time of those for whom it waits, even if it lets them run now and then."""
    told = os.environ.get(loaded().tells_local, "")
    # All of the machine's: a scheduler may bind each rank to some of them.
    return told.isdigit() and int(told) > (os.cpu_count() or 1)


def nap_until(is_there: Callable[[], bool]) -> None:
    """Look again and again, and sleep in between: longer the longer it takes."""
    nap = SHORTEST_NAP_S
    while not any(is_there() for _ in range(LOOKS)):
        time.sleep(nap)
        nap = min(2 * nap, LONGEST_NAP_S)


def do_not_wait_for_the_lost() -> None:
    """When a rank has died: let MPI end without it.

    Ending, Open MPI has all ranks that were started meet in a fence, in a call during which no
    Python runs, and is not always told that one of them will never come.
    """
    with suppress(ValueError):  # another MPI has no such switch
        ctypes.c_bool.in_dll(ctypes.CDLL(mpi().__file__), "ompi_async_mpi_finalize").value = True


class MpiRequest(Request):
    """A message under way, to or from a peer; it keeps the buffer that MPI reads or writes."""

    def __init__(
        self,
        owner: MpiCommunicator,
        request: Any,
        buffer: np.ndarray,
        size: int,
        peer: int,
        shorter: bool = False,
    ) -> None:
        self._owner = owner
        self._request = request
        self._buffer = buffer
        self._expected = size
        self._peer = peer
        self._shorter = shorter

    def wait(self) -> None:
        owner = self._owner
        owner.blocked, owner.peer = time.monotonic(), self._peer
        try:
            if owner.backoff is not None and self._arrives_meanwhile(owner.backoff):
                return
            if shares_cores():
                nap_until(self.test)
                return
            if self._expected < 0:
                self._request.Wait()
                return
            status = mpi().Status()
            self._request.Wait(status)
        except mpi().Exception as error:
            raise owner.failure(error) from error
        finally:
            owner.blocked = None
        self._arrived(status)

    def _arrives_meanwhile(self, backoff: PollBackoff) -> bool:
        """Sleep until it is there, or until somebody waits for that; whether it is there.

        Naps become about as long as a message of its size takes: each time that one ends costs
        those who compute, and one that is too long keeps the others waiting.
        """
        owner, size = self._owner, max(self._buffer.nbytes, SHORTEST_MESSAGE)
        nap = min(max(owner.pace * size, SHORTEST_NAP_S), LONGEST_NAP_S)
        while not self._is_there(LOOKS):
            if backoff.is_interrupted:
                return False
            backoff.sleep(nap)
            owner.pace = nap / size
            nap = min(2 * nap, LONGEST_NAP_S)
        owner.pace *= SHORTER
        return True

    def test(self) -> bool:
        return self._is_there(1)

    def _is_there(self, looks: int) -> bool:
        status, look = mpi().Status(), self._request.Test
        try:
            done = any(look(status) for _ in range(looks))
        except mpi().Exception as error:
            raise self._owner.failure(error) from error
        if done:
            self._arrived(status)
        return done

    def _arrived(self, status: Any) -> None:
        # A request that is done stays so, but says only once what has arrived.
        expected, self._expected = self._expected, -1
        if expected < 0:
            return
        self.source = status.Get_source()
        self.received = status.Get_count(mpi().BYTE)
        if self.received != expected and not self._shorter:
            raise CommError.build(
                f"receiving from rank {self.source}",
                expected=f"{expected} bytes",
                got=str(self.received),
            )
