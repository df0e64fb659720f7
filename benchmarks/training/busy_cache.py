"""Steps with kernels that were chosen beside busy programs.

For each network a process fills an empty cache beside 0, 2 and 8 busy loops. Another process then
trains from this cache on the quiet machine. The table has its median step relative to the median
from the cache filled in quiet, its longest step relative to its median, and the number of choices
that are provisional before and after. Processes take turns, `--rounds` times; medians over rounds.

    python benchmarks/training/busy_cache.py
    python benchmarks/training/busy_cache.py --quick
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn
from caldera.base.noise import OthersWatch
from caldera.kernels.tuning import database

STEPS, WARM = 50, 3
NETWORKS = {
    "MLP 784-528-528-528-10, batch 100": ("mlp", (1, 28, 28), 100),
    "LeNet-5, batch 64": ("lenet5", (1, 28, 28), 64),
    "ResNet-20, batch 128": ("resnet20", (3, 32, 32), 128),
}


def model_of(kind: str, shape: tuple[int, ...], batch: int) -> cd.NeuralNetwork:
    """Return the network, which trains by SGD with momentum."""
    if kind == "mlp":
        hidden = [nn.Dense(528, activation="relu") for _ in range(3)]
        layers = [nn.Input(shape), nn.Flatten(), *hidden, nn.Dense(10)]
    else:
        layers = getattr(nn.models, kind)(input_shape=shape, classes=10)
    return cd.NeuralNetwork(layers, optimizer="sgd", learning_rate=0.01, batch_size=batch, seed=1)


class _Steps(cd.Callback):
    """The clock after each step."""

    def __init__(self) -> None:
        self.clock: list[float] = []

    def batch_ends(self, run: Any) -> None:
        self.clock.append(time.perf_counter())


def train(name: str, steps: int) -> None:
    """Train for some steps, and print the seconds of each as JSON."""
    kind, shape, batch = NETWORKS[name]
    model = model_of(kind, shape, batch)
    random = np.random.default_rng(0)
    count = batch * (steps + WARM + 1)
    x = random.normal(size=(count, *shape)).astype("float32")
    y = random.integers(0, 10, count)
    watch, others = _Steps(), OthersWatch()
    model.fit((x, y), epochs=1, verbose=0, callbacks=[watch])
    records = list(database.all_records())
    found = {
        "seconds": np.diff(watch.clock[WARM:]).tolist(),
        "choices": len(records),
        "provisional": sum(record.is_provisional for record in records),
        "others": others.share(),
    }
    print(json.dumps(found))


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run loops in other processes meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        if loops:
            time.sleep(1.0)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def child(name: str, steps: int, cache: Path, threads: int | None) -> dict[str, Any]:
    """Train in another process with this cache."""
    environment = os.environ | {"CALDERA_CACHE": str(cache)}
    if threads:
        environment["CALDERA_THREADS"] = str(threads)
    command = [sys.executable, __file__, "--train", name, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str, options: argparse.Namespace, folder: Path) -> None:
    """Fill the caches of a network, train from each by turns, and print a row for each."""
    filled: dict[int, dict[str, Any]] = {}
    for loops in options.loops:
        with busy_loops(loops):
            filled[loops] = child(name, options.steps, folder / str(loops), options.threads)
    found: dict[int, list[dict[str, Any]]] = {loops: [] for loops in options.loops}
    for number in range(options.rounds):
        for loops in options.loops:
            # Each process begins with the cache as it was filled.
            cache = folder / f"{loops} again {number}"
            shutil.copytree(folder / str(loops), cache)
            found[loops].append(child(name, options.steps, cache, options.threads))
    quiet = _median_step(found[options.loops[0]])
    for loops, runs in found.items():
        longest = statistics.median(
            max(run["seconds"]) / statistics.median(run["seconds"]) for run in runs
        )
        median = _median_step(runs)
        print(
            f"| {name} | {loops} | {1e3 * median:.3f} | {median / quiet:.3f} | {longest:.2f} "
            f"| {filled[loops]['provisional']} of {filled[loops]['choices']} "
            f"| {runs[-1]['provisional']} of {runs[-1]['choices']} "
            f"| {statistics.median(run['others'] for run in runs):.0%} |",
            flush=True,
        )


def _median_step(runs: list[dict[str, Any]]) -> float:
    return statistics.median(statistics.median(run["seconds"]) for run in runs)


def main() -> None:
    """Compare the caches and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a single network, 2 loops, one round")
    parser.add_argument("--loops", type=int, nargs="+", default=[0, 2, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--train", choices=tuple(NETWORKS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.steps)
        return
    names = list(NETWORKS)
    if options.quick:
        names, options.loops, options.rounds = names[:1], [0, 2], 1
    threads = options.threads or cd.settings.threads
    print(f"{platform.machine()}, {threads} threads, load {os.getloadavg()[0]:.1f} at the start\n")
    print(
        "| network | busy loops while the cache was filled | ms a step | beside quiet "
        "| longest step / median | provisional when filled | after | others in the runs |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            compare(name, options, Path(folder) / str(number))


if __name__ == "__main__":
    main()
