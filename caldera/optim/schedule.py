"""Learning rates that change: functions from the step to the rate, computed inside the plan."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from caldera import op
from caldera.base.configurable import Configurable, Family
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError


class Schedule(Configurable, ABC):
    """A learning rate as a function of the step; one method makes a new one.

    A step is one update of the parameters. Register a new one (`optim.schedules.register("name")`)
    if models and checkpoints that use it are to be saved.

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
        """The rate at a step (a float scalar that counts from 0)."""


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
        if (self.every is None) == (not self.at):
            raise ConfigError.build(
                "StepDecay",
                expected="either every= or at=",
                got=f"every={self.every}, at={list(self.at)}",
            )
        for count in self.at or (self.every,):
            require_count("StepDecay", "a step", count)

    def rate(self, step: Expr) -> Expr:
        if self.every is not None:
            return self.initial * self.factor ** op.floor(step / float(self.every))
        passed: Expr | float = 0.0
        for start in self.at:
            passed = op.cast(step >= float(start), step.dtype) + passed
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
        if not 0 <= self.warm_up < self.steps:
            raise ConfigError.build(
                "Cosine",
                expected="0 <= warm_up < steps",
                got=f"warm_up={self.warm_up}, steps={self.steps}",
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

    A schedule that follows counts its own steps from the end of the rise. With a large batch,
    `start` is the rate of a small one.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> step = op.var("step", (), fill=cd.constant(1.0))
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
        if not 0 <= self.start < math.inf:
            raise ConfigError.build(
                "LinearWarmUp", expected="a start of 0 or more", got=f"{self.start}"
            )

    def rate(self, step: Expr) -> Expr:
        # The schedule that follows is asked for no step before its first.
        since = op.maximum(step - float(self.steps), 0.0)
        after = self.then.rate(since) if isinstance(self.then, Schedule) else self.then
        # The value at 0 is what `after` is during the rise.
        rising = self.start + (after - self.start) * ((step + 1.0) / float(self.steps + 1))
        return op.where(step < float(self.steps), rising, after)


@schedules.register("one_cycle")
@dataclass(frozen=True)
class OneCycle(Schedule):
    """One cycle of `steps` steps: up to `peak` for a part `rising` of them, then down to almost 0.

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
        if not 1 < self.rising * self.steps < self.steps:
            raise ConfigError.build(
                "OneCycle",
                expected="rising between 0 and 1, with more than one step to rise",
                got=f"rising={self.rising}, steps={self.steps}",
            )
        if not min(self.start_divisor, self.final_divisor) >= 1:
            raise ConfigError.build(
                "OneCycle",
                expected="divisors of 1 or more",
                got=f"{self.start_divisor} and {self.final_divisor}",
            )

    def rate(self, step: Expr) -> Expr:
        start = self.peak / self.start_divisor
        top = self.rising * self.steps - 1
        last = float(self.steps - 1)
        up = _eased(start, self.peak, op.clip(step / top, 0.0, 1.0))
        fraction = op.clip((step - top) / (last - top), 0.0, 1.0)
        return op.where(step < top, up, _eased(self.peak, start / self.final_divisor, fraction))


def _eased(first: float, last: float, fraction: Expr) -> Expr:
    """From the first value to the last along half a cosine."""
    return last + (op.cos(fraction * math.pi) + 1.0) * (0.5 * (first - last))


def require_positive(where: str, value: float) -> None:
    """Refuse a learning rate that is no positive number."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ConfigError.build(where, expected="a learning rate above 0", got=f"{value}")


def require_count(where: str, name: str, value: object) -> None:
    """Refuse what is no whole number of at least 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ConfigError.build(where, expected=f"{name} of 1 or more", got=f"{value!r}")


def require_fraction(where: str, name: str, value: float) -> None:
    """Refuse a coefficient of a running mean that is not from 0 to just below 1."""
    if not 0 <= value < 1:
        raise ConfigError.build(where, expected=f"0 <= {name} < 1", got=f"{value}")


def _require_factor(where: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError.build(where, expected="0 < factor <= 1", got=f"{value}")
