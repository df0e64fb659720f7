"""Places: where workers run.

A place starts functions as workers and reports workers that have ended. Workers are processes of
this machine, the ranks of an mpi4py pool, tasks of a Dask cluster, or actors of a Ray cluster. It
carries no messages: workers connect to the port of the process that started them, with a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caldera.comm.places.dask_place import DaskPlace, is_dask_client
from caldera.comm.places.mpi_place import MpiPlace, is_mpi_pool
from caldera.comm.places.place import Place
from caldera.comm.places.ray_place import RayPlace
from caldera.errors import ConfigError

__all__ = ["Place", "cluster_hint", "is_cluster", "place_of"]

ENGINES: dict[str, Callable[..., Place]] = {
    "dask": DaskPlace.at,
    "ray": RayPlace.at,
    "mpi": MpiPlace.at,
}
"""Functions that connect to a cluster, by the first word of its address."""


def is_cluster(given: object) -> bool:
    """Return True if a value names a cluster: a Dask client, "dask:...", "ray", "mpi" or a pool.

    >>> is_cluster("ray"), is_cluster("dask:tcp://10.0.0.1:8786"), is_cluster("threads:4")
    (True, True, False)
    """
    if isinstance(given, str):
        return given.partition(":")[0] in ENGINES
    return isinstance(given, Place) or is_dask_client(given) or is_mpi_pool(given)


def place_of(given: Any, where: str, *, together: bool) -> Place:
    """Return the place that a user's value names.

    With `together` all workers run at the same time; else each may wait until the cluster has
    a free core.
    """
    if isinstance(given, Place):
        return given
    if is_dask_client(given):
        return DaskPlace(given, where, together=together)
    if is_mpi_pool(given):
        return MpiPlace(given, where)
    if isinstance(given, str) and is_cluster(given):
        engine, _, address = given.partition(":")
        return ENGINES[engine](address, where, together=together)
    raise ConfigError.build(
        where,
        expected="a dask.distributed.Client, 'dask:tcp://HOST:PORT', 'ray', 'ray:ADDRESS', 'mpi' "
        "or an MPIPoolExecutor",
        got=repr(given)[:80],
        hint=cluster_hint(given),
    )


def cluster_hint(given: object) -> str:
    """Return the remedy for a value that is an object of Dask or Ray, but no client."""
    return _HINTS.get(type(given).__module__.partition(".")[0], "")


_HINTS = {
    "dask_jobqueue": "pass a client of the cluster: dask.distributed.Client(cluster)",
    "distributed": "pass a client of the cluster: dask.distributed.Client(cluster)",
    "ray": "pass 'ray': the cluster that ray.init() has connected to is used",
}
