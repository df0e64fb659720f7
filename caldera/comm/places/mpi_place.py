"""Workers on the ranks of an mpi4py pool, which `mpi4py.futures` distributes tasks to.

`mpiexec -n 9 python -m mpi4py.futures search.py` runs the program on the first rank, and its tasks
on the eight remaining ranks. In an MPI job with a single rank, the pool starts further ranks. MPI
carries the workers' functions and arguments; later messages use sockets, as everywhere.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Self

from caldera.base.arguments import require
from caldera.base.machine import usable_cores
from caldera.base.registry import optional_import
from caldera.comm.hosts import host_names, is_loopback
from caldera.comm.listener import LOOPBACK
from caldera.comm.mpi_library import in_pool
from caldera.comm.places.dask_place import run_in_task
from caldera.comm.places.place import Place
from caldera.errors import CalderaError

_POLL_S = 0.01
_RANKS_HERE = (
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
)
"""Variables with the number of ranks on this machine and of all ranks."""


def is_mpi_pool(given: object) -> bool:
    """Return True for an `mpi4py.futures.MPIPoolExecutor`, recognised without an import of MPI.

    >>> is_mpi_pool("mpi:4")
    False
    """
    kinds = type(given).__mro__
    return any(k.__module__ == "mpi4py.futures.pool" and "Executor" in k.__name__ for k in kinds)


class MpiPlace(Place):
    """Tasks of an `MPIPoolExecutor`; each rank runs one worker at a time."""

    # A rank that exits on its own would end the whole MPI job.
    own_processes = False

    def __init__(self, executor: Any, where: str = "mpi") -> None:
        self.name = "the MPI ranks of mpi4py.futures"
        self._executor = executor
        self._owns_executor = False
        self._futures: dict[int, Future[None]] = {}
        self._lost: dict[int, str] = {}
        self._numbers = itertools.count()
        self._count = int(executor.num_workers)
        require(self._count, where, "an MPIPoolExecutor with ranks", "one that was shut down")

    @classmethod
    def at(cls, count: str, where: str, *, together: bool) -> Self:
        """Make a pool of `count` ranks, by default of all; both kinds of workers may use it."""
        usable = not count or (count.isascii() and count.isdigit() and int(count) > 0)
        require(
            usable and (in_pool() or _is_alone()),
            where,
            "'mpi' or 'mpi:4' in a program that mpi4py.futures runs",
            repr(f"mpi:{count}"),
            hint="mpiexec -n 5 python -m mpi4py.futures PROGRAM",
        )
        futures = optional_import("mpi4py.futures", "'caldera[mpi]'", where)
        place = cls(futures.MPIPoolExecutor(int(count) if count else None), where)
        place._owns_executor = True
        return place

    def start(
        self, count: int, function: Callable[..., object], arguments: Sequence[Any]
    ) -> list[int]:
        numbers = list(itertools.islice(self._numbers, count))
        threads = max(1, usable_cores() // self._count) if self.host() == LOOPBACK else 0
        for number in numbers:
            self._futures[number] = self._executor.submit(
                run_in_task, threads, function, number, *arguments
            )
        return numbers

    def lost(self) -> Mapping[int, str]:
        for number in [each for each, future in self._futures.items() if future.done()]:
            self._lost[number] = _reason(self._futures.pop(number))
        return self._lost

    def stop(self, number: int | None = None, seconds: float = 0.0) -> None:
        until = time.monotonic() + seconds
        stopped = list(self._futures) if number is None else [number]
        futures = [self._futures.pop(each) for each in stopped if each in self._futures]
        while not all(each.done() for each in futures) and time.monotonic() < until:
            time.sleep(_POLL_S)
        # MPI ends whole jobs only: a running worker exits when its connection is closed.
        for each in futures:
            each.cancel()
        if number is None and self._owns_executor:
            self._executor.shutdown(wait=False)

    def capacity(self) -> int:
        return self._count

    def host(self) -> str:
        sizes = ([os.environ.get(name) for name in names] for names in _RANKS_HERE)
        if any(here and here == everywhere for here, everywhere in sizes):
            return LOOPBACK
        return next((name for name in host_names() if not is_loopback(name)), LOOPBACK)


def _is_alone() -> bool:
    """Return True in an MPI job with a single rank."""
    return os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("PMI_SIZE")) == "1"


def _reason(future: Future[None]) -> str:
    try:
        error = future.exception()
    except CancelledError:
        return "was cancelled"
    if error is None:
        return "has ended"
    kind = "" if isinstance(error, CalderaError) else f"{type(error).__name__}: "
    return f"raised {kind}{error}"
