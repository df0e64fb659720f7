"""A job that loses a rank and gets it back ends where one process ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from caldera.comm.mpi_library import find_launcher
from tests.mpi.conftest import JOBS, PATIENCE_S, ROOT, run_in_session


def test_ranks_that_go_and_come_change_nothing(tmp_path: Path) -> None:
    if find_launcher() is None:
        pytest.skip("there is no mpiexec (pip install 'caldera[mpi]')")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "CALDERA_THREADS": "1",
    }
    command = [sys.executable, str(JOBS / "elastic.py"), str(tmp_path)]
    done = run_in_session(command, PATIENCE_S, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 1" in done.stderr
    assert "more machines are available" in done.stderr
    epochs = (tmp_path / "epochs").read_text().split()
    assert epochs[:2] == ["1:2", "2:2"]
    assert "3:1" in epochs
    assert epochs[-1] == "6:2"
    alone = run_in_session([*command, "alone"], PATIENCE_S, env=environment, cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    parts, whole = (np.load(tmp_path / f"weights-{ranks}.npy") for ranks in (2, 1))
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-9)
