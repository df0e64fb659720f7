"""A pipeline of several processes."""

from __future__ import annotations

from pathlib import Path

from tests.mpi.conftest import Job


def test_a_pipeline_equals_one_process(job: Job, tmp_path: Path) -> None:
    done = job(4, "pipeline", arguments=(str(tmp_path / "saved"),))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("equal")] == [
        "equal: one pipeline", "equal: two pipelines", "equal: stages of two ranks",
    ]  # fmt: skip
