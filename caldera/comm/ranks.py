"""Communicators over ranks: the world, named axes of a mesh, and a single process.

The world contains all ranks started together by mpiexec, srun, `caldera run` or torchrun. A mesh
arranges ranks in a grid with one communicator per axis. In a single process every collective is a
copy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.launchers import ATTEMPT, CHOICE, SOCKETS, Launch, launch_of, warn_of_idle_tasks
from caldera.comm.communicator import Communicator
from caldera.comm.mailboxes import Inbox, JobFailure, MailboxRank
from caldera.comm.mpi import MpiCommunicator
from caldera.comm.mpi_library import in_pool, loaded, mpi
from caldera.comm.nccl import with_nccl
from caldera.comm.rendezvous import join_world
from caldera.comm.requests import Request
from caldera.comm.supervision import end_together
from caldera.comm.traffic import Traffic
from caldera.errors import CommError


class SingleProcess(MailboxRank):
    """The communicator of a program that runs in one process.

    >>> import numpy as np
    >>> from caldera.comm import SingleProcess
    >>> result = np.zeros(2)
    >>> SingleProcess().Allreduce(np.array([1.0, 2.0]), result)
    >>> result
    array([1., 2.])
    """

    name = "one process"

    def __init__(self, traffic: Traffic | None = None) -> None:
        super().__init__(0, 1, traffic)
        # No other process can send: a missing message never arrives.
        self._inbox = Inbox(0, JobFailure(), timeout_s=0.0)

    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        return self._inbox.send(0, tag, buffer)

    def _split(self, color: int | None, key: int) -> Communicator | None:
        return None if color is None else SingleProcess()

    def _dup(self) -> Communicator:
        return SingleProcess(self.traffic)

    def _nothing(self, *given: Any, **named: Any) -> None:
        """Return immediately: no other process waits."""

    def _copy(self, send: Any, receive: Any, *given: Any, **named: Any) -> None:
        np.copyto(receive.reshape(-1), send.reshape(-1))

    Revoke = _broadcast = _barrier = _nothing
    _reduce = _allreduce = _reduce_scatter = _allgather = _alltoall = _copy


@cache
def world() -> Communicator:
    """Return the communicator of all ranks; one process if it was not started with others.

    Ranks communicate through MPI, or through sockets if torchrun or a launcher with its variables
    started them, and between GPUs through NCCL if each rank has its own. From then on a rank that
    fails ends all ranks, and a rank that waits too long reports the missing ranks.

    >>> from caldera.comm import world
    >>> world().size
    1
    """
    launch = launch_of(os.environ)
    if in_pool():
        # The remaining ranks wait for tasks, and take part in no collective.
        return SingleProcess()
    if launch.ranks == 1:
        warn_of_idle_tasks(os.environ)
        return SingleProcess()
    made = join_world(os.environ) if launch.kind == SOCKETS else _mpi_world(launch)
    if made.size == 1:
        return SingleProcess()
    end_together(made)
    return with_nccl(made)


def _mpi_world(launch: Launch) -> MpiCommunicator:
    communicator = MpiCommunicator(mpi().COMM_WORLD.Dup())
    # Under prterun, an MPI that does not use PMIx takes every rank for the only one.
    unknown = launch.ranks is None and (communicator.size > 1 or loaded().startup == "PMIx")
    if not unknown and launch.ranks != communicator.size:
        raise CommError.build(
            "world",
            expected=f"{launch.ranks or 'the'} ranks of {launch.launcher}",
            got=f"{communicator.size} from {loaded()}",
            hint="mpi4py uses a different MPI from the launcher of this program; `caldera run` "
            "uses the right MPI, and srun requires --mpi=pmix for Open MPI and --mpi=pmi2 "
            f"for MPICH; {CHOICE}={SOCKETS} takes RANK and WORLD_SIZE instead, if set",
        )
    return communicator


def started_ranks() -> int:
    """Return the number of ranks started together; MPI is initialised only if no variable has it.

    >>> from caldera.comm.ranks import started_ranks
    >>> started_ranks()
    1
    """
    launch = launch_of(os.environ)
    return world().size if launch.ranks is None or in_pool() else launch.ranks


@cache
def rank_on_machine() -> int:
    """Return the index of this rank among the ranks on its machine.

    Counted without the MPI library: some return an index of 0 to every rank of `srun --mpi=pmix`.
    """
    everybody = world()
    return list(everybody.nodes[: everybody.rank]).count(everybody.nodes[everybody.rank])


def restarted() -> bool:
    """Return True if `caldera run --restarts` or torchrun started this program again.

    >>> from caldera.comm import restarted
    >>> restarted()
    False
    """
    return any(int(os.environ.get(name) or 0) > 0 for name in ATTEMPT)


class Mesh:
    """The ranks of a communicator as a grid: `Mesh(world, {"data": 2, "model": 2})`.

    Ranks that follow each other are neighbours along the last axis. One axis may have the length
    -1, which is computed from the number of ranks.

    - `shape`: the length of each axis; `coordinates`: the indices of this rank.
    - `communicator`: all ranks of the grid; `axes`: the communicator along each axis.

    >>> from caldera.comm import Mesh, run_virtual_ranks
    >>> def work(comm):
    ...     mesh = Mesh(comm, {"data": -1, "model": 2})
    ...     return mesh.coordinates, mesh.axis("data").gather_objects(comm.rank)
    >>> run_virtual_ranks(4, work)[1]
    ({'data': 0, 'model': 1}, [1, 3])
    """

    def __init__(self, communicator: Communicator, axes: Mapping[str, int]) -> None:
        self.communicator = communicator
        self.shape = _lengths(dict(axes), communicator.size)
        places = np.unravel_index(communicator.rank, tuple(self.shape.values()))
        self.coordinates = {name: int(at) for name, at in zip(self.shape, places, strict=True)}
        self.axes: dict[str, Communicator] = {}
        stride = communicator.size
        for name, length in self.shape.items():
            stride //= length
            first = communicator.rank - self.coordinates[name] * stride
            self.axes[name] = communicator._own_group(first, self.coordinates[name])

    def axis(self, name: str) -> Communicator:
        """Return the communicator of the ranks that differ from this one along one axis only.

        The rank in it is this rank's coordinate on the axis.
        """
        require(
            name in self.axes,
            "mesh",
            "one of the axes " + ", ".join(self.axes),
            repr(name),
            error=CommError,
        )
        return self.axes[name]

    def together(self, *names: str) -> Communicator:
        """Return the communicator of the ranks that differ from this one along the given axes only.

        All ranks must call this method.

        >>> from caldera.comm import Mesh, run_virtual_ranks
        >>> def work(comm):
        ...     mesh = Mesh(comm, {"data": 2, "pipeline": 2, "model": 2})
        ...     return mesh.together("data", "model").gather_objects(comm.rank)
        >>> run_virtual_ranks(8, work)[2]
        [2, 3, 6, 7]
        """
        group = 0
        for name, length in self.shape.items():
            if name not in names:
                group = group * length + self.coordinates[name]
        return self.communicator._own_group(group, self.communicator.rank)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={length}' for name, length in self.shape.items())})"


def _lengths(axes: dict[str, int], ranks: int) -> dict[str, int]:
    open_axes = [name for name, length in axes.items() if length == -1]
    given = math.prod(length for length in axes.values() if length != -1)
    if len(open_axes) == 1 and given > 0 and ranks % given == 0:
        axes[open_axes[0]] = ranks // given
    require(
        axes and min(axes.values()) >= 1 and math.prod(axes.values()) == ranks,
        "mesh",
        f"axes whose lengths multiply to {ranks} ranks",
        axes,
        hint="at most one axis may have length -1",
        error=CommError,
    )
    return axes
