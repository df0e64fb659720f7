"""Adagrad (Duchi, Hazan and Singer, 2011)."""

from __future__ import annotations

from typing import Unpack

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.optim._base import Optimizer, Options, Rate, State, optimizers


@optimizers.register("adagrad")
class Adagrad(Optimizer):
    """Steps divided by the root of the sum of all squared gradients so far.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Adagrad(0.5).minimize(x ** 2, [x], steps=1)
    >>> x.numpy().item()
    2.5
    """

    keeps = ("square",)

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        *,
        epsilon: float = 1e-10,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, **options)
        self.epsilon = epsilon

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        square = state["square"] + op.square(gradient)
        new = parameter - rate * gradient / (op.sqrt(square) + self.epsilon)
        return new, {"square": square}
