"""Learning-rate schedules: functions of the step, and rules applied between epochs.

The training loop starts with `rule.value`, runs an epoch, calls `after_epoch` with the metrics (the
same numbers on every rank), and continues with the value it returns. A learning rate is a variable
of the plan, so no plan is compiled again. A rule is saved as `config()` and `state()`, and
continues after `restore(state)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

from caldera import op
from caldera.base.arguments import require
from caldera.base.configurable import Configurable, Family
from caldera.base.registry import nearest
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError


class Schedule(Configurable, ABC):
    """Learning rate as a function of the step; subclasses define `rate`.

    A step is one update of the parameters. Models and checkpoints can be saved only with registered
    schedules (`optim.schedules.register("name")`).

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> class Halving(optim.Schedule):
    ...     def rate(self, step):
    ...         return 0.5 ** step
    >>> step = op.var("step", (), fill=cd.constant(3.0))
    >>> float(Halving().rate(step))
    0.125
    """

    @abstractmethod
    def rate(self, step: Expr) -> Expr:
        """Return the rate at a step (a float scalar that counts from 0)."""


schedules: Family[Schedule] = Family("schedule", Schedule)


@schedules.register("step_decay")
@dataclass(frozen=True)
class StepDecay(Schedule):
    """`initial`, multiplied by `factor` after each `every` steps, or at each of the steps `at`.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> step = op.var("step", (), fill=cd.constant(150.0))
    >>> float(optim.StepDecay(1.0, factor=0.5, every=50).rate(step))
    0.125
    >>> float(optim.StepDecay(1.0, factor=0.5, at=[100, 200]).rate(step))
    0.5
    """

    initial: float
    factor: float = 0.1
    every: int | None = None
    at: Sequence[int] = ()

    def __post_init__(self) -> None:
        require_positive("StepDecay", self.initial)
        _require_factor("StepDecay", self.factor)
        object.__setattr__(self, "at", tuple(self.at))
        require(
            (self.every is None) != (not self.at),
            "StepDecay",
            "either every= or at=",
            f"every={self.every}, at={list(self.at)}",
        )
        for count in self.at or (self.every,):
            require_count("StepDecay", "a step", count)

    def rate(self, step: Expr) -> Expr:
        if self.every is not None:
            return self.initial * self.factor ** op.floor(step / float(self.every))
        passed = sum((op.cast(step >= float(start), step.dtype) for start in self.at), 0.0)
        return self.initial * self.factor**passed


@schedules.register("exponential")
@dataclass(frozen=True)
class Exponential(Schedule):
    """`initial * factor ** (step / steps)`: a smooth decay by `factor` over `steps` steps.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> step = op.var("step", (), fill=cd.constant(200.0))
    >>> float(optim.Exponential(1.0, factor=0.5, steps=100).rate(step))
    0.25
    """

    initial: float
    factor: float
    steps: int = 1

    def __post_init__(self) -> None:
        require_positive("Exponential", self.initial)
        _require_factor("Exponential", self.factor)
        require_count("Exponential", "steps", self.steps)

    def rate(self, step: Expr) -> Expr:
        return self.initial * self.factor ** (step / float(self.steps))


@schedules.register("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """A linear rise over `warm_up` steps, then half a cosine down to `final` at step `steps`.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> schedule = optim.Cosine(1.0, steps=100, warm_up=10)
    >>> step = op.var("step", (), fill=cd.constant(55.0))
    >>> round(float(schedule.rate(step)), 6)
    0.5
    """

    peak: float
    steps: int
    warm_up: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        require_positive("Cosine", self.peak)
        require(
            0 <= self.warm_up < self.steps,
            "Cosine",
            "0 <= warm_up < steps",
            f"warm_up={self.warm_up}, steps={self.steps}",
        )

    def rate(self, step: Expr) -> Expr:
        rising = (step + 1.0) * (self.peak / (self.warm_up + 1))
        since = step - float(self.warm_up)
        fraction = op.clip(since / float(self.steps - self.warm_up), 0.0, 1.0)
        falling = _eased(self.peak, self.final, fraction)
        return op.where(step < float(self.warm_up), rising, falling)


@schedules.register("linear_warm_up")
@dataclass(frozen=True)
class LinearWarmUp(Schedule):
    """A straight rise from `start` over `steps` steps, and then `then`: a number or a schedule.

    The first step has the rate `start`, as in PyTorch's LinearLR; with a large batch that is the
    rate of a small one. A `start` of 0 means then / (steps + 1): no step has the rate 0. A schedule
    that follows counts its own steps from the end of the rise.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> step = op.var("step", (), fill=cd.constant(1.0))
    >>> float(optim.LinearWarmUp(4, then=1.0, start=0.5).rate(step))
    0.625
    >>> float(optim.LinearWarmUp(3, then=1.0).rate(step))
    0.5
    """

    steps: int
    then: float | Schedule
    start: float = 0.0

    def __post_init__(self) -> None:
        require_count("LinearWarmUp", "steps", self.steps)
        if not isinstance(self.then, Schedule):
            require_positive("LinearWarmUp", self.then)
        require(0 <= self.start < math.inf, "LinearWarmUp", "a start >= 0", self.start)

    def rate(self, step: Expr) -> Expr:
        # The schedule that follows is evaluated at no step before its first.
        since = op.maximum(step - float(self.steps), 0.0)
        after = self.then.rate(since) if isinstance(self.then, Schedule) else self.then
        # The value at 0 is what `after` is during the rise.
        if self.start:
            rising = self.start + (after - self.start) * (step / float(self.steps))
        else:
            rising = after * ((step + 1.0) / float(self.steps + 1))
        return op.where(step < float(self.steps), rising, after)


@schedules.register("one_cycle")
@dataclass(frozen=True)
class OneCycle(Schedule):
    """One cycle of `steps` steps: up to `peak` in the fraction `rising`, then down to almost 0.

    It starts at peak / `start_divisor` and ends at that divided by `final_divisor`, both ways along
    half a cosine (Smith and Topin, 2018; with the formulas of PyTorch's OneCycleLR).

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> schedule = optim.OneCycle(1.0, steps=100, rising=0.5)
    >>> [round(float(schedule.rate(op.cast(step, "float32"))), 3) for step in (0, 49, 99)]
    [0.04, 1.0, 0.0]
    """

    peak: float
    steps: int
    rising: float = 0.3
    start_divisor: float = 25.0
    final_divisor: float = 1e4

    def __post_init__(self) -> None:
        require_positive("OneCycle", self.peak)
        require_count("OneCycle", "steps", self.steps)
        require(
            1 < self.rising * self.steps < self.steps,
            "OneCycle",
            "rising between 0 and 1, with more than one step to rise",
            f"rising={self.rising}, steps={self.steps}",
        )
        require(
            min(self.start_divisor, self.final_divisor) >= 1,
            "OneCycle",
            "divisors >= 1",
            f"{self.start_divisor} and {self.final_divisor}",
        )

    def rate(self, step: Expr) -> Expr:
        start = self.peak / self.start_divisor
        top = self.rising * self.steps - 1
        last = float(self.steps - 1)
        up = _eased(start, self.peak, op.clip(step / top, 0.0, 1.0))
        fraction = op.clip((step - top) / (last - top), 0.0, 1.0)
        return op.where(step < top, up, _eased(self.peak, start / self.final_divisor, fraction))


def _eased(first: float, last: float, fraction: Expr) -> Expr:
    """Interpolate from the first value to the last along half a cosine."""
    return last + (op.cos(fraction * math.pi) + 1.0) * (0.5 * (first - last))


def require_positive(where: str, value: float) -> None:
    """Refuse a learning rate that is no positive number."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    require(number and 0 < value < math.inf, where, "a learning rate above 0", value)


def require_count(where: str, name: str, value: object) -> None:
    """Raise unless the value is an integer of at least 1."""
    require(
        isinstance(value, Integral) and not isinstance(value, bool) and not value < 1,
        where,
        f"{name} >= 1",
        f"{value!r}",
    )


def require_fractions(where: str, **values: float) -> None:
    """Refuse coefficients of running means that are not from 0 to just below 1."""
    for name, value in values.items():
        require(0 <= value < 1, where, f"0 <= {name} < 1", value)


def _require_factor(where: str, value: float) -> None:
    require(0 < value <= 1, where, "0 < factor <= 1", value)


class EpochRule(Configurable, ABC):
    """A number that changes between epochs. A subclass defines `controls` and `next`.

    All state of `next` is stored in `memory`, a JSON-serialisable dict.

    >>> from caldera import optim
    >>> class Halving(optim.EpochRule):
    ...     controls = "learning_rate"
    ...     def next(self, metrics):
    ...         return self.value / 2
    >>> rule = Halving(0.5)
    >>> rule.after_epoch({"loss": 1.0}), rule.state()
    (0.25, {'value': 0.25, 'memory': {}})
    """

    controls: ClassVar[str]
    """"learning_rate" or "batch_size"."""

    def __init__(self, initial: float) -> None:
        self.value = initial
        self.memory: dict[str, Any] = {}

    @abstractmethod
    def next(self, metrics: Mapping[str, Any]) -> float:
        """Return the value for the next epoch, from the metrics of the epoch that ended."""

    def decides_by(self, metrics: Container[str]) -> str:
        """Return the name of the metric that the rule reads; empty if it reads none."""
        return ""

    def after_epoch(self, metrics: Mapping[str, Any]) -> float:
        """Decide, remember and give back the value for the next epoch."""
        self.value = self.next(metrics)
        return self.value

    def state(self) -> dict[str, Any]:
        """Return the JSON-serialisable state to checkpoint."""
        return {"value": self.value, "memory": dict(self.memory)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        if set(state) != {"value", "memory"} or set(state["memory"]) != set(self.memory):
            raise ConfigError.build(
                type(self).__name__, expected=f"a state like {self.state()}", got=f"{state}"
            )
        self.value = state["value"]
        self.memory = dict(state["memory"])


epoch_rules: Family[EpochRule] = Family("epoch rule", EpochRule)


@epoch_rules.register("reduce_on_plateau")
class ReduceOnPlateau(EpochRule):
    """A learning rate that is multiplied by `factor` when a metric has stopped improving.

    `monitor` is the validation loss, or the loss without validation. The rate falls after more than
    `patience` epochs in a row in which `monitor` did not improve on its best value by the relative
    amount `threshold`. Then the rule waits `cooldown` epochs before it counts again. The rate never
    falls below `minimum`, and does not change by less than `least_change` (as in PyTorch's
    ReduceLROnPlateau).

    >>> from caldera import optim
    >>> rule = optim.ReduceOnPlateau(0.5, factor=0.5, patience=1)
    >>> [rule.after_epoch({"loss": loss}) for loss in (2.0, 1.0, 1.0, 1.0, 0.5)]
    [0.5, 0.5, 0.5, 0.25, 0.25]
    >>> adam = optim.Adam(optim.ReduceOnPlateau(1e-3, monitor="accuracy", larger_is_better=True))
    """

    controls = "learning_rate"

    def __init__(
        self,
        initial: float,
        *,
        factor: float = 0.1,
        patience: int = 10,
        monitor: str | None = None,
        larger_is_better: bool = False,
        threshold: float = 1e-4,
        cooldown: int = 0,
        minimum: float = 0.0,
        least_change: float = 1e-8,
    ) -> None:
        require_positive("ReduceOnPlateau", initial)
        require(0 < factor < 1, "ReduceOnPlateau", "0 < factor < 1", factor)
        require(
            min(patience, threshold, cooldown, minimum, least_change) >= 0,
            "ReduceOnPlateau",
            "patience, threshold, cooldown, minimum, least_change >= 0",
            f"{patience}, {threshold}, {cooldown}, {minimum} and {least_change}",
        )
        super().__init__(initial)
        self.factor = factor
        self.patience = patience
        self.monitor = monitor
        self.larger_is_better = larger_is_better
        self.threshold = threshold
        self.cooldown = cooldown
        self.minimum = minimum
        self.least_change = least_change
        self.memory = {"best": None, "bad epochs": 0, "waiting": 0}

    def decides_by(self, metrics: Container[str]) -> str:
        return self.monitor or ("val_loss" if "val_loss" in metrics else "loss")

    def next(self, metrics: Mapping[str, Any]) -> float:
        monitor = self.decides_by(metrics)
        if monitor not in metrics:
            raise ConfigError.build(
                "ReduceOnPlateau",
                expected=f"the metric {monitor!r} that it monitors",
                got=", ".join(metrics) or "no metrics",
                hint=nearest(monitor, metrics),
            )
        value = float(metrics[monitor])
        memory = self.memory
        if self._is_better(value, memory["best"]):
            memory["best"] = value
            memory["bad epochs"] = 0
        else:
            memory["bad epochs"] += 1
        if memory["waiting"] > 0:
            memory["waiting"] -= 1
            memory["bad epochs"] = 0
        if memory["bad epochs"] <= self.patience:
            return self.value
        memory["waiting"] = self.cooldown
        memory["bad epochs"] = 0
        reduced = max(self.value * self.factor, self.minimum)
        return reduced if self.value - reduced > self.least_change else self.value

    def _is_better(self, value: float, best: float | None) -> bool:
        if best is None:
            return not math.isnan(value)
        margin = abs(best) * self.threshold
        return value > best + margin if self.larger_is_better else value < best - margin


@epoch_rules.register("growing_batch")
class GrowingBatch(EpochRule):
    """A batch size that is multiplied by `factor` after every `every` epochs, up to `limit`.

    It reduces the noise of the gradients like a falling learning rate, and larger batches use a
    machine better (Smith, Kindermans, Ying and Le, 2018).

    >>> from caldera import optim
    >>> rule = optim.GrowingBatch(64, factor=2, every=2, limit=200)
    >>> [rule.after_epoch({}) for _ in range(6)]
    [64, 128, 128, 200, 200, 200]
    """

    controls = "batch_size"

    def __init__(
        self, initial: int, *, factor: float = 2.0, every: int = 1, limit: int | None = None
    ) -> None:
        require_count("GrowingBatch", "an initial batch size", initial)
        require_count("GrowingBatch", "every", every)
        require(1 <= factor < math.inf, "GrowingBatch", "a factor >= 1", factor)
        require(
            limit is None or limit >= initial,
            "GrowingBatch",
            f"a limit of at least {initial}, the first size",
            limit,
        )
        super().__init__(initial)
        self.initial = initial
        self.factor = factor
        self.every = every
        self.limit = limit
        self.memory = {"epochs": 0}

    def next(self, metrics: Mapping[str, Any]) -> int:
        self.memory["epochs"] += 1
        grown = round(self.initial * self.factor ** (self.memory["epochs"] // self.every))
        return grown if self.limit is None else min(grown, self.limit)
