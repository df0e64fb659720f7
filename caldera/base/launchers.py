"""What mpiexec, srun and their kind say in the environment of the processes they start."""

from __future__ import annotations

from collections.abc import Mapping

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
WORKER = "CALDERA_WORKER"
"""Which of a search's workers on this machine a process is; who starts them sets this variable."""
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def ranks_started(environment: Mapping[str, str]) -> int:
    """How many ranks were started together.

    >>> from caldera.base.launchers import ranks_started
    >>> ranks_started({"OMPI_COMM_WORLD_SIZE": "4"}), ranks_started({})
    (4, 1)
    """
    return max((int(environment.get(name) or 1) for name in _SIZES), default=1)


def rank_on_machine(environment: Mapping[str, str]) -> int:
    """Which of the ranks on this machine this process is; 0 for one that was started alone.

    The workers of a search, which are processes without being ranks, are counted in the same way.

    >>> from caldera.base.launchers import rank_on_machine
    >>> rank_on_machine({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"})
    3
    >>> rank_on_machine({"SLURM_LOCALID": "3"})                     # a shell within a job
    0
    >>> rank_on_machine({"CALDERA_WORKER": "2"})
    2
    """
    if ranks_started(environment) == 1:
        return int(environment.get(WORKER) or 0)
    return next((int(environment[name]) for name in _LOCAL_RANKS if environment.get(name)), 0)
