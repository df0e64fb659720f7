"""Ranks of an experiment: their work, how they are started, and the planner's predictions.

With an mpiexec, ranks are processes: `python -m caldera.bench.reproduce.ranks WORK OPTIONS FILE`;
without, threads of this process.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from caldera import data, nn, optim, parallel
from caldera.base.children import child_environment, python_module, run_program
from caldera.base.file_cache import write_file
from caldera.bench.timing import StepClock, Stopwatch, peak_memory
from caldera.comm import Communicator, run_virtual_ranks, world
from caldera.comm.mpi_library import find_launcher, library
from caldera.comm.supervision import launch
from caldera.compress import compressors
from caldera.errors import CommError
from caldera.nn.layer import Layer
from caldera.parallel.planner import (
    Cluster,
    Compute,
    Prediction,
    Setting,
    Way,
    Wire,
    rank,
    workload_of,
)
from caldera.parallel.planner.compression_cost import CodecCost
from caldera.parallel.planner.ranking import all_ways
from caldera.train.neural_network import NeuralNetwork
from caldera.train.strategy import Strategy

INFINIBAND = Wire(3e-6, 7e9)
"""FDR with 56 Gbit/s, which clusters of K80 and M40 cards had; the papers name no link."""


@dataclass(frozen=True)
class Guess:
    """Prediction for a number of ranks.

    >>> Guess(2, "DataParallel", 0.5, 100.0, 1e9).ranks
    2
    """

    ranks: int
    way: str
    seconds: float
    """Seconds of a step."""
    rate: float
    """Samples a second."""
    memory: float


def guesses(
    model: NeuralNetwork,
    compute: Compute,
    sizes: Mapping[int, int],
    *,
    wire: Wire = INFINIBAND,
    memory: float | None = None,
    hybrid: bool = False,
) -> list[Guess]:
    """Return the best way for each number of ranks and its batch of all ranks together.

    Only data parallelism unless `hybrid`: with branches there are thousands of ways to cut a
    network, and ranking them takes minutes.
    """
    workload = workload_of(model)
    found = []
    for ranks, batch in sizes.items():
        setting = Setting(workload, compute, Cluster(ranks, wire, memory=memory), batch)
        if hybrid or ranks == 1:
            best = rank(setting).best
            way, guess = best.way, best.prediction
        else:
            way, guess = _fastest(_data_parallel(setting), setting)
        found.append(Guess(ranks, way.name, guess.seconds, guess.rate, guess.memory))
    return found


def guess_way(setting: Setting, name: str) -> Prediction:
    """Return the predicted cost of a parallelisation, by the planner's name for it."""
    return next(way for way in all_ways(setting) if way.name == name).predict(setting)


def setting_of(
    model: NeuralNetwork,
    flops: float,
    ranks: int,
    batch: int,
    wire: Wire,
    codes: Mapping[str, CodecCost],
) -> Setting:
    """Return the planner's setting for `ranks` ranks of `flops` operations per second."""
    workload = workload_of(model)
    return Setting(workload, Compute.at_speed(workload, flops), Cluster(ranks, wire), batch, codes)


def _data_parallel(setting: Setting) -> list[Way]:
    # They come first: what follows are thousands.
    kinds = ("DataParallel", "Sharded")
    return list(takewhile(lambda way: way.name.startswith(kinds), all_ways(setting)))


def _fastest(ways: Sequence[Way], setting: Setting) -> tuple[Way, Prediction]:
    tried = [(way, way.predict(setting)) for way in ways if way.exact]
    fitting = [each for each in tried if not each[1].refused] or tried
    return min(fitting, key=lambda each: each[1].seconds)


Options = Mapping[str, Any]
CONSISTENCY: Mapping[str, Callable[[Communicator], Strategy]] = {
    "synchronous, allreduce": lambda c: parallel.DataParallel(communicator=c),
    "synchronous, server": lambda c: parallel.ParameterServer(communicator=c),
    "stale by at most 4, server": lambda c: parallel.ParameterServer(
        mode="stale", bound=4, communicator=c
    ),
    "asynchronous, server": lambda c: parallel.ParameterServer(mode="asynchronous", communicator=c),
    "Hogwild": lambda c: parallel.Hogwild(communicator=c),
    "local steps, every 8": lambda c: parallel.LocalSGD(8, communicator=c),
    "elastic averaging, every 10": lambda c: parallel.ElasticAveraging(every=10, communicator=c),
    "gossip, ring": lambda c: parallel.Gossip("ring", communicator=c),
    "ensemble": lambda c: parallel.Ensemble(communicator=c),
}
"""Strategies from strict to loose consistency, as on the keynote's slide."""
NETWORKS: Mapping[str, tuple[Callable[[], list[Layer]], tuple[int, ...], int]] = {
    "mlp": (lambda: nn.models.mlp((784,), hidden=(528, 528, 528)), (784,), 10),
    "resnet20": (nn.models.resnet20, (3, 32, 32), 10),
    "alexnet": (lambda: nn.models.alexnet(dropout=0.0), (3, 224, 224), 1000),
    "googlenet": (lambda: nn.models.googlenet(auxiliary=False), (3, 224, 224), 1000),
    "inception3": (lambda: nn.models.inception3(auxiliary=False), (3, 299, 299), 1000),
}
"""Layers, the shape of a sample, classes."""


