"""Layer-wise adaptive rates for large batches: LARS and LAMB.

LARS is by You, Gitman and Ginsburg, 2017; LAMB, which adapts Adam, by You et al., 2020.
"""

from __future__ import annotations

from typing import ClassVar, Unpack

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.optim.adaptive import Adam
from caldera.optim.optimizer import Optimizer, OptimizerOptions, Rate, State, optimizers
from caldera.optim.parameter_groups import Decay, Decoupled
from caldera.optim.schedule import require_fraction
from caldera.optim.sharding import length


@optimizers.register("lars")
class LARS(Optimizer):
    """Momentum in which every parameter has a rate in proportion to its own length.

    That local rate is rate * trust * |w| / (|gradient| + weight_decay * |w|), and the rate itself
    where |w| or the divisor is 0. The decay is part of the rule: velocity = momentum * velocity +
    local rate * (gradient + weight_decay * w). Use it with a warm-up (`LinearWarmUp`), and put
    biases in a `Group` without decay.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.LARS(0.5, trust=0.5).minimize(x ** 2, [x], steps=1)
    >>> x.numpy().item()
    2.25
    """

    keeps = ("velocity",)
    usual_decay: ClassVar[type[Decay]] = Decoupled
    decays_inside: ClassVar[bool] = True

    def __init__(
        self,
        learning_rate: Rate = 0.1,
        *,
        momentum: float = 0.9,
        trust: float = 1e-3,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        require_fraction("LARS", "momentum", momentum)
        if not trust > 0:
            raise ConfigError.build("LARS", expected="trust above 0", got=f"{trust}")
        self.momentum = momentum
        self.trust = trust

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        pull = self.pull(parameter)
        weight_norm = length(parameter)
        gradient_norm = length(gradient) + length(pull)
        known = op.logical_and(weight_norm > 0.0, gradient_norm > 0.0)
        local = rate * op.where(
            known, self.trust * weight_norm / op.where(known, gradient_norm, 1.0), 1.0
        )
        velocity = self.momentum * state["velocity"] + local * (gradient + pull)
        return parameter - velocity, {"velocity": velocity}


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
