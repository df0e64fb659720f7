"""`caldera plan` as several processes: the link is measured between them, one of them speaks."""

from __future__ import annotations

from tests.mpi.conftest import Job


def test_the_link_is_measured_between_the_ranks(job: Job) -> None:
    done = job(2, "plan")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("strong scaling: 4 ranks") == 1
    assert done.stdout.count("Proposed: ") == 2
