"""Stochastic gradient descent, plain or with momentum, and Lion (Chen et al., 2023)."""

from __future__ import annotations

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
    """w - rate * gradient; with momentum, the gradient is replaced by a decaying sum of them all.

    velocity = momentum * velocity + gradient (Polyak, 1964; as in PyTorch, the rate is not part of
    it). With `nesterov` the step looks ahead: it is gradient + momentum * velocity. `SGD(rate)`, or
    by its other name `GradientDescent(rate)`, is plain descent and keeps no state.

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
        self.keeps = ("velocity",) if momentum else ()

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

    It wants about a tenth of Adam's learning rate and ten times its decoupled weight decay, and
    keeps half as much.

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
