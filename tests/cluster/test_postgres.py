"""One study by several programs, in a real PostgreSQL, as a job array of Slurm runs it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0
TRIALS = 40
PROGRAM = f"""
import os, sys, time
from caldera import search

def objective(x):
    with open(sys.argv[2], "a") as file:
        file.write(f"{{x}} {{os.getpid()}}\\n")
    time.sleep(0.2)
    return (x - 5) ** 2

space = {{"x": search.integer(0, {TRIALS - 1})}}
study = search.run(objective, space, method="grid", storage=sys.argv[1], name="array", verbose=0)
"""


def _program(name: str) -> str | None:
    folders = [str(path) for path in Path("/usr/lib/postgresql").glob("*/bin")]
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))


def _as_user(folder: str) -> list[str]:
    """Return the words before a command of PostgreSQL, which does not run as root."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("PostgreSQL needs a user other than root, and setpriv is not installed")
    shutil.chown(folder, "nobody")
    return [setpriv, "--reuid=nobody", "--regid=nogroup", "--clear-groups"]


@pytest.fixture
def address() -> Iterator[str]:
    initdb, control = _program("initdb"), _program("pg_ctl")
    if initdb is None or control is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    if find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed (pip install 'psycopg[binary]')")
    # The folders of tests are closed to other users.
    with TemporaryDirectory(prefix="caldera-database-") as place:
        user, data = _as_user(place), ["-D", f"{place}/data"]
        _run(*user, initdb, *data, "-A", "trust", "-U", "me")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        how = ["-o", f"-p {port} -k {place} -c fsync=off", "-l", f"{place}/log", "-w"]
        _run(*user, control, *data, *how, "start")
        yield f"postgresql+psycopg://me@127.0.0.1:{port}/postgres"
        _run(*user, control, *data, "-m", "immediate", "stop")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL)


def test_tasks_of_an_array_share_a_study_and_one_that_is_killed_comes_again(
    address: str, tmp_path: Path
) -> None:
    log, program = tmp_path / "begun", tmp_path / "search.py"
    program.write_text(PROGRAM)

    def task(number: int) -> subprocess.Popen[bytes]:
        variables = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_NTASKS": "1"}
        environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(program), address, str(log)]
        return subprocess.Popen(command, env=environment)

    tasks = [task(number) for number in range(2)]
    until = time.monotonic() + PATIENCE_S
    while not log.exists() or len({line.split()[1] for line in log.open()}) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    tasks[0].send_signal(signal.SIGKILL)
    tasks.append(task(0))
    assert [each.wait(PATIENCE_S) for each in tasks] == [-signal.SIGKILL, 0, 0]
    begun = Counter(int(line.split()[0]) for line in log.open())
    assert set(begun) == set(range(TRIALS))
    # The trial of the killed program was run again.
    assert sum(begun.values()) <= TRIALS + 1
