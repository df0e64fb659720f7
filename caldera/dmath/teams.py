"""A master and its workers: how they reach each other, and what becomes of those that are lost.

All of them have a `control` communicator, of which the master is rank 0, and the workers have one
among themselves, `data`. When something has failed both are made anew, under the number of a new
epoch: what was still on its way in the old ones is never read.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from caldera.comm import Communicator
from caldera.comm.abort import end_all
from caldera.comm.endpoint import Endpoint, channel_of
from caldera.comm.sockets import SocketCommunicator
from caldera.comm.virtual import VirtualRank, virtual_ranks

Pair = tuple[Communicator, Communicator | None]


class Team(ABC):
    """What a member of it knows: `rank` 0 is the master's, and there are `workers`."""

    rank: int
    workers: int

    @abstractmethod
    def communicators(self, epoch: int) -> Pair:
        """Control and data of an epoch; the master has no data."""

    @abstractmethod
    def revoke(self, reason: str) -> None:
        """Release all who wait in the data communicator of the last epoch."""

    def leave(self) -> None:
        """This one goes."""
        return

    def end(self) -> None:
        """The master ends all workers that are still there, whatever they do."""
        return

    def who(self, worker: int) -> str:
        """How a worker is named in an error, with what became of it if that is known."""
        return f"worker {worker} of {self.workers}"

    def processes(self) -> list[int]:
        """The processes of workers that this one has started."""
        return []

    def lost(self) -> str:
        """Who has ended though nobody asked it to, and how."""
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


class ThreadTeam(Team):
    """Threads of one process; `of` makes that of each."""

    def __init__(self, rank: int, workers: int, shared: _Shared) -> None:
        self.rank, self.workers = rank, workers
        self._shared = shared
        self._epoch = 0

    @classmethod
    def of(cls, workers: int) -> list[ThreadTeam]:
        """The master's, and those of the workers."""
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
        # Nobody can be released from a call of MPI: the master ends all if they do not come back.
        return

    def end(self) -> None:
        end_all()
