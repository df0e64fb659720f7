"""Parameter servers as several processes that are killed."""

from __future__ import annotations

import re
import time

import pytest

from tests.mpi.conftest import MOST_S, Job, lines_of_ranks


@pytest.mark.parametrize(
    ("mode", "victim"), [("synchronous", 1), ("asynchronous", 0)], ids=["worker", "server"]
)
def test_after_a_kill_of_a_worker_or_a_server_all_go_on_from_the_checkpoint(
    job: Job, mode: str, victim: int
) -> None:
    """The server is on rank 0."""
    arguments = (mode, str(victim))
    done = job(2, "killed", "--restarts", "1", arguments=arguments)
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 1" in done.stderr
    # MPICH names the process, not its rank.
    named = re.search(r"PID \d+ RUNNING AT", done.stdout)
    assert named or re.search(rf"rank {victim}\b", done.stderr)
    *lines, killed = sorted(lines_of_ranks(done), key=lambda line: ("killed" in line, line))
    assert lines == ["rank 0 goes on", "rank 1 goes on"]
    assert killed.startswith(f"rank {victim} is killed at ")


def test_a_worker_that_is_killed_ends_all(job: Job) -> None:
    """Others have nothing to send to it, and wait for what it sends."""
    done = job(3, "killed", arguments=("stale", "1"))
    assert done.returncode != 0
    assert time.time() - float(lines_of_ranks(done)[-1].split()[-1]) < MOST_S
