"""Jobs of several processes, started as `caldera run` does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from caldera.comm.launch import launch

JOBS = Path(__file__).parent / "jobs"
ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 300
"""A job that takes longer hangs: the longest takes a few seconds on an idle machine."""
MOST_S = 10
"""From the failure of a rank to the end of all of them."""

Job = Callable[..., subprocess.CompletedProcess[str]]


def _what_is_missing() -> str:
    if find_spec("mpi4py") is None:
        return "mpi4py is not installed (pip install 'caldera[mpi]')"
    beside = Path(sys.executable).parent / "mpiexec"
    if not beside.exists() and shutil.which("mpiexec") is None:
        return "there is no mpiexec (pip install 'caldera[mpi]')"
    return ""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Run a file of `jobs` as several ranks: `job(4, "dies", "--restarts", "1")`."""
    missing = _what_is_missing()
    if missing:
        pytest.skip(missing)

    def start(
        ranks: int, name: str, *flags: str, arguments: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "CALDERA_CACHE": str(tmp_path),
            "CALDERA_THREADS": "1",
            # What one machine needs, and nothing that is looked for elsewhere: it starts sooner.
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,sm,tcp",
            **variables,
        }
        program = [str(JOBS / f"{name}.py"), *arguments]
        if flags:
            command = [sys.executable, "-m", "caldera.cli", "run", "-n", str(ranks), *flags]
            command += program
        else:
            made = launch(ranks, program, environment=environment)
            command, environment = made.command, made.environment
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
            timeout=PATIENCE_S,
        )  # fmt: skip

    return start
