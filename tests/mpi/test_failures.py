"""No rank ever hangs because another one failed, left, was late or was killed."""

from __future__ import annotations

import re
import time

import pytest

from caldera.comm.mpi_library import launcher
from tests.mpi.conftest import MOST_S, Job, lines_of_ranks, run_in_session


def test_a_rank_that_raises_ends_all_and_is_named(job: Job) -> None:
    done = job(2, "raises")
    assert done.returncode != 0
    assert time.time() - float(done.stdout.split()[-1]) < MOST_S
    assert re.search(r"rank 1 of 2 on \S+ \(process \d+\) failed:\nTraceback", done.stderr)
    assert "ValueError: the data of this rank are broken" in done.stderr
    assert "raises.py" in done.stderr


@pytest.mark.parametrize(("how", "operation"), [("leave", "Allreduce"), ("message", "a message")])
def test_a_rank_that_leaves_while_others_wait_ends_all(job: Job, how: str, operation: str) -> None:
    done = job(2, "raises", arguments=(how,))
    assert done.returncode != 0
    assert f"rank 0 of 2 (world) waits in {operation} at" in done.stderr
    assert "rank 1 has come to the end of the program" in done.stderr


def test_a_rank_that_ends_before_mpi_starts_is_not_waited_for_for_ever(job: Job) -> None:
    done = job(2, "leaves")
    assert done.returncode != 0
    # The first is ours; mpiexec says the other if it notices sooner.
    assert "Timeout (0:00:01)!" in done.stderr or 'did not call "init"' in done.stderr


def test_a_late_rank_is_reported_with_its_place_and_then_all_go_on(job: Job) -> None:
    done = job(3, "stalls")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"rank 0 of 3 \(world\) has waited \d+ s in Allreduce at .*stalls", done.stderr
    )
    assert re.search(r"rank 1 has not come: it is at .*stalls.py:\d+ in read_the_data", done.stderr)
    assert "rank 2 waits as well" in done.stderr
    assert sorted(done.stdout.split("\n")[:3]) == [f"rank {rank} has 3" for rank in range(3)]


def test_a_rank_that_never_comes_is_given_up(job: Job) -> None:
    done = job(2, "stalls", arguments=("forever",))
    assert done.returncode != 0
    assert "it is at" in done.stderr
    assert re.search(r"rank 0 of 2 \(world\) stops waiting after \d+ s", done.stderr)


def test_a_rank_that_was_stopped_is_not_waited_for_as_long_as_a_busy_one(job: Job) -> None:
    done = job(2, "stops")
    assert done.returncode != 0
    assert re.search(r"rank 0 of 2 \(world\) waits in .* but rank 1 does not answer", done.stderr)
    assert "stops waiting after" not in done.stderr


def test_after_a_kill_all_ranks_are_started_again(job: Job) -> None:
    done = job(2, "dies", "--restarts", "1")
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 1" in done.stderr
    assert sorted(lines_of_ranks(done)) == [
        "rank 0 of 2: 2, restarted True",
        "rank 1 of 2: 2, restarted True",
    ]


def test_survivors_go_on_without_the_one_that_died(job: Job) -> None:
    mpi = launcher().implementation
    if not mpi.survives:
        pytest.skip(f"{mpi} ends all ranks when one dies (no ULFM)")
    done = job(3, "survives", "--survive")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 of 2 has what one process has",
        "rank 1 of 2 has what one process has",
    ]


def test_a_job_that_hangs_is_ended_with_all_its_ranks() -> None:
    """One that is left spinning would make all tests after it slow."""
    began = time.monotonic()
    # As under mpiexec, each rank is a process group of its own.
    with pytest.raises(pytest.fail.Exception, match="hangs; it has printed\nranks"):
        run_in_session(["bash", "-c", "set -m; sleep 300 & sleep 300 & echo ranks; wait"], 3)
    # All that was printed has been read: nobody is left who could print.
    assert time.monotonic() - began < 100
