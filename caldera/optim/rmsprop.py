"""RMSProp (Hinton, 2012; the centred form is that of Graves, 2013)."""

from __future__ import annotations

from typing import Unpack

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.optim._base import Optimizer, Options, Rate, State, optimizers
from caldera.optim.schedule import require_fraction


@optimizers.register("rmsprop")
class RMSProp(Optimizer):
    """Steps divided by the root of a running mean of the squared gradients.

    `centered` divides by the running deviation instead; `momentum` sums up the divided gradients.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.RMSProp(0.01).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.9
    """

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        *,
        smoothing: float = 0.99,
        momentum: float = 0.0,
        centered: bool = False,
        epsilon: float = 1e-8,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, **options)
        require_fraction("RMSProp", "smoothing", smoothing)
        require_fraction("RMSProp", "momentum", momentum)
        self.smoothing = smoothing
        self.momentum = momentum
        self.centered = centered
        self.epsilon = epsilon
        self.keeps = (
            "square",
            *(("mean",) if centered else ()),
            *(("velocity",) if momentum else ()),
        )

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        square = self._smoothed(state["square"], op.square(gradient))
        kept = {"square": square}
        spread = square
        if self.centered:
            kept["mean"] = self._smoothed(state["mean"], gradient)
            # A variance, which rounding must not take below zero.
            spread = op.maximum(square - op.square(kept["mean"]), 0.0)
        direction = gradient / (op.sqrt(spread) + self.epsilon)
        if self.momentum:
            direction = kept["velocity"] = self.momentum * state["velocity"] + direction
        return parameter - rate * direction, kept

    def _smoothed(self, old: Expr, new: Expr) -> Expr:
        return self.smoothing * old + (1 - self.smoothing) * new
