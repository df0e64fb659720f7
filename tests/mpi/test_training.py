"""Training as several processes."""

from __future__ import annotations

import os
from pathlib import Path

from .conftest import Job

STRATEGIES = (
    "usual", "small messages", "no overlap", "ring", "shards", "stage 1", "stage 2", "stage 3",
)  # fmt: skip


def test_every_strategy_equals_one_process(job: Job, tmp_path: Path) -> None:
    # Compiled kernels are kept from run to run.
    cache = os.environ["CALDERA_CACHE"]
    done = job(3, "training", arguments=(str(tmp_path / "saved"),), CALDERA_CACHE=cache)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("equal")] == [
        f"equal: {name}" for name in STRATEGIES
    ]
    # One rank speaks for all.
    assert sum(line.startswith("epoch 2/2") for line in lines) == len(STRATEGIES)
