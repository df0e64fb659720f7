"""Jobs that start again: after failures, with fewer machines, with more, and after warnings."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from caldera.comm import hosts, supervision
from caldera.comm.hosts import hosts_text, live_slots, read_hosts
from caldera.comm.supervision import REQUEUE, REQUEUED, LaunchCommand, Supervisor
from caldera.errors import CommError, ConfigError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

SAVES = f"""
import os, signal, sys, time
def save(number, frame):
    sys.exit({REQUEUED} if os.environ.get("{REQUEUE}") else 0)
signal.signal(signal.SIGUSR1, save)
open(sys.argv[1], "w").close()
for _ in range(200):
    time.sleep(0.05)
"""
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(20)
"""


class Jobs:
    """Programs in place of mpiexec, one for each attempt; the ranks and machines of each."""

    def __init__(self, *programs: str, word: str = "") -> None:
        self.programs = list(programs)
        self.started: list[tuple[int, str | None]] = []
        self.word = word

    def __call__(self, ranks: int, hosts: str | None) -> LaunchCommand:
        program = self.programs[min(len(self.started), len(self.programs) - 1)]
        self.started.append((ranks, hosts))
        return LaunchCommand([sys.executable, "-S", "-c", program, self.word], dict(os.environ))


def machines(monkeypatch: pytest.MonkeyPatch, *answers: Mapping[str, int]) -> None:
    """Answer with one after another, then with the last one always."""
    left = list(answers)

    def live(hosts: str | None, environment: Mapping[str, str]) -> dict[str, int]:
        return dict(left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(supervision, "live_slots", live)


def test_a_job_goes_on_with_the_machines_that_are_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machines(monkeypatch, {"a": 4, "b": 4, "c": 4}, {"a": 4, "c": 4})
    jobs = Jobs("raise SystemExit(1)", "")
    assert Supervisor(jobs, 2, 10, restarts=1).run() == 0
    assert jobs.started == [(10, "a:4,b:4,c:2"), (8, "a:4,c:4")]
    assert "ended with status 1; restart 1 of 1" in capsys.readouterr().err


def test_a_machine_that_comes_back_is_taken_without_a_restart_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machines(monkeypatch, {"a": 2}, {"a": 2, "b": 2})
    jobs = Jobs(SAVES, "", word=str(tmp_path / "ready"))

    class Patient(Supervisor):
        def _live(self) -> dict[str, int] | None:
            return super()._live() if (tmp_path / "ready").exists() else {"a": 2}

    assert Patient(jobs, 2, 4, look_s=0.1).run() == 0
    assert jobs.started == [(2, "a:2"), (4, "a:2,b:2")]


def test_too_few_machines_are_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machines(monkeypatch, {"a": 1}, {"a": 1, "b": 1})
    jobs = Jobs("")
    assert Supervisor(jobs, 2, 3, wait_s=0.2).run() == 0
    assert jobs.started == [(2, "a:1,b:1")]
    machines(monkeypatch, {"a": 1})
    with pytest.raises(CommError, match="machines for 2 ranks or more, got machines for 1"):
        Supervisor(jobs, 2, 3, wait_s=0.1).run()


@pytest.mark.parametrize(
    ("program", "restarts", "status"),
    [(SAVES, 1, REQUEUED), (SAVES, 0, 128 + signal.SIGTERM), (STUBBORN, 1, 128 + signal.SIGTERM)],
)
def test_a_warning_lets_ranks_save_and_is_no_failure(
    tmp_path: Path, program: str, restarts: int, status: int
) -> None:
    ready = tmp_path / "ready"

    def warn() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=warn, daemon=True).start()
    jobs = Jobs(program, word=str(ready))
    before = signal.getsignal(signal.SIGTERM)
    assert Supervisor(jobs, 2, 2, restarts=restarts, grace_s=0.2).run() == status
    assert len(jobs.started) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_machines_are_read_and_shared_out() -> None:
    assert read_hosts("a:4,b") == {"a": 4, "b": 1}
    assert hosts_text({"a": 4, "b": 4}, 3) == "a:3"
    for wrong in ("", "a:", "a:x", "a,,b", ":4"):
        with pytest.raises(ConfigError, match="as in a:4,b:4"):
            read_hosts(wrong)
    assert live_slots(None, {}) is None
    assert live_slots("localhost:3", {}) == {"localhost": 3}


@pytest.mark.parametrize(
    ("state", "alive"),
    [
        ("allocated", True),
        ("mixed", True),
        ("draining", True),
        ("down", False),
        ("down*", False),
        ("allocated*", False),
        ("failing", False),
        ("powering_down", False),
    ],
)
def test_nodes_of_slurm_count_while_they_answer(
    monkeypatch: pytest.MonkeyPatch, state: str, alive: bool
) -> None:
    class Done:
        returncode, stdout = 0, f"n1 allocated\nn2 {state}\n".encode()

    monkeypatch.setattr(hosts, "run_program", lambda *words, seconds: Done)
    environment = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4(x2)"}
    assert live_slots(None, environment) == {"n1": 4} | ({"n2": 4} if alive else {})


def test_a_node_that_the_job_has_lost_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        returncode = 0

        def __init__(self, text: str) -> None:
            self.stdout = text.encode()

    def run(*words: str, seconds: float) -> Done:
        assert words[0] == "squeue" or words[2] == "n1"
        return Done("n1\n" if words[0] == "squeue" else "n1 mixed\n")

    monkeypatch.setattr(hosts, "run_program", run)
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2"}
    assert live_slots(None, environment) == {"n1": 2}
