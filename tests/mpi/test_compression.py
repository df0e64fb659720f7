"""Compressors over MPI."""

from __future__ import annotations

import os

from tests.mpi.conftest import Job


def test_mpi_gives_the_bits_that_ranks_in_threads_get(job: Job) -> None:
    # Kernels that this session has compiled already are found there.
    done = job(3, "compression", CALDERA_CACHE=os.environ["CALDERA_CACHE"])
    assert done.returncode == 0, done.stderr
    assert "the same bits" in done.stdout
