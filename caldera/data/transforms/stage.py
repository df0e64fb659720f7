"""Stages of a pipeline, each a function from a batch to a batch, and stages of targets.

A stage receives all arrays of a batch and the `Draw` that names its random numbers. It returns new
arrays and does not modify its arguments, so that several threads may use it simultaneously. If
batches are made on a device, a stage is written as an expression; the random numbers are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import float32, is_float, uint8
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import Array, Arrays
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError

Exprs: TypeAlias = tuple[Expr, ...]


class BatchStage(ABC):
    """Transform of a whole batch, inputs and targets; a subclass needs only `apply`.

    The result for a sample depends on that sample and on the random numbers of its position, never
    on the rest of its batch; a stage that mixes samples declares the number it needs (`following`).

    >>> import numpy as np
    >>> from caldera import data
    >>> class Double(data.Stage):
    ...     def apply(self, arrays, draw):
    ...         x, y = arrays
    ...         return x, 2 * y
    >>> pipeline = data.Pipeline((np.zeros((3, 1)), [1, 2, 3]), [Double()])
    >>> pipeline.y.tolist()
    [2, 4, 6]
    """

    is_random: ClassVar[bool] = False
    """True if it changes samples at random, as is done to training samples only."""

    following: ClassVar[int] = 0
    """Number of samples after a batch that are needed to make the batch."""

    @abstractmethod
    def apply(self, arrays: Arrays, draw: Draw) -> Arrays:
        """Return the changed arrays: the inputs, then the targets."""

    def expressions(self, arrays: Exprs, draw: LazyDraw) -> Exprs | None:
        """Return the changed arrays as expressions; None if they can only be made on the host."""
        return None

    @property
    def name(self) -> str:
        """Name in messages and reports."""
        return type(self).__name__


class Transform(BatchStage):
    """Stage that changes only the first array, x; a subclass needs only `__call__`.

    >>> import numpy as np
    >>> from caldera import data
    >>> class Dim(data.Transform):
    ...     def __call__(self, x, draw):
    ...         return x * draw.uniform(len(x))
    >>> pipeline = data.Pipeline(np.ones((100, 5), np.float32), [Dim()])
    >>> bool(pipeline.batch(np.arange(10))[0].max() < 1)
    True
    """

    @abstractmethod
    def __call__(self, x: Array, draw: Draw) -> Array:
        """Return the changed x, from (samples, ...) to (samples, ...)."""

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr | None:
        """Return the changed x as an expression; None if it can only be made on the host."""
        return None

    def apply(self, arrays: Arrays, draw: Draw) -> Arrays:
        return self(arrays[0], draw), *arrays[1:]

    def expressions(self, arrays: Exprs, draw: LazyDraw) -> Exprs | None:
        changed = self.lazily(arrays[0], draw)
        return None if changed is None else (changed, *arrays[1:])


Function: TypeAlias = Callable[[Array, Draw], Array]
StageLike: TypeAlias = BatchStage | Function
StagesLike: TypeAlias = StageLike | Sequence[StageLike]


class _Called(Transform):
    """A plain function of x and a draw."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, x: Array, draw: Draw) -> Array:
        return self._function(x, draw)

    @property
    def name(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)

    def __repr__(self) -> str:
        return repr(self._function)


class Stages(Sequence[BatchStage]):
    """Sequence of stages; each draws separate random numbers.

    >>> import numpy as np
    >>> from caldera.data import Crop, Draw, Mirror
    >>> from caldera.data.transforms.stage import Stages
    >>> stages = Stages([Crop(2), Mirror()])
    >>> stages.apply((np.zeros((5, 1, 4, 4)),), Draw())[0].shape
    (5, 1, 2, 2)
    """

    def __init__(self, stages: StagesLike = ()) -> None:
        given = [stages] if isinstance(stages, BatchStage) or callable(stages) else list(stages)
        for stage in given:
            if not isinstance(stage, BatchStage) and not callable(stage):
                raise ConfigError.build(
                    "data.Pipeline",
                    expected="stages",
                    got=repr(stage),
                    hint="a stage is a data.Stage, or a function of a batch and a data.Draw",
                )
        self._stages = tuple(
            each if isinstance(each, BatchStage) else _Called(each) for each in given
        )
        self.following = sum(stage.following for stage in self._stages)
        """Number of samples after a batch that are required to prepare it."""

    def apply(self, arrays: Arrays, draw: Draw, first: int = 0, end: int | None = None) -> Arrays:
        """Apply the stages from `first` to `end` to a batch."""
        for number in range(first, len(self) if end is None else end):
            arrays = self._stages[number].apply(arrays, draw.of_stage(number))
        return arrays

    def expressions(self, arrays: Exprs, draw: LazyDraw, first: int = 0) -> Exprs | None:
        """Apply the stages from `first` on to a batch on a device; None if one cannot run there."""
        for number in range(first, len(self)):
            changed = self._stages[number].expressions(arrays, draw.of_stage(number))
            if changed is None:
                return None
            arrays = changed
        return arrays

    def __len__(self) -> int:
        return len(self._stages)

    def __getitem__(self, number: int) -> BatchStage:  # type: ignore[override]
        return self._stages[number]

    def __iter__(self) -> Iterator[BatchStage]:
        return iter(self._stages)

    def __repr__(self) -> str:
        return repr(list(self._stages))


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
        require(
            self.classes >= 1 and 0 <= self.smoothing < 1,
            "data.OneHot",
            "at least 1 class and 0 <= smoothing < 1",
            f"{self.classes} and {self.smoothing}",
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
        require(
            len(arrays) >= 2 and labels.ndim == 1 and not is_float(labels.dtype),
            "data.OneHot",
            "one class number for each sample",
            "no targets" if len(arrays) < 2 else f"{labels.dtype} {labels.shape}",
            error=ShapeError,
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
        require(0 < self.alpha < float("inf"), "data.Mixup", "alpha above 0", self.alpha)

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
    require(
        array.dtype == uint8,
        "data.Mixup",
        "floats, or the bytes of images",
        array.dtype,
        hint="put data.OneHot(classes) before it",
        error=DtypeError,
    )
    wide: Array | Expr = array.astype(float32) if xp is np else op.cast(array, float32)
    return wide / np.float32(255)


def _mixed(xp: Any, array: Any, parts: Any) -> Any:
    """Return the weighted mean of each row and the next row."""
    parts = xp.reshape(parts, (len(parts), *(1,) * (array.ndim - 1)))
    parts = parts.astype(array.dtype) if xp is np else op.cast(parts, array.dtype)
    return array[:-1] * parts + array[1:] * (1 - parts)


def beta_quantiles(alpha: float, count: int) -> NDArray[np.float64]:
    """Return values of Beta(alpha, alpha) that are equally likely, one from each of `count` parts.

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
