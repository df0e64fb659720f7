"""Connecting: worker processes are started, or ranks that were started begin to serve."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any

from caldera.base.arguments import require, within
from caldera.base.machine import usable_cores
from caldera.comm import Communicator, world
from caldera.comm.hosts import interface_address
from caldera.comm.local_sockets import SocketCommunicator
from caldera.comm.places import Place, place_of
from caldera.comm.places.local import SupervisedPlace
from caldera.comm.ranks import started_ranks
from caldera.dmath.master import Master
from caldera.dmath.place_team import PlaceTeam
from caldera.dmath.session import Session, SpmdSession
from caldera.dmath.workers import MpiTeam, RankWorker, SocketTeam, Team, ThreadTeam
from caldera.errors import ConfigError

MOST_WORKERS = 1024


class _Current:
    """The session that arrays are made in."""

    session: Session | None = None
    was_asked_for = False
    """True if a session was requested explicitly; otherwise another session may replace it."""
    on: Any = None
    """The argument `on` with the cluster of the workers."""


def connect(
    workers: int | None = None,
    *,
    on: Any = None,
    interface: str | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> Session:
    """Connect to ranks that store arrays and compute; from then on `dmath` uses them.

    - Under mpiexec, srun or `caldera run` the first rank is the master and continues with the
      script. All remaining ranks serve it from here on, and exit when it ends: n + 1 processes are
      a master and n workers.
    - Otherwise `workers` processes are started on this machine, by default one per usable core.
      They end with this program.
    - `connect(1)` computes in this process, as without a connection.
    - `on` is a cluster to start the workers on: a `dask.distributed.Client`, the address of a Dask
      scheduler ("dask:tcp://10.0.0.1:8786"), "ray", "ray:ADDRESS", "mpi" or an
      `mpi4py.futures.MPIPoolExecutor`. By default there is one worker per thread,
      core or rank. `interface` names the network between them ("ib0").
    - `threads` uses threads of this process as ranks, for tests.
    - `device` is where ranks store their parts and compute: "cpu", or "cuda" for GPUs, which ranks
      divide or share. `A.explain()` names the route of messages between them.

    The session can be used in a `with` statement, and ends with it.

    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2) as session:
    ...     session.ranks
    2
    """
    started = started_ranks()
    place = _place(on, interface, threads, started)
    wanted = _wanted(workers, threads, started, place)
    before = _Current.session
    if before is not None and before.is_open and _Current.was_asked_for:
        is_there = before.ranks == wanted and threads is None and _Current.on == on
        if is_there and device in (None, before.device):
            return before
        there, wish = ("", "") if device is None else (f" on {before.device}", f" on {device}")
        raise ConfigError.build(
            "dm.connect",
            expected=f"no open session, or a session with the same number of ranks{wish}",
            got=f"one of {before.ranks} ranks{there} and the wish for {wanted}{wish}",
            hint="dm.disconnect() ends it, and its arrays with it",
        )
    made = _made(wanted, threads, started) if place is None else _on(place, wanted, interface)
    session = _begun(made, device)
    _Current.on = on
    # Registered last, called first: workers must be stopped before MPI is finalised.
    atexit.unregister(disconnect)
    atexit.register(disconnect)
    return session


def _begun(session: Session, device: str | None) -> Session:
    _Current.session, _Current.was_asked_for = session, True
    try:
        if device is not None:
            session.call("use_device", device)
            session.device = device
            if session.family == "cuda":
                session.call("compare_gpus")
    except BaseException:
        disconnect()
        raise
    return session


def _place(on: Any, interface: str | None, threads: int | None, started: int) -> Place | None:
    """Return the place that `on` names, or raise if other arguments contradict it."""
    if on is None:
        require(
            interface is None, "dm.connect", "interface= with on=", f"only interface={interface!r}"
        )
        return None
    if threads is not None or started > 1:
        other = f"threads={threads}" if threads is not None else f"{started} ranks of MPI"
        raise ConfigError.build("dm.connect", expected="workers on= one place", got=other)
    if interface is not None:
        interface_address(interface, "dm.connect interface")
    return place_of(on, "dm.connect", together=True)


def _on(place: Place, ranks: int, interface: str | None) -> Session:
    """Return a session with workers on a cluster, named by process and machine in messages."""
    team = PlaceTeam(place, ranks, interface or "")
    master = Master(team)
    team.introduce(master.call("process_name"))
    return master


def _wanted(
    workers: int | None, threads: int | None, started: int, place: Place | None = None
) -> int:
    if threads is not None:
        require(workers is None, "dm.connect", "workers or threads=", f"{workers} and {threads}")
        return within("dm.connect", "threads", threads, 1, MOST_WORKERS)
    if workers is not None:
        within("dm.connect", "workers", workers, 1, MOST_WORKERS)
    if started > 1:
        if workers is not None and workers != started - 1:
            raise ConfigError.build(
                "dm.connect",
                expected=f"{started - 1} workers: {started} processes were started, "
                "and one is the master",
                got=str(workers),
                hint=f"start {workers + 1} processes, or call dm.connect() without a number",
            )
        return started - 1
    if workers is None and place is not None:
        # Starting workers reports an empty cluster.
        workers = max(place.capacity() or 1, 1)
    return usable_cores() if workers is None else workers


def _made(ranks: int, threads: int | None, started: int) -> Session:
    if threads is not None:
        first, *others = ThreadTeam.of(threads)
        for each in others:
            name = f"worker {each.rank - 1}"
            threading.Thread(target=RankWorker(each).serve, name=name, daemon=True).start()
        return Master(first)
    if started > 1:
        everybody = world()
        host = everybody.on_host
        team: Team = MpiTeam(host)
        if isinstance(host, SocketCommunicator):
            team = SocketTeam(host.endpoint)
        if everybody.rank > 0:
            RankWorker(team).serve()
            # The script is the master's.
            sys.exit(0)
        return Master(team)
    if ranks == 1:
        return SpmdSession()
    require(
        hasattr(os, "fork"),
        "dm.connect",
        "a system with fork",
        sys.platform,
        hint="start the program with mpiexec, or use threads=",
    )
    return Master(PlaceTeam(SupervisedPlace(PlaceTeam.__module__, ranks), ranks))


def spmd(communicator: Communicator | None = None, *, device: str | None = None) -> Session:
    """Every rank runs the script, and makes the same arrays in the same order; all ranks that were
    started if no communicator is given. `device` is as in `connect`.

    >>> from caldera import dmath as dm
    >>> with dm.spmd() as session:
    ...     session.ranks
    1
    """
    disconnect()
    return _begun(SpmdSession(world() if communicator is None else communicator), device)


def current() -> Session:
    """Return the session that new arrays use; without a connection, a session of this process.

    >>> from caldera import dmath as dm
    >>> dm.disconnect()
    >>> dm.current().ranks
    1
    """
    session = _Current.session
    if session is None or not session.is_open:
        session = _Current.session = SpmdSession()
        _Current.was_asked_for = False
    return session


def disconnect() -> None:
    """End the session with its workers and arrays, if there is one.

    >>> from caldera import dmath as dm
    >>> session = dm.connect(threads=2)
    >>> dm.disconnect()
    >>> session.is_open
    False
    """
    session, _Current.session = _Current.session, None
    if session is not None:
        session.close()
