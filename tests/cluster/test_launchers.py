"""Real launchers: each gives the right size or an error, and never several ranks that are alone.

mpiexec of Open MPI and MPICH, and prterun, are in `tests/mpi`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from caldera.comm.mpi_library import LIBRARY_VARIABLE, library
from tests.cluster.small_slurm import NoSlurmError, SmallSlurm, small_slurm
from tests.mpi.conftest import JOBS, PATIENCE_S, ROOT, run_in_session
from tests.mpi.test_mpich import PREFIX

pytestmark = pytest.mark.cluster
PYTHON = [sys.executable]
WORLD = [*PYTHON, str(JOBS / "world.py")]

Done = subprocess.CompletedProcess[str]


def _run(command: list[str], folder: Path, **variables: str) -> Done:
    """Run a command with one thread a rank, without a search for networks."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "CALDERA_THREADS": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",
        **variables,
    }
    return run_in_session(command, PATIENCE_S, env=environment, cwd=folder)


def _world(ranks: int) -> str:
    return str([[rank, ranks, rank] for rank in range(ranks)])


# --- without MPI


def _bare(ranks: int, folder: Path, program: list[str], **variables: str) -> Done:
    """Start ranks as a script does that exports what PyTorch's documentation asks for."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = 'for RANK in $(seq 0 $((WORLD_SIZE - 1))); do export RANK; "$@" & PIDS+=($!); done; '
    script += "for PID in ${PIDS[@]}; do wait $PID || STATUS=$?; done; exit ${STATUS:-0}"
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return _run(["bash", "-c", script, "bash", *program], folder, **job, **variables)


def test_bare_variables_make_a_world_in_which_strategies_equal_one_process(tmp_path: Path) -> None:
    words = ["training", str(tmp_path / "saved"), "data", "usual", "stage 3", "/", "servers"]
    done = _bare(3, tmp_path, [*PYTHON, str(JOBS / "several.py"), *words])
    assert done.returncode == 0, done.stderr
    assert {"equal: usual", "equal: stage 3"} <= set(done.stdout.splitlines())
    assert done.stdout.rstrip().endswith("done: servers")


def test_bare_variables_make_a_session_of_matrices(tmp_path: Path) -> None:
    done = _bare(3, tmp_path, [*PYTHON, str(JOBS / "dmath.py")])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == ["master of 2", "sum 20.0", "failed worker", "sum 30.0"]


@pytest.mark.parametrize("arguments", [[], ["leave"]], ids=["raises", "leaves"])
def test_a_failed_rank_ends_all(arguments: list[str], tmp_path: Path) -> None:
    done = _bare(3, tmp_path, [*PYTHON, str(JOBS / "raises.py"), *arguments])
    assert done.returncode == 1
    named = "rank 1 of 3 on" if not arguments else "process 1 of 3: got its goodbye"
    assert named in done.stderr
    if not arguments:
        # The others are ended before they can complain.
        assert done.stderr.count("Traceback") == 1
        assert "the data of this rank are broken" in done.stderr


@pytest.fixture(scope="session")
def torchrun() -> str:
    path = os.environ.get("CALDERA_TORCHRUN") or shutil.which("torchrun")
    if path is None:
        pytest.skip("no torchrun (pip install torch); CALDERA_TORCHRUN names one elsewhere")
    return path


def _torchrun(path: str, ranks: int, *flags: str) -> list[str]:
    return [path, "--standalone", "--nproc-per-node", str(ranks), *flags, "--no-python"]


def test_torchrun_trains_as_one_process_does(torchrun: str, tmp_path: Path) -> None:
    words = ["world", "/", "training", str(tmp_path / "saved"), "data", "usual"]
    command = [*_torchrun(torchrun, 3), *PYTHON, str(JOBS / "several.py"), *words]
    done = _run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert _world(3) in done.stdout
    assert "equal: usual" in done.stdout


def test_torchrun_starts_a_world_again(torchrun: str, tmp_path: Path) -> None:
    command = [*_torchrun(torchrun, 2, "--max-restarts", "1"), *PYTHON, str(JOBS / "dies.py")]
    done = _run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 of 2: 2, restarted True",
        "rank 1 of 2: 2, restarted True",
    ]


# --- Slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallSlurm]:
    try:
        with small_slurm(tmp_path_factory.mktemp("slurm")) as made:
            yield made
    except NoSlurmError as missing:
        pytest.skip(str(missing))


def test_srun_with_pmi2_starts_ranks_of_mpich(slurm: SmallSlurm, tmp_path: Path) -> None:
    if not any((PREFIX / "lib").glob("libmpi.*")):
        pytest.skip(f"no MPICH in {PREFIX}; CALDERA_MPICH says where one is")
    chosen = {LIBRARY_VARIABLE: str(PREFIX / "lib")}
    done = _run(["srun", "-n", "3", "--mpi=pmi2", *WORLD], tmp_path, **slurm.variables, **chosen)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == _world(3)


def _skip_without_open_mpi() -> None:
    found = library()
    if found is None or found.startup != "PMIx":
        pytest.skip("mpi4py loads no Open MPI (pip install 'caldera[mpi]')")


def test_srun_with_pmix_starts_ranks_of_open_mpi(slurm: SmallSlurm, tmp_path: Path) -> None:
    _skip_without_open_mpi()
    done = _run(["srun", "-n", "2", "--mpi=pmix", *WORLD], tmp_path, **slurm.variables)
    if "pmix" in done.stderr and "Invalid MPI type" in done.stderr:
        pytest.skip("this Slurm finds no PMIx library (Debian: libpmix-dev)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == _world(2)


def test_srun_without_mpi_is_an_error(slurm: SmallSlurm, tmp_path: Path) -> None:
    _skip_without_open_mpi()
    done = _run(["srun", "-n", "2", "--mpi=none", *WORLD], tmp_path, **slurm.variables)
    assert done.returncode != 0
    assert "expected 2 ranks of " in done.stderr
    assert "srun requires --mpi=pmix for Open MPI" in done.stderr
    assert not done.stdout


def test_variables_of_torch_inside_srun_are_taken_when_asked_for(
    slurm: SmallSlurm, tmp_path: Path
) -> None:
    job = 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=127.0.0.1; exec "$@"'
    command = ["srun", "-n", "2", "--mpi=none", "bash", "-c", job, "bash", *WORLD]
    chosen = {"CALDERA_LAUNCHER": "torchrun", "MASTER_PORT": "29517"}
    done = _run(command, tmp_path, **slurm.variables, **chosen)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == _world(2)


def test_sbatch_without_srun_runs_alone_and_names_the_idle_tasks(
    slurm: SmallSlurm, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{' '.join(WORLD)}\n")
    command = ["sbatch", "--wait", "-n", "4", "-o", str(tmp_path / "out"), str(script)]
    done = _run(command, tmp_path, **slurm.variables)
    assert done.returncode == 0, done.stderr
    printed = (tmp_path / "out").read_text()
    assert "Slurm holds 4 tasks" in printed
    assert "3 stay idle" in printed
    assert printed.strip().endswith("[[0, 1, 0]]")
