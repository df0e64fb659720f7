"""Launchers are recognised by the variables they export; no several ranks are taken for one."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from caldera.base.launchers import launch_of, rank_on_machine, warn_of_idle_tasks
from caldera.comm import SingleProcess
from caldera.comm.ranks import started_ranks, world
from caldera.errors import CommError, ConfigError


def _slurm_step(ranks: int) -> dict[str, str]:
    step = {"SLURM_NTASKS": str(ranks), "SLURM_STEP_NUM_TASKS": str(ranks), "SLURM_PROCID": "0"}
    return step | {"SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0"}


def _torch(ranks: int) -> dict[str, str]:
    return {"WORLD_SIZE": str(ranks), "RANK": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}


RECORDED: dict[str, Any] = {
    # Recorded: Open MPI 5.0.11, PRRTE 3, MPICH 4.3.2, Slurm 22.05.
    "Open MPI mpiexec": lambda n: {
        "OMPI_COMM_WORLD_SIZE": str(n),
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(n),
        "OMPI_UNIVERSE_SIZE": str(n),
        "PMIX_RANK": "0",
        "PMIX_NAMESPACE": "prterun-vm-19370@1",
        "PRTE_LAUNCHED": "1",
    },
    "prterun": lambda n: {
        "PMIX_RANK": "0",
        "PMIX_NAMESPACE": "prterun-vm-19381@1",
        "PMIX_HOSTNAME": "vm",
        "PRTE_LAUNCHED": "1",
    },
    "MPICH mpiexec": lambda n: {
        "PMI_SIZE": str(n),
        "PMI_RANK": "0",
        "PMI_FD": "11",
        "MPI_LOCALNRANKS": str(n),
        "MPI_LOCALRANKID": "0",
    },
    "srun --mpi=pmix": lambda n: (
        _slurm_step(n) | {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.23.0"}
    ),
    "srun --mpi=pmi2": lambda n: (
        _slurm_step(n) | {"PMI_SIZE": str(n), "PMI_RANK": "0", "PMI_FD": "13", "PMI_JOBID": "24.0"}
    ),
    "srun --mpi=none": _slurm_step,
    # As their documentation describes them.
    "Intel MPI mpiexec": lambda n: {
        "PMI_SIZE": str(n),
        "PMI_RANK": "0",
        "MPI_LOCALNRANKS": str(n),
        "MPI_LOCALRANKID": "0",
        "I_MPI_INFO_NP": str(n),
    },
    "MVAPICH mpirun_rsh": lambda n: {
        "MV2_COMM_WORLD_SIZE": str(n),
        "MV2_COMM_WORLD_RANK": "0",
        "MV2_COMM_WORLD_LOCAL_RANK": "0",
    },
    "LSF jsrun": lambda n: {
        "JSM_NAMESPACE_SIZE": str(n),
        "JSM_NAMESPACE_RANK": "0",
        "JSM_NAMESPACE_LOCAL_RANK": "0",
        "LSB_JOBID": "7",
    },
    "torchrun": lambda n: (
        _torch(n) | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(n), "TORCHELASTIC_RUN_ID": "none"}
    ),
    "Kubeflow PyTorchJob": lambda n: _torch(n) | {"PET_NNODES": str(n), "HOSTNAME": "job-master-0"},
}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("launcher", RECORDED)
def test_no_recorded_environment_is_taken_for_a_single_process(launcher: str, ranks: int) -> None:
    found = launch_of(RECORDED[launcher](ranks))
    kind = "torchrun" if launcher in ("torchrun", "Kubeflow PyTorchJob") else "mpi"
    if launcher == "prterun":
        assert (found.kind, found.ranks) == ("mpi", None)
    else:
        assert (found.kind, found.ranks) == ("alone" if ranks == 1 else kind, ranks)


def test_ranks_on_several_machines_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RECORDED["Kubeflow PyTorchJob"](2).items():
        monkeypatch.setenv(name, value)
    assert started_ranks() == 2
    with pytest.raises(CommError, match=r"CALDERA_KEY_FILE.*caldera run -n 2"):
        world.__wrapped__()


def test_without_evidence_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # An interactive shell of Slurm has tasks but no step.
    for environment in ({}, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, {"WORLD_SIZE": "1"}):
        assert launch_of(environment).ranks == 1
    monkeypatch.setenv("SLURM_NTASKS", "8")
    with pytest.warns(UserWarning, match="8 tasks.* 7 stay idle"):
        assert isinstance(world.__wrapped__(), SingleProcess)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_idle_tasks({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"})


@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_SIZE": "4", "PMI_SIZE": "2"},
        _slurm_step(2) | _torch(8),
        {"OMPI_COMM_WORLD_SIZE": "2"} | _torch(4),
    ],
)
def test_launchers_that_contradict_each_other_are_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(CommError, match=r"same number of ranks.*CALDERA_LAUNCHER"):
        launch_of(environment)
    assert launch_of(environment | {"CALDERA_LAUNCHER": "alone"}).ranks == 1


def test_the_user_decides_between_launchers() -> None:
    both = _slurm_step(2) | _torch(8)
    assert launch_of(both | {"CALDERA_LAUNCHER": "torchrun"}).ranks == 8
    assert launch_of(both | {"CALDERA_LAUNCHER": "mpi"}).ranks == 2
    for wrong in ("slurm", "MPI"):
        with pytest.raises(ConfigError, match="CALDERA_LAUNCHER: expected 'mpi', 'torchrun' or"):
            launch_of(both | {"CALDERA_LAUNCHER": wrong})
    with pytest.raises(ConfigError, match="WORLD_SIZE of torchrun"):
        launch_of(_slurm_step(2) | {"CALDERA_LAUNCHER": "torchrun"})


def test_launchers_that_agree_are_one() -> None:
    # Scripts export torch's variables for other programs.
    agreed = {"OMPI_COMM_WORLD_SIZE": "4"} | _torch(4)
    assert (launch_of(agreed).kind, launch_of(agreed).ranks) == ("mpi", 4)
    daemon = _slurm_step(2) | {"PMIX_RANK": "0", "PMIX_NAMESPACE": "prterun-n1-77@1"}
    # mpiexec started its daemons on two nodes with srun.
    assert launch_of(daemon).ranks is None
    assert launch_of(daemon | {"OMPI_COMM_WORLD_SIZE": "8"}).ranks == 8


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"])
@pytest.mark.parametrize("value", ["four", "-1", "0", "2.0", "\u00b2"])
def test_a_size_that_is_no_number_is_refused(variable: str, value: str) -> None:
    with pytest.raises(CommError, match=f"number of ranks >= 1 in {variable}"):
        launch_of({variable: value})


def test_a_world_size_without_a_rank_is_refused() -> None:
    with pytest.raises(CommError, match="expected RANK and MASTER_ADDR together with WORLD_SIZE=4"):
        launch_of({"WORLD_SIZE": "4"})
    with pytest.raises(CommError, match=r"expected MASTER_ADDR together with WORLD_SIZE=4"):
        launch_of({"WORLD_SIZE": "4", "RANK": "0"})


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"CALDERA_WORKER": "3"}, 3),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"PMI_SIZE": "3", "MPI_LOCALRANKID": "1"}, 1),
        ({"MV2_COMM_WORLD_SIZE": "3", "MV2_COMM_WORLD_LOCAL_RANK": "1"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "3"}, 3),
        ({"SLURM_NTASKS": "8", "SLURM_LOCALID": "3"}, 0),
        (_torch(4) | {"LOCAL_RANK": "3"}, 3),
        # Launchers that do not export it: the ranks count it.
        (_torch(4), None),
        ({"PMI_SIZE": "3"}, None),
        ({"PMIX_RANK": "2", "PMIX_NAMESPACE": "prterun-vm-1@1"}, None),
    ],
)
def test_the_index_among_the_ranks_of_a_machine(
    environment: dict[str, str], rank: int | None
) -> None:
    assert rank_on_machine(environment) == rank
