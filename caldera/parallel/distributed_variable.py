"""Variables of which each rank has a part."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.errors import ConfigError
from caldera.graph.ops.collective import shard_size
from caldera.lazy import Variable
from caldera.memory import Device
from caldera.parallel.layout import Split
from caldera.strategy import VariableView
from caldera.tensor.shape import Shape, size


def part_of(whole: np.ndarray, communicator: Communicator) -> np.ndarray:
    """A rank's part of an array, flat; what lies beyond its end is 0.

    >>> import numpy as np
    >>> from caldera.comm import SingleProcess
    >>> from caldera.parallel.distributed_variable import part_of
    >>> part_of(np.arange(6).reshape(2, 3), SingleProcess())
    array([0, 1, 2, 3, 4, 5])
    """
    each = shard_size(whole.size, communicator.size)
    own = whole.reshape(-1)[each * communicator.rank : each * (communicator.rank + 1)]
    return np.pad(own, (0, each - own.size))


def whole_of_parts(part: np.ndarray, shape: Shape, communicator: Communicator) -> np.ndarray:
    """The array that ranks have parts of; all of them have to ask."""
    everything = np.empty(communicator.size * part.size, part.dtype)
    communicator.Allgather(np.ascontiguousarray(part), everything)
    return everything[: size(shape)].reshape(shape)


def variable_like(model: Variable, shape: Shape, value: np.ndarray | None = None) -> Variable:
    """A variable of another shape with the name, dtype and device of this one."""
    return op.var(model.name, shape, fill=value, dtype=model.dtype, device=model.tensor.device)


class Shared:
    """A variable of this shape that ranks have parts of, as a checkpoint sees it."""

    def __init__(self, part: Variable, shape: Shape, communicator: Communicator) -> None:
        self._part = part
        self._communicator = communicator
        self.shape = shape
        self.dtype = part.dtype

    def numpy(self) -> np.ndarray:
        """The whole value; all ranks have to ask."""
        return whole_of_parts(self._part.numpy(), self.shape, self._communicator)

    def assign(self, value: Any) -> None:
        """Keep this rank's part of a value."""
        self._part.assign(part_of(np.asarray(value), self._communicator))


def whole_along(part: np.ndarray, split: Split, communicator: Communicator) -> np.ndarray:
    """The array that ranks have parts of along one of its axes; all of them have to ask."""
    shapes = [split.shape(part.shape, rank) for rank in range(communicator.size)]
    counts = [size(shape) for shape in shapes]
    everything = np.empty(sum(counts), part.dtype)
    communicator.Allgather(np.ascontiguousarray(part), everything, counts)
    pieces = np.split(everything, np.cumsum(counts)[:-1])
    return split.whole_of([each.reshape(s) for each, s in zip(pieces, shapes, strict=True)])


class SplitAlong:
    """A variable that ranks have parts of along one of its axes, as a checkpoint sees it."""

    def __init__(
        self, part: VariableView, shape: Shape, split: Split, communicator: Communicator
    ) -> None:
        self._part = part
        self._split = split
        self._communicator = communicator
        self.shape = shape
        self.dtype = part.dtype

    def numpy(self) -> np.ndarray:
        """The whole value; all ranks have to ask."""
        return whole_along(self._part.numpy(), self._split, self._communicator)

    def assign(self, value: Any) -> None:
        """Keep this rank's part of a value."""
        self._part.assign(self._split.part_of(np.asarray(value), self._communicator.rank))


class Elsewhere:
    """Stands where a parameter's values are while ranks have only parts of it."""

    def __init__(self, name: str, device: Device) -> None:
        self._name = name
        self.device = device

    def __getattr__(self, attribute: str) -> NoReturn:
        raise ConfigError.build(
            f"variable {self._name}", expected="to be asked for between epochs",
            got="while ranks have only parts of it",
            hint="look at it in epoch_begins or epoch_ends, where the model is whole",
        )  # fmt: skip
