"""`mpiexec -n 3 python -m mpi4py.futures program.py`: workers on the ranks of a pool."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from caldera.comm.mpi_library import find_launcher
from caldera.comm.supervision import launch
from tests.mpi.conftest import JOBS, PATIENCE_S, ROOT, run_in_session


def test_ranks_of_a_pool_search_and_compute(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    if find_launcher() is None:
        pytest.skip("there is no mpiexec")
    program = [sys.executable, "-m", "mpi4py.futures", str(JOBS / "pool.py")]
    made = launch(3, program, environment={**os.environ, "PYTHONPATH": str(ROOT)})
    done = run_in_session(made.command, PATIENCE_S, env=made.environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "search 12 {'x': 5}",
        "matrices 2 True",
        "failed 12",
        "refused True",
        "alone 1",
    ]
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(int(x) for x, _, _ in ran) == list(range(12))
    assert {size for _, _, size in ran} == {"1"}
