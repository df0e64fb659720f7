"""`caldera run`: starting, starting again, and passing on what the program says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from caldera.cli.commands import run as command
from caldera.comm.supervision import LaunchCommand
from tests.cli.conftest import Caldera


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A program that fails until it was started twice again, in place of mpiexec."""
    seen: list[str] = []
    code = "import os, sys; sys.exit(0 if os.environ['CALDERA_RESTART'] == '2' else 5)"

    def launch(ranks: int, program: list[str], **options: object) -> LaunchCommand:
        seen.extend([str(ranks), *program, *(str(value) for value in options.values())])
        return LaunchCommand([sys.executable, "-c", code], dict(os.environ))

    monkeypatch.setattr(command, "launch", launch)
    return seen


def test_a_program_that_fails_is_started_again(caldera: Caldera, started: list[str]) -> None:
    done = caldera("run", "-n", "4", "--restarts", "3", "train.py", "--epochs", "2")
    assert done.status == 0
    assert "restart 1 of 3" in done.err
    assert "restart 2 of 3" in done.err
    assert "restart 3 of 3" not in done.err
    assert started == 3 * ["4", "train.py", "--epochs", "2", "None", "False"]


@pytest.mark.usefixtures("started")
def test_only_as_often_as_was_asked_for(caldera: Caldera) -> None:
    assert caldera("run", "-n", "2", "--restarts", "1", "train.py").status == 5
    assert caldera("run", "-n", "2", "train.py").status == 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of the death of a parent")
def test_the_ranks_do_not_outlive_the_command() -> None:
    sleeps = [sys.executable, "-S", "-c", "import time; print(1, flush=True); time.sleep(60)"]
    script = (
        "import os\n"
        "from caldera.comm.supervision import LaunchCommand\n"
        f"child = LaunchCommand({sleeps!r}, dict(os.environ)).start()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    command = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    # Who holds the other end of the pipe: the command, and the child that it has started.
    lines = [command.stdout.readline() for _ in range(2)]
    command.kill()
    command.wait()
    # The end of the file comes when the child is gone too.
    waited = threading.Thread(target=command.stdout.read, daemon=True)
    waited.start()
    waited.join(10)
    child = next(int(line) for line in lines if line.strip() != "1")
    if waited.is_alive():
        os.kill(child, signal.SIGKILL)
        pytest.fail("the child outlived its parent")
    waited.join()
    command.stdout.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "0", "train.py"], "--ranks: expected an integer >= 1"),
        (["-n", "2", "--restarts", "x", "train.py"], "--restarts: expected an integer"),
        (["train.py"], "-n/--ranks"),
    ],
)
def test_wrong_usage_is_said(caldera: Caldera, words: list[str], said: str) -> None:
    done = caldera("run", *words)
    assert done.status == 2
    assert said in done.err
