"""Training as several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.conftest import Job

FAMILIES = {
    "data": (
        "usual", "ring, small messages", "library, no overlap", "shards", "stage 1", "stage 2",
        "stage 3",
    ),
    "model": ("layers", "both", "samples over all"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "ranks"), [("data", 3), ("model", 4)])
def test_every_strategy_equals_one_process(
    job: Job, tmp_path: Path, family: str, ranks: int
) -> None:
    given = (str(tmp_path / "saved"), family)
    done = job(ranks, "training", arguments=given)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("equal")] == [
        f"equal: {name}" for name in FAMILIES[family]
    ]
    # One rank speaks for all.
    assert sum(line.startswith("epoch 2/2") for line in lines) == len(FAMILIES[family])
