"""Every way to train on several processes of this machine, beside one process.

    python benchmarks/distributed/strategies.py 1 2 4 > benchmarks/results/strategies-$(uname -m).md

The seed's MLP (784-528-528-528-10, ReLU) learns 40,000 images of MNIST once, by SGD with a rate of
0.1 and a whole batch of 200, with one thread a process. Each way has the same settings; those whose
ranks go at their own pace change the parameters as often as they have gradients. A step's time is
that of all steps but the first 20, which make plans, on the slowest rank. `DataParallel()` is
measured first, in the middle and last: what its times differ by is this machine's noise. Needs
caldera[mpi], and MNIST in CALDERA_DATA or ../shared/data.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from statistics import fmean
from typing import Any

import caldera as cd
from caldera import nn, optim, parallel
from caldera.bench.timing import StepClock
from caldera.comm import world
from caldera.comm.supervision import launch
from caldera.train.strategy import SingleProcessStrategy, Strategy

HIDDEN, SAMPLES, BATCH, PLANNING = (528, 528, 528), 40_000, 200, 20
DATA_PARALLEL = "DataParallel()"
WAYS: dict[str, Callable[[], Strategy]] = {
    "Sharded(1)": lambda: parallel.Sharded(1),
    "Sharded(3)": lambda: parallel.Sharded(3),
    "TensorParallel()": parallel.TensorParallel,
    'Hybrid({"data": 2, "model": 2})': lambda: parallel.Hybrid({"data": 2, "model": 2}),
    "PipelineParallel()": parallel.PipelineParallel,
    "PipelineParallel(data=2)": lambda: parallel.PipelineParallel(data=2),
    "PipelineParallel(model=2)": lambda: parallel.PipelineParallel(model=2),
    "ParameterServer()": parallel.ParameterServer,
    DATA_PARALLEL: parallel.DataParallel,
    'ParameterServer(mode="stale", bound=4)': lambda: parallel.ParameterServer(
        mode="stale", bound=4
    ),
    'ParameterServer(mode="asynchronous")': lambda: parallel.ParameterServer(mode="asynchronous"),
    "Hogwild()": parallel.Hogwild,
    "LocalSGD(every=8)": lambda: parallel.LocalSGD(8),
    "ElasticAveraging(every=10)": lambda: parallel.ElasticAveraging(every=10),
    'Gossip("ring")': lambda: parallel.Gossip("ring"),
    'Gossip("random pairs")': lambda: parallel.Gossip("random pairs"),
    "Ensemble()": parallel.Ensemble,
}
FOUR_RANKS = (
    'Hybrid({"data": 2, "model": 2})',
    "PipelineParallel(data=2)",
    "PipelineParallel(model=2)",
)


def measured(strategy: Strategy, data: Any) -> tuple[float, float]:
    """Seconds a step, and the accuracy on the test set."""
    layers: list[nn.Layer] = [nn.Input(data.shape), nn.Flatten()]
    layers += [nn.Dense(width, activation="relu") for width in HIDDEN]
    model = cd.NeuralNetwork(
        [*layers, nn.Dense(data.classes)], optimizer=optim.SGD(0.1), batch_size=BATCH, epochs=1
    )
    clock = StepClock()
    model.fit(data.train.batch(range(SAMPLES)), parallel=strategy, callbacks=[clock], verbose=0)
    seconds = strategy.communicator.gather_objects(fmean(clock.seconds(PLANNING)))
    return max(seconds), model.evaluate(data.test, parallel=strategy)["accuracy"]


def work() -> None:
    """What one rank does; rank 0 prints a row for each way."""
    data = cd.data.mnist(os.environ.get("CALDERA_DATA") or "../shared/data")
    everyone = world()
    if everyone.size == 1:
        threads = os.environ["CALDERA_THREADS"]
        row(
            1,
            f"one process, {threads} thread{'s' * (threads != '1')}",
            *measured(SingleProcessStrategy(), data),
        )
        return
    names = [name for name in WAYS if everyone.size == 4 or name not in FOUR_RANKS]
    for name in [DATA_PARALLEL, *names, DATA_PARALLEL]:
        found = measured(WAYS[name](), data)
        if everyone.rank == 0:
            row(everyone.size, f"`{name}`", *found)


def row(ranks: int, name: str, seconds: float, accuracy: float) -> None:
    print(f"| {ranks} | {name} | {1e3 * seconds:.1f} ms | {accuracy:.2%} |", flush=True)


def main(ranks: list[int]) -> None:
    words = " ".join(map(str, ranks))
    print(
        f"`python benchmarks/distributed/strategies.py {words}` on {platform.machine()}, "
        f"{os.cpu_count()} cores\n\n| ranks | strategy | a step | test accuracy |\n"
        "|---|---|---|---|",
        flush=True,
    )
    for count in ranks:
        for threads in ("1", str(os.cpu_count())) if count == 1 else ("1",):
            environment = {**os.environ, "CALDERA_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "--worker"]
            if count > 1:
                job = launch(count, command[1:], environment=environment)
                command, environment = job.command, job.environment
            subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work()
    else:
        main([int(each) for each in sys.argv[1:]] or [1, 2, 4])
