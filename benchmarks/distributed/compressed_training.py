"""Training on a slow network: how long to 97.5% of MNIST's test set, dense and compressed.

    python benchmarks/distributed/compressed_training.py --kept runs.jsonl

Eight ranks, each in a network namespace of its own (links.py), train the seed's MLP
(784-528-528-528-10, ReLU) in synchronous data parallelism. What differs is how gradients are
summed: by the library's best dense allreduce, or by a compressor. Each way has the optimizer that
suits it. Testing is not timed: every rank tests on a part, and training goes on when all are done.

Dense sums are those of one process, and take minutes to an epoch on such a link: so one process,
without links, finds after how many steps the goal is reached, and only some steps over the links
are timed. The seconds are the product; so are those of settings in which Top16_Q4 trains as it does
over 100 Mbit/s, with other links. Its runs over 100 Mbit/s are whole. Of float16 and QSGD only the
time of a step is measured.

With --kept the runs of several calls make one table: each may take no longer than there is time.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import caldera as cd
from benchmarks.distributed.links import Links
from caldera import nn, optim, parallel
from caldera.comm import world
from caldera.comm.supervision import launch

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
    timed: int = 0
    """How many steps are run over the links to time them; 0: all that there are."""

    @property
    def name(self) -> str:
        """For --only."""
        return f"{self.rate} {self.batch} {self.ranks} {self.way}"


def top16_q4(setting: Setting) -> Any:
    """The 16 largest of every 512 elements, their values in 4 bits."""
    return cd.compress.TopK(16, block=512, bits=4, bandwidth=BYTES_A_SECOND[setting.rate])


def adam(setting: Setting, small: float, large: float, beta1: float) -> Any:
    """Adam whose rate, one for small and one for large batches, falls along half a cosine."""
    rate = large if setting.batch > 100 else small
    steps = setting.epochs * 60_000 // setting.batch
    return optim.Adam(optim.Cosine(rate, steps), beta1=beta1)


def for_sums(setting: Setting) -> Any:
    """For sums that lose little or nothing."""
    return adam(setting, 1.5e-3, 3e-3, beta1=0.9 if setting.batch == 100 else 0.5)


def for_top_k(setting: Setting) -> Any:
    """What top-k sends late acts like momentum: so there is no other."""
    return adam(setting, 1.5e-3, 2.5e-3, beta1=0.0)


Make = Callable[[Setting], Any]
FACTORS = "dense, factors"
WAYS: dict[str, tuple[Make, Make]] = {
    "dense": (lambda setting: None, for_sums),
    FACTORS: (lambda setting: None, for_sums),
    "Top16_Q4": (top16_q4, for_top_k),
    "float16": (lambda setting: cd.compress.Cast("float16"), for_sums),
    "QSGD, 8 bits": (lambda setting: cd.compress.QSGD(bits=8), for_sums),
}
"""What sums gradients, and the optimizer. By factors the sums are the same, in fewer bytes."""
SUMS = ("dense", "Top16_Q4", "float16", "QSGD, 8 bits")
SETTINGS = [
    Setting("100mbit", 800, "dense", epochs=5, every=10, timed=30),
    Setting("100mbit", 800, "Top16_Q4", epochs=5, every=10),
    Setting("100mbit", 100, "dense", epochs=2, every=50, timed=30),
    Setting("100mbit", 100, FACTORS, epochs=2, every=50, timed=30),
    Setting("100mbit", 100, "Top16_Q4", epochs=2, every=50),
    *[Setting("1gbit", 800, way, epochs=5, every=10, timed=60) for way in SUMS],
    *[Setting(None, 800, way, epochs=5, every=10, timed=60) for way in SUMS],
    *[Setting(None, 100, way, epochs=2, every=50, timed=100) for way in SUMS[:2]],
]


class Watch(cd.Callback):
    """Tests every so many steps, and keeps the time that training alone took."""

    def __init__(self, setting: Setting, images: np.ndarray, labels: np.ndarray) -> None:
        self.comm = world().Dup()
        mine = slice(self.comm.rank, None, self.comm.size)
        self.images, self.labels, self.of = images[mine], labels[mine], len(labels)
        self.every, self.timed = setting.every, setting.timed
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
        elif self.steps == self.timed:
            run.stop("enough steps are timed")
        elif self.steps % self.every == 0 and not self.timed:
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
        [*layers, nn.Dense(data.classes)],
        loss="cross_entropy",
        batch_size=setting.batch,
        optimizer=make_optimizer(setting),
        epochs=setting.epochs,
        seed=seed,
    )
    watch = Watch(setting, images.reshape(len(labels), -1), labels)
    compressor = make_compressor(setting)
    if setting.ranks == 1:
        model.fit(data.train, callbacks=[watch], verbose=0)
        say(setting, seed, watch, 0)
        return
    # What is compressed is sent in one short message, which is not worth a thread of its own.
    strategy = parallel.DataParallel(
        compression=compressor, overlap=compressor is None, factors=setting.way == FACTORS
    )
    model.fit(data.train, parallel=strategy, callbacks=[watch], verbose=0)
    counts = strategy.plan_communicator.traffic.mark()
    sent = counts.total.bytes_sent - counts["tuning"].bytes_sent
    say(setting, seed, watch, sent)


def say(setting: Setting, seed: int, watch: Watch, sent: int) -> None:
    """Rank 0 prints what was found."""
    reached = next((each for each in watch.curve if each[2] >= TARGET), (None, None, None))
    if watch.comm.rank == 0:
        print(
            json.dumps(
                {
                    **asdict(setting),
                    "seed": seed,
                    "steps_to_target": reached[0],
                    "seconds_to_target": reached[1],
                    "final_accuracy": watch.curve[-1][2],
                    "milliseconds_a_step": 1e3 * watch.curve[-1][1] / (watch.steps - 1),
                    "megabytes_a_step": sent / watch.steps / 1e6,
                }
            ),
            flush=True,
        )


Run = dict[str, Any]


def measure(setting: Setting, seed: int) -> Run:
    """One run."""
    words = [__file__, "--worker", json.dumps(asdict(setting)), "--seed", str(seed)]
    if setting.ranks == 1:
        printed = subprocess.check_output([sys.executable, *words], text=True)
    elif setting.rate is None:
        job = launch(setting.ranks, words)
        printed = subprocess.check_output(job.command, env=job.environment, text=True)
    else:
        with Links(setting.ranks, setting.rate) as links:
            printed = links.run(words)
    found: Run = json.loads(printed.strip().splitlines()[-1])
    print(found, file=sys.stderr, flush=True)
    return found


def needed(only: str, seeds: int) -> list[tuple[Setting, int]]:
    """What is run: settings are timed once, and learn with every seed."""
    chosen = [each for each in SETTINGS if only in each.name]
    runs = [(each, seed) for each in chosen for seed in range(1 if each.timed else seeds)]
    for each in chosen:
        if each.way == "dense":
            alone = replace(each, rate=None, ranks=1, timed=0)
            runs += [(alone, seed) for seed in range(seeds) if (alone, seed) not in runs]
    return runs


def table(runs: list[Run]) -> str:
    """Means over the seeds, and how much faster than dense in the same setting."""
    columns = [
        "link",
        "batch",
        "sums",
        "s to 97.5% (seeds)",
        "steps (seeds)",
        "ms a step",
        "MB a step",
        "final %",
        "faster",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    dense: dict[tuple[Any, ...], float] = {}
    for setting in SETTINGS:
        own = [run for run in runs if is_of(run, setting)]
        learnt = [run for run in runs if not run["timed"] and learns_as(run, setting)]
        if not own:
            continue
        key = (setting.rate, setting.batch)
        steps = [run["steps_to_target"] for run in learnt]
        pace = mean(run["milliseconds_a_step"] for run in own)
        times = [s and s * pace / 1e3 for s in steps]
        if not setting.timed:
            times = [run["seconds_to_target"] for run in own]
        seconds = mean(times) if times and all(times) else float("nan")
        if setting.way == "dense":
            dense[key] = seconds
        final = [100 * run["final_accuracy"] for run in learnt]
        cells = [
            setting.rate or "none",
            setting.batch,
            setting.way,
            f"{seconds:.1f} ({', '.join('-' if t is None else f'{t:.1f}' for t in times)})"
            if times
            else "-",
            ", ".join(str(each or "-") for each in steps) or "-",
            f"{pace:.0f}",
            f"{mean(run['megabytes_a_step'] for run in own):.2f}",
            f"{mean(final):.2f}" if final else "-",
            f"{dense.get(key, float('nan')) / seconds:.2f}x" if times else "-",
        ]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def is_of(run: Run, setting: Setting) -> bool:
    """Whether a run is of this setting."""
    return all(run[name] == value for name, value in asdict(setting).items())


def learns_as(run: Run, setting: Setting) -> bool:
    """Whether a run learns as one of this setting does, step by step."""
    way = "dense" if setting.way == FACTORS else setting.way
    return (run["way"], run["batch"]) == (way, setting.batch)


def main() -> None:
    """Measure all settings, or those that are asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--worker", help=argparse.SUPPRESS)
    options.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--only", default="", help="part of 'rate batch ranks way'")
    options.add_argument("--kept", type=Path, help="a file of runs, to which these are added")
    given = options.parse_args()
    if given.worker:
        work(Setting(**json.loads(given.worker)), given.seed)
        return
    runs: list[Run] = []
    if given.kept is not None and given.kept.exists():
        runs = [json.loads(line) for line in given.kept.read_text().splitlines()]
    load = os.getloadavg()[0]
    for setting, seed in needed(given.only, given.seeds):
        if any(is_of(run, setting) and run["seed"] == seed for run in runs):
            continue
        runs.append(measure(setting, seed))
        if given.kept is not None:
            given.kept.write_text("".join(json.dumps(run) + "\n" for run in runs))
    print(
        f"{platform.machine()}, {os.cpu_count()} cores for all 8 ranks together, "
        f"load at the start {load:.1f}.\n\n{table(runs)}"
    )


if __name__ == "__main__":
    main()
