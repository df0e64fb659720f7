"""Detection of the program that started this process, and of the number of ranks it started.

Every launcher leaves evidence in the environment. A process is single only if no launcher started
several ranks: a launcher that is not supported, or two that contradict each other, are errors.
`CALDERA_LAUNCHER` decides where the evidence cannot: "mpi", "torchrun" or "alone".
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from caldera.errors import CommError, ConfigError

CHOICE = "CALDERA_LAUNCHER"
"""Variable that names the launcher to believe."""
WORKER = "CALDERA_WORKER"
"""Variable with the number of a search's worker process on this machine."""
MPI, SOCKETS, ALONE = "mpi", "torchrun", "alone"

_MPI_SIZES = {
    "Open MPI": "OMPI_COMM_WORLD_SIZE",
    "MPICH, Intel MPI or Slurm with PMI-2": "PMI_SIZE",
    "MVAPICH": "MV2_COMM_WORLD_SIZE",
    "LSF jsrun": "JSM_NAMESPACE_SIZE",
}
"""Launchers of MPI ranks, with the variable that holds the number of ranks."""
_STEP = "SLURM_STEP_NUM_TASKS"
_PMIX = ("PMIX_RANK", "PMIX_NAMESPACE")
"""Set by every launcher that uses PMIx. prterun sets no others, so only MPI has the size."""
_TORCHRUN = ("WORLD_SIZE", "RANK", "MASTER_ADDR")
_RUN_ID = "TORCHELASTIC_RUN_ID"
ATTEMPT = ("CALDERA_RESTART", "TORCHELASTIC_RESTART_COUNT")
"""Variables with the number of times that a launcher has started the program again."""
_LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "JSM_NAMESPACE_LOCAL_RANK",
    "SLURM_LOCALID",
)


@dataclass(frozen=True)
class Launch:
    """The ranks that were started together.

    - `kind`: "mpi", "torchrun" or "alone"; `launcher`: its name for messages.
    - `ranks`: their number; None if only MPI can report it.
    """

    kind: str
    launcher: str
    ranks: int | None


def launch_of(environment: Mapping[str, str]) -> Launch:
    """Return the launch that the environment is evidence of.

    >>> from caldera.base.launchers import launch_of
    >>> launch_of({"OMPI_COMM_WORLD_SIZE": "4"})
    Launch(kind='mpi', launcher='Open MPI', ranks=4)
    >>> launch_of({"PMIX_RANK": "0", "PMIX_NAMESPACE": "prterun-1@1"}).ranks is None
    True
    >>> launch_of({})
    Launch(kind='alone', launcher='no launcher', ranks=1)
    """
    choice = environment.get(CHOICE) or None
    if choice not in (None, MPI, SOCKETS, ALONE):
        raise ConfigError.build(
            CHOICE, expected=f"{MPI!r}, {SOCKETS!r} or {ALONE!r}", got=repr(choice)
        )
    alone = Launch(ALONE, "no launcher", 1)
    if choice == ALONE:
        return alone
    mpi, torchrun = _mpi_launch(environment), _torchrun_launch(environment)
    if choice == SOCKETS:
        if torchrun is None and not environment.get(_TORCHRUN[0]):
            raise ConfigError.build(
                CHOICE, expected=f"{_TORCHRUN[0]} of torchrun", got="no such variable"
            )
        return torchrun or alone
    if choice == MPI:
        return mpi or Launch(MPI, f"{CHOICE}={MPI}", None)
    if mpi is None or mpi.ranks == 1:
        return torchrun or alone
    if torchrun is not None and mpi.ranks is None:
        return Launch(MPI, mpi.launcher, torchrun.ranks)
    if torchrun is not None and mpi.ranks != torchrun.ranks:
        raise _contradiction({mpi.launcher: mpi.ranks, torchrun.launcher: torchrun.ranks})
    return mpi


def _mpi_launch(environment: Mapping[str, str]) -> Launch | None:
    sizes = {
        launcher: _count(environment, variable)
        for launcher, variable in _MPI_SIZES.items()
        if environment.get(variable)
    }
    several = {launcher: size for launcher, size in sizes.items() if size > 1}
    if len(set(several.values())) > 1:
        raise _contradiction(several)
    has_pmix = all(map(environment.get, _PMIX))
    # mpiexec and prterun start their daemons with srun, one on each node: ranks inherit that step.
    is_slurm = not has_pmix or environment[_PMIX[1]].startswith("slurm")
    if not several and is_slurm and environment.get(_STEP):
        sizes["srun"] = _count(environment, _STEP)
        several = {launcher: size for launcher, size in sizes.items() if size > 1}
    if several:
        return Launch(MPI, *next(iter(several.items())))
    if sizes:
        return Launch(MPI, next(iter(sizes)), 1)
    return Launch(MPI, "PMIx (prterun)", None) if has_pmix else None


def _torchrun_launch(environment: Mapping[str, str]) -> Launch | None:
    size, rank, address = _TORCHRUN
    ranks = _count(environment, size) if environment.get(size) else 1
    if ranks == 1:
        return None
    missing = [name for name in (rank, address) if not environment.get(name)]
    if missing:
        raise CommError.build(
            "world",
            expected=f"{' and '.join(missing)} together with {size}={ranks}",
            got="neither" if len(missing) > 1 else f"no {missing[0]}",
            hint=f"unset {size}, or set {CHOICE}={ALONE}, if this process trains on its own",
        )
    return Launch(SOCKETS, "torchrun" if environment.get(_RUN_ID) else size, ranks)


def _count(environment: Mapping[str, str], variable: str) -> int:
    text = environment[variable].strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise CommError.build(
            "world", expected=f"a number of ranks >= 1 in {variable}", got=repr(text)
        )
    return int(text)


def _contradiction(sizes: Mapping[str, int | None]) -> CommError:
    return CommError.build(
        "world",
        expected="one launcher, or several with the same number of ranks",
        got=", ".join(f"{size} ranks from {launcher}" for launcher, size in sizes.items()),
        hint=f"start the program with a single launcher, or set {CHOICE} to {MPI}, {SOCKETS} or "
        f"{ALONE}",
    )


def warn_of_idle_tasks(environment: Mapping[str, str]) -> None:
    """Warn of the tasks that a Slurm allocation holds for a process started without srun."""
    tasks = environment.get("SLURM_NTASKS", "")
    if tasks.isdigit() and int(tasks) > 1 and _STEP not in environment:
        warnings.warn(
            f"world: Slurm holds {tasks} tasks, and this process runs as a single rank: "
            f"{int(tasks) - 1} stay idle. Start the program with srun, or with caldera run -n "
            f"{tasks}",
            stacklevel=3,
        )


def rank_on_machine(environment: Mapping[str, str]) -> int | None:
    """Return the index of this process among the ranks on its machine.

    The worker processes of a search are counted in the same way. None means that the launcher does
    not export the index, and MPI must provide it.

    >>> from caldera.base.launchers import rank_on_machine
    >>> rank_on_machine({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"})
    3
    >>> rank_on_machine({"SLURM_LOCALID": "3"})                     # a shell within a job
    0
    >>> rank_on_machine({"CALDERA_WORKER": "2"})
    2
    """
    launch = launch_of(environment)
    if launch.ranks == 1:
        return int(environment.get(WORKER) or 0)
    names = ("LOCAL_RANK",) if launch.kind == SOCKETS else _LOCAL_RANKS
    return next((int(environment[name]) for name in names if environment.get(name)), None)
