"""Plain gradient descent."""

from __future__ import annotations

from collections.abc import Mapping

from caldera.lazy import Expr
from caldera.optim._base import Optimizer


class GradientDescent(Optimizer):
    """w - rate * gradient.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.GradientDescent(0.5).minimize(x ** 2, [x], steps=1)
    >>> x.numpy().item()
    0.0
    """

    def update(
        self,
        parameter: Expr,
        gradient: Expr,
        state: Mapping[str, Expr],
        rate: Expr,
        step: Expr,
    ) -> tuple[Expr, Mapping[str, Expr]]:
        return parameter - rate * gradient, {}
