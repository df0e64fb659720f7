"""Workers and their connections: the order loop, and teams over sockets, threads or MPI.

A worker executes the master's orders in sequence and replies only to orders that require a reply.
After an error it releases the ranks that wait for it, reports to the master, and pauses until all
ranks continue with new communicators. Its arrays remain.

All members have a `control` communicator, of which the master is rank 0, and the workers have one
among themselves, `data`. After an error both are recreated under the number of a new epoch:
messages that are still in flight in the old ones are never read.
"""

from __future__ import annotations

import threading
import traceback
from abc import ABC, abstractmethod

import numpy as np

from caldera.comm import Communicator, Traffic
from caldera.comm.endpoint import Endpoint, channel_of
from caldera.comm.local_sockets import SocketCommunicator
from caldera.comm.supervision import end_all
from caldera.comm.virtual import VirtualRank, virtual_ranks
from caldera.core.tensor.dtype import canonical
from caldera.dmath import shards  # noqa: F401 - its services
from caldera.dmath.codec import decode, encode
from caldera.dmath.protocol import (
    CALL,
    DATA_TAG,
    DEFINE,
    END,
    FAILURE,
    GET,
    ORDER_TAG,
    PUT,
    REFUSAL,
    RENEW,
    REPLY,
    REPORT_TAG,
    RUN,
    SERVICES,
    UNDEFINE,
    Channel,
    unpack_changes,
    unpack_numbers,
    varint,
    varints,
)
from caldera.dmath.rank import Definition, Rank
from caldera.errors import CommError

Pair = tuple[Communicator, Communicator | None]


class Team(ABC):
    """A member's view of the team: `rank` 0 is the master; `workers` is the number of workers."""

    rank: int
    workers: int

    @abstractmethod
    def communicators(self, epoch: int) -> Pair:
        """Return control and data of an epoch; the master has no data."""

    @abstractmethod
    def revoke(self, reason: str) -> None:
        """Release all who wait in the data communicator of the last epoch."""

    def leave(self) -> None:
        """Leave the team; called by a worker that ends."""
        return

    def end(self) -> None:
        """End all remaining workers immediately; called by the master."""
        return

    def who(self, worker: int) -> str:
        """Return a worker's name for an error, with its exit status if known."""
        return f"worker {worker} of {self.workers}"

    def processes(self) -> list[int]:
        """Return the worker processes that this process has started."""
        return []

    def lost(self) -> str:
        """Return the workers that have ended unexpectedly, with their exit status."""
        return "a worker"


class SocketTeam(Team):
    """Processes that have sockets to each other."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.rank, self.workers = endpoint.rank, endpoint.size - 1
        self._endpoint = endpoint
        self._epoch = 0

    def communicators(self, epoch: int) -> Pair:
        self._epoch = epoch
        everybody = range(self.workers + 1)
        control = SocketCommunicator(self._endpoint, everybody, f"control {epoch}")
        if self.rank == 0:
            return control, None
        return control, SocketCommunicator(self._endpoint, everybody[1:], f"data {epoch}")

    def revoke(self, reason: str) -> None:
        root = channel_of(f"data {self._epoch}")
        self._endpoint.revoke(root, max(self.rank - 1, 0), reason)

    def leave(self) -> None:
        self._endpoint.close()

    def end(self) -> None:
        self._endpoint.end_others()


class ThreadTeam(Team):
    """Team of threads in one process; `of` creates all members."""

    def __init__(self, rank: int, workers: int, shared: _Shared) -> None:
        self.rank, self.workers = rank, workers
        self._shared = shared
        self._epoch = 0

    @classmethod
    def of(cls, workers: int) -> list[ThreadTeam]:
        """Return the members: the master, then the workers."""
        shared = _Shared(workers)
        return [cls(rank, workers, shared) for rank in range(workers + 1)]

    def communicators(self, epoch: int) -> Pair:
        self._epoch = epoch
        control, data = self._shared.at(epoch)
        return control[self.rank], data[self.rank - 1] if self.rank else None

    def revoke(self, reason: str) -> None:
        _, data = self._shared.at(self._epoch)
        data[max(self.rank - 1, 0)].Revoke(reason)

    def leave(self) -> None:
        if self.rank == 0:
            control, _ = self._shared.at(self._epoch)
            control[0].Revoke("the master has left")
            self.revoke("the master has left")


class _Shared:
    """The communicators of threads, by epoch."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._epochs: dict[int, tuple[list[VirtualRank], list[VirtualRank]]] = {}

    def at(self, epoch: int) -> tuple[list[VirtualRank], list[VirtualRank]]:
        with self._lock:
            if epoch not in self._epochs:
                made = virtual_ranks(self._workers + 1), virtual_ranks(self._workers)
                self._epochs[epoch] = made
            return self._epochs[epoch]


