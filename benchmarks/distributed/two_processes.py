"""Two processes on two cores beside one process on one core: the seed's MLP, trained with `fit`.

784-528-528-528-10 with sigmoids, at a global batch of 100 and of 400. Runs of the two alternate,
each in fresh processes with one thread each; what counts is the median time from the end of a step
to the end of the next, data loading and everything else of `fit` included.

    python benchmarks/distributed/two_processes.py [rounds] [sgd adam]
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys

import numpy as np

import caldera as cd
from caldera import nn, optim
from caldera.bench.timing import StepClock
from caldera.comm import world
from caldera.comm.supervision import launch

BATCHES = {100: 1.5, 400: 1.8}
"""Batch sizes, and how many times as fast two processes should be."""
STEPS, EPOCHS = 60, 4
OPTIMIZERS = {
    "sgd": lambda: optim.SGD(0.05, weight_decay=1e-3),
    "adam": lambda: optim.Adam(1e-3),
}


def measured(optimizer: str) -> dict[str, float]:
    """Seconds of a step for each batch size, on this rank's core."""
    everyone = world()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[everyone.rank % len(cores)]})
    generator = np.random.default_rng(0)
    found = {}
    for batch in BATCHES:
        x = generator.normal(size=(batch * STEPS, 784)).astype("float32")
        y = generator.integers(0, 10, len(x))
        layers = nn.models.mlp((784,), hidden=(528,) * 3, activation="sigmoid")
        model = cd.NeuralNetwork(layers, optimizer=OPTIMIZERS[optimizer](), batch_size=batch)
        clock = StepClock()
        model.fit((x, y), epochs=EPOCHS, verbose=0, callbacks=[clock])
        found[str(batch)] = float(np.median(clock.seconds(untimed=STEPS + 1)))
    return found


def run(ranks: int, optimizer: str) -> dict[str, float]:
    """The same in fresh processes."""
    environment = {**os.environ, "CALDERA_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [__file__, "--worker", optimizer]
    if ranks > 1:
        made = launch(ranks, command, environment=environment)
        command, environment = made.command, made.environment
    else:
        command = [sys.executable, *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(rounds: int, optimizers: list[str]) -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores; {rounds} rounds, alternating\n")
    print(
        "| optimizer | batch | one process, one core | two processes, two cores | speed-up | goal |"
    )
    print("|---|---|---|---|---|---|")
    for optimizer in optimizers:
        rows = [(run(1, optimizer), run(2, optimizer)) for _ in range(rounds)]
        for batch, goal in BATCHES.items():
            one, two = (
                statistics.median(row[index][str(batch)] for row in rows) for index in (0, 1)
            )
            ratios = sorted(row[0][str(batch)] / row[1][str(batch)] for row in rows)
            print(
                f"| {optimizer} | {batch} | {one * 1e3:.2f} ms | {two * 1e3:.2f} ms "
                f"| {one / two:.2f}x (rounds {ratios[0]:.2f} to {ratios[-1]:.2f}) | {goal}x |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        result = measured(sys.argv[2])
        if world().rank == 0:
            print(json.dumps(result))
    else:
        main(int((sys.argv[1:] or ["5"])[0]), sys.argv[2:] or list(OPTIMIZERS))
