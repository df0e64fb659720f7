"""Distributed variables and the layouts of their parts.

A `DistributedVariable` is one variable in a checkpoint. There is a class for each distribution of
a value: in parts, by a layout (`ShardedVariable`), on one rank of several (`OwnedVariable`), or
with a separate value on each (`PerRankVariable`). `ParameterShards` are the parameters of a run
of which a rank has only a part during steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Variable
from caldera.compiler.sharding.axis_split import even_split
from caldera.compiler.sharding.layout import CartesianLayout, along_axis
from caldera.core.graph.node import Node
from caldera.core.graph.ops.collective import shard_size
from caldera.core.memory import Device
from caldera.core.tensor.shape import Shape, size
from caldera.errors import ConfigError
from caldera.optim import Optimizer
from caldera.train.strategy import VariableView

AXIS = "model"
"""The axis of the mesh along which layers are split."""


class RankLayout(Protocol):
    """Interface of the partition of a value over ranks; every `sharding.layout.Layout`
    implements it.
    """

    def local_shape(self, rank: int) -> Shape:
        """Return the shape of a rank's part."""

    def part_of(self, whole: np.ndarray, rank: int) -> np.ndarray:
        """Return a rank's part of an array."""

    def whole_of(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the array that these are the parts of, by rank."""


@dataclass(frozen=True)
class FlatLayout:
    """Each rank has a contiguous range of the flattened elements; zeros pad the last rank.

    >>> import numpy as np
    >>> from caldera.parallel.distributed_variables import FlatLayout
    >>> flat = FlatLayout((1, 3), 2)
    >>> [flat.part_of(np.arange(1, 4).reshape(1, 3), rank).tolist() for rank in (0, 1)]
    [[1, 2], [3, 0]]
    """

    shape: Shape
    ranks: int

    def local_shape(self, rank: int) -> Shape:
        """Return the shape of a rank's part."""
        return (shard_size(size(self.shape), self.ranks),)

    def part_of(self, whole: np.ndarray, rank: int) -> np.ndarray:
        """Return a rank's part of an array."""
        each = shard_size(whole.size, self.ranks)
        own = whole.reshape(-1)[each * rank : each * (rank + 1)]
        return np.pad(own, (0, each - own.size))

    def whole_of(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the array that these are the parts of, by rank."""
        return np.concatenate(parts)[: size(self.shape)].reshape(self.shape)


def evenly(shape: Shape, axis: int, ranks: int, unit: int = 1, blocks: int = 1) -> CartesianLayout:
    """Return a layout that splits an axis as evenly as whole units allow; first ranks get more.

    The axis may consist of `blocks` blocks of equal length (such as queries, keys and values); a
    rank has a part of each block.

    >>> from caldera.parallel.distributed_variables import evenly
    >>> evenly((5, 10), 1, 3).local_shape(0)
    (5, 4)
    >>> evenly((24,), 0, 2, unit=4, blocks=3).cuts
    ((0, 4, 8, 12, 16, 20, 24),)
    """
    split = even_split(shape[axis] // blocks, ranks, unit).repeated(blocks)
    assert split is not None
    return along_axis(shape, axis, split, range(ranks))


class DistributedVariable(ABC):
    """Value distributed over ranks; `local` is this rank's part."""

    def __init__(
        self, local: VariableView, communicator: Communicator, shape: Shape | None = None
    ) -> None:
        self._local = local
        self._communicator = communicator
        self.shape = local.shape if shape is None else shape
        self.dtype = local.dtype

    @abstractmethod
    def numpy(self) -> np.ndarray:
        """Return the whole value; a collective call."""

    @abstractmethod
    def assign(self, value: Any) -> None:
        """Keep what this rank has of a value."""


class ShardedVariable(DistributedVariable):
    """Variable of which each rank has a part, by a layout.

    >>> import numpy as np
    >>> from caldera import op
    >>> from caldera.comm import SingleProcess
    >>> from caldera.parallel.distributed_variables import FlatLayout
    >>> part = op.var("w", (6,))
    >>> whole = ShardedVariable(part, SingleProcess(), (2, 3), FlatLayout((2, 3), 1))
    >>> whole.assign(np.arange(6).reshape(2, 3))
    >>> part.numpy().tolist(), whole.numpy().shape
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], (2, 3))
    """

    def __init__(
        self, local: VariableView, communicator: Communicator, shape: Shape, layout: RankLayout
    ) -> None:
        super().__init__(local, communicator, shape)
        self._layout = layout

    def numpy(self) -> np.ndarray:
        """Return the whole value; a collective call."""
        shapes = [self._layout.local_shape(rank) for rank in range(self._communicator.size)]
        counts = [size(shape) for shape in shapes]
        everything = np.empty(sum(counts), self.dtype)
        self._communicator.Allgather(
            np.ascontiguousarray(self._local.numpy()).reshape(-1), everything, counts
        )
        pieces = np.split(everything, np.cumsum(counts)[:-1])
        parts = [each.reshape(shape) for each, shape in zip(pieces, shapes, strict=True)]
        return self._layout.whole_of(parts)

    def assign(self, value: Any) -> None:
        """Keep this rank's part of a value."""
        self._local.assign(self._layout.part_of(np.asarray(value), self._communicator.rank))


class OwnedVariable(DistributedVariable):
    """One rank has the value; with `held_by_all` others keep one as well, which does not count."""

    def __init__(
        self, local: Variable, communicator: Communicator, owner: int, *, held_by_all: bool = False
    ) -> None:
        super().__init__(local, communicator)
        self._variable = local
        self._owner = owner
        self._is_held = held_by_all or communicator.rank == owner

    def numpy(self) -> np.ndarray:
        """Return the value; all ranks have to ask."""
        if self._communicator.rank == self._owner:
            value = np.ascontiguousarray(self._variable.numpy())
        else:
            value = np.empty(self.shape, self.dtype)
        self._communicator.Bcast(value.reshape(-1).view(np.uint8), self._owner)
        return value.reshape(self.shape)

    def assign(self, value: Any) -> None:
        """Keep a value, where the variable is."""
        if self._is_held:
            self._variable.assign(value)

    def give_to_all(self) -> None:
        """Store the whole value on every rank that has released it; a collective call."""
        value = self.numpy()
        if _is_released(self._variable):
            _store(self._variable, self._variable, value)


class PerRankVariable(DistributedVariable):
    """Each rank has a separate value; `combined` computes the common value.

    A rank keeps the part of the common value that `kept` returns.
    """

    def __init__(
        self,
        local: VariableView,
        communicator: Communicator,
        combined: Callable[[np.ndarray], np.ndarray],
        kept: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ) -> None:
        super().__init__(local, communicator)
        self._combined = combined
        self._kept = kept

    def numpy(self) -> np.ndarray:
        """Return the combination of all ranks' values; all ranks must call it."""
        return self._combined(self._local.numpy())

    def assign(self, value: Any) -> None:
        """Keep what this rank has of such a value."""
        self._local.assign(self._kept(np.asarray(value)))


# --- parameters in parts, while steps run


NO_VIEWS: Mapping[Variable, VariableView] = {}


class ParameterShards:
    """Parameters and optimizer state that are partitioned over ranks while steps run.

    With `release` the whole parameters occupy no memory while they are partitioned.

    - `wholes`: the parameters, by this rank's part of each.
    """

    def __init__(self, communicator: Communicator, *, release: bool = True) -> None:
        self._communicator = communicator
        self._release = release
        self._optimizer: Optimizer | None = None
        self._parts: dict[Variable, tuple[Variable, RankLayout]] = {}
        self.wholes: dict[Variable, Variable] = {}
        self.is_sharded = False

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, whole: Variable, layout: RankLayout, optimizer: Optimizer) -> None:
        """Partition a parameter and its optimizer state."""
        if optimizer.needs_whole:
            raise ConfigError.build(
                type(optimizer).__name__,
                expected="whole parameters",
                got=f"a part of {whole.name} {whole.shape} on each of several ranks",
                hint="use parallel.DataParallel, or an optimizer of elements such as optim.AdamW",
            )
        rank = self._communicator.rank
        part = variable_like(whole, layout.local_shape(rank))

        def part_like(kept: Variable) -> Variable:
            own = layout.part_of(kept.numpy(), rank)
            return variable_like(kept, own.shape, own)

        self._optimizer = optimizer
        self._parts[whole], self.wholes[part] = (part, layout), whole
        optimizer.hand_over(whole, part, part_like)

    def part(self, variable: Variable) -> Variable:
        """Return this rank's part of a parameter while steps run."""
        return self._parts[variable][0] if variable in self._parts else variable

    def leaves(self) -> dict[Node, tuple[Node, RankLayout]]:
        """Return the node and layout of this rank's part, by the parameter's node."""
        return {whole.node: (part.node, layout) for whole, (part, layout) in self._parts.items()}

    def shard(self) -> None:
        """Replace the whole parameters by each rank's parts."""
        self.is_sharded = True
        for whole, (part, layout) in self._parts.items():
            part.assign(layout.part_of(whole.numpy(), self._communicator.rank))
            if self._release:
                release(whole)

    def unshard(self) -> None:
        """Replace the parts by the whole parameters on every rank; a collective call."""
        self.is_sharded = False
        for whole, (part, _) in self._parts.items():
            value = self._view(part, whole).numpy()
            if self._release:
                _store(whole, part, value)
            else:
                whole.assign(value)

    def end(self) -> None:
        """Restore whole parameters and their optimizer state."""
        for whole, (part, _) in self._parts.items():
            assert self._optimizer is not None

            def whole_like(kept: Variable, whole: Variable = whole) -> Variable:
                return variable_like(kept, whole.shape, self._view(kept, whole).numpy())

            self._optimizer.hand_over(part, whole, whole_like)
        self._parts, self.wholes, self._optimizer = {}, {}, None

    def views(
        self, variables: Mapping[str, Variable], held: Mapping[Variable, VariableView] = NO_VIEWS
    ) -> Mapping[str, VariableView]:
        """Return the checkpoint views of variables; views in `held` take precedence.

        `is_sharded` is True if parameters are partitioned now, and not only optimizer state.
        """
        found: dict[Any, VariableView] = dict(held)
        for whole, (part, _) in self._parts.items():
            assert self._optimizer is not None
            if self.is_sharded:
                found[whole] = self._view(held.get(part, part), whole)
            for kept in self._optimizer.kept_for(part):
                found[kept] = self._view(held.get(kept, kept), whole)
        return {name: found.get(each, each) for name, each in variables.items()}

    def _view(self, local: VariableView, whole: Variable) -> ShardedVariable:
        _, layout = self._parts[whole]
        return ShardedVariable(local, self._communicator, whole.shape, layout)


# --- where values are


def variable_like(model: Variable, shape: Shape, value: np.ndarray | None = None) -> Variable:
    """Return a variable of another shape with the name, dtype and device of this one."""
    return op.var(model.name, shape, fill=value, dtype=model.dtype, device=model.tensor.device)


def release(variable: Variable) -> None:
    """Keep a variable's values no longer: other ranks have them."""
    if not _is_released(variable):
        variable.symbol.move(_Released(variable.name, variable.tensor.device))


def _is_released(variable: Variable) -> bool:
    return isinstance(variable.symbol.value, _Released)


def _store(variable: Variable, like: Variable, value: np.ndarray) -> None:
    variable.symbol.move(variable_like(like, variable.shape, value).tensor)


class _Released:
    """Placeholder for the values of a variable that are not stored on this rank."""

    def __init__(self, name: str, device: Device) -> None:
        self._name = name
        self.device = device

    def __getattr__(self, attribute: str) -> NoReturn:
        raise ConfigError.build(
            f"variable {self._name}",
            expected="access between epochs",
            got="access while each rank stores only a part",
            hint="read it in epoch_begins or epoch_ends, where the model is complete",
        )
