"""Predictions and their setting: the model, the ranks, and measured times of a step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.formatting import bytes_text
from caldera.comm import Communicator, SingleProcess
from caldera.comm.autotune import slowest
from caldera.compiler.plan.plan import Plan
from caldera.data import Pipeline, as_data
from caldera.errors import ConfigError
from caldera.parallel.data.data_parallel import DataParallel
from caldera.parallel.planner.cluster import Cluster
from caldera.parallel.planner.compression_cost import CodecCost
from caldera.parallel.planner.workload import ModelWorkload
from caldera.train.fit import make_steps
from caldera.train.run import loader_for
from caldera.train.saving.snapshot import Snapshot
from caldera.train.step import StepPlans
from caldera.train.strategy import NO_VOTES, VOTES, SingleProcessStrategy, Strategy

if TYPE_CHECKING:
    from caldera.train.model import Model


FORWARD = 1 / 3
"""Share of the forward pass in an unmeasured step.

The backward pass computes gradients of both inputs and parameters.
"""
_RUNS, _LEAST_RUNS = 15, 2
_GROWTH = 4


@dataclass(frozen=True)
class Compute:
    """Seconds of a step on a single rank, for several numbers of samples.

    `forward` is the share of the forward pass. Times are interpolated linearly between known points
    and extrapolated beyond them. `handing_over` is the additional time of a step whose gradients
    are exchanged, independent of samples: a single rank can update parameters in place, while
    others write gradients, pack them and read them again.

    >>> Compute(((1, 0.5), (3, 1.0))).seconds(2), Compute(((1, 0.5), (3, 1.0))).seconds(5)
    (0.75, 1.5)
    """

    points: tuple[tuple[float, float], ...]
    forward: float = FORWARD
    handing_over: float = 0.0

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        times = [seconds for _, seconds in self.points]
        if not sizes or min(sizes) <= 0 or sorted(set(sizes)) != sizes or min(times) < 0:
            raise ConfigError.build(
                "Compute",
                expected="growing numbers of samples, with seconds for each",
                got=str(self.points),
            )

    @classmethod
    def at_speed(cls, workload: ModelWorkload, flops: float) -> Compute:
        """Return the times of a machine with `flops` operations per second for any batch.

        The backward pass has twice the operations of the forward pass.
        """
        return cls(((1.0, 3 * workload.flops / flops),))

    def seconds(self, samples: float) -> float:
        """Return the time of a step on `samples` samples; it never decreases with samples."""
        # A time below that for fewer samples was disturbed.
        known = list(accumulate(self.points, lambda last, new: (new[0], max(last[1], new[1]))))
        if samples <= known[0][0]:
            # Below the smallest measurement: a fraction of a sample costs a whole one.
            return known[0][1] if len(known) > 1 else known[0][1] * samples / known[0][0]
        for (low, first), (high, second) in pairwise(known):
            if samples <= high:
                return first + (second - first) * (samples - low) / (high - low)
        if len(known) == 1:
            return known[0][1] * samples / known[0][0]
        (low, first), (high, second) = known[-2:]
        return second + (second - first) / (high - low) * (samples - high)

    def faster(self, factor: float) -> Compute:
        """Return the times of a machine `factor` times as fast."""
        points = tuple((size, seconds / factor) for size, seconds in self.points)
        return dataclasses.replace(self, points=points, handing_over=self.handing_over / factor)


def measured(
    model: Model,
    workload: ModelWorkload,
    batch: int,
    budget_s: float = 5.0,
    communicator: Communicator | None = None,
) -> tuple[Compute, ModelWorkload]:
    """Time training steps of up to `batch` samples, and look what memory their plans take.

    Larger batches are tried until the budget is spent. The model stays as it was. The ranks of a
    communicator, which must all call this, begin each step together, and its slowest rank counts:
    ranks that exchange gradients wait for it.
    """
    everyone = communicator or SingleProcess()
    data = _made_up(model, batch)
    trial = _trial(model, data, SingleProcessStrategy())
    before = Snapshot.of(model)
    began = time.perf_counter()
    points: list[tuple[float, float]] = []
    arenas: list[tuple[int, int]] = []
    try:
        for size in sizes_up_to(batch):
            arenas.append((size, trial.training(size).arena_bytes))
            points.append((float(size), _typical(_stepping(trial, data, size), everyone)))
            if slowest(everyone, time.perf_counter() - began) > budget_s and len(points) > 1:
                break
        size = int(points[-1][0])
        forward = _typical(_running(trial, trial.evaluation(size), data, size), everyone)
        # With one sample hardly anything else takes long.
        many = _trial(model, data, _AsIfMany(communicator=SingleProcess()))
        both = _together([_stepping(each, data, 1) for each in (trial, many)], everyone)
    finally:
        before.put_back(model)
    share = min(max(forward / points[-1][1], 0.1), 0.6)
    handing = median(many - alone for alone, many in both)
    found = Compute(tuple(points), share, max(handing, 0.0))
    return found, _with_arenas(workload, arenas)


class _AsIfMany(DataParallel):
    """One rank that prepares gradients for exchange, without a peer."""

    is_distributed = True


def _trial(model: Model, data: tuple[np.ndarray, ...], strategy: Strategy) -> StepPlans:
    """Return plans with a separate optimizer."""
    given = model.optimizer
    made = make_steps(model, as_data(data), strategy)
    return dataclasses.replace(made, optimizer=type(given)(**given.arguments()))


def sizes_up_to(batch: int) -> list[int]:
    """Return the numbers of samples to try.

    >>> sizes_up_to(100)
    [1, 4, 16, 64, 100]
    """
    sizes = [1]
    while sizes[-1] * _GROWTH < batch:
        sizes.append(sizes[-1] * _GROWTH)
    return [*sizes, batch] if batch > 1 else sizes


def _made_up(model: Model, batch: int) -> tuple[np.ndarray, ...]:
    """Return samples that the model can be trained on."""
    generator = np.random.default_rng(0)
    inputs = [
        generator.normal(size=(batch, *shape)).astype(dtype)
        if np.dtype(dtype).kind == "f"
        else np.zeros((batch, *shape), dtype)
        for shape, dtype in model.signature.inputs
    ]
    name, loss = next(iter(model.objective.losses.items()))
    shape, dtype = loss.target_spec((batch, *model.signature.outputs[name]), np.dtype(model.dtype))
    return (*inputs, np.zeros(shape, dtype))


def _stepping(steps: StepPlans, data: Sequence[np.ndarray], size: int) -> Callable[[], None]:
    """Return a function that takes a step as in `fit`, including the batch."""
    count = (_RUNS + 1) * size
    # Repeat the first sample to the required number.
    views = [np.broadcast_to(array[:1], (count, *array.shape[1:])) for array in data]
    loader = loader_for(steps.strategy, Pipeline.of(as_data(tuple(views))), size, shuffle=True)
    batches = steps.source.epoch(loader)

    def step() -> None:
        steps.train(next(batches))
        steps.model.device.stream.synchronize()

    return step


def _running(
    steps: StepPlans, plan: Plan, data: Sequence[np.ndarray], size: int
) -> Callable[[], None]:
    """Return a function that runs a plan."""
    feeds: dict[str, Any] = steps.feeds([array[:size] for array in data], None)
    feeds[VOTES] = NO_VOTES
    feeds = {name: feeds[name] for name in plan.inputs}

    def run() -> None:
        plan.run(feeds)
        plan.device.stream.synchronize()

    run()
    if not plan.device.is_host and plan.can_capture:
        plan.capture()
    return run


def _typical(run: Callable[[], None], everyone: Communicator) -> float:
    """Return the median time of a run on the slowest rank."""
    return median(seconds for (seconds,) in _together([run], everyone))


def _together(runs: Sequence[Callable[[], None]], everyone: Communicator) -> list[list[float]]:
    """Return the times of several turns of runs on the slowest rank, which begin each run together.

    The first turn makes ready.
    """
    for run in runs:
        run()
    found: list[list[float]] = []
    while len(found) < _RUNS and (len(found) < _LEAST_RUNS or sum(map(sum, found)) < 1):
        found.append([])
        for run in runs:
            everyone.Barrier()
            began = time.perf_counter()
            run()
            found[-1].append(slowest(everyone, time.perf_counter() - began))
    return found


def _with_arenas(workload: ModelWorkload, arenas: Sequence[tuple[int, int]]) -> ModelWorkload:
    """Return the workload with measured memory: a line through the two largest batches.

    Small batches may need more memory than large ones, because they use different kernels.
    """
    if len(arenas) < 2:
        return workload
    (small, low), (large, high) = arenas[-2:]
    slope = (high - low) / (large - small)
    if slope <= 0:
        return workload
    inputs = workload.layers[0].output
    workspace = max(high - slope * large, workload.trained)
    return dataclasses.replace(workload, activations=slope + inputs, workspace=workspace)


@dataclass(frozen=True)
class Setting:
    """Model, batch and ranks of a prediction.

    - `batch`: samples of a step, of all ranks together.
    - `codes`: the compressions considered, by name.
    - `every`: number of steps between exchanges of local SGD and elastic averaging.
    """

    workload: ModelWorkload
    compute: Compute
    cluster: Cluster
    batch: int
    codes: Mapping[str, CodecCost] = field(default_factory=dict)
    every: int = 8

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.cluster.ranks

    def seconds(self, samples: float) -> float:
        """Return the computing time of a rank for a step on `samples` samples."""
        return self.cluster.slowdown * self.compute.seconds(samples)

    def handing_over(self) -> float:
        """Return the additional time of a step whose gradients are exchanged."""
        return self.cluster.slowdown * self.compute.handing_over

    def alone(self) -> float:
        """Return the time of one rank with its machine to itself, for the whole batch."""
        return self.compute.seconds(self.batch)

    def with_wire(self, *, latency: float = 1.0, bandwidth: float = 1.0) -> Setting:
        """Return the setting with latency and bandwidth multiplied by factors."""

        def changed(wire: Any) -> Any:
            return wire and replace(
                wire,
                latency=wire.latency * latency,
                behind=wire.behind * latency,
                bandwidth=wire.bandwidth * bandwidth,
            )

        cluster = self.cluster
        cluster = replace(cluster, wire=changed(cluster.wire), inside=changed(cluster.inside))
        return replace(self, cluster=cluster)


@dataclass(frozen=True)
class Prediction:
    """Predicted cost of a step with one strategy.

    - `seconds`: time per `batch` samples. A rank is `computing`, waits for the `exposed` part of
      the exchange, and is `idle`.
    - `exchange`: seconds of all messages, including hidden ones; `sent`: bytes of the busiest rank.
    - `memory`: bytes of the rank with the highest use.
    - `refused`: why it cannot be used; empty if it can.
    """

    batch: int
    seconds: float
    computing: float
    exchange: float = 0.0
    exposed: float = 0.0
    idle: float = 0.0
    sent: float = 0.0
    memory: float = 0.0
    refused: str = ""

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.batch / self.seconds if self.seconds else float("inf")


@dataclass(frozen=True)
class TrainingWay:
    """A strategy with its arguments, before prediction.

    - `family`: its category; `name`: its full name.
    - `maker`: the class of `caldera.parallel` and its arguments.
    - `exact`: True if the result equals one process, up to rounding.
    """

    family: str
    name: str
    maker: tuple[str, Mapping[str, Any]]
    exact: bool
    cost: Callable[[Setting], Prediction] = field(repr=False, compare=False)

    def predict(self, setting: Setting) -> Prediction:
        """Return the predicted cost of a step, and whether it fits."""
        found = self.cost(setting)
        limit = setting.cluster.memory
        if not found.refused and limit is not None and found.memory > limit:
            missing = (
                f"needs {bytes_text(found.memory)} per rank, {bytes_text(limit)} are available"
            )
            return replace(found, refused=missing)
        return found


class CannotTrain(Exception):
    """Raised if a strategy cannot train the model; the message is the reason."""


Cost = Callable[..., Prediction]


def priced(cost: Cost) -> Cost:
    """Return a cost whose `CannotTrain` becomes a refused prediction."""

    @wraps(cost)
    def found(setting: Setting, *given: Any, **named: Any) -> Prediction:
        try:
            return cost(setting, *given, **named)
        except CannotTrain as why:
            return Prediction(setting.batch, float("inf"), 0.0, refused=str(why))

    return found
