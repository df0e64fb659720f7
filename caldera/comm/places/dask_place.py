"""Workers as tasks of a Dask cluster; Slurm, LSF and PBS by the clusters of dask-jobqueue.

Dask places the tasks, and runs a task again that has lost its worker. Dask is not imported here: a
client brings the library with it, and an address loads it.
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as LateError
from typing import Any, Self
from urllib.parse import urlsplit

from caldera.base.config import settings
from caldera.base.registry import optional_import
from caldera.comm.hosts import address_towards, is_loopback
from caldera.comm.listener import LOOPBACK
from caldera.comm.places.place import Place
from caldera.errors import CalderaError, ConfigError

_COUNTED_FOR_S = 0.5
"""Seconds for which a count of the cluster's threads is used."""
_POLL_S = 0.05


def is_dask_client(given: object) -> bool:
    """Return True for a `dask.distributed.Client`, recognised without an import of Dask.

    >>> is_dask_client("dask:tcp://10.0.0.1:8786")
    False
    """
    kinds = type(given).__mro__
    return any(k.__module__.startswith("distributed.") and k.__name__ == "Client" for k in kinds)


class DaskPlace(Place):
    """Tasks of a Dask client.

    Tasks that run `together` are each bound to a worker, in equal numbers for equal threads. Other
    tasks are placed by Dask, and placed again when their worker is lost.
    """

    # A task is a thread of a Dask worker, which has other tasks.
    own_processes = False

    def __init__(self, client: Any, where: str = "dask", *, together: bool = False) -> None:
        if getattr(client, "asynchronous", False) or client.status != "running":
            raise ConfigError.build(
                where,
                expected="a synchronous Dask client that is connected",
                got=repr(client)[:80],
                hint="make one with dask.distributed.Client(ADDRESS)",
            )
        self.together = together
        self.distributes = not together
        self.name = f"Dask at {client.scheduler.address}"
        self._client = client
        self._futures: dict[int, Any] = {}
        self._shared: list[Any] = []
        self._lost: dict[int, str] = {}
        self._numbers = itertools.count()
        self._counted = (-_COUNTED_FOR_S, 0)
        self._owns_client = False

    @classmethod
    def at(cls, address: str, where: str, *, together: bool) -> Self:
        """Connect to the scheduler at an address such as "tcp://10.0.0.1:8786"."""
        distributed = optional_import("distributed", "'dask[distributed]'", where)
        try:
            client = distributed.Client(address or None, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError.build(
                where,
                expected="the address of a Dask scheduler, such as 'dask:tcp://10.0.0.1:8786'",
                got=f"'dask:{address}': {str(error).splitlines()[0][:200]}",
                hint="start one with: dask scheduler",
            ) from None
        place = cls(client, where, together=together)
        place._owns_client = True
        return place

    def start(
        self, count: int, function: Callable[..., object], arguments: Sequence[Any]
    ) -> list[int]:
        numbers = list(itertools.islice(self._numbers, count))
        bound = self._spread(count) if self.together else [(None, 1)] * count
        in_process = self._client.scheduler.address.startswith("inproc")
        with warnings.catch_warnings():
            # Of long arguments, which `share` sends once.
            warnings.simplefilter("ignore")
            for number, (worker, threads) in zip(numbers, bound, strict=True):
                self._futures[number] = self._client.submit(
                    run_in_task,
                    0 if in_process else threads,
                    function,
                    number,
                    *arguments,
                    key=f"caldera-{os.getpid()}-{id(self)}-{time.time_ns()}-{number}",
                    workers=worker,
                    pure=False,
                )
        return numbers

    def lost(self) -> Mapping[int, str]:
        for number, future in list(self._futures.items()):
            if future.status != "pending":
                self._lost[number] = self._reason(future)
                del self._futures[number]
        return self._lost

    def _reason(self, future: Any) -> str:
        if future.status != "error":
            return "has ended" if future.status == "finished" else "was given up by its scheduler"
        try:
            error = future.exception(timeout=_COUNTED_FOR_S)
        except (OSError, LateError):
            return "ended with an error"
        if type(error).__name__ == "KilledWorker":
            return "was given up by Dask: several workers have died with this task"
        kind = "" if isinstance(error, CalderaError) else f"{type(error).__name__}: "
        return f"raised {kind}{error}"

    def stop(self, number: int | None = None, seconds: float = 0.0) -> None:
        until = time.monotonic() + seconds
        stopped = list(self._futures) if number is None else [number]
        futures = [self._futures.pop(each) for each in stopped if each in self._futures]
        while any(each.status == "pending" for each in futures) and time.monotonic() < until:
            time.sleep(_POLL_S)
        self._client.cancel([each for each in futures if each.status == "pending"])
        if number is None:
            self._shared.clear()
            if self._owns_client:
                self._client.close()

    def capacity(self) -> int:
        """Return the number of threads of the cluster's workers now."""
        at, count = self._counted
        if time.monotonic() - at >= _COUNTED_FOR_S:
            try:
                count = sum(self._client.nthreads().values())
            except (OSError, ValueError, LateError):
                # The scheduler is away: Dask connects again, or the futures are cancelled.
                count = 0
            self._counted = (time.monotonic(), count)
        return count

    def host(self) -> str:
        scheduler = self._client.scheduler_info().get("address") or self._client.scheduler.address
        host = urlsplit(scheduler).hostname or ""
        if scheduler.startswith("inproc") or is_loopback(host):
            return LOOPBACK
        own = address_towards(host)
        # Workers that do not run together may join later, from other machines.
        workers = {urlsplit(each).hostname for each in self._client.nthreads()}
        return LOOPBACK if self.together and workers == {own} else own

    def share(self, value: Any) -> Any:
        # As a task, which Dask runs again if it loses the value with a worker.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._shared.append(self._client.submit(_same, value, pure=False))
        return self._shared[-1]

    def _spread(self, count: int) -> list[tuple[str, int]]:
        """Return a worker and a number of threads for each of `count` tasks."""
        threads = dict(sorted(self._client.nthreads().items()))
        tasks = dict.fromkeys(threads, 0)
        bound = []
        for _ in range(count):
            worker = min(tasks, key=lambda each: tasks[each] / threads[each])
            tasks[worker] += 1
            bound.append(worker)
        return [(worker, max(1, threads[worker] // tasks[worker])) for worker in bound]


def run_in_task(threads: int, function: Callable[..., object], *arguments: Any) -> None:
    """Call a function in a process that others have started; `threads` are its share, 0 for all.

    >>> run_in_task(0, print, "number", 3)
    number 3
    """
    if threads and not os.environ.get("CALDERA_THREADS"):
        settings.threads = threads
    function(*arguments)


def _same(value: Any) -> Any:
    return value
