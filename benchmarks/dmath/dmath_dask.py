"""Dask as a peer of distributed algebra: on threads of one process, or on processes of one thread.

Its arrays stay in chunks, as those of others in parts. Processes are those of `dask.distributed`,
each on a core of its own.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import sleep
from typing import Any
from uuid import uuid4

import numpy as np

from benchmarks.dmath.dmath_cases import Case, first_alone, relative, residual
from caldera.bench.timing import Stopwatch
from caldera.comm import Communicator

MOST_RUNS = 16
"""How often an operation can be run."""
Compute = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def dask_threads_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """On threads of the first rank, as many as there are ranks; the others sleep."""
    if operation in ("fft", "tall"):
        return None
    import dask

    def compute(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        made: tuple[Any, ...] = dask.persist(*arrays, scheduler="threads", num_workers=comm.size)
        return made

    return _case(operation, a, comm, lambda: compute)


def dask_processes_case(operation: str, a: np.ndarray, comm: Communicator) -> Case | None:
    """On as many processes as there are ranks, one thread and one core each; the ranks sleep."""
    if operation not in ("product", "qr", "cholesky"):
        return None

    def start() -> Compute:
        import distributed

        client = _client(comm.size)

        def compute(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
            made = client.persist(list(arrays))
            distributed.wait(made)
            return tuple(made)

        return compute

    return _case(operation, a, comm, start)


@cache
def _client(workers: int) -> Any:
    """Of workers that were started for it, each bound to a core of its own."""
    import distributed

    found = Path(tempfile.mkdtemp()) / "scheduler.json"
    # They are no ranks: nothing of MPI is for them.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_OF_MPI)}
    tool = [sys.executable, "-m"]
    where = ["--scheduler-file", str(found)]
    commands = [[*tool, "distributed.cli.dask_scheduler", *where, "--port", "0", "--no-dashboard"]]
    worker = [*tool, "distributed.cli.dask_worker", *where, "--nthreads", "1", "--no-nanny"]
    commands += [[*worker, "--no-dashboard", "--memory-limit", "0"] for _ in range(workers)]
    cores = sorted(range(os.cpu_count() or 1))
    bound = os.sched_getaffinity(0)
    for number, command in enumerate(commands):
        os.sched_setaffinity(0, {cores[(number - 1) % len(cores)]} if number else cores)
        started = subprocess.Popen(
            command, env=clean, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        atexit.register(started.kill)
    os.sched_setaffinity(0, bound)
    while not found.exists():
        sleep(0.05)
    client = distributed.Client(scheduler_file=str(found))
    client.wait_for_workers(workers)
    return client


_OF_MPI = ("OMPI_", "PMIX_", "PRTE_", "PMI_")


def _case(operation: str, a: np.ndarray, comm: Communicator, start: Callable[[], Compute]) -> Case:
    """With the best of several sizes of chunks, each of which is tried once."""
    results: list[Any] = []
    with first_alone(comm) as first:
        best = _fastest(_ways(operation, a, comm.size, start())) if first else None

    def run() -> None:
        results.clear()
        with first_alone(comm):
            if best is not None:
                results[:] = best()

    def check() -> float:
        wrong = 0.0
        with first_alone(comm) as first:
            if first and operation == "product":
                rows = slice(0, None, max(len(a) // 64, 1))
                wrong = relative(results[0][rows].compute(), a[rows] @ a, len(a))
            elif first:
                wrong = residual(operation, a, [each.compute() for each in results])
        return wrong

    return run, check


def _ways(
    operation: str, a: np.ndarray, ranks: int, compute: Compute
) -> list[Callable[[], tuple[Any, ...]]]:
    """An operation on chunks of several sizes, each of which is there already."""
    import dask.array as da

    n, side = len(a), max(int(ranks**0.5), 1)
    squares = [((n // (side * k),) * 2, (n // (side * k),) * 2) for k in (1, 2) if n >= side * k]
    shapes = squares
    if operation == "product":
        # Rows and columns: nothing has to be added.
        shapes = [*squares, ((n // side, n), (n, n // side))]
    elif operation in ("qr", "svd"):
        shapes = [((n // side, n), (n, n))]
    functions: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
        "product": lambda x, y: (x @ y,),
        "qr": lambda x, y: da.linalg.qr(x),
        "cholesky": lambda x, y: (da.linalg.cholesky(x, lower=True),),
        "svd": lambda x, y: da.linalg.svd(x),
        "solve": lambda x, y: (da.linalg.solve(x, y),),
    }

    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        # Workers read their chunks from it: to send them would take longer than to multiply them.
        np.save(file, a)
        file.flush()

        def read(block_info: Any = None) -> np.ndarray:
            place = block_info[None]["array-location"]
            whole = np.load(file_name, mmap_mode="r")
            return np.array(whole[tuple(slice(*each) for each in place)])

        def way(shape: tuple[tuple[int, int], tuple[int, int]]) -> Callable[[], tuple[Any, ...]]:
            every = [da.core.normalize_chunks(chunks, shape=a.shape) for chunks in shape]
            given = compute(
                tuple(da.map_blocks(read, chunks=each, dtype=a.dtype) for each in every)
            )
            new = [functions[operation](*map(_renamed, given)) for _ in range(MOST_RUNS)]
            return lambda: compute(new.pop())

        file_name = file.name
        return [way(shape) for shape in shapes]


def _fastest(ways: list[Callable[[], tuple[Any, ...]]]) -> Callable[[], tuple[Any, ...]]:
    """After one run of each."""
    taken = []
    for way in ways:
        began = Stopwatch()
        way()
        taken.append(began.wall)
    return ways[int(np.argmin(taken))]


def _renamed(array: Any) -> Any:
    """The same chunks under another name: what has the names of something that was computed before
    is not computed again by processes that still have it."""
    import dask.array as da
    from distributed import futures_of

    held = {future.key: future for future in futures_of(array)}
    if not held:
        return array
    name = f"given-{uuid4().hex}"
    graph = {(name, *key[1:]): future for key, future in held.items()}
    return da.Array(graph, name, chunks=array.chunks, dtype=array.dtype)
