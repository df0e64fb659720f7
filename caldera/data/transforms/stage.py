"""Stages of a pipeline, each a function from a batch to a batch.

A stage receives all arrays of a batch and the `Draw` that names its random numbers. It returns new
arrays and does not modify its arguments, so that several threads may use it simultaneously. If
batches are made on a device, a stage is written as an expression; the random numbers are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeAlias

from caldera.compiler.lazy import Expr
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import Array, Arrays
from caldera.errors import ConfigError

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
        """The changed arrays: the inputs, then the targets."""

    def expressions(self, arrays: Exprs, draw: LazyDraw) -> Exprs | None:
        """The changed arrays as expressions; None if they can only be made on the host."""
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
        """The changed x, from (samples, ...) to (samples, ...)."""

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr | None:
        """The changed x as an expression; None if it can only be made on the host."""
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
        """How many samples that come after a batch its making needs."""

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
