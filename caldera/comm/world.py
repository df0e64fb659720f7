"""All ranks of this program: those that mpiexec, srun or `caldera run` started together."""

from __future__ import annotations

import os
from functools import cache

from caldera.base.launchers import ranks_started
from caldera.comm.abort import end_together
from caldera.comm.communicator import Communicator
from caldera.comm.launch import RESTART
from caldera.comm.mpi import MpiCommunicator
from caldera.comm.mpi_library import loaded, mpi
from caldera.comm.nccl import with_nccl
from caldera.comm.single import SingleProcess
from caldera.errors import CommError


@cache
def world() -> Communicator:
    """The communicator of all ranks; one process if it was not started with others.

    Ranks talk through MPI, and between cards through NCCL where each rank has one of its own. From
    then on a rank that fails ends all of them, and one that waits too long says for whom.

    >>> from caldera.comm import world
    >>> world().size
    1
    """
    ranks = ranks_started(os.environ)
    if ranks == 1:
        return SingleProcess()
    communicator = MpiCommunicator(mpi().COMM_WORLD.Dup())
    if communicator.size != ranks:
        raise CommError.build(
            "world",
            expected=f"{ranks} ranks, as the environment says",
            got=f"{communicator.size} from {loaded()}",
            hint="mpi4py uses another MPI than the one that started this program; "
            "`caldera run` takes the right one, and srun wants --mpi=pmix for Open MPI and "
            "--mpi=pmi2 for MPICH",
        )
    end_together(communicator)
    return with_nccl(communicator)


def restarted() -> bool:
    """Whether `caldera run --restarts` started this program again after a failure.

    >>> from caldera.comm import restarted
    >>> restarted()
    False
    """
    return int(os.environ.get(RESTART) or 0) > 0
