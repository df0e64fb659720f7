"""Running something while metrics look on, at every level; and what looking on costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caldera.bench.frameworks import Task, Trainer
from caldera.bench.levels.distribution import shares
from caldera.bench.levels.learner import Learner
from caldera.bench.levels.metrics import Metric, Watched, plain_results
from caldera.bench.parts import Array, Optimizer, Sampler, Scheme
from caldera.comm import Communicator, SingleProcess


@dataclass
class Watch:
    """Tells metrics, and keeps its own time apart from that of the work.

    >>> watch = Watch(Watched("network"), [])
    >>> watch.timed(lambda: None)
    >>> watch.watched.step
    1
    """

    watched: Watched
    metrics: Sequence[Metric]
    watching_s: float = 0.0
    """What metrics took while steps went on."""
    _start: float = field(default=0.0, repr=False)
    _told: dict[str, list[Callable[[Watched], None]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for metric in self.metrics:
            metric.begin(self.watched)
        # Only those that want to hear of it: steps can be short.
        for what in ("step", "epoch"):
            plain = getattr(Metric, what)
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
        self._tell("step", end)
        return found

    def epoch_ends(self, accuracy: float | None) -> None:
        """Tell the metrics about the end of an epoch."""
        self.watched.accuracy = accuracy
        self._tell("epoch", time.perf_counter())
        self.watched.epoch += 1

    def _tell(self, what: str, now: float) -> None:
        self.watched.seconds = now - self._start - self.watching_s
        for tell in self._told[what]:
            tell(self.watched)
        self.watching_s += time.perf_counter() - now

    def results(self) -> dict[str, Any]:
        """Of all metrics, by name."""
        return plain_results(self.metrics)


def watch_task(
    task: Task,
    metrics: Sequence[Metric],
    *,
    level: str,
    calls: int,
    flops: float = 0.0,
    nbytes: float = 0.0,
    results: bool = False,
) -> Watch:
    """Levels 0 and 1: call a task again and again; with `results`, metrics see what it gives."""
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
class Samples:
    """What is trained on, and what is tested with.

    >>> x, y = np.zeros((3, 2)), np.zeros(3, int)
    >>> len(Samples(x, y, x, y).y)
    3
    """

    x: Array
    y: Array
    test_x: Array
    test_y: Array


def watch_training(
    network: Learner,
    samples: Samples,
    metrics: Sequence[Metric],
    *,
    sampler: Sampler,
    batch: int,
    epochs: int,
    optimizer: Optimizer | None = None,
    scheme: Scheme | None = None,
    communicator: Communicator | None = None,
    target: float | None = None,
) -> Watch:
    """Levels 2 and 3: train, on one rank or as one of several, and test after each epoch.

    Without an `optimizer` the network makes its own steps, as fast as its framework can. Training
    ends when the test accuracy is `target`, or after all epochs. A `scheme` says what ranks tell
    each other; each has its share of every batch.
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
                watch.timed(lambda x=x, y=y: network.train(x, y))  # type: ignore[misc]
            else:
                part = len(mine) / len(chosen)
                step = _Step(network, weights, optimizer, scheme, ranks, watch.watched.step + 1)
                weights = watch.timed(lambda s=step, x=x, y=y, p=part: s(x, y, p))  # type: ignore[misc]
                watch.watched.loss = step.loss
            asked = time.perf_counter()
        if optimizer is not None:
            network.load(weights)
        elif isinstance(network, Trainer):
            network.wait()
        watch.epoch_ends(tested(network, samples, batch))
        if target is not None and (watch.watched.accuracy or 0.0) >= target:
            break
    return watch


@dataclass
class _Step:
    """Gradients, what ranks tell each other, and the update."""

    network: Learner
    weights: list[Array]
    optimizer: Optimizer
    scheme: Scheme | None
    ranks: Communicator
    number: int
    loss: float = 0.0

    def __call__(self, x: Array, y: Array, part: float) -> list[Array]:
        self.network.load(self.weights)
        self.loss, gradients = self.network.gradients_at(x, y)
        if self.scheme is not None:
            gradients = self.scheme.gradients(self.ranks, [part * each for each in gradients])
        pairs = enumerate(zip(self.weights, gradients, strict=True))
        new = [self.optimizer.update(n, weight, slope, self.number) for n, (weight, slope) in pairs]
        if self.scheme is not None:
            new = self.scheme.weights(self.ranks, new, self.number)
        return new


def tested(network: Learner, samples: Samples, batch: int) -> float:
    """The share of the test samples that is got right; in batches of one size."""
    right = 0
    count = len(samples.test_y)
    for start in range(0, count, batch):
        end = min(start + batch, count)
        # The last batch is filled up: a framework that compiles for shapes compiles once.
        chosen = np.arange(start, start + batch) % count
        scores = network.predict(samples.test_x[chosen])[: end - start]
        right += int((scores.argmax(-1) == samples.test_y[start:end]).sum())
    return right / count
