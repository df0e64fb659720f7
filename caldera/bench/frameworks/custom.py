"""A user's operator, written in NumPy, as an operator of each framework with its own gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from caldera import op
from caldera.bench.frameworks.base import Array, FunctionTask
from caldera.bench.parts import OperatorPart
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph import Node, Op, Spec
from caldera.kernels.reference import FUNCTIONS, reference

_FORWARD, _BACKWARD = "bench_operator", "bench_operator_gradient"
_OPERATORS: dict[int, OperatorPart] = {}
"""Operators by the key that a node carries: nodes contain only plain values."""
_KEYS = count()


# --- Caldera: two ops, which are in no list of ops, since they are this module's own


_forward = Op(_FORWARD, lambda *inputs, key, shape: Spec(shape, inputs[0].dtype), "other")
_backward = Op(_BACKWARD, lambda gradient, *inputs, key: inputs, "other")


@_forward.gradient
def _(g: Node, y: Node, *inputs: Node, key: int, shape: tuple[int, ...]) -> tuple[Node, ...]:
    return _backward.outputs(g, *inputs, key=key)


def _forward_values(*inputs: Array, key: int, shape: tuple[int, ...]) -> Array:
    return _OPERATORS[key].forward(*inputs)


def _backward_values(gradient: Array, *inputs: Array, key: int) -> tuple[Array, ...]:
    return tuple(_OPERATORS[key].backward(gradient, *inputs))


def custom_outputs(operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> list[Expr]:
    """Return the result of an operator as an op of Caldera's graph, and its gradients."""
    if _FORWARD not in FUNCTIONS:
        reference(_FORWARD)(_forward_values)
        reference(_BACKWARD)(_backward_values)
    key = next(_KEYS)
    _OPERATORS[key] = operator
    slope, *given = (
        op.var(f"x{i}", each.shape, fill=each, dtype=each.dtype.name, device="cpu")
        for i, each in enumerate((seed, *inputs))
    )
    result = Expr(_forward(*map(lift, given), key=key, shape=seed.shape))
    return [result, *op.grad(result, given, seed=slope)]


# --- PyTorch


def torch_custom(
    torch: Any, operator: OperatorPart, inputs: Sequence[Array], seed: Array
) -> FunctionTask:
    """Return an operator as a `torch.autograd.Function`, in a task with its gradients."""

    class Custom(torch.autograd.Function):
        """Computes in the arrays of the tensors."""

        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            ctx.save_for_backward(*given)
            return torch.from_numpy(_owned(operator.forward(*_arrays(given))))

        @staticmethod
        def backward(ctx: Any, slope: Any) -> Any:
            found = operator.backward(*_arrays((slope, *ctx.saved_tensors)))
            return tuple(torch.from_numpy(_owned(each)) for each in found)

    given = [torch.from_numpy(each.copy()).requires_grad_() for each in inputs]
    slope = torch.from_numpy(seed.copy())

    def computed() -> list[Array]:
        for each in given:
            each.grad = None
        result = Custom.apply(*given)
        result.backward(slope)
        return [result.detach().numpy(), *(each.grad.numpy() for each in given)]

    return FunctionTask(computed, computed)


def _arrays(tensors: Sequence[Any]) -> list[Array]:
    return [each.detach().numpy() for each in tensors]


def _owned(array: Array) -> Array:
    return np.array(array, order="C")
