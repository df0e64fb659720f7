"""How much of the exchange of gradients is hidden behind the backward pass, over slow links.

Two ranks, each on a core and in a network namespace of its own (see links.py). For each network,
rate and batch: a step that exchanges no gradients (but the loss, as all do: so ranks wait for each
other), one that exchanges them when everything is computed, and one that does both at once; the
three take turns. Hidden is the part of the exchange by which the last is shorter. It can be no more
than what is left to compute when a gradient is there: in a convolutional network the large
gradients come first, in the seed's MLP the largest (42% of all) comes last. It takes root.

    python benchmarks/overlap.py [rounds]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from links import Links

import caldera as cd
from caldera import nn, op, optim, parallel
from caldera.comm import world
from caldera.lazy import Expr, Variable
from caldera.strategy import Strategy

RANKS = 2
CASES = [("cnn", "1gbit", 128), ("cnn", "100mbit", 512), ("mlp", "1gbit", 800)]
"""Network, rate and batch: the backward pass takes as long as the exchange, or longer."""
STEPS, TURNS = 6, 3
BUCKET_BYTES = 1 << 20


class Clock(cd.Callback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def batch_ends(self, run: cd.Run) -> None:
        self.times.append(time.perf_counter())


def layers_of(network: str) -> tuple[tuple[int, ...], list[nn.Layer]]:
    """The shape of a sample, and the layers."""
    if network == "mlp":
        return (784,), nn.models.mlp((784,), hidden=(528,) * 3, activation="sigmoid")
    shape = (3, 32, 32)
    convolutions = [
        layer
        for width in (32, 64)
        for layer in (
            nn.Conv2D(width, 3, padding=1), nn.ReLU(), nn.Conv2D(width, 3, padding=1), nn.ReLU(),
            nn.MaxPool2D(2),
        )
    ]  # fmt: skip
    dense = [nn.Flatten(), nn.Dense(256), nn.ReLU(), nn.Dense(10)]
    return shape, [nn.Input(shape), *convolutions, *dense]


class OwnGradients(parallel.DataParallel):
    """Data parallel but for the gradients."""

    def slopes(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        return list(parameters), op.grad(loss, list(parameters))


def step_times(network: str, batch: int, strategy: Strategy) -> list[float]:
    """Seconds of each step but the first two, in which kernels are chosen."""
    generator = np.random.default_rng(0)
    shape, layers = layers_of(network)
    x = generator.normal(size=(batch * (STEPS + 2), *shape)).astype("float32")
    y = generator.integers(0, 10, len(x))
    model = cd.NeuralNetwork(layers, optimizer=optim.SGD(0.05), batch_size=batch)
    clock = Clock()
    model.fit((x, y), verbose=0, callbacks=[clock], parallel=strategy)
    return np.diff(clock.times[1:]).tolist()


def measured(network: str, batch: int) -> list[float]:
    """Median seconds of a step: without exchange, exchanging afterwards, and both at once."""
    # Each rank has a core: what carries its messages takes it from nobody else.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[world().rank % len(cores)]})
    how = {"bucket_bytes": BUCKET_BYTES, "algorithm": "ring"}
    ways: list[Callable[[], Strategy]] = [
        OwnGradients,
        lambda: parallel.DataParallel(overlap=False, **how),
        lambda: parallel.DataParallel(**how),
    ]
    times: list[list[float]] = [[] for _ in ways]
    for turn in range(TURNS + 1):
        for way, found in zip(ways, times, strict=True):
            seconds = step_times(network, batch, way())
            # In the first turn memory is touched for the first time.
            found += seconds if turn else []
    return [statistics.median(found) for found in times]


def main(rounds: int) -> None:
    print("| network | link | batch | compute | then exchange | both at once | exchange | hidden |")
    print("|---|---|---|---|---|---|---|---|")
    for network, rate, batch in CASES:
        with Links(RANKS, rate) as links:
            program = [__file__, "--worker", network, str(batch)]
            found = [json.loads(links.run(program)) for _ in range(rounds)]
        alone, after, both = (statistics.median(each) for each in zip(*found, strict=True))
        hidden = (after - both) / (after - alone)
        times = " | ".join(f"{1e3 * t:.0f} ms" for t in (alone, after, both, after - alone))
        print(f"| {network} | {rate} | {batch} | {times} | {hidden:.0%} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        result = measured(sys.argv[2], int(sys.argv[3]))
        if world().rank == 0:
            print(json.dumps(result))
    else:
        main(int((sys.argv[1:] or ["3"])[0]))
