"""A training job on a Slurm of three nodes that is drained, loses nodes, is requeued, is preempted.

    python benchmarks/distributed/cluster_slurm.py --times 20 --kept counts.jsonl

It starts slurmctld and three slurmd on this machine. A job saves a checkpoint every few steps, is
disturbed once after a random number of steps, and must end with the weights of one process, having
repeated no more steps than lie between two checkpoints. At last a job with a rank on each of three
nodes loses one, continues with two, and gets it back. One JSON line for each part.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from caldera.cli.job_scripts import Job, slurm_script
from tests.cluster.small_slurm import SmallSlurm, small_slurm

ROOT = Path(__file__).parents[2]
NODES, STEPS, INTERVAL, PATIENCE_S = 3, 48, 6, 150.0
SETTINGS = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
"""
TRAINING = f"""
import os, sys, time
import numpy as np
import caldera as cd
from caldera import nn
from caldera.comm import world

class Slow(cd.Callback):
    def batch_ends(self, run):
        if world().rank == 0:
            with open("steps", "a") as file:
                start = os.environ.get("SLURM_RESTART_COUNT", "0")
                file.write(f"{{start}} {{run.step}} {{world().size}}\\n")
        time.sleep(float(os.environ.get("CALDERA_STEP_S", "0")))

x = np.random.default_rng(0).normal(size=(96, 6))
layers = [nn.Input((6,)), nn.Dense(8, activation="tanh"), nn.BatchNorm(), nn.Dense(1)]
model = cd.NeuralNetwork(layers, loss="mean_squared", optimizer="momentum", learning_rate=0.05,
                         dtype="float64", batch_size=12, epochs={STEPS // 8})
saver = cd.Checkpointer("run", every_steps={INTERVAL}, every_seconds=None)
model.fit((x, x[:, :1]), checkpoint=saver, resume=True, callbacks=[Slow()], verbose=0)
if world().rank == 0:
    np.save("weights.npy", np.concatenate([np.ravel(each.numpy()) for each in model.parameters()]))
    open("complete", "w").close()
"""


