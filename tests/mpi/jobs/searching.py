"""Searches over ranks: alone, two a trial, and with one that dies; each rank has the study."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import caldera as cd
from caldera import nn, search
from caldera.comm import world


def squared(x: int) -> float:
    with open("ran", "a") as file:
        file.write(f"{x}\n")
    time.sleep(0.001)
    return float((x - 5) ** 2)


def dies_once(x: int) -> float:
    mark = Path("died")
    if x == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return float(x)


def line(learning_rate: float) -> cd.Model:
    layers = [nn.Input((1,)), nn.Dense(1)]
    return cd.NeuralNetwork(
        layers, loss="mse", optimizer="sgd", learning_rate=learning_rate, batch_size=10
    )


def main() -> None:
    rank = world().rank
    study = search.run(squared, {"x": search.integer(0, 19)}, method="grid", verbose=0)
    print(f"rank {rank}: {len(study.trials)} trials, best {study.best.parameters}", flush=True)
    x = np.linspace(-1, 1, 40, dtype="float32")[:, None]
    rates = {"learning_rate": search.choice([0.01, 0.3])}
    study = search.run(
        line,
        rates,
        (x, 2 * x),
        method="grid",
        epochs=4,
        ranks_per_trial=2,
        folder="study",
        verbose=0,
    )
    print(f"rank {rank}: best {study.best.parameters} after {len(study.best.curve)}", flush=True)
    if "dies" in sys.argv:
        study = search.run(dies_once, {"x": search.integer(0, 9)}, method="grid", verbose=0)
        print(f"rank {rank}: {[trial.value for trial in study.trials]}", flush=True)


if __name__ == "__main__":
    main()