class MpiTeam(Team):
    """Ranks that mpiexec, srun or `caldera run` has started; the first one is the master."""

    def __init__(self, world: Communicator) -> None:
        self.rank, self.workers = world.rank, world.size - 1
        self._world = world

    def communicators(self, epoch: int) -> Pair:
        control = self._world.Dup()
        return control, self._world.Split(0 if self.rank else None)

    def revoke(self, reason: str) -> None:
        # A call of MPI cannot be interrupted: the master ends workers that do not return.
        return

    def end(self) -> None:
        end_all(self._world)


LONGEST_TEXT = 20_000


class RankWorker:
    """One of the ranks that hold data; `serve` returns when the master ends."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._failed = False
        self._traffic = Traffic(), Traffic()
        self._join(0)
        self._rank = Rank(self._data)

    def _join(self, epoch: int) -> None:
        control, data = self._team.communicators(epoch)
        assert data is not None
        # The arrays of each program's last run, mirrored on the master.
        self._leaves: dict[int, list[int]] = {}
        # Counters continue from earlier values.
        control.traffic, data.traffic = self._traffic
        self._control, self._data = control, data
        self._orders = Channel(control, ORDER_TAG, source=0)
        self._reports = Channel(control, REPORT_TAG)

    def serve(self) -> None:
        """Execute orders until the master ends or is lost."""
        while True:
            try:
                found = self._orders.receive()
            except CommError:
                # The master has left, or a process is lost: then it ends all.
                return
            assert found is not None
            kind, content = found[1][:1], found[1][1:]
            if kind == END:
                return
            try:
                if kind == RENEW:
                    self._renew(content)
                else:
                    self._obey(kind, content)
            except Exception as error:
                self._fail(error)

    def _obey(self, kind: bytes, content: bytes) -> None:
        if kind == PUT:
            self._put(content)
        elif self._failed:
            # The master receives the failure report instead of the reply.
            return
        elif kind == RUN:
            stream = varints(content)
            program, first, count = next(stream), next(stream), next(stream)
            leaves = unpack_changes(stream, self._leaves.get(program) or [first] * count)
            self._leaves[program] = leaves
            self._rank.free(unpack_numbers(stream, first))
            self._rank.run(program, leaves, first)
        elif kind == DEFINE:
            number = next(varints(content))
            rest = content[len(varint(number)) :]
            self._rank.define(number, Definition.from_bytes(rest))
        elif kind == UNDEFINE:
            number = next(varints(content))
            self._leaves.pop(number, None)
            self._rank.undefine(number)
        elif kind == GET:
            self._get(content)
        elif kind == CALL:
            self._call(content)
        else:
            raise CommError.build("a worker", expected="an order", got=repr(kind))

    def _put(self, content: bytes) -> None:
        number, shape, dtype, freed = decode(content)
        part = np.empty(shape, canonical(dtype))
        self._control.Recv(part, 0, DATA_TAG)
        if not self._failed:
            self._rank.free(freed)
            self._rank.put(number, part)

    def _get(self, content: bytes) -> None:
        serial, number = varints(content)
        try:
            part = np.asarray(self._rank.part(number).numpy(), order="C")
        except CommError as error:
            self._reports.send(0, REFUSAL + varint(serial) + _as_text(error))
            return
        self._reports.send(0, REPLY + varint(serial))
        self._control.Send(part, 0, DATA_TAG)

    def _call(self, content: bytes) -> None:
        serial = next(varints(content))
        service, freed, arguments = decode(content[len(varint(serial)) :])
        try:
            self._rank.free(freed)
            said = encode(SERVICES[service](self._rank, *arguments))
        except Exception as error:
            self._reports.send(0, REFUSAL + varint(serial) + _as_text(error))
        else:
            self._reports.send(0, REPLY + varint(serial) + said)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        released = isinstance(error, CommError) and "the news that rank" in str(error)
        try:
            if not released:
                self._team.revoke(f"{type(error).__name__}: {error}"[:LONGEST_TEXT])
            self._reports.send(0, FAILURE + varint(released) + _as_text(error))
        except CommError:
            # The master is gone, which `serve` finds out.
            return

    def _renew(self, content: bytes) -> None:
        serial, epoch = varints(content)
        # All workers reply before creating communicators: with MPI, creation waits for every rank.
        self._reports.send(0, REPLY + varint(serial))
        self._join(epoch)
        self._rank.renew(self._data)
        self._failed = False


def _as_text(error: BaseException) -> bytes:
    trace = "".join(traceback.format_exception(error))
    return encode((type(error).__name__, str(error)[-LONGEST_TEXT:], trace[-LONGEST_TEXT:]))
