"""How much of the exchange of gradients is hidden behind computing, over slow links.

Each rank is in a network namespace of its own (see links.py), has its share of the machine's cores
and computes with one thread; with one core a rank, what carries messages takes it from what
computes. For each case three ways to make a step take turns: one that exchanges no gradients (but
the loss, as all do: so ranks wait for each other), one that exchanges them when everything is
computed, and one that does both at once. Hidden is the part of the exchange by which the last is
shorter. Batches are such that computing takes about twice as long as the exchange.

It can be no more than what is left to compute when a gradient is there: in a convolutional network
the large gradients come first, in the seed's MLP the largest (42% of all) comes last. It takes
root; with torch, `--peer` has its DistributedDataParallel (gloo) do the same.

    python benchmarks/distributed/overlap.py [cnn 1gbit 2 data] [--cores 1] [--rounds 3] [--peer]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import caldera as cd
from benchmarks.distributed.links import Links
from caldera import nn, op, optim, parallel
from caldera.bench.timing import StepClock
from caldera.comm import world
from caldera.compiler.lazy import Expr, Variable
from caldera.train.strategy import Strategy

BITS = {"1gbit": 1e9, "100mbit": 1e8}
LONGER = 2.0
"""How many times as long as the exchange computing takes."""
STEPS, UNTIMED = 6, 2
"""Steps of a turn that count, and those before them, in which kernels are chosen."""
TURNS = {"1gbit": 3, "100mbit": 1}
BUCKET_BYTES = 1 << 20


@dataclass(frozen=True)
class Case:
    """A network trained in one way by some ranks over links of a rate."""

    network: str
    rate: str
    ranks: int
    way: str = "data"


COLUMNS = (
    "strategy",
    "network",
    "link",
    "ranks",
    "batch",
    "compute",
    "then exchange",
    "both at once",
    "exchange",
    "hidden",
)
NAMES = {"data": "DataParallel", "sharded": "Sharded"}
CASES = [
    Case("cnn", "1gbit", 2),
    Case("cnn", "1gbit", 4),
    Case("cnn", "100mbit", 2),
    Case("cnn", "100mbit", 4),
    Case("cnn", "1gbit", 2, "sharded"),
    Case("mlp", "1gbit", 2),
]


def layers_of(network: str) -> tuple[tuple[int, ...], list[nn.Layer]]:
    """The shape of a sample, and the layers."""
    if network == "mlp":
        return (784,), nn.models.mlp((784,), hidden=(528,) * 3, activation="sigmoid")
    shape = (3, 32, 32)
    convolutions = [
        layer
        for width in (32, 64)
        for layer in (
            nn.Conv2D(width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2D(width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2D(2),
        )
    ]
    dense = [nn.Flatten(), nn.Dense(256), nn.ReLU(), nn.Dense(10)]
    return shape, [nn.Input(shape), *convolutions, *dense]


class OwnGradients(parallel.DataParallel):
    """Data parallel but for the gradients."""

    def slopes(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        return list(parameters), op.grad(loss, list(parameters))


def strategies(way: str) -> list[Callable[[], Strategy]]:
    """Without exchange, exchanging afterwards, and both at once."""
    if way == "sharded":
        made, how = parallel.Sharded, {"bucket_bytes": BUCKET_BYTES}
    else:
        made, how = parallel.DataParallel, {"bucket_bytes": BUCKET_BYTES, "algorithm": "ring"}
    return [OwnGradients, lambda: made(overlap=False, **how), lambda: made(**how)]


def step_times(network: str, batch: int, steps: int, strategy: Strategy) -> list[float]:
    """Seconds of each step that counts."""
    generator = np.random.default_rng(0)
    shape, layers = layers_of(network)
    x = generator.standard_normal((batch * (UNTIMED + steps), *shape), np.float32)
    y = generator.integers(0, 10, len(x))
    model = cd.NeuralNetwork(layers, optimizer=optim.SGD(0.05), batch_size=batch)
    clock = StepClock()
    model.fit((x, y), verbose=0, callbacks=[clock], parallel=strategy)
    return clock.seconds(UNTIMED)


def batch_for(case: Case) -> int:
    """A batch that takes the ranks so many times as long as the links take."""
    _, layers = layers_of(case.network)
    parameters = cd.NeuralNetwork(layers).parameters()
    nbytes = sum(each.node.spec.nbytes for each in parameters)
    wire = 2 * (case.ranks - 1) / case.ranks * nbytes * 8 / BITS[case.rate]
    rows = 32
    for _ in range(2):
        # Large batches take less time for a sample.
        times = step_times(case.network, rows * case.ranks, STEPS, OwnGradients())
        wanted = rows * LONGER * wire / statistics.median(times)
        rows = int(world().bcast_object(max(8, round(wanted / 8) * 8)))
    return rows * case.ranks


def measured(case: Case, batch: int) -> list[float]:
    """Median seconds of a step of each way."""
    ways = strategies(case.way)
    times: list[list[float]] = [[] for _ in ways]
    for turn in range(TURNS[case.rate] + 1):
        for way, found in zip(ways, times, strict=True):
            seconds = step_times(case.network, batch, STEPS if turn else 1, way())
            # In the first turn memory is touched for the first time.
            found += seconds if turn else []
    return [statistics.median(found) for found in times]


def worker(case: Case, cores: int, batch: int) -> None:
    """What a rank runs."""
    cd.settings.update(accelerator="cpu")
    take_cores(world().rank, case.ranks, cores)
    batch = batch or batch_for(case)
    times = measured(case, batch)
    if world().rank == 0:
        print(json.dumps([batch, times]))


def row(case: Case, name: str, batch: int, rounds: Sequence[Sequence[float]]) -> str:
    """A row of the table, of the medians over rounds."""
    alone, after, both = (statistics.median(each) for each in zip(*rounds, strict=True))
    hidden = (after - both) / (after - alone)
    times = " | ".join(f"{1e3 * t:.1f} ms" for t in (alone, after, both, after - alone))
    what = f"{name} | {case.network} | {case.rate} | {case.ranks} | {batch}"
    return f"| {what} | {times} | {hidden:.1%} |"


def main(case: Case, cores: int, batch: int, rounds: int, peer: bool) -> None:
    """Print the row of a case, and of torch."""
    with Links(case.ranks, case.rate) as links:
        found = []
        for _ in range(rounds):
            words = [*asdict(case).values(), "--cores", cores, "--batch", batch]
            batch, times = json.loads(links.run([__file__, "--worker", *map(str, words)]))
            found.append(times)
        print(row(case, NAMES[case.way], batch, found), flush=True)
        if peer and case.way == "data":
            words = [case.network, case.rate, batch, cores, links.address(0)]
            program = [str(Path(__file__).with_name("overlap_torch.py")), *map(str, words)]
            found = [json.loads(links.run(program)) for _ in range(rounds)]
            print(row(case, "torch, gloo", batch, found), flush=True)


def take_cores(rank: int, ranks: int, most: int) -> None:
    """Stay on a rank's share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, min(len(cores) // ranks, most))
    first = rank * share % len(cores)
    os.sched_setaffinity(0, cores[first : first + share])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("case", nargs="*", help="network, rate, ranks and way; all without")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="at most, for each rank")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peer", action="store_true", help="torch as well")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=0, help="of all ranks; found without")
    given = parser.parse_args()
    if given.case:
        network, rate, ranks, way = given.case
        chosen = [Case(network, rate, int(ranks), way)]
    else:
        chosen = CASES
    if given.worker:
        worker(chosen[0], given.cores, given.batch)
    else:
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
        for case in chosen:
            main(case, given.cores, given.batch, given.rounds, given.peer)
