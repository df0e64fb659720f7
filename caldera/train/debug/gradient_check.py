"""Checking the gradients of a whole model against finite differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.data import ArrayData
from caldera.errors import ConfigError
from caldera.lazy import Expr, Variable, compile
from caldera.plan.plan import Plan
from caldera.train.fit import make_steps
from caldera.train.float64_graph import Float64Graph
from caldera.train.step import Steps

if TYPE_CHECKING:
    from caldera.train.model import Model

_STEPS = (1e-4, 1e-6)
"""Two widths: a kink (of a relu, say) within the wide one is most likely not within the other."""
# Weights of f(w + k step), k = -2, -1, 1, 2: the slope up to an error of step**4.
_STENCIL = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))
_NOISE = 1e-5
"""Gradients smaller than this part of the loss are lost in the rounding of the differences."""


def check_model_gradients(
    model: Model, *arrays: Any, training: bool = True, samples: int = 10, seed: int = 0
) -> dict[str, float]:
    """The largest relative error of the gradients of each parameter, against finite differences.

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
    if samples < 1:
        raise ConfigError.build("check_model_gradients", expected="samples >= 1", got=f"{samples}")
    data = ArrayData(*[np.asarray(array) for array in arrays])
    steps = make_steps(model, data)
    count = len(data)
    widened = Float64Graph()
    loss = Expr(widened.node(_loss(steps, count, training).node))
    copies = {p.name: widened.variables[p.symbol] for p in model.trainable()
              if p.symbol in widened.variables}  # fmt: skip
    feeds = steps.feeds(data.batch(np.arange(count)), None)
    slopes = compile([loss, *op.grad(loss, list(copies.values()))])
    value, *exact = [np.array(each.numpy()) for each in slopes.run(feeds)]
    plan = compile([loss])
    generator = np.random.default_rng(seed)
    return {
        name: _error(plan, feeds, variable, slope, abs(float(value)), samples, generator)
        for (name, variable), slope in zip(copies.items(), exact, strict=True)
    }


def _loss(steps: Steps, count: int, training: bool) -> Expr:
    graph = steps.graph(count)
    outputs, _ = graph.network(training=training)
    loss, _ = graph.loss(outputs, steps.objective.of(outputs))
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
