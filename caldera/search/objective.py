"""Objectives: the criteria by which trials are compared.

An objective reads a trial's report after each step: every column of the history of `fit` (`loss`,
`val_accuracy`, ...), `seconds` since the start of the trial, `epochs` and `parameters`. Some
columns are only measured if an objective or a constraint names them: `flops` of the forward pass
for one sample, an estimate of the `memory` of a training step in bytes, and `latency`, the seconds
that `predict` takes for one sample. Methods receive losses: an objective to maximise is negated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caldera.base.arguments import require
from caldera.base.registry import nearest
from caldera.errors import ConfigError
from caldera.search.trial import Row
from caldera.train.callbacks import _mode

MEASURED = ("flops", "memory", "latency")
"""Columns measured only if an objective or a constraint names them."""
KNOWN_EARLY = ("parameters", "flops", "memory")
"""Columns known before training starts."""
_SMALLER_IS_BETTER = ("value", "seconds", "epochs", "parameters", *MEASURED)


class MissingMetric(ConfigError):
    """An objective or a constraint names a value that no trial reports."""


@dataclass(frozen=True)
class Objective(ABC):
    """Criterion for comparing trials; a subclass implements `measure`.

    `modes` contains "min" or "max" for each value. With `seeds` or `folds` a trial is trained
    several times, and the means count.

    >>> from caldera import search
    >>> class Gap(search.Objective):
    ...     def measure(self, row):
    ...         return abs(row["loss"] - row["val_loss"])
    >>> Gap().values([{"loss": 0.5, "val_loss": 0.75}])
    (0.25,)
    """

    modes: tuple[str, ...] = ("min",)
    seeds: int = 1
    folds: int = 1

    def __post_init__(self) -> None:
        for name in ("seeds", "folds"):
            count = getattr(self, name)
            require(
                not isinstance(count, bool) and isinstance(count, int) and count >= 1,
                "objective",
                f"{name}= at least 1",
                repr(count),
            )
        require(
            self.seeds <= 1 or self.folds <= 1,
            "objective",
            "a mean over seeds or over folds",
            "both",
        )

    @abstractmethod
    def measure(self, row: Mapping[str, float]) -> float:
        """Return the (first) value after a step: what stopping goes by."""

    def values(self, curve: Sequence[Row]) -> tuple[float, ...]:
        """Return the values of a finished trial."""
        return (self.measure(curve[-1]),)

    def losses(self, values: Sequence[float] | None) -> tuple[float, ...]:
        """Return values as losses, which are minimised; a failed trial has infinite losses."""
        if values is None:
            return (math.inf,) * len(self.modes)
        return tuple(
            -value if mode == "max" else value
            for value, mode in zip(values, self.modes, strict=True)
        )

    def loss(self, row: Mapping[str, float]) -> float:
        """Return the first value after a step, as a number that should be small."""
        return self.losses((self.measure(row),) * len(self.modes))[0]

    def names(self) -> tuple[str, ...]:
        """Return a name for each value."""
        return ("value",)

    def columns(self) -> tuple[str, ...]:
        """Return the report columns that the objective requires."""
        return ()

    def is_reached(self, row: Mapping[str, float]) -> bool:
        """Return True if further training cannot change the values."""
        return False

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the objective."""
        return {
            "kind": type(self).__name__,
            "modes": list(self.modes),
            "names": list(self.names()),
            "seeds": self.seeds,
            "folds": self.folds,
        }


def look_up(row: Mapping[str, float], name: str, where: str = "objective") -> float:
    """Return a number of a report; the error for a missing name lists the available ones."""
    if name not in row:
        raise MissingMetric.build(
            where,
            expected=f"trials that report {name!r}",
            got=", ".join(row) or "none",
            hint=nearest(name, row) if row else "",
        )
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MissingMetric.build(where, expected=f"{name} as a single number", got="a table")
    return float(value)