class TrialJob:
    """A job in a folder of its own."""

    def __init__(self, slurm: SmallSlurm, folder: Path, ranks: int, nodes: int = 1) -> None:
        self.slurm, self.folder = slurm, folder
        folder.mkdir()
        (folder / "train.py").write_text(TRAINING)
        script = slurm_script(Job([sys.executable, "train.py"], ranks, nodes=nodes))
        # As many ranks as there are nodes when the job starts again, if there are several.
        if nodes > 1:
            script = script.replace("srun ", "srun --ntasks=$SLURM_JOB_NUM_NODES ")
        (folder / "job.sh").write_text(script)
        self.number = self.command("sbatch", "--parsable", "job.sh").strip()

    def command(self, *words: str) -> str:
        """Run a command of Slurm and return its output."""
        done = subprocess.run(
            words,
            env={**os.environ, **self.slurm.variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def steps(self) -> list[tuple[int, int, int]]:
        """Return the start, the number and the ranks of each step so far."""
        with suppress(OSError):
            lines = (self.folder / "steps").read_text().splitlines()
            return [(int(a), int(b), int(c)) for a, b, c in map(str.split, lines)]
        return []

    def node(self) -> str:
        """Return the first node of the job."""
        return self.command("squeue", "-h", "-j", self.number, "-o", "%N").strip()

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Wait; a job that was put back in the queue starts at once."""
        until, requeued = time.monotonic() + PATIENCE_S, 0
        while not happened():
            if time.monotonic() > until:
                raise TimeoutError(self.report())
            state = self.command("squeue", "-h", "-j", self.number, "-o", "%T").strip()
            requeued = requeued + 1 if state.startswith("PENDING") else 0
            if requeued % 16 == 12 and self.steps():
                self.command("scontrol", "update", f"jobid={self.number}", "starttime=now")
                self.command("scontrol", "release", self.number)
            time.sleep(0.25)

    def report(self) -> str:
        """Return what the job has printed, for an error."""
        printed = "".join(each.read_text() for each in self.folder.glob("*.out"))
        state = self.command("scontrol", "show", "job", self.number)
        return f"job {self.number}: {self.steps()[-2:]}\n{state}\n{printed[-3000:]}"

    @property
    def is_complete(self) -> bool:
        """True when the job has written its weights."""
        return (self.folder / "complete").exists()

    def lost(self) -> int:
        """Return the largest number of steps that a start has repeated."""
        steps, found = self.steps(), 0
        for (before, last, _), (after, first, _) in pairwise(steps):
            if after != before:
                found = max(found, last - first + 1)
        return found


def drain(job: TrialJob) -> Callable[[], None]:
    """Drain the node and warn the job, which saves and is requeued on another node."""
    node = job.node()
    job.command("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    job.command("scancel", "--signal=USR1", job.number)
    return lambda: job.slurm.resume(node)


def node_down(job: TrialJob) -> Callable[[], None]:
    """Kill the node's daemon and all that runs there."""
    node = job.node()
    job.slurm.kill_node(node, job.folder)
    job.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def back() -> None:
        job.slurm.start_node(node)
        job.slurm.resume(node)

    return back


def requeue(job: TrialJob) -> Callable[[], None]:
    """Put the job back in the queue."""
    job.command("scontrol", "requeue", job.number)
    return lambda: None


def preemption(job: TrialJob) -> Callable[[], None]:
    """Submit a job of a higher priority that needs the whole node."""
    words = ["-p", "urgent", "-w", job.node(), "--exclusive", "-o", "/dev/null"]
    job.command("sbatch", *words, "--wrap", "sleep 1")
    return lambda: None


EVENTS = {
    "drain": drain,
    "node down": node_down,
    "requeue": requeue,
    "preemption": preemption,
}


def differences(folder: Path, found: Path) -> float:
    """Return the largest difference between the weights of a job and those of one process."""
    alone = folder / "alone"
    if not alone.exists():
        alone.mkdir()
        subprocess.run([sys.executable, "-c", TRAINING], cwd=alone, check=True)
    a, b = (np.load(each / "weights.npy") for each in (alone, found))
    return float(abs(a - b).max())


def disturb(slurm: SmallSlurm, job: TrialJob, event: str, after: int) -> None:
    """Disturb a job after some steps, and wait for its end."""
    job.wait_for(lambda: len(job.steps()) >= after)
    back = EVENTS[event](job)
    job.wait_for(lambda: len({start for start, _, _ in job.steps()}) > 1)
    back()
    job.wait_for(lambda: job.is_complete)
    job.wait_for(lambda: not job.node())


def disturbed(
    slurm: SmallSlurm, folder: Path, event: str, times: int, ranks: int
) -> dict[str, Any]:
    """Disturb jobs with one kind of event."""
    draw, lost, worst = random.Random(event), [], 0.0
    for number in range(times):
        job = TrialJob(slurm, folder / f"{event}-{number}".replace(" ", "-"), ranks)
        try:
            disturb(slurm, job, event, draw.randrange(STEPS // 6, STEPS - 10))
        except TimeoutError as error:
            print(error, file=sys.stderr, flush=True)
            job.command("scancel", job.number)
            for node in slurm.nodes:
                slurm.resume(node)
            continue
        lost.append(job.lost())
        worst = max(worst, differences(folder, job.folder))
    return {
        "times": times,
        "finished": len(lost),
        "steps between checkpoints": INTERVAL,
        "most steps repeated": max(lost, default=-1),
        "largest difference to one process": worst,
    }


def nodes_that_go_and_come(slurm: SmallSlurm, folder: Path) -> dict[str, Any]:
    """Train on three nodes, on two after one is down, and on three again."""
    job = TrialJob(slurm, folder / "elastic", NODES, nodes=NODES)

    def resize(nodes: int) -> None:
        words = [f"numnodes={nodes}", f"numtasks={nodes}"]
        job.command("scontrol", "update", f"jobid={job.number}", *words)

    job.wait_for(lambda: len(job.steps()) >= 12)
    node = slurm.nodes[-1]
    slurm.kill_node(node, job.folder)
    job.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    resize(NODES - 1)
    job.wait_for(lambda: sum(ranks == NODES - 1 for _, _, ranks in job.steps()) >= 8)
    slurm.start_node(node)
    slurm.resume(node)
    job.command("scontrol", "requeuehold", job.number)
    resize(NODES)
    job.wait_for(lambda: job.is_complete)
    ranks = [each for _, _, each in job.steps()]
    order = [ranks[0], *(b for a, b in pairwise(ranks) if a != b)]
    return {
        "ranks": order,
        "most steps repeated": job.lost(),
        "largest difference to one process": differences(folder, job.folder),
    }


def main() -> None:
    """Run what is asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--times", type=int, default=20)
    options.add_argument("--ranks", type=int, default=2, help="of the jobs on one node")
    options.add_argument("--events", default=",".join([*EVENTS, "nodes"]))
    options.add_argument("--kept", type=Path, help="file of results, to which these are added")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ |= {"PYTHONPATH": str(ROOT), "CALDERA_THREADS": "1", "CALDERA_STEP_S": "0.15"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with small_slurm(folder / "slurm", NODES, settings=SETTINGS, grace_s=30) as slurm:
            for event in given.events.split(","):
                began = time.monotonic()
                if event == "nodes":
                    found = nodes_that_go_and_come(slurm, folder)
                else:
                    found = disturbed(slurm, folder, event, given.times, given.ranks)
                found["seconds"] = round(time.monotonic() - began)
                line = json.dumps({"on": "Slurm", "event": event, **found})
                print(line, flush=True)
                if given.kept is not None:
                    with given.kept.open("a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
