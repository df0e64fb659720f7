"""Optimizers of whole matrices: Adafactor (Shazeer and Stern, 2018) and Muon (Jordan, 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Unpack

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.shape import Shape, size
from caldera.optim.adaptive import AdamW, running_mean
from caldera.optim.optimizer import Optimizer, OptimizerOptions, Rate, State, optimizers
from caldera.optim.parameter_groups import Decay, Decoupled
from caldera.optim.schedule import require_count, require_fractions


@optimizers.register("adafactor")
class Adafactor(Optimizer):
    """Steps proportional to the parameter, divided by a factored estimate of the squared gradient.

    For a matrix of n by m, only the mean squares of n rows and m columns are kept. Their outer
    product, divided by the mean of the rows, estimates the mean square of each element. Leading
    axes are batches of matrices; a vector keeps the mean square of each element. New squares in
    step t have the weight t ** -power.

    The rate is at most 1 / sqrt(t) and is multiplied by the parameter's root mean square, at least
    `least_size`. A step with a root mean square above `most_change` is scaled down to it. `epsilon`
    is the smallest root mean square, by default the dtype's precision. The formulas are PyTorch's.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Adafactor(0.1).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.7
    """

    usual_decay: ClassVar[type[Decay]] = Decoupled
    decays_inside: ClassVar[bool] = True
    needs_whole: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        *,
        power: float = 0.8,
        epsilon: float | None = None,
        least_size: float = 1e-3,
        most_change: float = 1.0,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        require(power >= 0, "Adafactor", "power >= 0", power)
        require(epsilon is None or epsilon >= 0, "Adafactor", "epsilon >= 0", epsilon)
        require(least_size >= 0, "Adafactor", "least_size >= 0", least_size)
        require(most_change > 0, "Adafactor", "most_change above 0", most_change)
        self.power = power
        self.epsilon = epsilon
        self.least_size = least_size
        self.most_change = most_change

    def kept_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        if len(shape) < 2:
            return {"square": tuple(shape)}
        return {"rows": (*shape[:-1], 1), "columns": (*shape[:-2], 1, shape[-1])}

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        least = float(np.finfo(gradient.dtype).eps) if self.epsilon is None else self.epsilon
        old = 1.0 - step**-self.power
        square = op.square(gradient)
        kept: dict[str, Expr]
        if gradient.ndim < 2:
            kept = {"square": running_mean(old, state["square"], square)}
            estimate = kept["square"]
        else:
            axes = {"rows": -1, "columns": -2}
            kept = {
                name: running_mean(old, state[name], op.mean(square, axis=axis, keepdims=True))
                for name, axis in axes.items()
            }
            mean = op.maximum(op.mean(kept["rows"], axis=-2, keepdims=True), least)
            estimate = kept["rows"] * kept["columns"] / mean
        change = gradient / op.sqrt(op.maximum(estimate, least * least))
        shortened = op.maximum(_root_mean_square(change) / self.most_change, 1.0)
        own = op.maximum(_root_mean_square(parameter), self.least_size)
        most = op.minimum(rate, op.rsqrt(step))
        return parameter - rate * self.pull(parameter) - own * most / shortened * change, kept


@optimizers.register("muon")
class Muon(Optimizer):
    """Momentum with orthogonalised steps: all singular values of a step are about 1.

    The running mean of a matrix's gradients is orthogonalised by a Newton-Schulz polynomial.
    Parameters with other than two axes, such as biases, take AdamW's steps. A `Group` sets a
    separate rate for them, or for the matrices of embeddings.

    Args:
        learning_rate: Number, or `optim.Schedule`.
        momentum: Decay of the running mean.
        nesterov: True to extrapolate the mean by one step.
        coefficients: Coefficients of the polynomial.
        iterations: Number of its iterations.
        epsilon: Number added to the norm.
        scale: "original" multiplies the rate by sqrt(outputs / inputs) where that exceeds 1
            (outputs are the last axis, as in `nn.Dense`); "match_rms_adamw" multiplies it by 0.2 *
            sqrt(longer axis), so that rates tuned for AdamW apply.
        **options: `weight_decay`, `clip`, `groups` and more; see `Optimizer`.

    >>> import numpy as np
    >>> from caldera import op, optim
    >>> w = op.var("w", (2, 2), fill=np.diag([3.0, 1.0]), dtype="float64")
    >>> muon = optim.Muon(0.1, weight_decay=0.0, coefficients=(1.875, -1.25, 0.375), iterations=20)
    >>> _ = muon.minimize(op.sum(w * w), [w], steps=1)
    >>> w.numpy().round(4).tolist()
    [[2.9, 0.0], [0.0, 0.9]]
    """

    usual_decay: ClassVar[type[Decay]] = Decoupled
    usual_strength: ClassVar[float] = 0.1
    needs_whole: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        coefficients: Sequence[float] = (3.4445, -4.775, 2.0315),
        iterations: int = 5,
        epsilon: float = 1e-7,
        scale: str = "original",
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        require_fractions("Muon", momentum=momentum)
        require_count("Muon", "iterations", iterations)
        require(len(coefficients) == 3, "Muon", "three coefficients", coefficients)
        require(scale in _SCALES, "Muon", "scale one of " + ", ".join(_SCALES), repr(scale))
        self.momentum = momentum
        self.nesterov = nesterov
        self.coefficients = tuple(coefficients)
        self.iterations = iterations
        self.epsilon = epsilon
        self.scale = scale
        self._other = AdamW()

    def kept_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        return (
            dict.fromkeys(("mean",), shape) if len(shape) == 2 else self._other.kept_shapes(shape)
        )

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        if gradient.ndim != 2:
            return self._other.update(parameter, gradient, state, rate, step)
        mean = running_mean(self.momentum, state["mean"], gradient)
        ahead = running_mean(self.momentum, mean, gradient) if self.nesterov else mean
        inputs, outputs = gradient.shape
        rate = rate * _SCALES[self.scale](inputs, outputs)
        return parameter - rate * self._orthogonal(ahead), {"mean": mean}

    def _orthogonal(self, x: Expr) -> Expr:
        """Return a matrix with the same singular vectors, and singular values near 1."""
        is_tall = x.shape[0] > x.shape[1]
        x = op.transpose(x) if is_tall else x
        x = x / op.maximum(op.norm(x), self.epsilon)
        a, b, c = self.coefficients
        for _ in range(self.iterations):
            gram = x @ op.transpose(x)
            x = a * x + (b * gram + c * (gram @ gram)) @ x
        return op.transpose(x) if is_tall else x


_SCALES = {
    "original": lambda inputs, outputs: math.sqrt(max(1.0, outputs / max(inputs, 1))),
    "match_rms_adamw": lambda inputs, outputs: 0.2 * math.sqrt(max(inputs, outputs)),
}


def _root_mean_square(x: Expr) -> Expr:
    return op.norm(x) / math.sqrt(max(size(x.shape), 1))
