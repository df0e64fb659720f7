"""Levels 2 and 3 inside a worker: one training, with what the metrics saw of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from caldera import data
from caldera.bench.frameworks import Framework, Trainer
from caldera.bench.levels.difference import Difference
from caldera.bench.levels.metrics import (
    Accuracy,
    Communication,
    Curve,
    DatasetLatency,
    Energy,
    Memory,
    Messages,
    Metric,
    TimeToAccuracy,
    WallTime,
)
from caldera.bench.levels.reference import SGD, Quantized, Shuffled, TopK
from caldera.bench.levels.schemes import AllReduce, Averaging, Compressed, Server
from caldera.bench.levels.watching import Samples, Watch, watch_training
from caldera.bench.measuring import OthersWatch
from caldera.bench.parts import Array, Scheme
from caldera.bench.workloads import LearningCase
from caldera.comm import Communicator, run_virtual_ranks

SCHEMES: Mapping[str, Callable[[], Scheme]] = {
    "allreduce": AllReduce,
    "server": Server,
    "averaging": Averaging,
    "top-k": lambda: Compressed(TopK(0.05)),
    "quantized": lambda: Compressed(Quantized(16)),
}
"""Ways to distribute training, by the name that a case has."""


def samples_of(case: LearningCase) -> Samples:
    """The data set of a case in memory, in the shape its network takes."""
    found = data.digits() if case.dataset == "digits" else data.mnist(download=False)
    shape = (-1, *case.network.shape)
    return Samples(
        found.train.x.reshape(shape),
        np.asarray(found.train.y),
        found.test.x.reshape(shape),
        np.asarray(found.test.y),
    )


def learned(
    framework: Framework, case: LearningCase, seed: int, epochs: int | None = None
) -> dict[str, Any]:
    """Train once, from the initial weights that all have, with the order of samples of a seed."""
    start = time.perf_counter()
    samples = samples_of(case)
    loaded = time.perf_counter() - start
    networks = [framework.trainer(case.network, "float32") for _ in range(case.ranks)]
    most = case.epochs if epochs is None else epochs
    began, cpu, others = time.time(), time.process_time(), OthersWatch()
    if not case.scheme:
        watch = _alone(networks[0], case, samples, seed, most)
        cpu, lost = time.process_time() - cpu, others.share()
        found = _reply(watch)
    else:
        pairs = run_virtual_ranks(
            case.ranks,
            lambda ranks: _as_rank(ranks, networks[ranks.rank], case, samples, seed, most),
        )
        cpu, lost = time.process_time() - cpu, others.share()
        found = _reply(pairs[0][0])
        apart = max(Difference.of(weights, pairs[0][1]).largest for _, weights in pairs)
        found["metrics"]["ranks apart"] = {"unit": "", "value": apart}
        sent = [_value(watch, "bytes sent") for watch, _ in pairs]
        found["metrics"]["bytes sent"]["value"] = sum(sent)
        messages = [_value(watch, "messages sent") for watch, _ in pairs]
        found["metrics"]["messages sent"]["value"] = sum(messages)
    return found | {
        "load s": loaded,
        "began": began,
        "samples": len(samples.y),
        "test samples": len(samples.test_y),
        "lost": lost,
        "cpu seconds": cpu,
    }


def _metrics(case: LearningCase) -> list[Metric]:
    found = [WallTime(), TimeToAccuracy(case.target), Accuracy(), DatasetLatency(), Memory()]
    return [*found, Energy(), Communication(), Messages(), Curve()]


def _alone(network: Trainer, case: LearningCase, samples: Samples, seed: int, epochs: int) -> Watch:
    """With the framework's own steps and optimizer."""
    return watch_training(
        network,
        samples,
        _metrics(case),
        sampler=Shuffled(seed),
        batch=case.network.batch,
        epochs=epochs,
        target=case.target,
    )


def _as_rank(
    ranks: Communicator,
    network: Trainer,
    case: LearningCase,
    samples: Samples,
    seed: int,
    epochs: int,
) -> tuple[Watch, list[Array]]:
    """As one of several, with the scheme of the case and the reference's optimizer."""
    rule = case.network.rule
    watch = watch_training(
        network,
        samples,
        _metrics(case),
        sampler=Shuffled(seed),
        batch=case.network.batch,
        epochs=epochs,
        target=case.target,
        optimizer=SGD(rule.learning_rate, rule.momentum),
        scheme=SCHEMES[case.scheme](),
        communicator=ranks,
    )
    return watch, network.weights()


def _reply(watch: Watch) -> dict[str, Any]:
    results = watch.results()
    # Too many to send for each step of each seed; their median is what is asked for.
    latency = results["dataset latency"]
    latency["value"] = float(np.median(latency["value"])) if latency["value"] else None
    return {
        "seconds": watch.watched.seconds,
        "accuracy": watch.watched.accuracy,
        "steps": watch.watched.step,
        "epochs": watch.watched.epoch,
        "overhead": watch.overhead,
        "metrics": results,
    }


def _value(watch: Watch, name: str) -> float:
    return float(watch.results()[name]["value"] or 0.0)
