"""Training steps on the CPU beside PyTorch and JAX, in one process, with as many threads as cores.

    taskset -c 0-7 python benchmarks/cpu_training.py mlp resnet20 gpt --peers torch,jax

The identical network, weights and batches; all take turns, and the best turn counts. The cores
that the process may use are the threads that each framework gets, so a call under `taskset` is one
column of a table over threads. `caldera bench` gives each contestant a process of its own and
checks more; this says in seconds where a network stands, and prints after each of them.

`--profile FOLDER` also writes the table of Caldera's step, kernel by kernel, and `--samples FILE`
the best time of every turn.

On a machine that others keep busy, `taskset -c 0 ... --cpu-time` counts what this process computed,
on one core, and not what it waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before NumPy or any of the frameworks is imported, which read it once.
os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]

from caldera.bench.contestants import contestants, has_compiler
from caldera.bench.frameworks import FRAMEWORKS
from caldera.bench.frameworks.caldera_tasks import FedTrainer
from caldera.bench.measuring import timed
from caldera.bench.workloads import TrainingCase
from caldera.bench.workloads.networks import networks

THREADS = len(os.sched_getaffinity(0))
STEPS = 3
"""Whose losses are compared."""


@dataclass
class Entry:
    """One framework in one setting."""

    label: str
    task: Any
    first_s: float
    losses: list[float]
    times: list[float] = field(default_factory=list)


def entered(case: TrainingCase, contestant: Any) -> Entry:
    """Build a contestant, and make its first steps."""
    framework = FRAMEWORKS[contestant.framework](contestant.options, THREADS)
    begin = time.perf_counter()
    task: Any = framework.trainer(case, "float32")
    losses = task.losses(STEPS)
    return Entry(contestant.label, task, time.perf_counter() - begin, losses)


def wall_seconds(task: Any, seconds: float) -> list[float]:
    """Seconds of the clock for each step, for about so long in all."""
    return timed(task, seconds).wall


def cpu_seconds(task: Any, seconds: float) -> list[float]:
    """Seconds that the process computed for each step, for about so long in all."""
    times: list[float] = []
    task.call()
    while len(times) < 2 or sum(times) < seconds:
        start = time.process_time()
        task.call()
        times.append(time.process_time() - start)
    return times


def measure(case: TrainingCase, options: argparse.Namespace) -> None:
    """All contestants on one network, one line for each."""
    peers = [peer for peer in options.peers.split(",") if peer]
    compiler = options.compile and has_compiler()
    entries: list[Entry] = []
    for contestant in contestants(case, peers, [options.accuracy], compiler=compiler):
        try:
            entries.append(entered(case, contestant))
        except Exception as error:
            # One that cannot take part must not cost the others their turn.
            print(f"  {contestant.label}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    clock = cpu_seconds if options.cpu_time else wall_seconds
    for turn in range(options.turns):
        for entry in entries[turn % len(entries) :] + entries[: turn % len(entries)]:
            entry.times.append(min(clock(entry.task, options.seconds)))
    if options.samples:
        keep_samples(options.samples, case, entries)
    ours = min((min(each.times) for each in entries if "caldera" in each.label), default=0.0)
    print(f"\n{case.name}, {THREADS} threads")
    print("| setting | ms a step | to Caldera | first step | losses |")
    print("|---|---|---|---|---|")
    for entry in entries:
        best = min(entry.times)
        losses = " ".join(f"{loss:.4f}" for loss in entry.losses)
        print(f"| {entry.label} | {best * 1e3:,.3f} | {best / ours:.2f} | {entry.first_s:.1f} s "
              f"| {losses} |", flush=True)  # fmt: skip
    if options.profile:
        write_profile(options.profile, case, entries)


def keep_samples(path: Path, case: TrainingCase, entries: list[Entry]) -> None:
    """Add the times of a network to a file of them."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known.setdefault(str(THREADS), {})[case.name] = {each.label: each.times for each in entries}
    path.write_text(json.dumps(known, indent=1) + "\n")


def write_profile(folder: Path, case: TrainingCase, entries: list[Entry]) -> None:
    """The kernels of Caldera's step, and the time of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        if isinstance(entry.task, FedTrainer):
            explanation = entry.task.plan.explain()
            (folder / f"{case.name}-{THREADS}.txt").write_text(f"{explanation}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--peers", default="torch,jax")
    parser.add_argument("--accuracy", default="strict", help="strict or fast: Caldera's kernels")
    parser.add_argument("--compile", action="store_true", help="torch.compile, too")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a turn")
    parser.add_argument("--profile", type=Path, help="a folder for tables of Caldera's kernels")
    parser.add_argument("--samples", type=Path, help="a JSON file for the times of all turns")
    parser.add_argument("--cpu-time", action="store_true", help="of one core, not of the clock")
    options = parser.parse_args()
    if options.cpu_time and THREADS > 1:
        sys.exit(f"expected one core for --cpu-time; got {THREADS}: put taskset -c 0 before it")
    found = [case for work in networks() for case in work.cases]
    known = {case.name: case for case in found if isinstance(case, TrainingCase)}
    for name in options.networks:
        if name not in known:
            sys.exit(f"expected networks among {', '.join(known)}; got {name}")
        measure(known[name], options)


if __name__ == "__main__":
    main()
