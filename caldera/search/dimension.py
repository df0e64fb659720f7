"""Dimensions of a search space: the possible values of a parameter.

A dimension maps a number from 0 to 1 to a value. Every method can therefore draw, step and mutate
in the same way for all dimensions. A custom dimension implements only `decode`:

    class Angle(search.Dimension):
        def decode(self, unit):
            return 2 * math.pi * unit
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.errors import ConfigError

Stored = float | int | str | bool | None
"""Type of a stored value: a number, a string, a boolean or None."""

_MOST_POINTS = 100_000


class Dimension(ABC):
    """The possible values of a parameter; a subclass implements `decode`.

    A study stores the result of `stored` for each value: here the number from 0 to 1 itself.

    >>> from caldera import search
    >>> class Power(search.Dimension):
    ...     def decode(self, unit):
    ...         return 2 ** round(10 * unit)
    >>> space = search.Space({"width": Power()})
    >>> space.decoded({"width": 0.5})
    {'width': 32}
    """

    @abstractmethod
    def decode(self, unit: float) -> Any:
        """Return the value at a number from 0 to 1."""

    def stored(self, unit: float) -> Stored:
        """Return the stored form of the value at a number from 0 to 1."""
        return float(unit)

    def unit(self, stored: Any) -> float:
        """Return the number from 0 to 1 that this was stored for."""
        return float(stored)

    def value(self, stored: Any) -> Any:
        """Return the value that `build` gets."""
        return self.decode(float(stored))

    def holds(self, stored: Any) -> bool:
        """Return True if this is a valid stored value of the dimension."""
        return _is_number(stored) and 0 <= stored <= 1

    def grid(self) -> list[Stored] | None:
        """Return the stored values for an exhaustive grid, or None if there are infinitely many."""
        return None

    def near(self, stored: Any, random: np.random.Generator, width: float = 0.1) -> Stored:
        """Return a neighbour: a step of about `width` of the whole range, reflected at its ends."""
        moved = stored
        for _ in range(60):
            moved = self.stored(reflected(self.unit(stored) + width * random.normal()))
            if moved != stored:
                break
            width = min(1.2 * width, 1.0)  # the next step of a coarse range may be far
        return moved

    def distribution(self, optuna: Any) -> Any:
        """Return the equivalent Optuna distribution."""
        return optuna.distributions.FloatDistribution(0.0, 1.0)

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the dimension."""
        return {"kind": type(self).__name__}


def reflected(unit: float) -> float:
    """Reflect a number at the ends of the range from 0 to 1.

    >>> round(reflected(1.25), 6), round(reflected(-0.5), 6)
    (0.75, 0.5)
    """
    folded = abs(unit) % 2.0
    return 2.0 - folded if folded > 1.0 else folded


