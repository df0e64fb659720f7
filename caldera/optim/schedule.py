"""Learning rates that change: functions from the step to the rate, computed inside the plan."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from caldera import op
from caldera.errors import ConfigError
from caldera.lazy import Expr


class Schedule(ABC):
    """A learning rate as a function of the step; one method makes a new one.

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
                "Cosine", expected="0 <= warm_up < steps",
                got=f"warm_up={self.warm_up}, steps={self.steps}",
            )  # fmt: skip

    def rate(self, step: Expr) -> Expr:
        rising = (step + 1.0) * (self.peak / (self.warm_up + 1))
        fraction = op.clip((step - float(self.warm_up)) / float(self.steps - self.warm_up), 0.0, 1.0)
        falling = self.final + (op.cos(fraction * math.pi) + 1.0) * (0.5 * (self.peak - self.final))
        return op.where(step < float(self.warm_up), rising, falling)


def require_positive(where: str, value: float) -> None:
    """Refuse a learning rate that is no positive number."""
    if not value > 0 or math.isinf(value):
        raise ConfigError.build(where, expected="a learning rate above 0", got=f"{value}")
