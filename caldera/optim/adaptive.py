"""Adaptive learning rates: Adagrad, Adadelta, RMSprop, Adam and its variants, LARS and LAMB.

LARS is by You, Gitman and Ginsburg, 2017; LAMB, which adapts Adam, by You et al., 2020.
"""

from __future__ import annotations

import math
from typing import ClassVar, Unpack

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.optim.optimizer import Optimizer, OptimizerOptions, Rate, State, optimizers
from caldera.optim.parameter_groups import Decay, Decoupled
from caldera.optim.schedule import require_fractions
from caldera.optim.sharding import length


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
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        self.epsilon = epsilon

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        square = state["square"] + op.square(gradient)
        new = parameter - rate * gradient / (op.sqrt(square) + self.epsilon)
        return new, {"square": square}


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
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        require_fractions("Adadelta", smoothing=smoothing)
        self.smoothing = smoothing
        self.epsilon = epsilon

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        square = running_mean(self.smoothing, state["square"], op.square(gradient))
        size = op.sqrt(state["moved"] + self.epsilon) / op.sqrt(square + self.epsilon)
        change = size * gradient
        moved = running_mean(self.smoothing, state["moved"], op.square(change))
        return parameter - rate * change, {"square": square, "moved": moved}


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
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        require_fractions("RMSProp", smoothing=smoothing, momentum=momentum)
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
        square = running_mean(self.smoothing, state["square"], op.square(gradient))
        kept = {"square": square}
        spread = square
        if self.centered:
            kept["mean"] = running_mean(self.smoothing, state["mean"], gradient)
            # A variance, which rounding must not take below zero.
            spread = op.maximum(square - op.square(kept["mean"]), 0.0)
        direction = gradient / (op.sqrt(spread) + self.epsilon)
        if self.momentum:
            direction = kept["velocity"] = self.momentum * state["velocity"] + direction
        return parameter - rate * direction, kept


@optimizers.register("adam")
class Adam(Optimizer):
    """Steps scaled by running means of the gradient and of its square, corrected for their start.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Adam(0.1).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.9
    """

    keeps = ("mean", "square")

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        require_fractions(type(self).__name__, beta1=beta1, beta2=beta2)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        direction, kept = self.direction(gradient, state, step)
        return parameter - rate * direction, kept

    def direction(self, gradient: Expr, state: State, step: Expr) -> tuple[Expr, State]:
        """The step for a rate of 1, and the new state."""
        kept, size = self.moments(gradient, state, step)
        return kept["mean"] * _correction(self.beta1, step) / size, kept

    def moments(self, gradient: Expr, state: State, step: Expr) -> tuple[State, Expr]:
        """The running means of the gradient and its square, and the root of the latter."""
        mean = running_mean(self.beta1, state["mean"], gradient)
        square = running_mean(self.beta2, state["square"], op.square(gradient))
        size = op.sqrt(square) * op.sqrt(_correction(self.beta2, step)) + self.epsilon
        return {"mean": mean, "square": square}, size


@optimizers.register("adamw")
class AdamW(Adam):
    """Adam with decoupled weight decay: w also shrinks by rate * weight_decay * w at each step.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.AdamW(0.1, weight_decay=0.5).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.75
    """

    usual_decay: ClassVar[type[Decay]] = Decoupled
    usual_strength: ClassVar[float] = 0.01


@optimizers.register("nadam")
class Nadam(Adam):
    """Adam with Nesterov's momentum: the mean of the gradients is looked at one step ahead.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Nadam(0.1).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.85263
    """

    def direction(self, gradient: Expr, state: State, step: Expr) -> tuple[Expr, State]:
        kept, size = self.moments(gradient, state, step)
        ahead = self.beta1 * _correction(self.beta1, step + 1)
        here = (1 - self.beta1) * _correction(self.beta1, step)
        return (ahead * kept["mean"] + here * gradient) / size, kept


@optimizers.register("adamax")
class Adamax(Adam):
    """Adam with the largest recent gradient in place of the root of the mean square.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Adamax(0.1).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.9
    """

    keeps = ("mean", "largest")

    def direction(self, gradient: Expr, state: State, step: Expr) -> tuple[Expr, State]:
        mean = running_mean(self.beta1, state["mean"], gradient)
        largest = op.maximum(self.beta2 * state["largest"], op.abs(gradient) + self.epsilon)
        return mean * _correction(self.beta1, step) / largest, {"mean": mean, "largest": largest}


def running_mean(weight: float, old: Expr, new: Expr) -> Expr:
    """The mean so far, by its weight, and the new value by the rest."""
    return weight * old + (1 - weight) * new


def _correction(beta: float, step: Expr) -> Expr | float:
    """1 / (1 - beta ** step): what a running mean that began at 0 lacks.

    Written so that float32 does not cancel in the first steps. It is one number a step, so that a
    parameter's elements are multiplied and not divided.
    """
    return op.reciprocal(-op.expm1(step * math.log(beta))) if beta else 1.0


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
        require_fractions("LARS", momentum=momentum)
        require(trust > 0, "LARS", "trust above 0", trust)
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
