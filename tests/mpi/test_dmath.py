"""Matrices spread over processes that mpiexec has started."""

from __future__ import annotations

from tests.mpi.conftest import Job


def test_the_first_rank_is_the_master_and_the_others_serve_it_until_it_ends(job: Job) -> None:
    done = job(3, "dmath")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "master of 2",
        "sum 20.0",
        "failed worker",
        "sum 30.0",
    ]
