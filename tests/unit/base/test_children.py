"""Child processes: forked and started ones end with their parent, and are waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from caldera.base.children import (
    PipedChild,
    end_child,
    exit_status,
    exit_text,
    fork_child,
    import_path,
    python_module,
)

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def _sleep() -> None:
    time.sleep(60)


def _fail() -> None:
    raise ValueError("out of beads")


def test_a_forked_child_reports_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    assert fork_child(lambda: None).wait(10) == 0
    failed = fork_child(_fail)
    assert failed.wait(10) == 1
    assert failed.poll() == 1
    assert "ValueError: out of beads" in capfd.readouterr().err


def test_a_child_that_does_not_end_is_killed_and_waited_for() -> None:
    forked, started = fork_child(_sleep), subprocess.Popen(SLEEP)
    assert exit_status(forked, 0.0) is None
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.01)
    for child in (forked, started):
        end_child(child, 0.01)
        assert child.poll() == -signal.SIGKILL
        # Neither a zombie nor a process that has its number is killed.
        with pytest.raises(ProcessLookupError):
            os.kill(child.pid, 0)
        child.kill()


def test_a_child_waited_for_elsewhere_has_ended() -> None:
    child = fork_child(lambda: None)
    os.waitpid(child.pid, 0)
    assert child.wait(10) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the end of a parent")
def test_a_forked_child_does_not_outlive_its_parent() -> None:
    script = (
        "import time\n"
        "from caldera.base.children import fork_child\n"
        "print(fork_child(lambda: time.sleep(300)).pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    environment = {**os.environ, "PYTHONPATH": import_path(os.environ)}
    command = [sys.executable, "-c", script]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    with parent.stdout:
        assert int(parent.stdout.readline()) > 0
        parent.kill()
        parent.wait()
        # The child holds the pipe too: its end is the end of both.
        began = time.monotonic()
        assert parent.stdout.read() == b""
        assert time.monotonic() - began < 100


def test_a_piped_child_ends_with_its_input_and_imports_nothing_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "echo.py").write_text(
        "import json, sys\nfor line in sys.stdin: print(json.loads(line), flush=True)\n"
    )
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "modules"
    folder.mkdir()
    (tmp_path / "echo.py").rename(folder / "echo.py")
    environment = {**os.environ, "PYTHONPATH": import_path(os.environ, str(folder))}
    with PipedChild(python_module("echo"), environment) as child:
        child.send(b"[1]\n")
        assert child.stdout is not None
        assert child.stdout.readline() == b"[1]\n"
        child.end()
        assert child.returncode == 0


def test_an_exit_status_is_described() -> None:
    assert exit_text(7) == "ended with status 7"
    assert exit_text(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert exit_text(-250) == "was killed by signal 250"
