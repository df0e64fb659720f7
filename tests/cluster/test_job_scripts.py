"""Batch scripts that `caldera run` and `caldera search` print, as a real Slurm takes them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.small_slurm import NoSlurmError, SmallSlurm, small_slurm
from tests.mpi.conftest import ROOT, run_in_session

pytestmark = pytest.mark.cluster
CALDERA = [sys.executable, "-m", "caldera"]
PATIENCE_S = 300.0
TRAINING = """
import os, time
import numpy as np
import caldera as cd
from caldera import nn

class Slow(cd.Callback):
    def epoch_ends(self, run):
        open("epochs", "a").write(f"{run.epoch} ")
        if run.epoch == 3:
            # The first run waits for the warning, however busy the machine is.
            while not os.path.exists("warned"):
                time.sleep(0.1)
            time.sleep(2)
        time.sleep(0.3)

x = np.linspace(0, 1, 64, dtype="float32")[:, None]
layers = [nn.Input((1,)), nn.Dense(1)]
model = cd.NeuralNetwork(layers, loss="mean_squared", batch_size=8, epochs=12)
model.fit((x, x), checkpoint="run", resume=True, callbacks=[Slow()], verbose=0)
print("complete", model.steps_done)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallSlurm]:
    try:
        with small_slurm(tmp_path_factory.mktemp("slurm")) as made:
            yield made
    except NoSlurmError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def environment(slurm: SmallSlurm) -> dict[str, str]:
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, **slurm.variables, "PYTHONPATH": path, "CALDERA_THREADS": "1"}


def answer(command: list[str], environment: dict[str, str], folder: Path) -> str:
    done = run_in_session(command, PATIENCE_S, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--slurm", "-n", "2", "--cores-per-rank", "2", "--time", "2h", "train.py"],
        ["run", "--slurm", "-n", "3", "--memory", "100M", "--partition", "all", "./solve", "a b"],
        ["search", "--slurm", "3", "--storage", "sqlite:///s.db", "--trials", "9", "--time", "30m"],
    ],
)
def test_slurm_would_take_the_script(
    words: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_text(answer([*CALDERA, *words], environment, tmp_path))
    answer(["sbatch", "--test-only", "job.sh"], environment, tmp_path)


def test_a_warned_job_is_requeued_and_completes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = ["run", "--submit", "-n", "1", "--time", "5m", "train.py"]
    number = answer([*CALDERA, *words], environment, tmp_path).split()[-1]
    epochs, printed = tmp_path / "epochs", tmp_path / f"train-{number}.out"
    until, warned, waits = time.monotonic() + PATIENCE_S, False, 0
    while not (printed.exists() and "complete" in printed.read_text()):
        assert time.monotonic() < until, printed.read_text() if printed.exists() else "no output"
        if not warned and epochs.exists() and len(epochs.read_text().split()) >= 3:
            answer(["scancel", "--signal=USR1", number], environment, tmp_path)
            (tmp_path / "warned").touch()
            warned = True
        state = ["squeue", "--noheader", "--jobs", number, "--format=%T"]
        found = subprocess.run(state, env=environment, capture_output=True, text=True, check=False)
        waits = waits + 1 if warned and found.stdout.startswith("PENDING") else 0
        if waits == 8:
            # A requeued job waits two minutes, unless it is told otherwise.
            for change in (["update", f"jobid={number}", "starttime=now"], ["release", number]):
                subprocess.run(["scontrol", *change], env=environment, check=False)
        time.sleep(0.5)
    assert warned, printed.read_text()
    assert printed.read_text().strip().endswith("complete 96")
    assert epochs.read_text().split() == [str(each) for each in range(1, 13)]
