"""Checking derivatives against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caldera.base.arguments import refusal
from caldera.compiler.lazy import Expr, Variable, compile, lift, var, wrap
from caldera.compiler.passes.lower import lower
from caldera.core.graph.differentiate import gradients
from caldera.core.graph.ops import mul, real, sum_
from caldera.core.graph.program import Program, topological
from caldera.core.tensor.dtype import array_of, complex128, float64, is_complex, is_inexact
from caldera.kernels.reference import interpreter

STEP = 1e-3
# Weights of f(x + k STEP), k = -2, -1, 1, 2: the derivative up to an error of STEP**4.
_STENCIL = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))


def check_gradients(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    order: int = 1,
    tolerance: float = 1e-6,
) -> float:
    """Compare the derivatives of `function` with finite differences, in float64 or complex128.

    The derivatives are computed as in training, the differences by the reference kernels.

    `function` takes one expression for each input and returns one (or several). Floating-point and
    complex inputs are differentiated, others are passed as they are. `order=2` checks the second
    derivatives as well. Returns the largest relative error; raises AssertionError if it exceeds
    `tolerance`.

    >>> import numpy as np
    >>> from caldera import op, testing
    >>> testing.check_gradients(lambda x: op.exp(x) * x, [np.array([0.5, -1.0])]) < 1e-6
    True
    """
    arrays = [array_of(given, "check_gradients") for given in inputs]
    arguments: list[Any] = []
    variables: list[Variable] = []
    for index, array in enumerate(arrays):
        if array.dtype.kind in "fc":
            dtype = complex128 if array.dtype.kind == "c" else float64
            variable = var(f"input {index}", array.shape, fill=array.astype(dtype), dtype=dtype)
            variables.append(variable)
            arguments.append(variable)
        else:
            arguments.append(Expr(lift(array)))
    result = function(*arguments)
    several = result if isinstance(result, tuple | list) else (result,)
    if not all(isinstance(each, Expr) for each in several):
        raise refusal(
            "check_gradients", "function", "a function that returns expressions", function
        )
    scalar = _projected([each for each in several if is_inexact(each.dtype)], seed=1)
    worst = _compare(scalar, variables, tolerance, "first")
    if order == 2:
        derivatives = _gradients(scalar, variables)
        worst = max(
            worst, _compare(_projected(derivatives, seed=2), variables, tolerance, "second")
        )
    return worst


def _projected(values: Sequence[Expr], seed: int) -> Expr:
    """A real scalar that depends on every element: the values times random weights, summed."""
    generator = np.random.default_rng(seed)
    total: Expr | None = None
    for value in values:
        weights = np.asarray(generator.uniform(0.5, 1.5, value.shape))
        if is_complex(value.dtype):
            weights = np.asarray(weights + 1j * generator.uniform(0.5, 1.5, value.shape))
        weighted = real(mul(value.node, lift(weights)))
        term = Expr(sum_(weighted, tuple(range(len(value.shape)))))
        total = term if total is None else total + term
    assert total is not None, "the function gave no floating-point result"
    return total


def _gradients(scalar: Expr, variables: Sequence[Variable]) -> list[Expr]:
    nodes = [variable.node for variable in variables]
    return list(wrap(gradients(scalar.node, nodes, unused="zero")))


def _compare(scalar: Expr, variables: Sequence[Variable], tolerance: float, which: str) -> float:
    exact = [tensor.numpy().copy() for tensor in compile(_gradients(scalar, variables)).run()]
    value = _Oracle(scalar)
    worst = 0.0
    for variable, gradient in zip(variables, exact, strict=True):
        numeric = _differences(value, variable)
        scale = max(1.0, float(np.abs(numeric).max(initial=0.0)))
        error = float(np.abs(gradient - numeric).max(initial=0.0)) / scale
        worst = max(worst, error)
        assert error <= tolerance, (
            f"{which} derivative with respect to {variable.name} {variable.shape}: relative error "
            f"{error:.2e} > {tolerance:.0e}\nfrom the graph:\n{gradient}\n"
            f"by differences:\n{numeric}"
        )
    return worst


class _Oracle:
    """Value of an expression, computed node by node with the reference kernels.

    This is independent of the computation of the gradients, and requires no compilation.
    """

    def __init__(self, scalar: Expr) -> None:
        (self._root,) = lower(Program((scalar.node,)), has_kernel=lambda name: False).outputs
        self._order = topological([self._root])
        leaves = [node for node in self._order if "symbol" in node.attrs]
        held = [np.array(node.attrs["symbol"].value.numpy()) for node in leaves]
        single = [node for node in self._order if len(node.outputs) == 1]
        with np.errstate(all="ignore"):
            values = interpreter(single, leaves)(held)
        self._values = dict(zip(single, values, strict=True))

    def of(self, variable: Variable) -> Callable[[np.ndarray], float]:
        """Return the value as a function of a variable.

        Nodes that do not depend on it are computed only once.
        """
        changed = {variable.node}
        for node in self._order:
            if not changed.isdisjoint(node.inputs):
                changed.add(node)
        beside = [node for node in self._values if node not in changed]
        run = interpreter([self._root], [variable.node, *beside])
        held = [self._values[node] for node in beside]

        def value(array: np.ndarray) -> float:
            (found,) = run([array, *held])
            return float(found)

        return value


def _differences(oracle: _Oracle, variable: Variable) -> np.ndarray:
    start = np.array(variable.numpy())
    numeric = np.zeros_like(start)
    value = oracle.of(variable)
    directions = (1, 1j) if is_complex(variable.dtype) else (1,)
    with np.errstate(all="ignore"):
        for index in np.ndindex(*variable.shape):
            for direction in directions:
                for steps, weight in _STENCIL:
                    moved = start.copy()
                    moved[index] += steps * STEP * direction
                    numeric[index] += direction * weight * value(moved) / STEP
    return numeric
