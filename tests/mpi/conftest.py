"""Jobs of several processes, started as `caldera run` does."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from caldera.comm.mpi_library import find_launcher
from caldera.comm.supervision import launch

JOBS = Path(__file__).parent / "jobs"
ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 300
"""A job that takes longer hangs: the longest takes twenty seconds on an idle machine, and took more
than two minutes beside fifteen other processes."""
MOST_S = 60
"""From the failure of a rank to the end of all of them: a tenth of it on an idle machine, and half
of the time after which ranks that wait for another give up."""

Job = Callable[..., subprocess.CompletedProcess[str]]


def _what_is_missing() -> str:
    if find_spec("mpi4py") is None:
        return "mpi4py is not installed (pip install 'caldera[mpi]')"
    if find_launcher() is None:
        return "there is no mpiexec (pip install 'caldera[mpi]')"
    return ""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Run a file of `jobs` as several ranks: `job(4, "dies", "--restarts", "1")`.

    Ranks find the kernels that this session and those before it have compiled.
    """
    missing = _what_is_missing()
    if missing:
        pytest.skip(missing)

    def start(
        ranks: int, name: str, *flags: str, arguments: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "CALDERA_THREADS": "1",
            # Else a line and its end are written apart, and another rank's line may come between.
            "PYTHONUNBUFFERED": "",
            # What one machine needs, and nothing that is looked for elsewhere: it starts sooner.
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,sm,tcp",
            **variables,
        }
        program = [str(JOBS / f"{name}.py"), *arguments]
        if flags:
            command = [sys.executable, "-m", "caldera", "run", "-n", str(ranks), *flags]
            command += program
        else:
            made = launch(ranks, program, environment=environment)
            command, environment = made.command, made.environment
        return run_in_session(command, PATIENCE_S, env=environment, cwd=tmp_path)

    return start


def lines_of_ranks(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What ranks have printed, where MPICH's mpiexec prints beside them that one was killed."""
    return [line for line in done.stdout.splitlines() if line.startswith("rank")]


def run_in_session(
    command: list[str], seconds: float, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, and end it with all that it has started if it takes longer.

    Ranks are in process groups of their own, but in the session of what has started them.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **how,
    )
    try:
        printed = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for member in _members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        printed = process.communicate()
        pytest.fail(f"{shlex.join(command)} hangs; it has printed\n{printed[0]}\n{printed[1]}")
    return subprocess.CompletedProcess(command, process.returncode, *printed)


def _members(session: int) -> list[int]:
    """The processes of a session; where there is no /proc, its first one."""
    everybody = [int(file.name) for file in Path("/proc").glob("[0-9]*")] or [session]
    found = []
    for process in everybody:
        with suppress(ProcessLookupError):
            if os.getsid(process) == session:
                found.append(process)
    return found
