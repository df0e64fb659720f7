"""What random networks of `networks.py` are made and trained with, as values and as code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import numpy as np

from caldera import nn, optim

_MODULES = {"nn": nn, "optim": optim}


@dataclass(frozen=True)
class Made:
    """A layer or an optimizer: its class and what it is made with."""

    name: str
    given: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    module: str = "nn"

    def build(self) -> Any:
        """A new one."""
        given = [_built(each) for each in self.given]
        named = {name: _built(value) for name, value in self.named.items()}
        return getattr(_MODULES[self.module], self.name)(*given, **named)

    def __repr__(self) -> str:
        named = (f"{name}={value!r}" for name, value in self.named.items())
        return f"{self.module}.{self.name}({', '.join([*map(repr, self.given), *named])})"


def _built(given: Any) -> Any:
    if isinstance(given, list):
        return [_built(each) for each in given]
    return given.build() if isinstance(given, Made) else given


@dataclass(frozen=True)
class Settings:
    """How a network is trained.

    `rest` samples are left over from whole batches; `fits` calls of `fit`, between which the model
    goes through a file and back to its device if it is `saved`; at the end it is `evaluated`.
    """

    rest: int = 0
    fits: int = 1
    shuffle: bool = False
    weighted: bool = False
    saved: bool = False
    evaluated: bool = False


PLAIN = Settings()


class Targets(NamedTuple):
    """What a loss is given, drawn: a function of a generator, a count of samples and of results."""

    draw: Callable[[np.random.Generator, int, int], np.ndarray]
    code: str


_NUMBERS = Targets(
    lambda draw, count, results: draw.standard_normal((count, results), np.float32),
    "draw.standard_normal(({count}, {results}), np.float32)",
)
TARGETS = {
    "cross_entropy": Targets(
        lambda draw, count, results: draw.integers(0, results, count),
        "draw.integers(0, {results}, {count})",
    ),
    "mse": _NUMBERS,
    "mae": _NUMBERS,
    "huber": _NUMBERS,
    "binary_cross_entropy": Targets(
        lambda draw, count, results: draw.random((count, results), np.float32).round(),
        "draw.random(({count}, {results}), np.float32).round()",
    ),
    "hinge": Targets(
        lambda draw, count, results: 2 * draw.random((count, results), np.float32).round() - 1,
        "2 * draw.random(({count}, {results}), np.float32).round() - 1",
    ),
}
"""By the name of a loss."""

_RATES = {
    "Adadelta": 1.0,
    "Adagrad": 1e-2,
    "Adam": 1e-3,
    "AdamW": 1e-3,
    "Adamax": 1e-3,
    "LAMB": 1e-3,
    "LARS": 0.1,
    "Lion": 1e-4,
    "Nadam": 1e-3,
    "RMSProp": 1e-2,
    "SGD": 1e-2,
}
"""Usual learning rates."""
_DIVIDES = ("Adagrad", "Adam", "AdamW", "Adamax", "LAMB", "Nadam", "RMSProp")
"""Those that divide by a root."""


def drawn_optimizer(random: Random) -> Made:
    """An optimizer with a schedule, a decay, a bound on gradients and accumulation, or without."""
    name = random.choice(tuple(_RATES))
    rate = random.choice((0.3, 1.0, 1.0, 3.0)) * _RATES[name]
    named: dict[str, Any] = {}
    if random.random() < 0.4:
        named["clip"] = random.choice(
            (
                Made("ClipNorm", (random.choice((0.1, 1.0, 100.0)),), module="optim"),
                Made("ClipValue", (random.choice((1e-3, 0.1)),), module="optim"),
            )
        )
    if random.random() < 0.4:
        strength = random.choice((1e-3, 0.1))
        kind = random.choice(("L2", "L1", "Decoupled", None))
        if kind is None:
            named["weight_decay"] = strength
        else:
            named["decay"] = Made(kind, (strength,), module="optim")
    if random.random() < 0.3:
        named["accumulate"] = random.choice((2, 3))
    if name == "SGD":
        named |= random.choice(({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}))
    elif name == "RMSProp":
        named |= random.choice(({}, {"momentum": 0.5}, {"centered": True}))
    if name in _DIVIDES and random.random() < 0.5:
        # Steps are smooth then: what roundings leave of a gradient of 0 stays as small.
        named["epsilon"] = 1e-4
    return Made(name, (_drawn_rate(random, rate),), named, "optim")


def _drawn_rate(random: Random, rate: float) -> float | Made:
    kinds: Sequence[Made | float] = (
        rate,
        rate,
        rate,
        Made("StepDecay", (rate,), {"factor": 0.5, "every": 2}, "optim"),
        Made("Exponential", (rate,), {"factor": 0.7}, "optim"),
        Made("Cosine", (rate, 7), {"warm_up": 2}, "optim"),
        Made("LinearWarmUp", (3, rate), {}, "optim"),
        Made("OneCycle", (rate, 8), {}, "optim"),
    )
    return random.choice(kinds)


def drawn_settings(random: Random, batch: int) -> Settings:
    """Anything."""
    fits = random.choice((1, 1, 2))
    return Settings(
        rest=random.choice((0, random.randrange(batch))),
        fits=fits,
        shuffle=random.random() < 0.3,
        weighted=random.random() < 0.3,
        saved=fits > 1 and random.random() < 0.5,
        evaluated=True,
    )


def with_dropout(random: Random, layers: Sequence[Made]) -> list[Made]:
    """The layers, some followed by dropout; named, so that it is the same whatever is between."""
    found = []
    for index, layer in enumerate(layers):
        found.append(layer)
        if 0 < index < len(layers) - 1 and random.random() < 0.3:
            rate = random.choice((0.1, 0.5))
            found.append(Made("Dropout", (rate,), {"name": f"dropout{index}"}))
    return found
