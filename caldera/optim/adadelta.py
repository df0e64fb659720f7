"""Adadelta (Zeiler, 2012)."""

from __future__ import annotations

from typing import Unpack

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.optim._base import Optimizer, Options, Rate, State, optimizers
from caldera.optim.schedule import require_fraction


@optimizers.register("adadelta")
class Adadelta(Optimizer):
    """Steps as large as recent ones were, for gradients as large as recent ones were.

    The rule finds its own step size: a learning rate of 1 leaves it as published.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Adadelta(epsilon=1e-2).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 3)
    2.684
    """

    keeps = ("square", "moved")

    def __init__(
        self,
        learning_rate: Rate = 1.0,
        *,
        smoothing: float = 0.9,
        epsilon: float = 1e-6,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, **options)
        require_fraction("Adadelta", "smoothing", smoothing)
        self.smoothing = smoothing
        self.epsilon = epsilon

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        square = self._smoothed(state["square"], op.square(gradient))
        size = op.sqrt(state["moved"] + self.epsilon) / op.sqrt(square + self.epsilon)
        change = size * gradient
        moved = self._smoothed(state["moved"], op.square(change))
        return parameter - rate * change, {"square": square, "moved": moved}

    def _smoothed(self, old: Expr, new: Expr) -> Expr:
        return self.smoothing * old + (1 - self.smoothing) * new
