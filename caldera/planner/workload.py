"""What a model asks of a training step: operations, parameters and activations, layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from caldera.parallel.tensor.layer_sharding import LEAST
from caldera.train.tracking.summary import Row

if TYPE_CHECKING:
    from caldera.train.model import Model

OPERATIONS_A_VALUE = 8.0
"""A layer that only moves values takes about as long as so many operations on each of them."""
STATUS_BYTES = 40
"""The losses and metrics that ranks add up in each step, before they go on."""
_SPLIT = ("Dense", "Conv1D", "Conv2D", "Conv3D", "MultiHeadAttention", "Attention", "Embedding")
"""Kinds of layers whose units, channels or heads can be shared out over ranks."""
_DENSE = ("Dense",)


@dataclass(frozen=True)
class LayerCost:
    """One layer, for one sample.

    - `block`: the part of the model it belongs to; a pipeline is cut between those.
    - `weight`: its part of the time of a step; those of all layers add up to 1. `operations` is
      its part of those of the forward pass, by which `PipelineParallel` cuts a model.
    - `parameters`, `trained`: bytes; `output`, `given`: bytes of what it makes and of its input.
    - `units`: over how many ranks it can be split at the most; 1 if it cannot.
    - `synchronised`: channels whose statistics are summed over ranks, for batch normalisation.
    """

    path: str
    kind: str
    block: str
    weight: float
    operations: float
    parameters: float
    trained: float
    output: float
    given: float
    units: int = 1
    synchronised: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether it has many parameters for the work it does."""
        return self.kind in _DENSE

    @property
    def narrows(self) -> bool:
        """Whether to sum what it gives costs less than to gather what it takes."""
        return self.kind in _SPLIT and 2 * self.output <= self.given


@dataclass(frozen=True, eq=False)
class Workload:
    """A model as the planner sees it.

    - `flops`: of the forward pass of one sample.
    - `optimizer`: bytes that the optimizer keeps.
    - `activations`: bytes of one more sample in a step, its input included; `room`: bytes that a
      step takes for gradients and the like however few samples it has.
    - `shapes`: of the parameters that are trained.
    - `value`: bytes of one number.
    """

    name: str
    layers: tuple[LayerCost, ...]
    flops: float
    optimizer: float
    activations: float
    room: float
    shapes: tuple[tuple[int, ...], ...] = ()
    value: int = 4

    @cached_property
    def parameters(self) -> float:
        """Bytes of all parameters."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def trained(self) -> float:
        """Bytes of all gradients."""
        return sum(layer.trained for layer in self.layers)

    @cached_property
    def outputs(self) -> float:
        """Bytes of what all layers make of one sample."""
        return sum(layer.output for layer in self.layers)

    @cached_property
    def widest(self) -> int:
        """Over how many ranks a layer can be split at the most."""
        return max((layer.units for layer in self.layers), default=1)

    @cached_property
    def waited_for(self) -> Counter[float]:
        """Bytes of the messages that all ranks wait for in a step, and how many there are of each.

        The losses and metrics are one. Batch normalisation has two messages forward, the first with
        the number of samples, and one backward.
        """
        sizes = Counter[float]([STATUS_BYTES])
        for layer in self.layers:
            if layer.synchronised:
                vector = layer.synchronised * self.value
                sizes.update([vector + self.value, vector, 2 * vector])
        return sizes

    def thin(self, rank: int) -> float:
        """The part of the values that is left if matrices become products of two with so many
        columns, wherever that is less."""
        sizes = [(prod(shape), sum((shape[0], prod(shape[1:])))) for shape in self.shapes if shape]
        return sum(min(size, rank * sides) for size, sides in sizes) / sum(s for s, _ in sizes)

    def memory(self, samples: float) -> float:
        """Bytes that one rank alone needs for batches of so many samples."""
        return self.parameters + self.optimizer + self.room + self.activations * samples


def workload_of(model: Model) -> Workload:
    """What a model asks for, from its graph alone.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> found = workload_of(cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3), nn.Dense(2)]))
    >>> found.parameters, found.flops, [layer.units for layer in found.layers]
    (92.0, 41, [1, 1, 1])
    """
    found = model.summary(show=False)
    value = found.parameter_bytes / max(found.parameters, 1) or 4.0
    layers = _layers(found.rows, value)
    trained = sum(layer.trained for layer in layers)
    inputs = sum(row.nbytes for row in found.rows[:1])
    return Workload(
        name=model.name or found.name,
        layers=layers,
        flops=found.flops,
        optimizer=_kept_a_parameter(model) * trained,
        activations=found.activation_bytes + inputs,
        room=trained,
        shapes=tuple(each.shape for each in model.trainable()),
        value=round(value),
    )


def _kept_a_parameter(model: Model) -> int:
    """How many values the optimizer keeps for each that it changes."""
    return len(model.optimizer.keeps) + (model.optimizer.accumulate > 1)


def _layers(rows: Sequence[Row], value: float) -> tuple[LayerCost, ...]:
    trained = [bool(row.trainable) for row in rows]
    # Nothing before the first layer that learns needs a gradient.
    back = [any(trained[:index]) for index in range(len(rows))]
    moved = [OPERATIONS_A_VALUE * row.nbytes / value for row in rows]
    forward = [row.flops + values for row, values in zip(rows, moved, strict=True)]
    # Forward, for the gradient of its parameters, and for that of its input.
    passes = [1 + own + before for own, before in zip(trained, back, strict=True)]
    works = [count * work for count, work in zip(passes, forward, strict=True)]
    given = [0, *(row.nbytes for row in rows[:-1])]
    return tuple(
        LayerCost(
            path=row.path,
            kind=row.kind,
            block=row.path.partition("/")[0],
            weight=work / (sum(works) or 1.0),
            operations=row.flops / (sum(each.flops for each in rows) or 1.0),
            parameters=row.parameters * value,
            trained=row.trainable * value,
            output=row.nbytes,
            given=before,
            units=_units(row),
            synchronised=row.trainable // 2 if row.kind == "BatchNorm" else 0,
        )
        for row, work, before in zip(rows, works, given, strict=True)
    )


def _units(row: Row) -> int:
    if row.kind not in _SPLIT or row.parameters < LEAST or not row.shape:
        return 1
    # Channels come first, features last.
    return row.shape[0] if row.kind.startswith("Conv") else row.shape[-1]
