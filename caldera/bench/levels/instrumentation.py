"""Instrumented tasks and trainings of all levels, with the cost of the metrics.

A worker trains once (levels 2 and 3) and returns the values that the metrics recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from caldera import data
from caldera.base.noise import OthersWatch
from caldera.bench.frameworks import Framework, Task, Trainer
from caldera.bench.levels.learner import Learner
from caldera.bench.levels.metrics import (
    AccuracyMeasure,
    Communication,
    Curve,
    DatasetLatency,
    Energy,
    Measure,
    Memory,
    MessageCount,
    TimeToAccuracy,
    WallTime,
    Watched,
    plain_results,
)
from caldera.bench.levels.reference import Quantized, ReferenceSGD, ReferenceTopK, Shuffled
from caldera.bench.levels.schemes import (
    AllReduce,
    Alone,
    Averaging,
    CentralServer,
    Compressed,
    shares,
    stepped,
)
from caldera.bench.levels.validation import Difference
from caldera.bench.parts import Array, OptimizerPart, Sampler, Scheme
from caldera.bench.timing import Stopwatch
from caldera.bench.workloads import LearningCase
from caldera.comm import Communicator, SingleProcess, run_virtual_ranks


@dataclass
class Watch:
    """Calls metrics, and counts their time separately from the time of the work.

    >>> watch = Watch(Watched("network"), [])
    >>> watch.timed(lambda: None)
    >>> watch.watched.step
    1
    """

    watched: Watched
    metrics: Sequence[Measure]
    watching_s: float = 0.0
    """Seconds spent in metrics during the steps."""
    _start: float = field(default=0.0, repr=False)
    _told: dict[str, list[Callable[[Watched], None]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for metric in self.metrics:
            metric.begin(self.watched)
        # Only metrics that override the method: steps can be short.
        for what in ("step", "epoch"):
            plain = getattr(Measure, what)
            wanted = [each for each in self.metrics if getattr(type(each), what) is not plain]
            self._told[what] = [getattr(each, what) for each in wanted]
        self._start = time.perf_counter()

    @property
    def overhead(self) -> float:
        """The share of the time that looking on took."""
        total = time.perf_counter() - self._start
        return self.watching_s / total if total else 0.0

    def timed(self, step: Callable[[], Any]) -> Any:
        """Make a step and tell the metrics."""
        watched = self.watched
        start = time.perf_counter()
        found = step()
        end = time.perf_counter()
        watched.step += 1
        watched.step_seconds = end - start
        self._record("step", end)
        return found

    def epoch_ends(self, accuracy: float | None) -> None:
        """Tell the metrics about the end of an epoch."""
        self.watched.accuracy = accuracy
        self._record("epoch", time.perf_counter())
        self.watched.epoch += 1

    def _record(self, what: str, now: float) -> None:
        self.watched.seconds = now - self._start - self.watching_s
        for tell in self._told[what]:
            tell(self.watched)
        self.watching_s += time.perf_counter() - now

    def results(self) -> dict[str, Any]:
        """Return the results of all metrics, by name."""
        return plain_results(self.metrics)


def watch_task(
    task: Task,
    metrics: Sequence[Measure],
    *,
    level: str,
    calls: int,
    flops: float = 0.0,
    nbytes: float = 0.0,
    results: bool = False,
) -> Watch:
    """Levels 0 and 1: call a task repeatedly; with `results`, pass its results to the metrics."""
    watched = Watched(level, flops=flops, nbytes=nbytes)
    task.call()
    task.wait()

    def step() -> None:
        if results:
            watched.results = task.results()
        else:
            task.call()
            task.wait()

    watch = Watch(watched, metrics)
    for _ in range(calls):
        watch.timed(step)
    return watch


@dataclass(frozen=True)
class DataSplits:
    """Training and test samples.

    >>> x, y = np.zeros((3, 2)), np.zeros(3, int)
    >>> len(DataSplits(x, y, x, y).y)
    3
    """

    x: Array
    y: Array
    test_x: Array
    test_y: Array


def watch_training(
    network: Learner,
    samples: DataSplits,
    metrics: Sequence[Measure],
    *,
    sampler: Sampler,
    batch: int,
    epochs: int,
    optimizer: OptimizerPart | None = None,
    scheme: Scheme | None = None,
    communicator: Communicator | None = None,
    target: float | None = None,
) -> Watch:
    """Levels 2 and 3: train on one or several ranks, and test after each epoch.

    Without an `optimizer` the network makes its own steps, as fast as its framework can. Training
    ends when the test accuracy reaches `target`, or after all epochs. A `scheme` defines the
    communication between ranks; each rank gets its share of every batch.
    """
    ranks = communicator or SingleProcess()
    level = "training" if communicator is None else "distributed"
    watch = Watch(Watched(level, communicator=communicator), metrics)
    weights = network.weights() if optimizer is not None else []
    for epoch in range(epochs):
        asked = time.perf_counter()
        for chosen in sampler.epoch(len(samples.y), batch, epoch):
            mine = chosen[shares(len(chosen), ranks.size)[ranks.rank]]
            x, y = samples.x[mine], samples.y[mine]
            watch.watched.data_seconds = time.perf_counter() - asked
            if optimizer is None:
                assert isinstance(network, Trainer)
                watch.timed(partial(network.train, x, y))
            else:
                part = 1.0 if scheme is None else len(mine) / len(chosen)
                step = partial(stepped, network, weights, optimizer, scheme or Alone(), ranks)
                number = watch.watched.step + 1
                watch.watched.loss, weights = watch.timed(partial(step, (x, y), part, number))
            asked = time.perf_counter()
        if optimizer is not None:
            network.load(weights)
        elif isinstance(network, Trainer):
            network.wait()
        watch.epoch_ends(tested(network, samples, batch))
        if target is not None and (watch.watched.accuracy or 0.0) >= target:
            break
    return watch


def tested(network: Learner, samples: DataSplits, batch: int) -> float:
    """Return the test accuracy, computed in batches of equal size."""
    right = 0
    count = len(samples.test_y)
    for start in range(0, count, batch):
        end = min(start + batch, count)
        # The last batch is filled up: a framework that compiles for shapes compiles once.
        chosen = np.arange(start, start + batch) % count
        scores = network.predict(samples.test_x[chosen])[: end - start]
        right += int((scores.argmax(-1) == samples.test_y[start:end]).sum())
    return right / count


SCHEMES: Mapping[str, Callable[[], Scheme]] = {
    "allreduce": AllReduce,
    "server": CentralServer,
    "averaging": Averaging,
    "top-k": lambda: Compressed(ReferenceTopK(0.05)),
    "quantized": lambda: Compressed(Quantized(16)),
}
"""Ways to distribute training, by the name that a case has."""


def samples_of(case: LearningCase) -> DataSplits:
    """Return the data set of a case in memory, in the shape its network takes."""
    found = data.digits() if case.dataset == "digits" else data.mnist(download=False)
    shape = (-1, *case.network.shape)
    return DataSplits(
        found.train.x.reshape(shape),
        np.asarray(found.train.y),
        found.test.x.reshape(shape),
        np.asarray(found.test.y),
    )


def learned(
    framework: Framework, case: LearningCase, seed: int, epochs: int | None = None
) -> dict[str, Any]:
    """Train once, from the initial weights that all have, with the order of samples of a seed."""
    loading = Stopwatch()
    samples = samples_of(case)
    loaded = loading.wall
    networks = [framework.trainer(case.network, "float32") for _ in range(case.ranks)]
    most = case.epochs if epochs is None else epochs
    began, cpu, others = time.time(), time.process_time(), OthersWatch()
    if not case.scheme:
        watch = _trained(networks[0], case, samples, seed, most)
        cpu, lost = time.process_time() - cpu, others.share()
        found = _reply(watch)
    else:
        rule = case.network.rule

        def work(ranks: Communicator) -> tuple[Watch, list[Array]]:
            network = networks[ranks.rank]
            watch = _trained(
                network,
                case,
                samples,
                seed,
                most,
                optimizer=ReferenceSGD(rule.learning_rate, rule.momentum),
                scheme=SCHEMES[case.scheme](),
                communicator=ranks,
            )
            return watch, network.weights()

        pairs = run_virtual_ranks(case.ranks, work)
        cpu, lost = time.process_time() - cpu, others.share()
        found = _reply(pairs[0][0])
        apart = max(Difference.of(weights, pairs[0][1]).largest for _, weights in pairs)
        found["metrics"]["ranks apart"] = {"unit": "", "value": apart}
        for name in ("bytes sent", "messages sent"):
            values = [watch.results()[name]["value"] or 0.0 for watch, _ in pairs]
            found["metrics"][name]["value"] = float(sum(values))
    return found | {
        "load s": loaded,
        "began": began,
        "samples": len(samples.y),
        "test samples": len(samples.test_y),
        "lost": lost,
        "cpu seconds": cpu,
    }


def _trained(
    network: Trainer,
    case: LearningCase,
    samples: DataSplits,
    seed: int,
    epochs: int,
    **distribution: Any,
) -> Watch:
    """Train with the framework's own steps; as one of several ranks with a scheme."""
    return watch_training(
        network,
        samples,
        training_metrics(case),
        sampler=Shuffled(seed),
        batch=case.network.batch,
        epochs=epochs,
        target=case.target,
        **distribution,
    )


def training_metrics(case: LearningCase) -> list[Measure]:
    """Return the metrics of levels 2 and 3."""
    return [
        WallTime(),
        TimeToAccuracy(case.target),
        AccuracyMeasure(),
        DatasetLatency(),
        Memory(),
        Energy(),
        Communication(),
        MessageCount(),
        Curve(),
    ]


def _reply(watch: Watch) -> dict[str, Any]:
    results = watch.results()
    # The values of every step of every seed are too many to send; only their median is used.
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


Samples = DataSplits
"""Public names."""
