"""MPI keeps the contract of communicators."""

from __future__ import annotations

import re

from tests.mpi.conftest import Job


def test_mpi_keeps_the_contract_at_1_to_5_ranks(job: Job) -> None:
    done = job(5, "contract")
    assert done.returncode == 0, done.stderr
    found = sorted(line for line in done.stdout.splitlines() if line.startswith("kept"))
    assert found == [f"kept by {ranks} ranks" for ranks in (1, 2, 3, 4, 5)]
    assert "given as they are" in done.stdout


def test_an_mpi_without_threads_does_what_is_asked_at_once_and_serves_nobody(job: Job) -> None:
    contract = ("contract", "in_the_background", "reductions")
    done = job(
        2, "several", arguments=(*contract, "/", "servers"), MPI4PY_RC_THREAD_LEVEL="serialized"
    )
    assert "kept by 2 ranks" in done.stdout
    assert f"done: {' '.join(contract)}" in done.stdout, done.stderr
    assert done.returncode != 0
    assert (
        "ParameterServer: expected an MPI that several threads may call concurrently" in done.stderr
    )


def test_an_mpiexec_of_another_mpi_is_noticed(job: Job) -> None:
    """Each process would otherwise believe that it is alone, and train a model of its own."""
    # Each mpiexec sets its own variable, and leaves the other's as it is.
    done = job(1, "raises", PMI_SIZE="2", OMPI_COMM_WORLD_SIZE="2")
    assert done.returncode != 0
    assert re.search(r"world: expected 2 ranks of .*, got 1", done.stderr)
