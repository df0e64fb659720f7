"""`caldera run --slurm` and `--k8s`: what a scheduler is asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from caldera.comm.supervision import REQUEUE, REQUEUED
from tests.cli.conftest import Caldera


def directives(script: str) -> dict[str, str]:
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH --")]
    return dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines)


def test_a_batch_script_requests_what_the_flags_name(caldera: Caldera) -> None:
    flags = ["--nodes", "4", "--gpus-per-node", "2", "--cores-per-rank", "8", "--time", "1d30m"]
    done = caldera("run", "--slurm", *flags, "--partition", "fast", "my net.py", "--note", "a b")
    found = directives(done.out)
    assert {key: found[key] for key in ("nodes", "ntasks-per-node", "gpus-per-node")} == {
        "nodes": "4",
        "ntasks-per-node": "2",
        "gpus-per-node": "2",
    }
    assert (found["time"], found["signal"], found["partition"]) == (
        "1-00:30:00",
        "USR1@120",
        "fast",
    )
    assert "'my net.py' --note 'a b'" in done.out
    assert "export CALDERA_THREADS=8" in done.out
    assert "--cpus-per-task=8" in done.out.partition("srun")[2]


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (1, False), (REQUEUED, True)])
def test_a_script_requeues_a_run_that_was_warned(
    caldera: Caldera, tmp_path: Path, status: int, requeued: bool
) -> None:
    """The script runs in a shell, with stand-ins for srun and scontrol."""
    for name, body in (("srun", f"exit {status}"), ("scontrol", "echo $*")):
        stand_in = tmp_path / name
        stand_in.write_text(f"#!/bin/bash\n{body}\n")
        stand_in.chmod(0o755)
    script = caldera("run", "--slurm", "-n", "2", "train.py").out
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == ("requeue 17\n" if requeued else "")
    assert done.returncode == (0 if requeued else status)


def test_an_mpi_job_has_a_launcher_and_workers(caldera: Caldera) -> None:
    flags = ["--k8s", "--image", "site/train:1", "-n", "8", "--nodes", "2", "--namespace", "ml"]
    done = caldera(
        "run", *flags, "--gpus-per-node", "4", "--time", "1h", "train.py", "--say", "x: y"
    )
    lines = done.out.splitlines()
    assert lines[:2] == ['apiVersion: "kubeflow.org/v2beta1"', 'kind: "MPIJob"']
    for line in (
        '  namespace: "ml"',
        "  slotsPerWorker: 4",
        "    activeDeadlineSeconds: 3600",
        "      replicas: 2",
        '            - "x: y"',
        "                nvidia.com/gpu: 4",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--slurm", "-n", "5", "--nodes", "2"], "share equally, got 5 ranks"),
        (["--slurm"], "-n/--ranks"),
        (["--k8s", "-n", "2"], "expected --image"),
        (["--k8s", "--slurm", "-n", "2"], "got both"),
        (["--slurm", "-n", "2", "--image", "x"], "got --image"),
        (["--k8s", "-n", "2", "--image", "x", "--partition", "p"], "got --partition"),
        (["--slurm", "-n", "2", "--time", "90"], "expected a duration"),
        (["--slurm", "-n", "2", "--time", "0h"], "expected a duration"),
        ([], "-n/--ranks"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    caldera: Caldera, flags: list[str], message: str
) -> None:
    done = caldera("run", *flags, "train.py")
    assert done.status == 2
    assert message in done.err


TRAINING = """
    import os, signal
    import numpy as np
    import caldera as cd
    from caldera import nn

    class Warn(cd.Callback):
        def batch_ends(self, run):
            if not resumes and run.step == 3:
                os.kill(os.getpid(), signal.SIGUSR1)

    resumes = os.path.isdir("run")
    x = np.linspace(0, 1, 64, dtype="float32")[:, None]
    model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mean_squared", batch_size=8)
    history = model.fit(
        (x, x), epochs=2, checkpoint="run", resume=True, callbacks=[Warn()], verbose=0
    )
    print("complete", model.steps_done)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no SIGUSR1 here")
def test_a_warned_run_exits_to_be_requeued_and_continues(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(TRAINING))
    environment = {**os.environ, REQUEUE: "1"}

    def run() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(program)],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    assert run() == (REQUEUED, "")
    assert run() == (0, "complete 16\n")


def test_a_search_is_an_array_of_tasks_with_one_database(caldera: Caldera) -> None:
    words = ["--trials", "50", "--storage", "sqlite:///a b.db", "--quiet"]
    done = caldera("search", *words, "--slurm", "8", "--time=2h", "--partition", "long")
    found = directives(done.out)
    assert (found["array"], found["partition"], found["time"]) == ("0-7", "long", "0-02:00:00")
    assert "ntasks" not in found
    assert "signal" not in found
    start = next(line for line in done.out.splitlines() if line.startswith("srun --mpi=none"))
    assert start.endswith(
        "-m caldera search --trials 50 --storage 'sqlite:///a b.db' --quiet || status=$?"
    )
    assert "--storage ADDRESS" in caldera("search", "--trials", "50", "--slurm", "8").err


def test_tasks_of_an_array_search_together(caldera: Caldera, tmp_path: Path) -> None:
    place = ["--storage", f"sqlite:///{tmp_path}/studies.db", "--name", "digits"]
    words = ["search", *place, "--trials", "2", "--epochs", "1", "--quiet"]
    first = caldera(*words, "--out", str(tmp_path / "a"))
    second = caldera(*words, "--out", str(tmp_path / "b"))
    assert "trials  2 done" in first.out
    assert "trials  2 done" in second.out
