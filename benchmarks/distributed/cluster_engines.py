"""Searches and matrices on Dask and Ray whose workers are killed, counted.

    python benchmarks/distributed/cluster_engines.py dask --kills 200 --kept counts.jsonl
    python benchmarks/distributed/cluster_engines.py ray --kills 50 --kept counts.jsonl

A grid of 1,000 trials runs on three workers, one of which is killed whenever all three run trials:
so kills are further apart than a worker's start. A trial waits more than it computes, and its
values are known; longer trials (`--seconds`) leave time for more kills. Then products of random
matrices on three workers are compared with NumPy's, and a worker of each session is killed while it
computes (not with `--checks 0`). One JSON line for each part.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from caldera import dmath as dm
from caldera import search
from caldera.errors import CalderaError, CommError

ROOT = Path(__file__).parents[2]
WORKERS, STEPS = 3, 3
SESSIONS = 5
MOST_S = 120.0


@contextmanager
def dask_cluster() -> Iterator[Any]:
    """Three Dask workers, which their nannies start again."""
    import dask
    import distributed

    given = {
        "distributed.deploy.lost-worker-timeout": "10 minutes",
        "distributed.nanny.environ.PYTHONPATH": str(ROOT),
        # A new worker starts sooner.
        "distributed.worker.multiprocessing-method": "forkserver",
    }
    with (
        dask.config.set(given),
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """Ray with three cores: each runs an actor."""
    import ray

    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )

    yield "ray"
    ray.shutdown()


CLUSTERS = {"dask": dask_cluster, "ray": ray_cluster}


def value(x: int, step: int) -> float:
    """Return what a trial reports in a step."""
    return (x - 500) ** 2 / 1000 + 1 / (step + 1)


class Killer(threading.Thread):
    """Kills one of three workers whenever all three run trials."""

    def __init__(self, log: Path, kills: int) -> None:
        super().__init__(daemon=True)
        self._log, self.left = log, kills
        self.over, self.killed = threading.Event(), 0
        self._draw = random.Random(1)

    def run(self) -> None:
        while self.left and not self.over.wait(0.1):
            begun = self._log.read_text().split()[1::2] if self._log.exists() else []
            # A worker that has begun no trial is still starting.
            there = [pid for pid in dict.fromkeys(begun) if _runs(int(pid))]
            if len(there) == WORKERS:
                self.over.wait(self._draw.uniform(0.0, 0.5))
                with suppress(ProcessLookupError):
                    os.kill(int(self._draw.choice(there)), signal.SIGKILL)
                    self.killed, self.left = self.killed + 1, self.left - 1


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def trials(cluster: Any, count: int, kills: int, seconds: float) -> dict[str, Any]:
    """Run the grid while workers are killed, and check every trial."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "begun"

        def steps(x: int) -> Iterator[float]:
            with log.open("a") as file:
                file.write(f"{x} {os.getpid()}\n")
            for step in range(STEPS):
                time.sleep(seconds / STEPS)
                yield value(x, step)

        killer = Killer(log, kills)
        killer.start()
        began = time.monotonic()
        grid = {"x": search.integer(0, count - 1)}
        study = search.run(steps, grid, method="grid", workers=cluster, retries=9, verbose=0)
        taken = time.monotonic() - began
        killer.over.set()
        killer.join()
        begun = len(log.read_text().splitlines())
    wrong = sum(
        [row["value"] for row in trial.curve]
        != [value(trial.parameters["x"], step) for step in range(STEPS)]
        for trial in study.trials
    )
    once = sorted(trial.parameters["x"] for trial in study.trials) == list(range(count))
    return {
        "kills": killer.killed,
        "trials": len(study.trials),
        "every trial once": once,
        "done": study.counts()["done"],
        "wrong": wrong,
        "begun": begun,
        "seconds": round(taken),
        "efficiency": round(count * seconds / (WORKERS * taken), 3),
    }


def matrices(cluster: Any, checks: int) -> dict[str, Any]:
    """Compare products on three workers with NumPy, and kill a worker of each session."""
    draw = np.random.default_rng(0)
    wrong, named = 0, []
    for _ in range(SESSIONS):
        until = time.monotonic() + MOST_S
        while True:
            try:
                session: Any = dm.connect(WORKERS, on=cluster)
                break
            except CalderaError:
                # The worker that was killed last may still be starting.
                if time.monotonic() > until:
                    raise
        for _ in range(checks // SESSIONS):
            m, k, n = draw.integers(1, 90, 3)
            a, b = draw.normal(size=(m, k)), draw.normal(size=(k, n))
            found = dm.array(a, layout=dm.Columns()) @ dm.array(b, layout=dm.Rows())
            wrong += not np.allclose(found.numpy(), a @ b, rtol=1e-10, atol=1e-11)
        name = session.call("process_name")[1]
        began = time.monotonic()
        os.kill(int(re.findall(r"process (\d+) on", name)[0]), signal.SIGKILL)
        try:
            while time.monotonic() - began < MOST_S:
                dm.ones((8, 8)).sum().item()
            raise RuntimeError("no error after a worker was killed")
        except CommError as error:
            wrong += name not in str(error)
            named.append(round(time.monotonic() - began, 2))
    return {
        "matrix checks": checks,
        "wrong": wrong,
        "seconds until a killed worker is named": named,
    }


def main() -> None:
    """Run what is asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cluster", choices=CLUSTERS)
    options.add_argument("--trials", type=int, default=1000)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seconds", type=float, default=1.5, help="that a trial takes")
    options.add_argument("--checks", type=int, default=150)
    options.add_argument("--kept", type=Path, help="file of results, to which these are added")
    given = options.parse_args()
    with CLUSTERS[given.cluster]() as cluster:
        parts = (
            lambda: trials(cluster, given.trials, given.kills, given.seconds),
            lambda: matrices(cluster, given.checks),
        )
        for part in parts if given.checks else parts[:1]:
            line = json.dumps({"on": given.cluster, **part()})
            print(line, flush=True)
            if given.kept is not None:
                with given.kept.open("a") as file:
                    file.write(line + "\n")
        dm.disconnect()


if __name__ == "__main__":
    main()
