"""Parts around a training step: sharded parameters, cached programs, input, search, metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from caldera import data, dmath, nn, search
from caldera.base.machine import usable_cores
from caldera.bench.levels.instrumentation import Watch, training_metrics
from caldera.bench.levels.learner import framework_here
from caldera.bench.levels.metrics import Watched
from caldera.bench.reproduce.criteria import BLOCKS, Findings, Quantity
from caldera.bench.reproduce.experiment import (
    ExperimentContext,
    Measurement,
    Samples,
    Times,
    experiment,
)
from caldera.bench.reproduce.ranks import run_ranks
from caldera.bench.workloads import WORKLOADS, LearningCase, TrainingCase
from caldera.train.neural_network import NeuralNetwork

NETWORKS = ("mlp", "resnet20")
BATCHES = {"mlp": 256, "resnet20": 32}


def replication_findings(samples: Samples) -> Findings:
    """Compare steps that gather parameters while layers compute with steps that wait for them."""
    return {
        "faster": {
            network: Quantity.speedup(found["before"], found["overlapped"])
            for network, found in samples.items()
        }
    }


@experiment("replication", replication_findings)
def replication(context: ExperimentContext) -> Measurement:
    """Time steps on two ranks that own parts of the parameters, by turns."""
    rounds, steps = context.turns(BLOCKS), 4 if context.quick else 6
    samples: dict[str, Times] = {}
    for network in NETWORKS[: 1 if context.quick else 2]:
        context.tell(f"{network} on 2 ranks")
        plain = {"network": network, "batch": BATCHES[network], "steps": steps}
        asked = [plain | {"overlap": overlap} for _ in range(rounds) for overlap in (False, True)]
        answers, _ = run_ranks("steps", 2, asked)
        taken = [answer["seconds"] for answer in answers]
        before, overlapped = (list(chain(*each)) for each in (taken[::2], taken[1::2]))
        samples[network] = {"before": before, "overlapped": overlapped}
    return Measurement(samples, left_out=[*context.skipped("ResNet-20"), "several machines"])


RANKS, LAYERS = 4, 40


def metadata_findings(samples: Samples) -> Findings:
    """Compare the orders of a stored program with the orders of single operations."""
    first, later, single = (
        samples[name] for name in ("first call", "later call", "single operations")
    )
    return {
        "messages": {"": Quantity.exact(later["messages"][0] / single["messages"][0])},
        "bytes": {
            "the first call": Quantity.exact(later["bytes"][0] / first["bytes"][0]),
            "single operations": Quantity.exact(later["bytes"][0] / single["bytes"][0]),
        },
        "equal": {"": Quantity.largest(samples["results"]["difference"])},
    }


@experiment("cached-metadata", metadata_findings)
def cached_metadata(context: ExperimentContext) -> Measurement:
    """Count the orders for a chain of operations, as one program and one by one."""
    context.tell(f"{RANKS} ranks")
    samples: dict[str, dict[str, list[float]]] = {}
    results = []
    with dmath.connect(threads=RANKS) as session:
        x = dmath.array(np.linspace(0.0, 1.0, 4096, dtype=np.float32).reshape(64, 64))
        ways: dict[str, Callable[[Any], Any]] = {
            "first call": lambda value: value,
            "later call": lambda value: value,
            "single operations": lambda value: value.eval(),
        }
        for name, after_each in ways.items():
            before = session.traffic.mark()
            value = x
            for _ in range(LAYERS):
                value = after_each(np.tanh(value + x))
            value.eval()
            count = session.traffic.since(before)["control"]
            samples[name] = {
                "messages": [float(count.messages)],
                "bytes": [float(count.bytes_sent)],
            }
            results.append(value.numpy())
    apart = [float(np.abs(each - results[0]).max()) for each in results]
    return Measurement(samples | {"results": {"difference": apart}})


def overhead_findings(samples: Samples) -> Findings:
    """Compare steps with and without metrics."""
    return {
        "overhead": {
            case: Quantity.speedup(found["watched"], found["alone"])
            for case, found in samples.items()
        }
    }


@experiment("bench-overhead", overhead_findings)
def bench_overhead(context: ExperimentContext) -> Measurement:
    """Time training steps with and without the metrics of level 2."""
    learning = WORKLOADS["training"].case("digits mlp")
    deep = WORKLOADS["mlp-depth"].quick[1]
    assert isinstance(learning, LearningCase)
    assert isinstance(deep, TrainingCase)
    samples = {}
    for network in (learning.network, deep):
        context.tell(network.name)
        with framework_here("caldera") as framework:
            trainer = framework.trainer(network, "float32")
        watch = Watch(Watched("training"), training_metrics(learning))

        def step(task: Any = trainer) -> None:
            task.call()
            task.wait()

        def watched(watch: Watch = watch, step: Callable[[], None] = step) -> None:
            watch.timed(step)

        samples[network.name] = context.in_turns({"alone": step, "watched": watched}, least=0.05)
    return Measurement(samples)


WORKERS = (0, 1, 2, 4, 8, 16)
STEP_S, READ_S = 2e-3, 1e-2


class SlowDisk(data.ArrayData):
    """Samples that arrive late, as from a slow disk.

    >>> len(SlowDisk(np.zeros((3, 2)), np.zeros(3, int)))
    3
    """

    def raw_batch(self, indices: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        time.sleep(READ_S)
        return super().raw_batch(indices)


def input_findings(samples: Samples) -> Findings:
    """Compare epochs that tune themselves with epochs of the best fixed setting."""
    return {
        "rate": {
            kind: Quantity.speedup(found["best fixed"], found["tuned"])
            for kind, found in samples.items()
        }
    }


@experiment("input-tuning", input_findings)
def input_tuning(context: ExperimentContext) -> Measurement:
    """Find the best of several fixed numbers of workers, then time it and tuned epochs by turns."""
    images = np.random.default_rng(0).integers(0, 256, (3200, 3, 48, 48)).astype(np.uint8)
    source = images, np.arange(len(images)) % 10
    kinds: dict[str, tuple[Any, list[data.Stage]]] = {
        "slow disk": (SlowDisk(*source), [data.Mirror()]),
        "slow augmentation": (source, [data.Rotate(15), data.Mirror()]),
    }
    samples: dict[str, Times] = {}
    for kind, (samples_of, stages) in list(kinds.items())[: 1 if context.quick else 2]:

        def loader(**setting: int) -> Any:
            return data.Loader(data.Pipeline(samples_of, stages, **setting), 32)  # noqa: B023

        context.tell(f"{kind}, fixed")
        fixed = {count: loader(workers=count) for count in WORKERS}
        times = {count: _batch_seconds(each) for count, each in fixed.items()}
        best = min(times, key=lambda count: times[count])
        context.tell(f"{kind}, {best} workers and tuned")
        ways = {"best fixed": fixed[best], "tuned": loader()}
        samples[kind] = {name: [] for name in ways}
        for _ in range(context.turns()):
            for name, each in ways.items():
                samples[kind][name].append(_batch_seconds(each))
    return Measurement(samples, left_out=context.skipped("slow augmentation"))


def _batch_seconds(loader: Any) -> float:
    """Return the seconds of a batch of an epoch after its first ten, with steps that only wait."""
    ends = []
    for _ in loader:
        time.sleep(STEP_S)
        ends.append(time.perf_counter())
    return (ends[-1] - ends[9]) / (len(ends) - 10)


SPACE = {
    "learning_rate": search.log(1e-4, 1.0),
    "width": search.choice([16, 32, 64, 128]),
}
NEAR = 0.005
"""Accuracy below the best of random search that counts as reached."""
_ONE, _MANY, _STOPPED = "one worker", "several workers", "several workers, stopped early"


def search_findings(samples: Samples) -> Findings:
    """Compare times until an accuracy is reached, seed by seed."""
    one = samples[_ONE]["seconds"]
    found: dict[str, dict[str, Quantity]] = {"workers": {}, "stopped": {}}
    for kind, name in (("workers", _MANY), ("stopped", _STOPPED)):
        others = samples.get(name, {}).get("seconds", [])
        gains = [a / b for a, b in zip(one, others, strict=False) if b > 0.0]
        whole = len(gains) == len(one)
        found[kind][""] = Quantity.over_seeds(gains) if whole else Quantity.missing("no result")
    return found


@experiment("search-time", search_findings)
def search_time(context: ExperimentContext) -> Measurement:
    """Search with one worker and with several until an accuracy is reached."""
    seeds, trials = (3, 6) if context.quick else (5, 12)
    count = max(2, min(4, usable_cores()))
    ways: dict[str, tuple[int, str | None]] = {
        _ONE: (1, None),
        _MANY: (count, None),
        _STOPPED: (count, "asha"),
    }
    # Kernels are chosen, and processes started, in a first search.
    searched(0, 2, 2, None)
    seconds: Times = {name: [] for name in ways}
    for seed in range(seeds):
        target = 0.0
        for name, (workers, stop) in ways.items():
            context.tell(f"seed {seed}, {name}")
            reached = searched(seed, trials, workers, stop)
            target = target or max(accuracy for _, accuracy in reached) - NEAR
            when = [after for after, accuracy in reached if accuracy >= target]
            seconds[name].append(min(when, default=np.inf))
    samples = {name: {"seconds": taken} for name, taken in seconds.items()}
    return Measurement(samples, left_out=[*context.skipped("trials after 6"), "several nodes"])


def searched(seed: int, trials: int, workers: int, stop: str | None) -> list[tuple[float, float]]:
    """Return the seconds after which each trial ended, with its accuracy."""
    began = time.time()
    study = search.run(
        _network,
        SPACE,
        data.digits(),
        stop=stop,
        trials=trials,
        objective="val_accuracy",
        epochs=9,
        seed=seed,
        workers=workers,
        verbose=0,
    )
    return [
        (each.ended - began, each.value)
        for each in study.trials
        if each.ended is not None and each.value is not None
    ]


def _network(learning_rate: float, width: int) -> NeuralNetwork:
    layers = nn.models.mlp((1, 8, 8), hidden=(width,), classes=10)
    return NeuralNetwork(
        layers, optimizer="sgd", learning_rate=learning_rate, batch_size=16, device="cpu"
    )
