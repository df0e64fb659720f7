"""A user's operator, written in NumPy, as an operator of each framework with its own gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from caldera import op
from caldera.bench.frameworks.base import Array, CustomTask
from caldera.bench.parts import OperatorPart
from caldera.compiler.lazy import Expr, compile, lift
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import Op
from caldera.kernels.reference import FUNCTIONS, reference

_FORWARD, _BACKWARD = "bench_operator", "bench_operator_gradient"
_OPERATORS: dict[int, OperatorPart] = {}
"""By the key that a node carries: nodes hold nothing but plain values."""
_KEYS = count()


# --- Caldera: two ops, which are in no list of ops, since they are this module's own


def _shape_rule(*inputs: Spec, key: int, shape: tuple[int, ...]) -> Spec:
    return Spec(shape, inputs[0].dtype)


def _gradient_shapes(gradient: Spec, *inputs: Spec, key: int) -> tuple[Spec, ...]:
    return inputs


_forward = Op(_FORWARD, _shape_rule, "other")
_backward = Op(_BACKWARD, _gradient_shapes, "other")


@_forward.gradient
def _(g: Node, y: Node, *inputs: Node, key: int, shape: tuple[int, ...]) -> tuple[Node, ...]:
    return _backward.outputs(g, *inputs, key=key)


def _forward_values(*inputs: Array, key: int, shape: tuple[int, ...]) -> Array:
    return _OPERATORS[key].forward(*inputs)


def _backward_values(gradient: Array, *inputs: Array, key: int) -> tuple[Array, ...]:
    return tuple(_OPERATORS[key].backward(gradient, *inputs))


class CalderaCustom(CustomTask):
    """The operator as an op of Caldera's graph, in one plan with its gradients."""

    def __init__(self, operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> None:
        if _FORWARD not in FUNCTIONS:
            reference(_FORWARD)(_forward_values)
            reference(_BACKWARD)(_backward_values)
        self._key = next(_KEYS)
        _OPERATORS[self._key] = operator
        given = [
            op.var(f"x{i}", each.shape, fill=each, dtype=each.dtype.name, device="cpu")
            for i, each in enumerate(inputs)
        ]
        nodes = [lift(each) for each in given]
        result = Expr(_forward(*nodes, key=self._key, shape=seed.shape))
        slope = op.var("g", seed.shape, fill=seed, dtype=seed.dtype.name, device="cpu")
        gradients = op.grad(result, given, seed=slope)
        self._plan = compile([result, *gradients])

    def call(self) -> None:
        self._plan.run()

    def results(self) -> list[Array]:
        return [np.array(each.numpy()) for each in self._plan.run()]


# --- PyTorch


class TorchCustom(CustomTask):
    """The operator as a `torch.autograd.Function`."""

    def __init__(
        self, torch: Any, operator: OperatorPart, inputs: Sequence[Array], seed: Array
    ) -> None:
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

        self._apply = Custom.apply
        self._given = [torch.from_numpy(each.copy()).requires_grad_() for each in inputs]
        self._seed = torch.from_numpy(seed.copy())

    def call(self) -> None:
        self._computed()

    def _computed(self) -> Any:
        for each in self._given:
            each.grad = None
        result = self._apply(*self._given)
        result.backward(self._seed)
        return result

    def results(self) -> list[Array]:
        result = self._computed()
        return [result.detach().numpy(), *(each.grad.numpy() for each in self._given)]


def _arrays(tensors: Sequence[Any]) -> list[Array]:
    return [each.detach().numpy() for each in tensors]


def _owned(array: Array) -> Array:
    return np.array(array, order="C")
