"""Accuracy against bytes: synchronous training beside models that are averaged now and then.

    python benchmarks/distributed/averaging.py [seeds] > benchmarks/results/averaging-$(uname -m).md

Eight ranks that are threads of one process train a network of 64-64-10 (ReLU) on the digits of
scikit-learn, by SGD with momentum, with a whole batch of 64: eight samples a rank. Each way has as
many epochs and the same settings; only how ranks share what they learn differs. Bytes are what a
rank has sent in one run, counted: gradients, exchanges of models, sums of losses and metrics, and
the mean of all models at the end of each epoch, which every rank then has. What is said before the
first step is left out. An ensemble has eight times the work: every member sees all samples.
"""

from __future__ import annotations

import platform
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import caldera as cd
from caldera import data, nn, optim, parallel
from caldera.comm import Communicator, run_virtual_ranks
from caldera.train.strategy import Strategy

RANKS, BATCH, EPOCHS = 8, 64, 20
WAYS: dict[str, Callable[..., Strategy]] = {
    "DataParallel()": parallel.DataParallel,
    "LocalSGD(every=1)": lambda **k: parallel.LocalSGD(1, **k),
    "LocalSGD(every=4)": lambda **k: parallel.LocalSGD(4, **k),
    "LocalSGD(every=16)": lambda **k: parallel.LocalSGD(16, **k),
    "LocalSGD(every=64)": lambda **k: parallel.LocalSGD(64, **k),
    'LocalSGD(every=16, state="keep")': lambda **k: parallel.LocalSGD(16, state="keep", **k),
    "ElasticAveraging(0.9, every=4)": lambda **k: parallel.ElasticAveraging(0.9, 4, **k),
    "ElasticAveraging(0.9, every=16)": lambda **k: parallel.ElasticAveraging(0.9, 16, **k),
    'Gossip("ring", every=4)': lambda **k: parallel.Gossip("ring", 4, **k),
    'Gossip("ring", every=16)': lambda **k: parallel.Gossip("ring", 16, **k),
    'Gossip("random pairs", every=4)': lambda **k: parallel.Gossip("random pairs", 4, **k),
    'Gossip("random pairs", every=16)': lambda **k: parallel.Gossip("random pairs", 16, **k),
    "Ensemble()": parallel.Ensemble,
}


def network(seed: int) -> cd.NeuralNetwork:
    layers = [nn.Input((64,)), nn.Dense(64, activation="relu"), nn.Dense(10)]
    return cd.NeuralNetwork(
        layers, optimizer=optim.SGD(0.1, momentum=0.9), batch_size=BATCH, epochs=EPOCHS, seed=seed
    )


def trained(way: Callable[..., Strategy], seed: int, digits: Any) -> tuple[float, float]:
    """The accuracy on the test set, and the bytes that a rank has sent."""
    models = [network(seed * RANKS) for _ in range(RANKS)]
    train, test = digits

    def work(comm: Communicator) -> tuple[float, int]:
        strategy, model = way(communicator=comm), models[comm.rank]
        model.fit(train, parallel=strategy, verbose=0)
        sent = strategy.plan_communicator.traffic.total.bytes_sent
        sent += strategy.communicator.traffic.mark()["Allreduce"].bytes_sent
        return model.evaluate(test, parallel=strategy)["accuracy"], sent

    found = run_virtual_ranks(RANKS, work)
    return found[0][0], statistics.mean(sent for _, sent in found)


def flat(samples: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = samples.batch(np.arange(len(samples)))
    return x.reshape(len(x), -1), y


def main(seeds: int) -> None:
    digits = data.digits()
    arrays = flat(digits.train), flat(digits.test)
    steps = EPOCHS * -(-len(digits.train) // BATCH)
    size = sum(each.size * 4 for each in network(0).parameters())
    print("# Accuracy against bytes\n")
    print(
        f"`python benchmarks/distributed/averaging.py {seeds}` on {platform.machine()}: "
        f"{RANKS} ranks,"
    )
    print(f"{len(digits.train)} digits to train and {len(digits.test)} to test, {EPOCHS} epochs of")
    print(f"batches of {BATCH} ({steps} steps), {size} bytes of parameters, {seeds} seeds.\n")
    print("| strategy | test accuracy, mean (lowest) | MB sent by a rank | of DataParallel |")
    print("|---|---|---|---|")
    dense = 0.0
    for name, way in WAYS.items():
        found = [trained(way, seed, arrays) for seed in range(seeds)]
        right = [accuracy for accuracy, _ in found]
        sent = statistics.mean(each for _, each in found)
        dense = dense or sent
        mean, lowest = 100 * statistics.mean(right), 100 * min(right)
        row = f"{mean:.2f}% ({lowest:.2f}%) | {sent / 1e6:.3f} | {100 * sent / dense:.1f}%"
        print(f"| `{name}` | {row} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
