"""LAMB: Adam with layer-wise adaptive rates for large batches (You et al., 2020)."""

from __future__ import annotations

from typing import ClassVar

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.optim._base import State, optimizers
from caldera.optim.adam import Adam
from caldera.optim.decay import Decay, Decoupled
from caldera.optim.sharding import length


@optimizers.register("lamb")
class LAMB(Adam):
    """Adam's direction plus weight_decay * w, made as long as the parameter, times the rate.

    The length is left as it is where that of the parameter or of the direction is 0.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.LAMB(0.5).minimize(x ** 2, [x], steps=1)
    >>> x.numpy().item()
    1.5
    """

    usual_decay: ClassVar[type[Decay]] = Decoupled
    usual_strength: ClassVar[float] = 0.01
    decays_inside: ClassVar[bool] = True

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        direction, kept = self.direction(gradient, state, step)
        direction = direction + self.pull(parameter)
        size, stride = length(parameter), length(direction)
        known = op.logical_and(size > 0.0, stride > 0.0)
        ratio = op.where(known, size / op.where(known, stride, 1.0), 1.0)
        return parameter - rate * ratio * direction, kept