@dataclass(frozen=True)
class MetricObjective(Objective):
    """One number of the report, at the last step or at the best one."""

    name: str = "val_loss"
    at: str = "last"

    def measure(self, row: Mapping[str, float]) -> float:
        return look_up(row, self.name)

    def values(self, curve: Sequence[Row]) -> tuple[float, ...]:
        if self.at == "last":
            return (self.measure(curve[-1]),)
        found = [each for each in map(self.measure, curve) if not math.isnan(each)]
        if not found:
            return (math.nan,)
        return (min(found) if self.modes == ("min",) else max(found),)

    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    names = columns


@dataclass(frozen=True)
class Weighted(Objective):
    """A sum of numbers of the report, each with its weight."""

    weights: Mapping[str, float] = field(default_factory=dict)

    def measure(self, row: Mapping[str, float]) -> float:
        return sum(weight * look_up(row, name) for name, weight in self.weights.items())

    def names(self) -> tuple[str, ...]:
        terms = [
            name if weight == 1 else f"{weight:g} {name}" for name, weight in self.weights.items()
        ]
        return (" + ".join(terms).replace("+ -", "- "),)

    def columns(self) -> tuple[str, ...]:
        return tuple(self.weights)


@dataclass(frozen=True)
class TimeTo(Objective):
    """The seconds until a metric reaches a value; infinite if it does not."""

    name: str = "val_accuracy"
    target: float = 1.0
    mode: str = "max"

    def measure(self, row: Mapping[str, float]) -> float:
        # Before it is reached trials are compared by how near they are.
        value = look_up(row, self.name)
        return self.target - value if self.mode == "max" else value - self.target

    def is_reached(self, row: Mapping[str, float]) -> bool:
        return self.measure(row) <= 0

    def values(self, curve: Sequence[Row]) -> tuple[float, ...]:
        reached = (look_up(row, "seconds") for row in curve if self.is_reached(row))
        return (next(reached, math.inf),)

    def names(self) -> tuple[str, ...]:
        return (f"seconds to {self.name} {self.target:g}",)

    def columns(self) -> tuple[str, ...]:
        return (self.name, "seconds")


@dataclass(frozen=True)
class Pareto(Objective):
    """Several numbers of the report: the best trials form the Pareto front."""

    metrics: tuple[str, ...] = ()

    def measure(self, row: Mapping[str, float]) -> float:
        return look_up(row, self.metrics[0])

    def values(self, curve: Sequence[Row]) -> tuple[float, ...]:
        return tuple(look_up(curve[-1], name) for name in self.metrics)

    def columns(self) -> tuple[str, ...]:
        return self.metrics

    names = columns


@dataclass(frozen=True)
class Constraint:
    """A number of the report that must not be above (or below) a limit.

    >>> from caldera import search
    >>> search.at_most("memory", 2e9)
    Constraint(name='memory', limit=2000000000.0, above=False)
    """

    name: str
    limit: float
    above: bool = False

    def violated(self, row: Mapping[str, float]) -> str:
        """Describe the violation; return an empty string if the constraint is satisfied."""
        value = look_up(row, self.name, "constraint")
        if value >= self.limit if self.above else value <= self.limit:
            return ""
        side = "least" if self.above else "most"
        return f"expected {self.name} at {side} {self.limit:g}, got {value:g}"


# --- as a user writes them


def metric(
    name: str, mode: str | None = None, *, at: str = "last", seeds: int = 1, folds: int = 1
) -> Objective:
    """Return any number that trials report, at their last step or their best (`at="best"`).

    `mode` is "min" or "max"; without it the name decides. With `seeds` or `folds` each trial is
    trained several times, with other seeds or other validation parts, and the mean counts.

    >>> from caldera import search
    >>> search.metric("val_accuracy").modes, search.metric("val_loss").modes
    (('max',), ('min',))
    """
    require(at in ("last", "best"), "metric", 'at="last" or at="best"', repr(at))
    return MetricObjective((mode_of(name, mode),), seeds, folds, name, at)


