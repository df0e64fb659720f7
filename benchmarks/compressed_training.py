"""Training on a slow network: how long to 97.5% of MNIST's test set, dense and compressed.

    python benchmarks/compressed_training.py --out benchmarks/results/compressed-$(uname -m).md

Eight ranks, each in a network namespace of its own (links.py), train the seed's MLP
(784-528-528-528-10, ReLU) in synchronous data parallelism. What differs is how gradients are
summed: by the library's best dense allreduce, or by a compressor. Each way has the optimizer that
suits it: what top-k leaves out arrives late, which acts like momentum, so it gets little of its
own. Testing is not timed: every rank tests on a part, and training goes on when all are done.
Needs root, caldera[mpi], and MNIST in CALDERA_DATA or ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from links import Links

import caldera as cd
from caldera import nn, optim, parallel
from caldera.comm import world
from caldera.comm.launch import launch

TARGET = 0.975
HIDDEN = (528, 528, 528)
BYTES_A_SECOND = {"100mbit": 12.5e6, "1gbit": 125e6, None: 1e9}


@dataclass(frozen=True)
class Setting:
    """One way to train: the link, the batch of all ranks together, how gradients are summed."""

    rate: str | None
    batch: int
    way: str
    epochs: int
    every: int
    ranks: int = 8


def top16_q4(setting: Setting) -> Any:
    """The 16 largest of every 512 elements, their values in 4 bits."""
    bandwidth = BYTES_A_SECOND[setting.rate]
    return cd.compress.TopK(16, block=512, bits=4, momentum=0.5, bandwidth=bandwidth)


def warmed_up(setting: Setting) -> Any:
    """Plain descent; the compressor has the momentum."""
    rate = 0.5 if setting.batch > 100 else 0.25
    return optim.SGD(optim.LinearWarmUp(20, then=rate))


Make = Callable[[Setting], Any]
WAYS: dict[str, tuple[Make, Make]] = {
    "dense": (lambda setting: None, lambda setting: optim.Adam(1e-3)),
    "Top16_Q4": (top16_q4, warmed_up),
    "QSGD 4 bits": (lambda setting: cd.compress.QSGD(4), lambda setting: optim.Adam(1e-3)),
    "bfloat16": (lambda setting: cd.compress.Cast(), lambda setting: optim.Adam(1e-3)),
}
"""What sums gradients, and the optimizer."""
SETTINGS = [
    *[Setting("100mbit", 800, way, epochs=5, every=10) for way in WAYS],
    *[Setting("100mbit", 100, way, epochs=2, every=50) for way in ("dense", "Top16_Q4")],
    *[Setting("1gbit", 800, way, epochs=5, every=10) for way in ("dense", "Top16_Q4")],
    *[Setting(None, 800, way, epochs=5, every=10) for way in ("dense", "Top16_Q4")],
    *[Setting(None, 800, way, epochs=5, every=10, ranks=2) for way in ("dense", "Top16_Q4")],
]


class Watch(cd.Callback):
    """Tests every so many steps, and keeps the time that training alone took."""

    def __init__(self, setting: Setting, images: np.ndarray, labels: np.ndarray) -> None:
        self.comm = world().Dup()
        mine = slice(self.comm.rank, None, self.comm.size)
        self.images, self.labels, self.of = images[mine], labels[mine], len(labels)
        self.every = setting.every
        self.curve: list[tuple[int, float, float]] = []
        self.steps = 0
        self.seconds = 0.0
        self.began = 0.0

    def batch_ends(self, run: Any) -> None:
        self.steps += 1
        if self.steps == 1:
            # The first step makes the plan and compiles: all that follow it are timed.
            self.comm.Barrier()
            self.began = time.perf_counter()
        elif self.steps % self.every == 0:
            self.test(run.model)

    def run_ends(self, run: Any) -> None:
        self.test(run.model)

    def test(self, model: Any) -> None:
        """The accuracy on all test samples, each rank on its own part."""
        self.seconds += time.perf_counter() - self.began
        layers = [parameter.numpy() for parameter in model.parameters()]
        x = self.images
        for weight, bias in zip(layers[0::2], layers[1::2], strict=True):
            x = x @ weight + bias
            if weight is not layers[-2]:
                np.maximum(x, 0, out=x)
        right = np.array([float((x.argmax(axis=1) == self.labels).sum())])
        self.comm.Allreduce(right, right)
        self.curve.append((self.steps, self.seconds, float(right[0]) / self.of))
        self.comm.Barrier()
        self.began = time.perf_counter()


def work(setting: Setting, seed: int) -> None:
    """What one rank does; rank 0 prints the result as JSON."""
    data = cd.data.mnist(os.environ.get("CALDERA_DATA") or "../shared/data")
    images, labels = data.test.batch(range(len(data.test)))
    layers: list[Any] = [nn.Input(data.shape), nn.Flatten()]
    for width in HIDDEN:
        layers += [nn.Dense(width), nn.ReLU()]
    make_compressor, make_optimizer = WAYS[setting.way]
    model = cd.NeuralNetwork(
        [*layers, nn.Dense(data.classes)], loss="cross_entropy", batch_size=setting.batch,
        optimizer=make_optimizer(setting), epochs=setting.epochs, seed=seed,
    )  # fmt: skip
    watch = Watch(setting, images.reshape(len(labels), -1), labels)
    compressor = make_compressor(setting)
    # What is compressed is sent in one short message, which is not worth a thread of its own.
    strategy = parallel.DataParallel(compression=compressor, overlap=compressor is None)
    model.fit(data.train, parallel=strategy, callbacks=[watch], verbose=0)
    sent = strategy.in_plans.traffic.total.bytes_sent
    reached = next((each for each in watch.curve if each[2] >= TARGET), (None, None, None))
    if watch.comm.rank == 0:
        print(json.dumps({
            **asdict(setting), "seed": seed, "steps_to_target": reached[0],
            "seconds_to_target": reached[1], "final_accuracy": watch.curve[-1][2],
            "milliseconds_a_step": 1e3 * watch.curve[-1][1] / (watch.steps - 1),
            "megabytes_a_step": sent / watch.steps / 1e6,
        }), flush=True)  # fmt: skip


def measure(setting: Setting, seeds: int) -> list[dict[str, Any]]:
    """One result for each seed."""
    results = []
    for seed in range(seeds):
        words = [__file__, "--worker", json.dumps(asdict(setting)), "--seed", str(seed)]
        if setting.rate is None:
            job = launch(setting.ranks, words)
            printed = subprocess.check_output(job.command, env=job.environment, text=True)
        else:
            with Links(setting.ranks, setting.rate) as links:
                printed = links.run(words)
        results.append(json.loads(printed.strip().splitlines()[-1]))
        print(results[-1], file=sys.stderr, flush=True)
    return results


def table(results: list[list[dict[str, Any]]]) -> str:
    """Means over the seeds, and how much faster than dense in the same setting."""
    columns = [
        "link", "ranks", "batch", "sums", "s to 97.5% (seeds)", "steps", "ms a step",
        "MB a step", "final %", "faster",
    ]  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    dense: dict[tuple[Any, ...], float] = {}
    for runs in results:
        first = runs[0]
        key = (first["rate"], first["ranks"], first["batch"])
        times = [run["seconds_to_target"] for run in runs]
        arrived = all(value is not None for value in times)
        seconds = mean(times) if arrived else float("nan")
        if first["way"] == "dense":
            dense[key] = seconds
        each = ", ".join("-" if value is None else f"{value:.1f}" for value in times)
        steps = mean(run["steps_to_target"] for run in runs) if arrived else float("nan")
        cells = [
            first["rate"] or "none", first["ranks"], first["batch"], first["way"],
            f"{seconds:.1f} ({each})", f"{steps:.0f}",
            f"{mean(run['milliseconds_a_step'] for run in runs):.0f}",
            f"{mean(run['megabytes_a_step'] for run in runs):.2f}",
            f"{100 * mean(run['final_accuracy'] for run in runs):.2f}",
            f"{dense.get(key, float('nan')) / seconds:.2f}x",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all settings, or those that are asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--worker", help=argparse.SUPPRESS)
    options.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--only", help="part of 'rate batch ranks way', as in '100mbit 800'")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    if given.worker:
        work(Setting(**json.loads(given.worker)), given.seed)
        return
    results = []
    for s in SETTINGS:
        if (given.only or "") not in f"{s.rate} {s.batch} {s.ranks} {s.way}":
            continue
        load = os.getloadavg()[0]
        results.append(measure(s, given.seeds))
        text = (
            f"# Time to 97.5% on a slow network\n\n"
            f"{platform.machine()}, {os.cpu_count()} cores for all ranks together, "
            f"load before the last setting {load:.1f}.\n\n{table(results)}\n"
        )
        print(text, flush=True)
        if given.out is not None:
            given.out.write_text(text)


if __name__ == "__main__":
    main()
