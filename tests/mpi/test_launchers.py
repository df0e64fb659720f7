"""prterun exports neither the number of ranks nor their index on a machine: MPI is asked."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from caldera.comm.mpi_library import find_launcher
from tests.mpi.conftest import JOBS, ROOT, run_in_session


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_of_prterun_find_each_other(ranks: int, tmp_path: Path) -> None:
    found = find_launcher()
    if found is None or found.implementation.startup != "PMIx":
        pytest.skip("no Open MPI, whose prterun this is")
    prterun = shutil.which("prterun", path=str(Path(found.path).parent))
    if prterun is None:
        pytest.skip(f"{found.implementation} has no prterun: Open MPI 5 brought it")
    command = [prterun, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", str(ranks)]
    environment = {
        **os.environ,
        **found.implementation.variables,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "CALDERA_THREADS": "1",
    }
    done = run_in_session(
        [*command, sys.executable, str(JOBS / "world.py")], 60, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([[rank, ranks, rank] for rank in range(ranks)])
