"""Workers: trials here, in threads, in processes of this machine, or on the ranks of a job.

| `workers=` | trials run | a trial that kills its worker |
|---|---|---|
| 1 | here, one after the other | ends the program; the study goes on when it is started again |
| `"threads:4"` | in threads of this process | ends the program as well |
| 4, `"processes:4"` | in copies of this process | is begun again in another |
| a Dask client, `"dask:tcp://..."`, `"ray"` | on a cluster | is begun again elsewhere |
| `"mpi"`, an `MPIPoolExecutor` | on the ranks of mpi4py.futures | ends the MPI job |
| under `caldera run -n 5` | on the ranks but the first, whatever `workers` says | see `--survive` |

Master or workers may be killed at any time: finished trials are kept, and the remaining trials run
when the study is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caldera.base.arguments import require
from caldera.comm import world
from caldera.comm.mpi_library import in_pool
from caldera.comm.places import cluster_hint, is_cluster, place_of
from caldera.comm.places.mpi_place import is_mpi_pool
from caldera.comm.ranks import started_ranks
from caldera.errors import ConfigError
from caldera.search.job import SearchJob as Job
from caldera.search.scheduler import Scheduler
from caldera.search.workers.dispatcher import Dispatcher, WorkerPool
from caldera.search.workers.local import ProcessWorkers, ThreadWorkers
from caldera.search.workers.places import PlaceWorkers
from caldera.search.workers.ranks import MASTER, run_on_ranks

__all__ = ["is_master", "parse_workers", "run_trials"]

KINDS: dict[str, Callable[[Job, int], WorkerPool]] = {
    "threads": ThreadWorkers,
    "processes": ProcessWorkers,
}
MOST_WORKERS = 4096


def is_master() -> bool:
    """Return True if this process owns the study: the only process, or rank 0 of a job.

    >>> is_master()
    True
    """
    return world().rank == MASTER


def run_trials(
    scheduler: Scheduler | None,
    job: Job,
    at_end: Callable[[], None] = lambda: None,
    final_messages: Callable[[], list[dict[str, Any]]] = list,
    *,
    workers: Any = 1,
    ranks_per_trial: int = 1,
    retries: int = 2,
    hung_after: float | None = None,
) -> list[dict[str, Any]]:
    """Run all trials of a scheduler, which only the master has.

    After the last trial the master calls `at_end`, and all ranks receive its final messages.
    Without ranks there are none.
    """
    kind, count = parse_workers(workers)
    ranks = world()
    require(
        ranks.size <= 1 or kind != "cluster",
        "search",
        "workers on ranks or on a cluster",
        f"{ranks.size} ranks and {workers!r}",
        hint="start the program as one process to use the cluster",
    )
    if ranks.size > 1:
        return run_on_ranks(
            ranks,
            scheduler,
            job,
            at_end,
            final_messages,
            ranks_per_trial=ranks_per_trial,
            retries=retries,
            hung_after=hung_after,
        )
    require(
        ranks_per_trial == 1,
        "search",
        f"ranks for ranks_per_trial={ranks_per_trial}",
        "one process",
        hint=f"start them: caldera run -n {1 + 2 * ranks_per_trial} search.py",
    )
    assert scheduler is not None
    if kind == "here":
        run_here(scheduler, job)
        at_end()
    else:
        if kind == "cluster":
            pool: WorkerPool = PlaceWorkers(place_of(workers, "search", together=False), job)
        else:
            pool = KINDS[kind](job, count)
        Dispatcher(scheduler, pool, retries=retries, hung_after=hung_after).run(at_end)
    return []


def run_here(scheduler: Scheduler, job: Job) -> None:
    """Run the trials sequentially in this thread, where stop decisions apply immediately."""
    while (task := scheduler.next()) is not None:
        scheduler.finish(job.run(task, scheduler.report))


def parse_workers(workers: Any) -> tuple[str, int]:
    """Return the kind and number of workers; 0 for a cluster, whose size is its core count.

    >>> parse_workers(1), parse_workers(8), parse_workers("threads:4"), parse_workers("ray")
    (('here', 1), ('processes', 8), ('threads', 4), ('cluster', 0))
    """
    if is_cluster(workers):
        if is_mpi_pool(workers) and not in_pool() and started_ranks() > 1:
            raise ConfigError.build(
                "search",
                expected="an MPIPoolExecutor in a program that mpi4py.futures runs",
                got=f"{started_ranks()} ranks that run the program",
                hint="mpiexec -n 5 python -m mpi4py.futures PROGRAM",
            )
        return "cluster", 0
    kind, _, number = str(workers).rpartition(":")
    usable = not isinstance(workers, bool) and number.isascii() and number.isdigit()
    if not usable or not 1 <= int(number) <= MOST_WORKERS or kind not in ("", *KINDS):
        raise ConfigError.build(
            "search",
            expected="workers as a number, 'threads:4', 'processes:4', a Dask client, "
            "'dask:tcp://HOST:PORT', 'ray', 'mpi' or an MPIPoolExecutor",
            got=repr(workers)[:80],
            hint=cluster_hint(workers),
        )
    count = int(number)
    return (kind or ("here" if count == 1 else "processes")), count
