"""Connecting: worker processes are started, or ranks that were started begin to serve."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable

from caldera.base.arguments import within
from caldera.base.children import (
    PipedChild,
    child_environment,
    exit_text,
    python_module,
    thread_variables,
)
from caldera.base.machine import usable_cores
from caldera.comm import Communicator, NcclCommunicator, world
from caldera.comm.endpoint import Endpoint
from caldera.comm.listener import KEY_BYTES, Listener
from caldera.comm.local_sockets import SocketCommunicator, gather_links
from caldera.comm.ranks import started_ranks
from caldera.dmath.master import Master
from caldera.dmath.session import Session, SpmdSession
from caldera.dmath.workers import MpiTeam, RankWorker, SocketTeam, Team, ThreadTeam
from caldera.errors import CommError, ConfigError

START_S = 60.0
"""Until all workers are there; on an idle machine it is one or two seconds."""
END_S = 3.0
"""Workers that have not ended of themselves after so long are killed."""
STATUS_S = 2.0


class ProcessTeam(SocketTeam):
    """The master of worker processes that it has started.

    A supervisor is a child of this process, and workers are children of it, made by fork: so
    Caldera is loaded once for all of them. It kills them when this process is gone, and reports
    what becomes of them.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pids: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._news = threading.Condition()
        self._silent = False
        threads = thread_variables(max(1, usable_cores() // workers))
        set_already = {name: os.environ[name] for name in threads if os.environ.get(name)}
        self._supervisor = PipedChild(
            python_module("caldera.dmath.supervisor"),
            child_environment({**os.environ, **threads, **set_already}),
            # Ctrl-C is for the master, which notifies the workers.
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, name="supervisor", daemon=True)
        self._reader.start()
        super().__init__(self._connected())

    def _connected(self) -> Endpoint:
        """Let the workers start, and give the sockets to them."""
        key = secrets.token_bytes(KEY_BYTES)
        listener = Listener(key)
        order = {"workers": self.workers, "port": listener.port, "key": key.hex()}
        try:
            # Through a pipe: arguments and environments of processes can be read by others.
            self._supervisor.send(json.dumps(order).encode() + b"\n")
            links = gather_links(listener, self.workers + 1, START_S, self._check_starting)
        except (CommError, OSError, KeyboardInterrupt) as error:
            self.end()
            if isinstance(error, OSError):
                raise self._not_started() from error
            raise
        finally:
            listener.close()
        return Endpoint(0, links)

    def leave(self) -> None:
        super().leave()
        self._wait_until(lambda: len(self._ended) == self.workers, END_S)
        self.end()

    def end(self) -> None:
        self._supervisor.end(END_S)
        self._reader.join(END_S)

    def who(self, worker: int) -> str:
        code = self._ended.get(worker)
        named = f"{super().who(worker)} (process {self._pid(worker)})"
        return named if code is None else f"{named} {exit_text(code)}"

    def lost(self) -> str:
        self._wait_until(lambda: any(self._ended.values()), STATUS_S)
        worker = next((worker for worker, code in list(self._ended.items()) if code), None)
        if worker is not None:
            return self.who(worker)
        code = self._supervisor.poll()
        ended = "" if code is None else f" (process {self._supervisor.pid}) {exit_text(code)}"
        return f"the supervisor of workers{ended}"

    def processes(self) -> list[int]:
        return [self._pid(worker) for worker in range(self.workers)]

    def _pid(self, worker: int) -> int:
        """The number of a worker's process."""
        self._wait_until(lambda: worker in self._pids, STATUS_S)
        return self._pids.get(worker, 0)

    def _read(self) -> None:
        """The thread that listens to the supervisor."""
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as lines:
            for line in lines:
                what, worker, number = line.decode().split()
                with self._news:
                    (self._pids if what == "started" else self._ended)[int(worker)] = int(number)
                    self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()

    def _wait_until(self, happened: Callable[[], bool], seconds: float) -> None:
        """Wait for news, unless there will be none."""
        with self._news:
            self._news.wait_for(lambda: self._silent or happened(), seconds)

    def _check_starting(self) -> None:
        if self._ended or self._supervisor.poll() is not None:
            raise self._not_started()

    def _not_started(self) -> CommError:
        ended = ", ".join(f"worker {w} {exit_text(code)}" for w, code in list(self._ended.items()))
        return CommError.build(
            "dm.connect",
            expected=f"{self.workers} workers to start",
            got=ended or f"a supervisor that {exit_text(self._supervisor.poll() or 0)}",
            hint="what they have printed says why",
        )


MOST_WORKERS = 1024


class _Current:
    """The session that arrays are made in."""

    session: Session | None = None
    was_asked_for = False
    """Whether somebody has connected: else another session may take its place."""


def connect(
    workers: int | None = None, *, threads: int | None = None, device: str | None = None
) -> Session:
    """Have ranks that hold arrays and compute; from then on `dmath` uses them.

    - Under mpiexec, srun or `caldera run` the first rank is the master and goes on with the
      script. All others serve it from here on, and leave the script when it ends: n + 1 processes
      are a master and n workers.
    - Else `workers` processes are started on this machine, one for each usable core if no number
      is given. They end with this program.
    - `connect(1)` computes in this process, and so does whoever never connects.
    - `threads` are ranks in threads of this process: for tests.
    - `device` is where ranks keep their parts and compute: "cpu", or "cuda" for cards, which they
      share out among themselves, or share. Messages between them go from host to host.

    The session can be used in a `with` statement, and ends with it.

    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2) as session:
    ...     session.ranks
    2
    """
    started = started_ranks()
    wanted = _wanted(workers, threads, started)
    before = _Current.session
    if before is not None and before.is_open and _Current.was_asked_for:
        if before.ranks == wanted and threads is None and device in (None, before.device):
            return before
        there, wish = ("", "") if device is None else (f" on {before.device}", f" on {device}")
        raise ConfigError.build(
            "dm.connect",
            expected=f"no open session, or one of as many ranks{wish}",
            got=f"one of {before.ranks} ranks{there} and the wish for {wanted}{wish}",
            hint="dm.disconnect() ends it, and its arrays with it",
        )
    session = _begun(_made(wanted, threads, started), device)
    # Last registered, first called: MPI ends after the workers were told to.
    atexit.unregister(disconnect)
    atexit.register(disconnect)
    return session


def _begun(session: Session, device: str | None) -> Session:
    _Current.session, _Current.was_asked_for = session, True
    try:
        if device is not None:
            session.call("use_device", device)
            session.device = device
    except BaseException:
        disconnect()
        raise
    return session


def _wanted(workers: int | None, threads: int | None, started: int) -> int:
    if threads is not None:
        if workers is not None:
            raise ConfigError.build(
                "dm.connect", expected="workers or threads=", got=f"{workers} and {threads}"
            )
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
        host = everybody.host if isinstance(everybody, NcclCommunicator) else everybody
        team: Team = MpiTeam(everybody)
        if isinstance(host, SocketCommunicator):
            team = SocketTeam(host.endpoint)
        if everybody.rank > 0:
            RankWorker(team).serve()
            # The script is the master's.
            sys.exit(0)
        return Master(team)
    if ranks == 1:
        return SpmdSession()
    if not hasattr(os, "fork"):
        raise ConfigError.build(
            "dm.connect",
            expected="a system with fork",
            got=sys.platform,
            hint="start the program with mpiexec, or use threads=",
        )
    return Master(ProcessTeam(ranks))


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
    """The session that arrays are made in; one of this process alone if nobody has connected.

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
    """End the session, its workers and its arrays; nothing happens if there is none.

    >>> from caldera import dmath as dm
    >>> session = dm.connect(threads=2)
    >>> dm.disconnect()
    >>> session.is_open
    False
    """
    session, _Current.session = _Current.session, None
    if session is not None:
        session.close()
