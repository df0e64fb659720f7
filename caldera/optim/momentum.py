"""Stochastic gradient descent, plain, with momentum or averaged, and rules of signs.

ASGD is by Polyak and Juditsky, 1992; Rprop by Riedmiller and Braun, 1993; Lion by Chen et al.,
2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Unpack

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.optim.optimizer import Optimizer, OptimizerOptions, Rate, State, optimizers
from caldera.optim.parameter_groups import Decay, Decoupled
from caldera.optim.schedule import require_fractions


@optimizers.register("sgd")
class SGD(Optimizer):
    """w - rate * gradient; with momentum, a decaying sum replaces the gradient.

    velocity = momentum * velocity + gradient (Polyak, 1964; as in PyTorch, the sum does not include
    the rate). `SGD(rate)`, or by its other name `GradientDescent(rate)`, is plain descent and keeps
    no state.

    Args:
        learning_rate: Number, or `optim.Schedule`.
        momentum: Decay of the sum, from 0 to below 1.
        nesterov: True to look ahead: the step is gradient + momentum * velocity.
        **options: `weight_decay`, `clip`, `groups`, `accumulate` and more; see `Optimizer`.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.SGD(0.5).minimize(x ** 2, [x], steps=1)
    >>> x.numpy().item()
    0.0
    """

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        require_fractions("SGD", momentum=momentum)
        require(not nesterov or momentum, "SGD", "momentum above 0 with nesterov=True", momentum)
        self.momentum = momentum
        self.nesterov = nesterov

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("velocity",) if self.momentum else ()

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        if not self.momentum:
            return parameter - rate * gradient, {}
        velocity = self.momentum * state["velocity"] + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return parameter - rate * direction, {"velocity": velocity}


GradientDescent = SGD

optimizers.add("momentum", partial(SGD, momentum=0.9))
optimizers.add("nesterov", partial(SGD, momentum=0.9, nesterov=True))


@optimizers.register("lion")
class Lion(Optimizer):
    """Every element moves by the learning rate, in the direction of a running mean's sign.

    It needs about a tenth of Adam's learning rate and ten times its decoupled weight decay, and
    half of Adam's state.

    Args:
        learning_rate: Number, or `optim.Schedule`.
        beta1: Weight of the running mean in the direction.
        beta2: Decay of the running mean.
        **options: `weight_decay`, `clip`, `groups`, `accumulate` and more; see `Optimizer`.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Lion(0.1).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.9
    """

    keeps = ("mean",)
    usual_decay: ClassVar[type[Decay]] = Decoupled

    def __init__(
        self,
        learning_rate: Rate = 1e-4,
        *,
        beta1: float = 0.9,
        beta2: float = 0.99,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        require_fractions("Lion", beta1=beta1, beta2=beta2)
        self.beta1 = beta1
        self.beta2 = beta2

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        old = state["mean"]
        direction = op.sign(self.beta1 * old + (1 - self.beta1) * gradient)
        mean = self.beta2 * old + (1 - self.beta2) * gradient
        return parameter - rate * direction, {"mean": mean}


@optimizers.register("asgd")
class ASGD(Optimizer):
    """Averaged stochastic gradient descent, with a decreasing rate and a slight decay.

    The rate of step t is rate / (1 + shrinkage * rate * (t - 1)) ** power. Each step multiplies
    parameters by 1 - shrinkage * that rate. `state[parameter]["average"]` is the mean of the
    parameter over the steps after `start`; before, it equals the parameter.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(4.0))
    >>> averaged = optim.ASGD(0.25, shrinkage=0.0, start=0)
    >>> _ = averaged.minimize(x ** 2, [x], steps=2)
    >>> x.numpy().item(), averaged.state[x]["average"].numpy().item()
    (1.0, 1.0)
    """

    keeps = ("average",)

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        *,
        shrinkage: float = 1e-4,
        power: float = 0.75,
        start: float = 1e6,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        given = (shrinkage, power, start)
        require(min(given) >= 0, "ASGD", "shrinkage, power and start >= 0", given)
        self.shrinkage = shrinkage
        self.power = power
        self.start = start

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        done = step - 1.0
        rate = rate / (1.0 + self.shrinkage * rate * done) ** self.power
        new = parameter * (1.0 - self.shrinkage * rate) - rate * gradient
        part = 1.0 / op.maximum(done - float(self.start), 1.0)
        return new, {"average": state["average"] + (new - state["average"]) * part}


@optimizers.register("rprop")
class Rprop(Optimizer):
    """Sign descent with a step size per element, for full batches.

    Step sizes start at the learning rate. A size is multiplied by the second of `factors` where the
    gradient keeps its sign; where the sign changes, it is multiplied by the first and the step is
    skipped. Sizes are clipped to `sizes`. Only the first step reads the learning rate, so schedules
    are rejected.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Rprop(0.5, factors=(0.5, 2.0)).minimize(x ** 2, [x], steps=2)
    >>> x.numpy().item()
    1.5
    """

    keeps = ("last", "size")
    follows_rate: ClassVar[bool] = False

    def __init__(
        self,
        learning_rate: float = 0.01,
        *,
        factors: tuple[float, float] = (0.5, 1.2),
        sizes: tuple[float, float] = (1e-6, 50.0),
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        shrink, grow = _two("Rprop", "factors", factors)
        require(0 < shrink < 1 < grow, "Rprop", "factors around 1, the smaller first", factors)
        least, most = _two("Rprop", "sizes", sizes)
        require(0 < least <= most, "Rprop", "sizes above 0, the smaller first", sizes)
        self.factors = (shrink, grow)
        self.sizes = (least, most)

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        (shrink, grow), (least, most) = self.factors, self.sizes
        same = op.sign(gradient) * op.sign(state["last"])
        # No size is 0 after the first step.
        size = op.where(state["size"] == 0.0, rate, state["size"])
        size = op.where(same > 0.0, size * grow, op.where(same < 0.0, size * shrink, size))
        size = op.clip(size, least, most)
        taken = op.where(same < 0.0, 0.0, gradient)
        return parameter - op.sign(taken) * size, {"last": taken, "size": size}


def _two(where: str, name: str, given: Sequence[float]) -> tuple[float, float]:
    is_pair = isinstance(given, Sequence) and len(given) == 2
    numbers = is_pair and all(isinstance(each, int | float) for each in given)
    require(numbers, where, f"{name}= two numbers", repr(given))
    return given[0], given[1]