def consistency(communicator: Communicator, options: Options) -> dict[str, Any]:
    """Train digits with one model of consistency: seconds and accuracy after each epoch."""
    digits = data.digits()
    strategy = CONSISTENCY[options["model"]](communicator)
    model = NeuralNetwork(
        nn.models.mlp(digits.shape, hidden=(64,), classes=digits.outputs),
        optimizer=optim.SGD(options["rate"]),
        batch_size=options["batch"],
        seed=options["seed"],
        device="cpu",
    )
    clock = StepClock()
    history = model.fit(
        digits.train,
        validation=digits.test,
        epochs=options["epochs"],
        parallel=strategy,
        callbacks=[clock],
        verbose=0,
    )
    return {
        "seconds": [end - clock.steps[0] for end in clock.epochs],
        "accuracy": history["val_accuracy"],
    }


def steps(communicator: Communicator, options: Options) -> dict[str, Any]:
    """Seconds of each step but the first two, and the memory, of a network on made-up samples."""
    make, shape, classes = NETWORKS[options["network"]]
    draw = np.random.default_rng(0)
    samples = options["batch"] * options["steps"]
    x = draw.standard_normal((samples, *shape)).astype(np.float32)
    y = draw.integers(0, classes, samples)
    # Steps on a GPU run asynchronously: the clock would be read before they end.
    model = NeuralNetwork(
        make(), optimizer=optim.SGD(1e-3), batch_size=options["batch"], device="cpu"
    )
    name = options.get("compression")
    compression = None if name is None else compressors.make(name)
    strategy = parallel.DataParallel(communicator=communicator, compression=compression)
    if "overlap" in options:
        strategy = parallel.Sharded(overlap=options["overlap"], communicator=communicator)
    clock = StepClock()
    model.fit((x, y), epochs=1, parallel=strategy, callbacks=[clock], verbose=0)
    taken = clock.seconds(untimed=2)
    slowest = [max(each) for each in zip(*communicator.gather_objects(taken), strict=True)]
    return {"seconds": slowest, "memory": max(communicator.gather_objects(peak_memory()))}


def sums(communicator: Communicator, options: Options) -> dict[str, list[float]]:
    """Return the seconds of an allreduce on the slowest rank, of each algorithm by turns."""
    numbers = np.ones(options["bytes"] // 4, np.float32)
    found: dict[str, list[float]] = {name: [] for name in options["algorithms"]}
    for turn in range(options["turns"] + 1):
        for name, seconds in found.items():
            communicator.algorithm = name
            communicator.Barrier()
            watch = Stopwatch()
            communicator.Allreduce(numbers, numbers, "mean")
            slowest = max(communicator.gather_objects(watch.wall))
            # Connections are made in the first turn.
            seconds += [slowest] * (turn > 0)
    return found


WORKS: Mapping[str, Callable[[Communicator, Options], dict[str, Any]]] = {
    "consistency": consistency,
    "steps": steps,
    "sums": sums,
}


def main(work: str, options: str, file: str) -> None:
    """Run as one of several processes; the first writes the results to `file`."""
    everyone = world()
    asked = json.loads(options)
    found = [WORKS[work](everyone, each) for each in asked]
    if everyone.rank == 0:
        write_file(Path(file), json.dumps(found))


PROCESSES, THREADS = "processes", "threads of one process"
_LIMIT_S = 900.0


def run_ranks(work: str, ranks: int, asked: Sequence[Options]) -> tuple[list[Any], str]:
    """Return the first rank's results for each of the options in order, and the kind of ranks.

    Every rank computes with one thread, so that numbers of ranks can be compared.
    """
    if ranks > 1 and not (find_launcher() and library()):
        done = run_virtual_ranks(ranks, lambda each: [WORKS[work](each, o) for o in asked])
        return done[0], THREADS
    with tempfile.TemporaryDirectory(prefix="caldera-ranks-") as folder:
        file = Path(folder) / "found.json"
        program = [*python_module("caldera.bench.reproduce.ranks"), work]
        program += [json.dumps(list(asked)), str(file)]
        environment = child_environment() | {"CALDERA_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if ranks > 1:
            job = launch(ranks, program, environment=environment)
            program, environment = job.command, job.environment
        done_there = run_program(*program, seconds=_LIMIT_S, environment=environment)
        if done_there is None:
            raise CommError.build(
                f"{work} on {ranks} ranks", expected=f"an end within {_LIMIT_S:g} s", got="none"
            )
        if done_there.returncode or not file.exists():
            lines = done_there.stderr.decode(errors="replace").strip().splitlines()
            # A launcher adds its own lines after the error of a rank.
            lines = [line for line in lines if "Error: " in line] or lines
            raise CommError.build(
                f"{work} on {ranks} ranks",
                expected="a result",
                got=lines[-1] if lines else "nothing",
                hint="does `caldera run -n 2` work here?",
            )
        return json.loads(file.read_text(encoding="utf-8")), PROCESSES


if __name__ == "__main__":
    main(*sys.argv[1:])
