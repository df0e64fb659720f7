"""Units: a network that takes and gives numbers as people have them, and computes on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.errors import ConfigError, DataError
from caldera.lazy import Expr
from caldera.nn.basic import Input, check_layers, register
from caldera.nn.layer import Layer

_MOST_SAMPLES = 10_000
"""Samples whose mean and deviation stand for those of all."""


@register
@dataclass(eq=False)
class Rescale(Layer):
    """x * scale + offset; each is a number, or one for each place along the last axis.

    >>> from caldera import nn
    >>> nn.Rescale([1.0, 10.0], 0.5)([[1.0, 2.0]]).tolist()
    [[1.5, 20.5]]
    """

    scale: float | Sequence[float] = 1.0
    offset: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        for name in ("scale", "offset"):
            given = np.asarray(getattr(self, name))
            if given.ndim > 1 or given.dtype.kind not in "iuf" or not np.isfinite(given).all():
                raise ConfigError.build(
                    "Rescale", expected=f"{name}= a finite number, or a list of them",
                    got=repr(getattr(self, name))[:80],
                )  # fmt: skip
            setattr(self, name, given.astype(float).tolist())

    def forward(self, x: Expr) -> Expr:
        for name in ("scale", "offset"):
            given = getattr(self, name)
            if isinstance(given, list) and len(given) != (x.shape[-1] if x.ndim else 1):
                raise self.refuse(f"{len(given)} numbers along the last axis", f"shape {x.shape}")
        scale, offset = (np.asarray(each, x.dtype) for each in (self.scale, self.offset))
        return x * scale + offset


def standardised(layers: Sequence[Layer], samples: Any) -> list[Layer]:
    """Layers between two `Rescale`: one brings inputs like those of `samples` to mean 0 and
    deviation 1, the other what comes out to the mean and deviation of their targets.

    The network takes and predicts numbers in their own units, and its loss is in those; inside all
    are of one size. `samples` are data with x and y, such as `data.windows(...).train`.

    >>> import numpy as np
    >>> from caldera import data, nn
    >>> series = data.windows(20 + np.sin(np.arange(100.0)), past=8)
    >>> layers = nn.standardised([nn.Flatten(), nn.Dense(series.outputs)], series.train)
    >>> [type(layer).__name__ for layer in layers]
    ['Input', 'Rescale', 'Flatten', 'Dense', 'Rescale']
    """
    inner = list(check_layers("nn.standardised", layers))
    if any(isinstance(layer, Input) for layer in inner):
        raise ConfigError.build(
            "nn.standardised", expected="the layers after the input", got="an nn.Input among them"
        )
    if not hasattr(samples, "batch") or not hasattr(samples, "__len__") or not len(samples):
        raise ConfigError.build(
            "nn.standardised", expected="data with x and y", got=type(samples).__name__,
            hint="data.as_data((x, y)) makes them of arrays",
        )  # fmt: skip
    rows = np.unique(np.linspace(0, len(samples) - 1, min(len(samples), _MOST_SAMPLES)).astype(int))
    arrays = samples.batch(rows)
    x, y = arrays[0], arrays[-1]
    if x is y or y.dtype.kind != "f" or x.dtype.kind != "f":
        raise DataError.build(
            "nn.standardised", expected="numbers to predict from numbers",
            got=f"{x.dtype} and " + ("no targets" if x is y else f"targets of {y.dtype}"),
            hint="classes have no scale; nn.BatchNorm brings inputs to one",
        )  # fmt: skip
    mean, deviation = _moments(x)
    target_mean, target_deviation = _moments(y)
    return [
        Input(x.shape[1:]),
        Rescale((1 / deviation).tolist(), (-mean / deviation).tolist()),
        *inner,
        Rescale(target_deviation.tolist(), target_mean.tolist()),
    ]


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each place along the last axis; 1 for those that do not vary."""
    axes = tuple(range(values.ndim - 1)) if values.ndim > 1 else None
    exact = values.astype(np.float64)
    mean, deviation = exact.mean(axis=axes), exact.std(axis=axes)
    varies = deviation > 1e-7 * np.maximum(np.abs(mean), 1e-30)
    return mean, np.where(varies, deviation, 1.0)
