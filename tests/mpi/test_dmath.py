"""Matrices spread over processes that mpiexec has started."""

from __future__ import annotations

from tests.mpi.conftest import Job


def test_the_first_rank_is_the_master_and_the_others_serve_it_until_it_ends(job: Job) -> None:
    done = job(3, "dmath")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "master of 2",
        "sum 20.0",
        "failed worker 0 of 2",
        "sum 30.0",
    ]


def test_random_programs_in_any_layout_are_those_of_numpy(job: Job) -> None:
    done = job(3, "sharding")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["30 cases on 3 ranks"]
