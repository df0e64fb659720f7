"""Stages that change targets: one-hot and mixup."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import float32, is_float, uint8
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import Array, Arrays
from caldera.data.transforms.stage import BatchStage, Exprs
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError

_QUANTILES = 4096
"""Number of possible mixing weights."""
_POINTS = 1 << 16


@dataclass(frozen=True)
class OneHot(BatchStage):
    """Class numbers become a float32 row for each sample: 1 at its class, 0 elsewhere.

    `smoothing` spreads that part of the 1 evenly over all classes. The loss has to take
    probabilities: `nn.losses.CrossEntropy(probabilities=True)`.

    >>> from caldera import data
    >>> data.Pipeline(([0.0, 0.0], [2, 0]), data.OneHot(3)).y.tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """

    classes: int
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.classes < 1 or not 0 <= self.smoothing < 1:
            raise ConfigError.build(
                "data.OneHot",
                expected="at least 1 class and 0 <= smoothing < 1",
                got=f"{self.classes} and {self.smoothing}",
            )

    def apply(self, arrays: Arrays, draw: Draw) -> Arrays:
        labels = self._labels(arrays)
        wrong = (labels < 0) | (labels >= self.classes)
        if wrong.any():
            raise DataError.build(
                "data.OneHot",
                expected=f"classes from 0 to {self.classes - 1}",
                got=str(labels[wrong][0]),
            )
        on, off = self._values()
        rows = np.full((len(labels), self.classes), off, float32)
        rows[np.arange(len(labels)), labels] = on
        return *arrays[:-1], rows

    def expressions(self, arrays: Exprs, draw: LazyDraw) -> Exprs:
        on, off = self._values()
        hot = op.one_hot(self._labels(arrays), self.classes)
        return *arrays[:-1], op.cast(op.where(hot != 0, on, off), float32)

    def _values(self) -> tuple[np.float32, np.float32]:
        off = np.float32(self.smoothing / self.classes)
        return np.float32(1 - self.smoothing + off), off

    def _labels(self, arrays: tuple[Any, ...]) -> Any:
        labels = arrays[-1]
        if len(arrays) < 2 or labels.ndim != 1 or is_float(labels.dtype):
            raise ShapeError.build(
                "data.OneHot",
                expected="one class number for each sample",
                got="no targets" if len(arrays) < 2 else f"{labels.dtype} {labels.shape}",
            )
        return labels


@dataclass(frozen=True)
class Mixup(BatchStage):
    """Mixture of each sample with the next sample of the epoch, and of their targets.

    The weight of the first is drawn from Beta(alpha, alpha). Since the order is random, the next
    sample is an arbitrary one; and since it does not depend on batches, batches of any size on any
    number of ranks contain the same samples. Bytes are divided by 255 first. Class numbers cannot
    be mixed: put `OneHot` first.

    >>> import numpy as np
    >>> from caldera import data
    >>> both = (np.array([[0], [1]], np.float32), [0, 1])
    >>> x, y = data.Pipeline(both, [data.OneHot(2), data.Mixup(1.0)]).batch([0, 1])
    >>> bool(0 < x[0, 0] < 1 and x[0, 0] == y[0, 1])
    True
    """

    is_random = True

    alpha: float = 0.2
    following: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise ConfigError.build("data.Mixup", expected="alpha above 0", got=str(self.alpha))

    @cached_property
    def _parts(self) -> NDArray[np.float32]:
        return beta_quantiles(self.alpha, _QUANTILES).astype(np.float32)

    def apply(self, arrays: Arrays, draw: Draw) -> Arrays:
        count = len(arrays[0]) - 1
        parts = self._parts[draw.whole(count, (_QUANTILES,))[:, 0]]
        return tuple(_mixed(np, _floats(np, array), parts) for array in arrays)

    def expressions(self, arrays: Exprs, draw: LazyDraw) -> Exprs:
        count = len(arrays[0]) - 1
        parts = op.gather(self._parts, draw.whole(count, (_QUANTILES,))[:, 0])
        return tuple(_mixed(op, _floats(op, array), parts) for array in arrays)


def _floats(xp: Any, array: Any) -> Any:
    if is_float(array.dtype):
        return array
    if array.dtype != uint8:
        raise DtypeError.build(
            "data.Mixup",
            expected="floats, or the bytes of images",
            got=str(array.dtype),
            hint="put data.OneHot(classes) before it",
        )
    wide: Array | Expr = array.astype(float32) if xp is np else op.cast(array, float32)
    return wide / np.float32(255)


def _mixed(xp: Any, array: Any, parts: Any) -> Any:
    """Return the weighted mean of each row and the next row."""
    parts = xp.reshape(parts, (len(parts), *(1,) * (array.ndim - 1)))
    parts = parts.astype(array.dtype) if xp is np else op.cast(parts, array.dtype)
    return array[:-1] * parts + array[1:] * (1 - parts)


def beta_quantiles(alpha: float, count: int) -> NDArray[np.float64]:
    """Values of Beta(alpha, alpha) that are equally likely, one from each of `count` parts.

    >>> beta_quantiles(1.0, 4).round(6).tolist()
    [0.125, 0.375, 0.625, 0.875]
    """
    # The density x^(a-1) (1-x)^(a-1) has no bound at 0 where a < 1; as a function of x^a it has.
    powers = np.linspace(0.0, 0.5**alpha, _POINTS)
    values = powers ** (1 / alpha)
    density = (1 - values) ** (alpha - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    lower = (np.arange(count) + 0.5) / count
    half = lower[lower <= 0.5]
    found = np.interp(half, 0.5 * area / area[-1], values)
    return np.concatenate([found, 1 - found[::-1][count % 2 :]])
