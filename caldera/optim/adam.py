"""Adam (Kingma and Ba, 2015)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from caldera import op
from caldera.errors import ConfigError
from caldera.lazy import Expr
from caldera.optim._base import Optimizer
from caldera.optim.schedule import Schedule


class Adam(Optimizer):
    """Steps scaled by running means of the gradient and of its square, corrected for their start.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Adam(0.1).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.9
    """

    keeps: ClassVar[tuple[str, ...]] = ("mean", "square")

    def __init__(
        self,
        learning_rate: float | Schedule = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(learning_rate)
        for name, value in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= value < 1:
                raise ConfigError.build("Adam", expected=f"0 <= {name} < 1", got=f"{value}")
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def update(
        self,
        parameter: Expr,
        gradient: Expr,
        state: Mapping[str, Expr],
        rate: Expr,
        step: Expr,
    ) -> tuple[Expr, Mapping[str, Expr]]:
        mean = self.beta1 * state["mean"] + (1 - self.beta1) * gradient
        square = self.beta2 * state["square"] + (1 - self.beta2) * op.square(gradient)
        unbiased_mean = mean / (1 - self.beta1**step)
        unbiased_square = square / (1 - self.beta2**step)
        new = parameter - rate * unbiased_mean / (op.sqrt(unbiased_square) + self.epsilon)
        return new, {"mean": mean, "square": square}
