"""Ranks that train by themselves, as several processes."""

from __future__ import annotations

from pathlib import Path

from tests.mpi.conftest import Job


def test_what_holds_in_threads_holds_in_processes(job: Job, tmp_path: Path) -> None:
    done = job(3, "averaging", arguments=(str(tmp_path / "saved"),))
    assert done.returncode == 0, done.stderr
    held = [line for line in done.stdout.splitlines() if line.startswith("holds")]
    assert held == [
        "holds: a mean after every step is one process",
        "holds: local goes on to the bit",
        "holds: elastic goes on to the bit",
        "holds: ring goes on to the bit",
        "holds: pairs goes on to the bit",
        "holds: members are runs of one process",
    ]
