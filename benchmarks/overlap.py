"""How much of the exchange of gradients is hidden behind the backward pass, over slow links.

Two ranks, each in a network namespace of its own (see links.py). For each network, rate and batch:
a step that computes and exchanges nothing, one that exchanges when everything is computed, and one
that does both at once. Hidden is the part of the exchange by which the last is shorter. It can be
no more than what is left to compute when a gradient is there: in a convolutional network the large
gradients come first, in the seed's MLP the largest (42% of all) comes last. It takes root.

    python benchmarks/overlap.py [rounds]
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
from links import Links

import caldera as cd
from caldera import nn, optim, parallel
from caldera.comm import SingleProcess, world
from caldera.strategy import Strategy

RANKS = 2
CASES = [("cnn", "1gbit", 128), ("cnn", "100mbit", 512), ("mlp", "1gbit", 800)]
"""Network, rate and batch: the backward pass takes as long as the exchange, or longer."""
STEPS = 6
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


def step_seconds(network: str, batch: int, strategy: Strategy) -> float:
    """The median time of a step."""
    ranks = strategy.communicator.size
    generator = np.random.default_rng(0)
    samples = batch * ranks // RANKS
    shape, layers = layers_of(network)
    x = generator.normal(size=(samples * (STEPS + 1), *shape)).astype("float32")
    y = generator.integers(0, 10, len(x))
    model = cd.NeuralNetwork(layers, optimizer=optim.SGD(0.05), batch_size=samples)
    clock = Clock()
    model.fit((x, y), verbose=0, callbacks=[clock], parallel=strategy)
    return float(np.median(np.diff(clock.times)))


def measured(network: str, batch: int) -> list[float]:
    """Seconds of a step: computing alone, then exchanging, and both at once."""
    how = {"bucket_bytes": BUCKET_BYTES, "algorithm": "ring"}
    return [
        step_seconds(network, batch, parallel.DataParallel(communicator=SingleProcess())),
        step_seconds(network, batch, parallel.DataParallel(overlap=False, **how)),
        step_seconds(network, batch, parallel.DataParallel(**how)),
    ]


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