@dataclass(frozen=True)
class _NumberRange(Dimension):
    """Numbers from `low` to `high`, in steps or not, evenly or by their logarithm."""

    low: Any
    high: Any
    step: Any = None
    log: bool = False

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps from the first value to the last."""

    @abstractmethod
    def at(self, index: int) -> Any:
        """Return the value `index` steps after the first."""

    def _logarithms(self) -> tuple[float, float]:
        return math.log(self.low), math.log(self.high)

    def _by_logarithm(self, unit: float) -> float:
        low, high = self._logarithms()
        return math.exp(low + unit * (high - low))

    def _by_step(self, unit: float) -> Any:
        return self.at(min(int(unit * (self.steps + 1)), self.steps))

    def stored(self, unit: float) -> Any:
        return self.decode(unit)

    def describe(self) -> dict[str, Any]:
        return {"kind": type(self).__name__.lower(), **vars(self)}


@dataclass(frozen=True)
class Uniform(_NumberRange):
    """Numbers from `low` to `high`, in steps if `step` is given, evenly or by their logarithm."""

    step: float | None = None

    def __post_init__(self) -> None:
        _check_range("log" if self.log else "uniform", self.low, self.high, self.log)
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        if self.step is not None:
            if not _is_number(self.step) or not 0 < self.step <= self.high - self.low:
                raise ConfigError.build(
                    "uniform",
                    expected=f"step= a number up to {self.high - self.low:g}",
                    got=repr(self.step),
                )
            object.__setattr__(self, "step", float(self.step))
            # The last step may not reach the end.
            object.__setattr__(self, "high", self.at(self.steps))

    @property
    def steps(self) -> int:
        assert self.step is not None
        return math.floor((self.high - self.low) / self.step + 1e-9)

    def decode(self, unit: float) -> float:
        if self.step is not None:
            return self._by_step(unit)
        if self.log:
            return min(max(self._by_logarithm(unit), self.low), self.high)
        return self.low + unit * (self.high - self.low)

    def at(self, index: int) -> float:
        # 0.1 + 2 * 0.1 should be 0.3, as it is in decimal numbers.
        return float(Decimal(repr(self.low)) + index * Decimal(repr(float(self.step or 0))))

    def index(self, stored: float) -> int:
        """Return the number of steps from the first value to this one."""
        return round((stored - self.low) / float(self.step or 1))

    def unit(self, stored: Any) -> float:
        if self.step is not None:
            return (self.index(stored) + 0.5) / (self.steps + 1)
        if self.log:
            return math.log(stored / self.low) / math.log(self.high / self.low)
        return (stored - self.low) / (self.high - self.low)

    def value(self, stored: Any) -> float:
        return float(stored)

    def holds(self, stored: Any) -> bool:
        slack = 1e-9 * (self.high - self.low)
        return _is_number(stored) and self.low - slack <= stored <= self.high + slack

    def grid(self) -> list[Stored] | None:
        return None if self.step is None else list(map(self.at, range(self.steps + 1)))

    def distribution(self, optuna: Any) -> Any:
        # Without a step: Optuna rounds steps differently and would reject some of our values.
        return optuna.distributions.FloatDistribution(self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Integer(_NumberRange):
    """Integers from `low` to `high`, both included, in steps of `step`."""

    step: int = 1

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            given = getattr(self, name)
            require(
                not isinstance(given, bool) and isinstance(given, int | np.integer),
                "integer",
                f"{name}= an integer",
                repr(given),
            )
            object.__setattr__(self, name, int(given))
        if self.low > self.high:
            _check_range("integer", self.low, self.high, self.log)
        if self.log and (self.low < 1 or self.step != 1):
            raise ConfigError.build(
                "integer",
                expected="low= at least 1 and no step with log=True",
                got=f"low={self.low}, step={self.step}",
            )
        require(self.step >= 1, "integer", "step= at least 1", repr(self.step))
        object.__setattr__(self, "high", self.at(self.steps))

    @property
    def steps(self) -> int:
        return (self.high - self.low) // self.step

    def at(self, index: int) -> int:
        return self.low + index * self.step

    def _logarithms(self) -> tuple[float, float]:
        return math.log(self.low - 0.5), math.log(self.high + 0.5)

    def decode(self, unit: float) -> int:
        if self.log:
            return min(max(round(self._by_logarithm(unit)), self.low), self.high)
        return self._by_step(unit)

    def unit(self, stored: Any) -> float:
        if self.log:
            low, high = self._logarithms()
            return (math.log(stored) - low) / (high - low)
        return ((stored - self.low) // self.step + 0.5) / (self.steps + 1)

    def value(self, stored: Any) -> int:
        return int(stored)

    def holds(self, stored: Any) -> bool:
        is_whole = _is_number(stored) and int(stored) == stored
        return is_whole and self.low <= stored <= self.high

    def grid(self) -> list[Stored] | None:
        return None if self.steps >= _MOST_POINTS else list(map(self.at, range(self.steps + 1)))

    def distribution(self, optuna: Any) -> Any:
        return optuna.distributions.IntDistribution(
            self.low, self.high, log=self.log, step=self.step
        )


class Choice(Dimension):
    """One of several values, of any kind; a value may open parameters that only it has."""

    def __init__(self, values: Sequence[Any], opens: Mapping[str, Mapping[str, Any]] | None = None):
        self.values = list(values)
        self.labels = _labels(self.values)
        self.opens = dict(opens or {})
        """What further parameters there are, by the label of the choice."""

    def decode(self, unit: float) -> Any:
        return self.value(self.stored(unit))

    def stored(self, unit: float) -> Stored:
        return self.labels[min(int(unit * len(self.labels)), len(self.labels) - 1)]

    def unit(self, stored: Any) -> float:
        return (self._index(stored) + 0.5) / len(self.labels)

    def value(self, stored: Any) -> Any:
        return self.values[self._index(stored)]

    def _index(self, stored: Any) -> int:
        for index, label in enumerate(self.labels):
            if label == stored and type(label) is type(stored):
                return index
        raise ConfigError.build("choice", expected=f"one of {self.labels}", got=repr(stored))

    def holds(self, stored: Any) -> bool:
        return any(label == stored and type(label) is type(stored) for label in self.labels)

    def grid(self) -> list[Stored] | None:
        return list(self.labels)

    def near(self, stored: Any, random: np.random.Generator, width: float = 0.1) -> Stored:
        others = [label for label in self.labels if label is not stored and label != stored]
        return others[random.integers(len(others))] if others else self.labels[0]

    def distribution(self, optuna: Any) -> Any:
        return optuna.distributions.CategoricalDistribution(tuple(self.labels))

    def describe(self) -> dict[str, Any]:
        return {"kind": "choice", "labels": list(self.labels)}

    def __repr__(self) -> str:
        return f"choice({self.values!r})"


def _labels(values: Sequence[Any]) -> list[Stored]:
    """Return the stored form of each value: itself if JSON supports it, else a text."""
    plain = all(
        value is None
        or isinstance(value, bool | int | str)
        or (isinstance(value, float) and math.isfinite(value))
        for value in values
    )
    if plain and len(set(values)) == len(values):
        return list(values)
    if plain and len({(type(value), value) for value in values}) < len(values):
        raise ConfigError.build(
            "choice", expected="values that differ", got=repr(list(values))[:200]
        )
    shown = [repr(value) for value in values]
    if len(set(shown)) == len(shown) and not any(" at 0x" in text for text in shown):
        return list(shown)
    named = [getattr(value, "__name__", type(value).__name__) for value in values]
    return [f"{index}: {name}" for index, name in enumerate(named)]


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def _check_range(where: str, low: Any, high: Any, log: bool) -> None:
    require(
        _is_number(low) and _is_number(high) and low < high,
        where,
        "two numbers, the smaller first",
        f"{low!r} and {high!r}",
    )
    if log and low <= 0:
        raise ConfigError.build(
            where, expected="low= above 0, since logarithms are drawn", got=repr(low)
        )


# --- as a user writes them


def uniform(low: float, high: float, step: float | None = None) -> Uniform:
    """Return a uniform dimension from `low` to `high`; with `step`, on the grid `low` + n `step`.

    >>> from caldera import search
    >>> search.uniform(0.1, 0.5, step=0.1).grid()
    [0.1, 0.2, 0.3, 0.4, 0.5]
    """
    return Uniform(low, high, step)


def log(low: float, high: float) -> Uniform:
    """Return a range from `low` to `high` with logarithmic sampling.

    1e-4 to 1e-3 is as likely as 1e-2 to 1e-1.

    >>> from caldera import search
    >>> round(search.log(1e-4, 1e-2).decode(0.5), 6)
    0.001
    """
    return Uniform(low, high, log=True)


def integer(low: int, high: int, step: int = 1, log: bool = False) -> Integer:
    """Return a dimension of integers from `low` to `high`, both included.

    >>> from caldera import search
    >>> search.integer(64, 256, step=64).grid()
    [64, 128, 192, 256]
    """
    return Integer(low, high, step, log)


def choice(values: Sequence[Any] | Mapping[Any, Any]) -> Choice:
    """Return a dimension with these values; a dict maps each value to the parameters it opens.

    >>> from caldera import search
    >>> space = search.Space({"optimizer": search.choice({
    ...     "adam": {"beta1": search.uniform(0.8, 0.99)},
    ...     "sgd": {"momentum": search.uniform(0.0, 0.99)}})})
    >>> space.decoded({"optimizer": "sgd", "momentum": 0.9})
    {'optimizer': 'sgd', 'momentum': 0.9}
    """
    if isinstance(values, str) or not isinstance(values, Mapping | Sequence | range | np.ndarray):
        raise ConfigError.build(
            "choice",
            expected="a list of values, or a dict of values and their dimensions",
            got=repr(values),
        )
    require(len(values), "choice", "at least one value")
    if not isinstance(values, Mapping):
        return Choice([each.item() if isinstance(each, np.generic) else each for each in values])
    made = Choice(list(values))
    if len({str(label) for label in made.labels}) < len(made.labels):
        # Labels of 1 and "1" are their `repr`: as text, which `opens` uses, both are the same.
        made.labels = [repr(value) for value in made.values]
    for label, opened in zip(made.labels, values.values(), strict=True):
        if opened is not None and not isinstance(opened, Mapping):
            raise ConfigError.build(
                "choice",
                expected=f"a dict of the dimensions of {label!r}, or None",
                got=repr(opened),
            )
        made.opens[str(label)] = dict(opened or {})
    return made
