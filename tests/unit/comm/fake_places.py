"""A Dask client and a Ray cluster that are played by forked processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

from caldera.base.children import ForkedChild, fork_child

MOST_DEATHS = 3


class KilledWorker(Exception):
    """Several workers have died with a task."""


class Future:
    """A task: `status` and `exception` as Dask's futures have them."""

    def __init__(self, value: Any = None) -> None:
        self.value, self.status = value, "pending"
        self.error: BaseException | None = None
        self.child: ForkedChild | None = None

    def exception(self, timeout: float) -> BaseException | None:
        return self.error


class Client:
    """Stands for `dask.distributed.Client`: tasks run in children of this process, and run again
    when their child was killed."""

    asynchronous = False
    status = "running"

    def __init__(self, threads: int = 2, scheduler: str = "tcp://127.0.0.1:8786") -> None:
        self.threads = threads
        self.scheduler = SimpleNamespace(address=scheduler)
        self.futures: list[Future] = []
        self.bound: list[str | None] = []
        self._slots = ThreadPoolExecutor(16)
        self._free = threading.BoundedSemaphore(threads)

    def nthreads(self) -> dict[str, int]:
        return {f"tcp://127.0.0.1:{number}": 1 for number in range(self.threads)}

    def scheduler_info(self) -> dict[str, Any]:
        return {"address": self.scheduler.address}

    def submit(self, function: Callable[..., Any], *given: Any, **how: Any) -> Future:
        future = Future()
        if "key" not in how:
            future.value, future.status = function(*given), "finished"
            return future
        self.futures.append(future)
        self.bound.append(how["workers"])
        values = [each.value if isinstance(each, Future) else each for each in given]
        self._slots.submit(self._run, future, partial(function, *values))
        return future

    def cancel(self, futures: list[Future]) -> None:
        for future in futures:
            future.status = "cancelled"

    def close(self) -> None:
        self.cancel([each for each in self.futures if each.status == "pending"])
        for child in [each.child for each in self.futures]:
            if child is not None:
                os.kill(child.pid, signal.SIGKILL)
        self._slots.shutdown()

    def kill_one(self) -> bool:
        """Kill the child of a task that runs."""
        for future in self.futures:
            if future.status == "pending" and future.child is not None:
                os.kill(future.child.pid, signal.SIGKILL)
                return True
        return False

    def _run(self, future: Future, work: Callable[[], Any]) -> None:
        with self._free:
            for _ in range(MOST_DEATHS):
                if future.status != "pending":
                    return
                future.child = fork_child(work)
                code, future.child = future.child.wait(), None
                if code >= 0:
                    if future.status == "pending":
                        future.error = None if code == 0 else ValueError(f"status {code}")
                        future.status = "error" if code else "finished"
                    return
            future.error, future.status = KilledWorker(), "error"


Client.__module__ = "distributed.client"


class RayError(Exception):
    """Of Ray's exceptions the base."""


class RayTaskError(RayError):
    """A task that has raised: `cause`."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


class _Actor:
    def __init__(self, target: Any, ray: Ray) -> None:
        self.child: ForkedChild | None = None
        self.run = SimpleNamespace(remote=partial(self._run, target))
        self._ray = ray

    def _run(self, target: Any, *given: Any) -> ForkedChild:
        values = [each.value if isinstance(each, Future) else each for each in given]
        self.child = fork_child(partial(target().run, *values))
        self._ray.children.append(self.child)
        return self.child


class Ray:
    """Stands for the module `ray`: actors are children of this process."""

    def __init__(self, cores: int = 2) -> None:
        self.cores = cores
        self.children: list[ForkedChild] = []
        self.asked: list[dict[str, int]] = []
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="127.0.0.1:6379")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cores)}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeManagerAddress": "127.0.0.1"}]

    def remote(self, target: Any) -> Any:
        def options(**asked: int) -> Any:
            self.asked.append(asked)
            return SimpleNamespace(remote=lambda: _Actor(target, self))

        return SimpleNamespace(options=options)

    def put(self, value: Any) -> Future:
        return Future(value)

    def wait(self, ends: list[ForkedChild], num_returns: int, timeout: float) -> tuple[Any, Any]:
        until = time.monotonic() + timeout
        while any(each.poll() is None for each in ends) and time.monotonic() < until:
            time.sleep(0.005)
        return [each for each in ends if each.poll() is not None], []

    def get(self, end: ForkedChild, timeout: float) -> None:
        code = end.wait(timeout)
        if code > 0:
            raise RayTaskError(ValueError(f"status {code}"))
        if code < 0:
            raise RayError("The actor died unexpectedly.\n\tMore of it.")

    def kill(self, actor: _Actor) -> None:
        if actor.child is not None:
            actor.child.kill()
