"""Preprocessing layers: rescaling of inputs and outputs, and embeddings of table columns.

`Rescale` lets a network accept and return values in their own units and compute on one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor import uniform
from caldera.core.tensor.dtype import real_array_of, refuse_masked
from caldera.errors import ConfigError, DataError
from caldera.nn.basic import check_counts, register
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

    `nn.Rescale.fit(samples)` brings inputs to mean 0 and deviation 1.
    """

    scale: float | Sequence[float] = 1.0
    offset: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        for name in ("scale", "offset"):
            refuse_masked(getattr(self, name), f"Rescale {name}=")
            given = np.asarray(getattr(self, name))
            if given.ndim > 1 or given.dtype.kind not in "iuf" or not np.isfinite(given).all():
                raise ConfigError.build(
                    "Rescale",
                    expected=f"{name}= a finite number, or a list of them",
                    got=repr(getattr(self, name))[:80],
                )
            setattr(self, name, given.astype(float).tolist())

    @classmethod
    def fit(cls, samples: Any, name: str = "") -> Self:
        """The one that brings inputs like those of `samples` to mean 0 and deviation 1, each place
        along the last axis by itself: a network that begins with it takes them in their own units.

        `samples` are data such as `data.windows(...).train`, or an array.

        >>> import numpy as np
        >>> from caldera import nn
        >>> heights = np.array([[150.0], [190.0]])
        >>> nn.Rescale.fit(heights)(heights).numpy().round().tolist()
        [[-1.0], [1.0]]
        """
        x = _inputs(samples)
        if x.dtype.kind not in "biuf" or not np.isfinite(x).all():
            raise DataError.build("nn.Rescale.fit", expected="finite numbers", got=f"{x.dtype}")
        mean, deviation = _moments(x)
        return cls((1 / deviation).tolist(), (-mean / deviation).tolist(), name=name)

    def forward(self, x: Expr) -> Expr:
        for name in ("scale", "offset"):
            given = getattr(self, name)
            if isinstance(given, list) and len(given) != (x.shape[-1] if x.ndim else 1):
                raise self.refuse(f"{len(given)} numbers along the last axis", f"shape {x.shape}")
        scale, offset = (np.asarray(each, x.dtype) for each in (self.scale, self.offset))
        return x * scale + offset


def _inputs(samples: Any) -> np.ndarray:
    """The inputs of some samples, evenly among all."""
    is_data = hasattr(samples, "batch")
    if not is_data:
        samples = np.atleast_1d(real_array_of(samples, "nn.Rescale.fit"))
    if not (len(samples) if is_data else samples.size):
        raise DataError.build("nn.Rescale.fit", expected="samples", got="none")
    rows = np.unique(np.linspace(0, len(samples) - 1, min(len(samples), _MOST_SAMPLES)).astype(int))
    return samples.batch(rows)[0] if is_data else samples[rows]


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each place along the last axis; 1 for those that do not vary."""
    axes = tuple(range(values.ndim - 1)) if values.ndim > 1 else None
    exact = values.astype(np.float64)
    mean, deviation = exact.mean(axis=axes), exact.std(axis=axes)
    varies = deviation > 1e-7 * np.maximum(np.abs(mean), 1e-30)
    return mean, np.where(varies, deviation, 1.0)


@register
@dataclass(eq=False)
class ColumnEmbedding(Layer):
    """A vector of at most `width` numbers for each category of a table's columns.

    Without a width, a column of n categories has vectors of round(6 * n ** 0.25) numbers.

    `spans` says which features of a row are the categories of one column, first and last but one:
    `data.schema.category_spans` does. Each becomes its vector; the other features stay as they are,
    and come first. A category that is unknown has the vector 0.

    >>> from caldera import nn, op
    >>> nn.ColumnEmbedding([(1, 9)], width=3)(op.input("rows", (5, 10))).shape
    (5, 5)
    """

    spans: Sequence[Sequence[int]]
    width: int | None = 8

    def __post_init__(self) -> None:
        if self.width is not None:
            check_counts("ColumnEmbedding", width=self.width)
        self.spans = [[int(start), int(stop)] for start, stop in self.spans]
        ends = [0, *(place for span in self.spans for place in span)]
        if sorted(ends) != ends or any(start >= stop for start, stop in self.spans):
            raise ConfigError.build(
                "ColumnEmbedding",
                expected="spans of features, one after the other",
                got=repr(self.spans)[:80],
                hint="as in [(0, 3), (5, 9)]",
            )

    def build(self, x: Expr) -> None:
        self.weights = [
            self.parameter(
                f"weight{number}", (stop - start, self._width(start, stop)), fill=uniform(-0.5, 0.5)
            )
            for number, (start, stop) in enumerate(self.spans)
        ]

    def _width(self, start: int, stop: int) -> int:
        # More numbers than half of the categories would tell nothing more.
        count = stop - start
        return min(self.width or round(6 * count**0.25), (count + 1) // 2)

    def forward(self, x: Expr) -> Expr:
        self.require(
            x.ndim == 2 and (not self.spans or self.spans[-1][1] <= x.shape[1]),
            "rows with all features of its spans",
            f"shape {x.shape}",
            "take the spans of the data that it is trained on",
        )
        others, embedded, last = [], [], 0
        for (start, stop), weight in zip(self.spans, self.weights, strict=True):
            others.append(x[:, last:start])
            embedded.append(x[:, start:stop] @ weight)
            last = stop
        parts = [each for each in (*others, x[:, last:]) if each.shape[1]]
        return op.concat([*parts, *embedded], axis=1)
