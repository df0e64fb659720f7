"""What showing progress costs a training step.

Steps of one millisecond are imitated by a busy loop, with the totals of a real model behind them,
and the time spent in the callback is added up: in a terminal (the live line), in a log (plain
lines) and silent. It has to stay under 1% of the step. Importing rich, once, is not counted.

    python benchmarks/training/progress.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live  # noqa: F401 - imported before anything is timed

from caldera import nn
from caldera.bench.timing import Stopwatch
from caldera.data import ArrayData
from caldera.train.fit import make_steps
from caldera.train.neural_network import NeuralNetwork
from caldera.train.progress import Progress
from caldera.train.tracking.history import History

STEP_S = 1e-3
EPOCHS = 4
BATCHES = 1500


class ImitatedRun:
    """What the callback sees of a run."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        x = generator.normal(size=(100, 32)).astype("float32")
        data = ArrayData(x, generator.integers(0, 10, 100))
        model = NeuralNetwork([nn.Input((32,)), nn.Dense(10)])
        self.steps = make_steps(model, data)
        plan = self.steps.training(100)
        plan.run(self.steps.feeds(data.batch(np.arange(100)), None))
        self.loader = self
        self.position = 0
        self.history = History()
        self.validation = None
        self.stopped = ""
        self.epoch = self.batch = self.step = 0
        self.epochs = EPOCHS
        self.batches = BATCHES


def cost(verbose: int, terminal: bool) -> float:
    """Seconds a step that the callback takes, everything it does in the run included."""
    spent = 0.0

    def timed(moment: Callable[[Any], None]) -> None:
        nonlocal spent
        start = Stopwatch()
        moment(run)
        spent += start.wall

    run = ImitatedRun()
    with open(os.devnull, "w") as sink:
        console = Console(file=sink, force_terminal=terminal, width=120)
        progress = Progress(verbose, console=console)
        timed(progress.run_begins)
        while run.epoch < EPOCHS:
            run.position = 0
            timed(progress.epoch_begins)
            for _ in range(BATCHES):
                end = perf_counter() + STEP_S
                while perf_counter() < end:
                    pass
                run.batch += 1
                run.step += 1
                run.position += 100
                timed(progress.batch_ends)
            run.history.add(run.epoch, {"loss": 0.5, "accuracy": 0.9, "seconds": 1.0})
            run.epoch += 1
            run.batch = 0
            timed(progress.epoch_ends)
        timed(progress.run_ends)
    return spent / run.step


def main() -> None:
    print(f"{EPOCHS * BATCHES} steps of {STEP_S * 1e3:g} ms")
    for name, verbose, terminal in (
        ("live line in a terminal", 1, True),
        ("plain lines in a log", 1, False),
        ("one line an epoch", 2, False),
        ("silent", 0, False),
    ):
        seconds = cost(verbose, terminal)
        print(f"{name:<24} {seconds * 1e6:6.2f} us a step, {seconds / STEP_S:.2%}")


if __name__ == "__main__":
    main()
