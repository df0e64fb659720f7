"""Workload of a training step: operations, parameters and activations, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from caldera import op
from caldera.base.arguments import refusal
from caldera.compiler.lazy import Variable
from caldera.core.tensor.shape import size
from caldera.nn.tracing import Context
from caldera.parallel.data.sums import in_backward_order
from caldera.parallel.planner.model_network import (
    LayerCost,
    ModelNetwork,
    StageGradient,
    StageNetwork,
    leaf_calls,
)
from caldera.parallel.tensor.candidates import most_ranks
from caldera.train.step import trace_network
from caldera.train.tracking.summary import LayerRow

if TYPE_CHECKING:
    from caldera.train.model import Model

OPERATIONS_A_VALUE = 8.0
"""Operations per value with the cost of moving the value."""


@dataclass(frozen=True, eq=False)
class ModelWorkload:
    """Costs of a model's training step.

    - `flops`: operations of the forward pass for one sample.
    - `optimizer`: bytes of optimizer state.
    - `activations`: bytes of an additional sample in a step, including its input; `workspace`:
      bytes of a step that do not depend on samples, such as gradients.
    - `value`: bytes of one number.
    - `gradients`: bytes of the trained parameters' gradients, in model order; `backward`: their
      indices in the order of the backward pass.
    - `network`: the stages of the model, and the exchanges of ranks that share layers.
    """

    name: str
    layers: tuple[LayerCost, ...]
    flops: float
    optimizer: float
    activations: float
    workspace: float
    value: int
    gradients: tuple[StageGradient, ...]
    backward: tuple[int, ...]
    network: StageNetwork = field(repr=False)

    @cached_property
    def parameters(self) -> float:
        """Bytes of all parameters."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def trained(self) -> float:
        """Bytes of all gradients."""
        return sum(gradient.nbytes for gradient in self.gradients)

    @cached_property
    def outputs(self) -> float:
        """Bytes of all layer outputs for one sample."""
        return sum(layer.output for layer in self.layers)

    @cached_property
    def widest(self) -> int:
        """Maximum number of ranks that can split a layer."""
        return max((layer.units for layer in self.layers), default=1)

    def memory(self, samples: float) -> float:
        """Return the bytes that a single rank needs for batches of `samples` samples."""
        return self.parameters + self.optimizer + self.workspace + self.activations * samples


def workload_of(model: Model) -> ModelWorkload:
    """Return the workload of a model, derived from its graph.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> found = workload_of(cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3), nn.Dense(2)]))
    >>> found.parameters, found.flops, [layer.units for layer in found.layers]
    (92.0, 41, [1, 1, 1])
    """
    if not hasattr(model, "summary"):
        raise refusal("plan", "model", "a model", model)
    found = model.summary(show=False)
    value = found.parameter_bytes / max(found.parameters, 1) or 4.0
    traced = trace_network(model, model.samples_traced)
    leaves = leaf_calls(model, traced.calls)
    units = most_ranks(model)
    layers = _layers(found.rows, value, [units.get(traced.calls[i].layer, 1) for i in leaves])
    parameters = model.trainable()
    owners = _owners(traced, leaves)
    gradients = tuple(
        StageGradient(each.shape, each.node.spec.nbytes, owners.get(each, 0), each.dtype.name)
        for each in parameters
    )
    trained = sum(gradient.nbytes for gradient in gradients)
    optimizer = model.optimizer
    kept = (optimizer.accumulate > 1) * trained + sum(
        size(shape) * each.dtype.itemsize
        for each in parameters
        for shape in optimizer.kept_shapes(each.shape).values()
    )
    inputs = sum(row.nbytes for row in found.rows[:1])
    ends = [op.sum(op.cast(each, "float32")) for each in traced.calls[0].outputs]
    return ModelWorkload(
        name=model.name or found.name,
        layers=layers,
        flops=found.flops,
        optimizer=kept,
        activations=found.activation_bytes + inputs,
        workspace=trained,
        value=round(value),
        gradients=gradients,
        backward=tuple(in_backward_order(sum(ends[1:], ends[0]), parameters)),
        network=ModelNetwork(model, layers),
    )


def _owners(traced: Context, leaves: Sequence[int]) -> dict[Variable, int]:
    """Return the layer that owns each parameter; parameters of a container belong to its first
    layer.
    """
    found: dict[Variable, int] = {}
    for place, call in enumerate(traced.calls):
        first = next((i for i, leaf in enumerate(leaves) if leaf >= place), len(leaves) - 1)
        for each in call.layer.variables().values():
            found.setdefault(each, first)
    return found


def _layers(rows: Sequence[LayerRow], value: float, units: Sequence[int]) -> tuple[LayerCost, ...]:
    trained = [bool(row.trainable) for row in rows]
    # No gradient is needed before the first trained layer.
    back = [any(trained[:index]) for index in range(len(rows))]
    moved = [OPERATIONS_A_VALUE * row.nbytes / value for row in rows]
    forward = [row.flops + values for row, values in zip(rows, moved, strict=True)]
    # Forward, gradient of the parameters, gradient of the input.
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
            units=most,
            synchronised=row.trainable // 2 if row.kind == "BatchNorm" else 0,
        )
        for row, work, before, most in zip(rows, works, given, units, strict=True)
    )
