"""Compressors over MPI."""

from __future__ import annotations

from tests.mpi.conftest import Job


def test_mpi_gives_the_bits_that_ranks_in_threads_get(job: Job) -> None:
    done = job(3, "compression")
    assert done.returncode == 0, done.stderr
    assert "the same bits" in done.stdout
