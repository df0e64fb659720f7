"""Workers that are processes, started by the program itself: they answer, fail, die and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from caldera import dmath as dm
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import OPS, op
from caldera.dmath.master import Master
from caldera.dmath.session import Handle
from caldera.errors import CommError, DataError
from tests.unit.dmath.programs import computed, everywhere, leaf

ROOT = Path(__file__).parents[3]
NAMED_WITHIN_S = 40.0
"""Less than the time after which a rank that waits reports, however busy the machine is."""


def _is_there(process: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(process, 0)
        # One that has ended and was not waited for yet is not left behind.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _all_end(processes: list[int], seconds: float = NAMED_WITHIN_S) -> bool:
    until = time.monotonic() + seconds
    while any(map(_is_there, processes)) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(map(_is_there, processes))


def _compute_for(seconds: float, session: Master, x: Handle) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        computed(session, leaf(x) * 2.0)


@pytest.fixture
def only_here() -> Iterator[str]:
    """An op that workers have never heard of."""

    @op("only_here", kind="elementwise")
    def only_here(x: Spec) -> Spec:
        return x

    yield "only_here"
    del OPS["only_here"]


def test_workers_compute_survive_a_failure_and_are_named_when_they_are_killed(
    only_here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What lies in the current folder is not imported.
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    monkeypatch.chdir(tmp_path)
    dm.disconnect()
    session = dm.connect(2)
    assert isinstance(session, Master)
    processes = session.processes
    assert len(set(processes)) == 2
    array = np.arange(200_000.0)
    x = everywhere(session, array)
    np.testing.assert_array_equal(computed(session, leaf(x) * 2.0), array * 2)
    (bad,) = session.run([OPS[only_here](leaf(x).node)])
    with pytest.raises(DataError, match=r"worker \d of 2 \(process \d+\): .*'?only_here") as caught:
        session.get(bad)
    assert "decode_graph" in caught.value.__notes__[0]
    np.testing.assert_array_equal(computed(session, leaf(x) * 3.0), array * 3)

    began = time.monotonic()
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(CommError, match=rf"worker 1 of 2 \(process {processes[1]}\) was killed by"):
        _compute_for(60, session, x)
    assert time.monotonic() - began < NAMED_WITHIN_S
    assert _all_end(processes, 0.0)
    assert not session.is_open


def _started(workers: int) -> tuple[subprocess.Popen[str], list[int]]:
    job = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.dmath.jobs.works", str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        # Whoever runs the tests in the background may ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert job.stdout is not None
    processes = [int(word) for word in job.stdout.readline().split()]
    assert len(processes) == workers
    assert job.stdout.readline() == "step\n"
    return job, processes


def test_nobody_is_left_when_the_master_is_killed() -> None:
    job, processes = _started(3)
    job.kill()
    job.communicate()
    assert _all_end(processes)


def test_ctrl_c_is_the_masters() -> None:
    job, processes = _started(2)
    try:
        said = _interrupt(job)
        job.communicate(timeout=60)
    finally:
        job.kill()
    assert said == "sum 3000.0\n"
    assert job.returncode == 0
    # At the end of the program workers have ended before it.
    assert _all_end(processes, 0.0)


def _interrupt(job: subprocess.Popen[str]) -> str:
    """What a job prints when it is interrupted.

    Python drops an interrupt that comes in the callback of a weak reference, and the job goes on:
    after more steps than a pipe holds it has surely been dropped, and another is sent.
    """
    assert job.stdout is not None
    for number, line in enumerate(job.stdout):
        if line != "step\n":
            return line
        if number % 20_000 == 0:
            job.send_signal(signal.SIGINT)
    return ""