def mode_of(name: str, mode: str | None = None) -> str:
    """Return "min" or "max", the direction in which a number improves."""
    if mode is None and name in _SMALLER_IS_BETTER:
        return "min"
    return _mode("objective", name, mode)


def accuracy(
    *,
    per_second: float = 0.0,
    per_parameter: float = 0.0,
    seeds: int = 1,
    folds: int = 1,
    **per: float,
) -> Objective:
    """Return the validation accuracy minus weighted costs.

    `per_second=0.001` trades a tenth of a percent of accuracy for a second of training. Other costs
    are given by name: `per_flops=1e-12`.

    >>> from caldera import search
    >>> round(search.accuracy(per_second=0.001).measure({"val_accuracy": 0.9, "seconds": 20.0}), 6)
    0.88
    """
    weights = {"val_accuracy": 1.0, "seconds": -per_second, "parameters": -per_parameter}
    for name, price in per.items():
        require(name.startswith("per_"), "accuracy", "prices such as per_flops=", name)
        weights[name.removeprefix("per_")] = -price
    return weighted(
        {name: each for name, each in weights.items() if each}, seeds=seeds, folds=folds
    )


def weighted(
    weights: Mapping[str, float], mode: str = "max", *, seeds: int = 1, folds: int = 1
) -> Objective:
    """Return the weighted sum of reported numbers, which should be large.

    >>> from caldera import search
    >>> search.weighted({"val_accuracy": 1.0, "parameters": -1e-8}).names()
    ('val_accuracy - 1e-08 parameters',)
    """
    require(weights, "weighted", "a weight for a metric")
    if len(weights) == 1 and list(weights.values()) == [1.0] and mode == "max":
        return MetricObjective(("max",), seeds, folds, next(iter(weights)))
    return Weighted((mode_of("sum", mode),), seeds, folds, dict(weights))


def time_to(name: str, target: float, mode: str | None = None) -> Objective:
    """Return the seconds of training until a metric reaches a value, at which training ends.

    >>> from caldera import search
    >>> search.time_to("val_accuracy", 0.97).names()
    ('seconds to val_accuracy 0.97',)
    """
    return TimeTo(("min",), 1, 1, name, float(target), mode_of(name, mode))


def pareto(*names: str, modes: Sequence[str] | None = None) -> Objective:
    """Return an objective with several numbers, for methods such as "nsga2".

    `study.front` lists the non-dominated trials.

    >>> from caldera import search
    >>> search.pareto("val_accuracy", "seconds").modes
    ('max', 'min')
    """
    require(
        len(names) >= 2 and len(set(names)) >= len(names),
        "pareto",
        "at least two names that differ",
        names,
    )
    given = [None] * len(names) if modes is None else list(modes)
    require(len(given) == len(names), "pareto", f"{len(names)} modes", f"{len(given)}")
    found = tuple(mode_of(name, mode) for name, mode in zip(names, given, strict=True))
    return Pareto(found, 1, 1, tuple(names))


def at_most(name: str, limit: float) -> Constraint:
    """Return a constraint: trials above the limit cannot be the best.

    >>> from caldera import search
    >>> search.at_most("latency", 0.005).violated({"latency": 0.004})
    ''
    """
    return Constraint(name, float(limit))


def at_least(name: str, limit: float) -> Constraint:
    """Return a constraint: trials below the limit cannot be the best.

    >>> from caldera import search
    >>> search.at_least("val_accuracy", 0.9).violated({"val_accuracy": 0.8})
    'expected val_accuracy at least 0.9, got 0.8'
    """
    return Constraint(name, float(limit), above=True)


def as_objective(given: Any, default: str) -> Objective:
    """Convert a user's objective: a name, an objective, or None for the default."""
    if given is None:
        return metric(default)
    if isinstance(given, str):
        return metric(given)
    if not isinstance(given, Objective):
        raise ConfigError.build(
            "objective",
            expected="a name such as 'val_loss' or an objective",
            got=repr(given),
            hint="search.metric, accuracy, weighted, time_to and pareto make one",
        )
    return given
