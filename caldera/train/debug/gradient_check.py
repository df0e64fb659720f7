"""Checking the gradients of a whole model against finite differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.base.arguments import checked, refusal, require
from caldera.compiler.lazy import Expr, Variable, compile, input, lift, var
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import ITEM, Body, Node, Spec, Symbol, item, parameter, topological
from caldera.core.tensor.dtype import array_of, float64, is_float
from caldera.data import ArrayData
from caldera.train.fit import make_steps
from caldera.train.step import StepPlans

if TYPE_CHECKING:
    from caldera.train.model import Model

_STEPS = (1e-4, 1e-6)
"""Two step widths: a kink (of a relu, say) within the wide step is rarely within the narrow one."""
# Weights of f(w + k step), k = -2, -1, 1, 2: the slope up to an error of step**4.
_STENCIL = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))
_NOISE = 1e-5
"""Gradients smaller than this part of the loss are lost in the rounding of the differences."""


@checked
def check_model_gradients(
    model: Model, *arrays: Any, training: bool = True, samples: int = 10, seed: int = 0
) -> dict[str, float]:
    """Return each parameter's largest relative gradient error against finite differences.

    `arrays` are a batch: inputs, then targets. Everything is computed in float64 on copies, so the
    model does not change, and errors above 1e-6 or so mean that a gradient is wrong. `samples`
    elements of each parameter are tried. `training=False` takes the loss of evaluation (no dropout,
    running statistics).

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.debug.gradient_check import check_model_gradients
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(8), nn.Tanh(), nn.Dense(3)])
    >>> x, y = np.random.default_rng(0).normal(size=(5, 4)), np.arange(5) % 3
    >>> max(check_model_gradients(model, x, y).values()) < 1e-6
    True
    """
    if not hasattr(model, "ensure_built"):
        raise refusal("check_model_gradients", "model", "a model", model)
    require(
        samples >= 1 and seed >= 0,
        "check_model_gradients",
        "samples >= 1 and seed >= 0",
        f"{samples}, {seed}",
    )
    data = ArrayData(*[array_of(array, "check_model_gradients") for array in arrays])
    steps = make_steps(model, data)
    count = len(data)
    widened = Float64Graph()
    loss = Expr(widened.node(_loss(steps, count, training).node))
    copies = {
        p.name: widened.variables[p.symbol]
        for p in model.trainable()
        if p.symbol in widened.variables
    }
    feeds = steps.feeds(data.batch(np.arange(count)), None)
    slopes = compile([loss, *op.grad(loss, list(copies.values()))])
    value, *exact = [np.array(each.numpy()) for each in slopes.run(feeds)]
    plan = compile([loss])
    generator = np.random.default_rng(seed)
    return {
        name: _error(plan, feeds, variable, slope, abs(float(value)), samples, generator)
        for (name, variable), slope in zip(copies.items(), exact, strict=True)
    }


def _loss(steps: StepPlans, count: int, training: bool) -> Expr:
    graph = steps.graph(count)
    outputs, traced = graph.network(training=training)
    loss, _ = graph.loss(outputs, steps.objective.of(outputs), traced.losses)
    return loss


def _error(
    plan: Plan,
    feeds: dict[str, Any],
    variable: Variable,
    slope: np.ndarray,
    loss: float,
    samples: int,
    generator: np.random.Generator,
) -> float:
    scale = max(float(np.abs(slope).max(initial=0.0)), _NOISE * loss, np.finfo(float).tiny)
    chosen = generator.permutation(slope.size)[:samples]
    start = variable.numpy()
    worst = 0.0
    for flat in chosen:
        index = np.unravel_index(flat, slope.shape)
        differences = [
            abs(_difference(plan, feeds, variable, start, index, step) - float(slope[index]))
            for step in _STEPS
        ]
        worst = max(worst, min(differences) / scale)
    variable.assign(start)
    return worst


def _difference(
    plan: Plan,
    feeds: dict[str, Any],
    variable: Variable,
    start: np.ndarray,
    index: Any,
    step: float,
) -> float:
    total = 0.0
    for steps, weight in _STENCIL:
        moved = start.copy()
        moved[index] += steps * step
        variable.assign(moved)
        total += weight * plan.run(feeds)[0].item()
    return total / step


# --- the same graph in double precision, on float64 copies of its variables


class Float64Graph:
    """Copies of graphs with every floating-point value in float64.

    `variables` has the copy of each floating-point variable found; the originals and all variables
    of other dtypes stay unchanged.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import op
    >>> from caldera.compiler.lazy import Expr
    >>> w = op.var("w", (2,), fill=cd.constant(3.0))
    >>> widened = Float64Graph()
    >>> Expr(widened.node((w * w).node)).dtype.name, list(widened.variables) == [w.symbol]
    ('float64', True)
    """

    def __init__(self) -> None:
        self.variables: dict[Symbol, Variable] = {}
        self._new: dict[Node, Node] = {}

    def node(self, root: Node) -> Node:
        """Return the equivalent node in float64."""
        for each in topological([root]):
            if each not in self._new:
                self._new[each] = self._rebuilt(each)
        return self._new[root]

    def _rebuilt(self, node: Node) -> Node:
        symbol = node.attrs.get("symbol")
        if isinstance(symbol, Symbol):
            return self._leaf(node, symbol)
        inputs = [self._new[given] for given in node.inputs]
        if node.op is ITEM:
            return item(inputs[0], node.attrs["index"])
        attrs = {name: _attribute(value) for name, value in node.attrs.items()}
        return node.op.node(*inputs, **attrs)

    def _leaf(self, node: Node, symbol: Symbol) -> Node:
        if not is_float(symbol.spec.dtype):
            return node
        if symbol.role == "input":
            return input(symbol.name, symbol.spec.shape, float64).node
        value = symbol.value.numpy().astype(float64)
        if symbol.role != "variable":
            return lift(value)
        copy = var(symbol.name, symbol.spec.shape, fill=value, dtype=float64)
        self.variables[symbol] = copy
        return copy.node


def _attribute(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return float64 if is_float(value) else value
    if isinstance(value, Spec):
        return _spec(value)
    return _body(value) if isinstance(value, Body) else value


def _spec(spec: Spec) -> Spec:
    return Spec(spec.shape, float64) if is_float(spec.dtype) else spec


def _body(body: Body) -> Body:
    widened = Float64Graph()
    outputs = [widened.node(output) for output in body.outputs]
    arguments = [parameter(index, _spec(spec)) for index, spec in enumerate(body.parameters)]
    return Body(arguments, outputs)
