"""Adaptive learning rates: Adagrad, Adadelta, RMSprop, Adam and its variants, LARS and LAMB.

AMSGrad is by Reddi, Kale and Kumar, 2018; RAdam by Liu et al., 2020; LARS by You, Gitman and
Ginsburg, 2017; LAMB, which adapts Adam, by You et al., 2020.
"""

from __future__ import annotations

import math
from typing import ClassVar, Unpack

import numpy as np

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

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        wanted = {"square": True, "mean": self.centered, "velocity": self.momentum}
        return tuple(name for name, is_kept in wanted.items() if is_kept)

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


class MomentRule(Optimizer):
    """Optimizers of running means of the gradient and of its square, corrected for their start."""

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
        """Return the step for a rate of 1, and the new state."""
        kept, size = self._moments(gradient, state, step)
        return kept["mean"] * _correction(self.beta1, step) / size, kept

    def _moments(self, gradient: Expr, state: State, step: Expr) -> tuple[dict[str, Expr], Expr]:
        """Return the running means of the gradient and its square, and the root of the latter."""
        mean = running_mean(self.beta1, state["mean"], gradient)
        square = running_mean(self.beta2, state["square"], op.square(gradient))
        return {"mean": mean, "square": square}, self._root(square, step)

    def _root(self, square: Expr, step: Expr) -> Expr:
        """Return the bias-corrected root of a running mean of squares."""
        return op.sqrt(square) * op.sqrt(_correction(self.beta2, step)) + self.epsilon


@optimizers.register("adam")
class Adam(MomentRule):
    """Steps scaled by running means of the gradient and of its square, corrected for their start.

    With `amsgrad` steps are divided by the root of the largest mean square so far.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Adam(0.1).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.9
    """

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        amsgrad: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, **options)
        self.amsgrad = amsgrad

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("mean", "square", *(("largest",) if self.amsgrad else ()))

    def _moments(self, gradient: Expr, state: State, step: Expr) -> tuple[dict[str, Expr], Expr]:
        kept, size = super()._moments(gradient, state, step)
        if self.amsgrad:
            kept["largest"] = op.maximum(state["largest"], kept["square"])
            size = self._root(kept["largest"], step)
        return kept, size


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
class Nadam(MomentRule):
    """Adam with Nesterov's momentum: the mean of the gradients is extrapolated by one step.

    The momentum of step t is beta1 * (1 - 0.96 ** (t * momentum_decay) / 2): it begins at half of
    beta1 (Dozat, 2016; with the formulas of PyTorch's NAdam).

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.Nadam(0.1).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.89435
    """

    def __init__(
        self,
        learning_rate: Rate = 2e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        momentum_decay: float = 4e-3,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, **options)
        require(momentum_decay >= 0, "Nadam", "momentum_decay >= 0", momentum_decay)
        self.momentum_decay = momentum_decay

    def direction(self, gradient: Expr, state: State, step: Expr) -> tuple[Expr, State]:
        kept, size = self._moments(gradient, state, step)
        # In float64: the difference from 1 has few digits after the first steps.
        exact = op.cast(step, "float64")
        logarithm = self.momentum_decay * math.log(0.96)
        now, ahead = (
            self.beta1 * (1.0 - 0.5 * op.exp(at * logarithm)) for at in (exact, exact + 1.0)
        )
        product = self._product(exact, logarithm)
        of_mean = op.cast(ahead / (1.0 - product * ahead), gradient.dtype)
        of_gradient = op.cast((1.0 - now) / (1.0 - product), gradient.dtype)
        return (of_mean * kept["mean"] + of_gradient * gradient) / size, kept

    def _product(self, step: Expr, logarithm: float) -> Expr | float:
        """Return the product of the momenta of all steps, in closed form.

        The logarithms of its factors are power series in 0.5; each term is a geometric series over
        the steps. So the product needs no state.
        """
        if not self.beta1:
            return 0.0
        powers = np.arange(1.0, 64.0)
        terms = 0.5**powers / powers
        if not logarithm:
            return op.exp(step * (math.log(self.beta1) - terms.sum()))
        weights = terms * np.exp(powers * logarithm) / -np.expm1(powers * logarithm)
        series = op.sum(op.expm1(step * (powers * logarithm)) * weights)
        return op.exp(step * math.log(self.beta1) + series)


@optimizers.register("radam")
class RAdam(MomentRule):
    """Adam with a rectified adaptive rate, which replaces a warm-up.

    The first steps are plain momentum. Once the variance of the adaptive rate is finite, steps are
    multiplied by the square root of its final variance over its current variance.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.RAdam(0.1).minimize(x ** 2, [x], steps=1)
    >>> round(x.numpy().item(), 5)
    2.4
    """

    def direction(self, gradient: Expr, state: State, step: Expr) -> tuple[Expr, State]:
        kept, _ = self._moments(gradient, state, step)
        mean = kept["mean"] * _correction(self.beta1, step)
        longest = 2.0 / (1.0 - self.beta2) - 1.0
        if longest <= 5.0:
            return mean, kept
        # In float64: the length is a difference of numbers a thousand times as large.
        exact = op.cast(step, "float64")
        correction = _correction(self.beta2, exact)
        length_now = longest - 2.0 * exact * op.exp(exact * math.log(self.beta2)) * correction
        known = op.maximum(length_now, 5.0)
        most = (longest - 4.0) * (longest - 2.0) / longest
        rectified = op.sqrt((known - 4.0) * (known - 2.0) / (most * known))
        factor = op.cast(rectified / op.sqrt(correction), gradient.dtype)
        divided = factor / (op.sqrt(kept["square"]) + self.epsilon)
        return mean * op.where(length_now > 5.0, divided, 1.0), kept


@optimizers.register("adamax")
class Adamax(MomentRule):
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


def running_mean(weight: float | Expr, old: Expr, new: Expr) -> Expr:
    """Return the exponential moving average after `new`; `weight` is that of the old mean."""
    return weight * old + (1 - weight) * new


def _correction(beta: float, step: Expr) -> Expr | float:
    """Return 1 / (1 - beta ** step), the bias correction of a running mean that began at 0.

    Written so that float32 does not cancel in the first steps. It is one number a step, so that a
    parameter's elements are multiplied and not divided.
    """
    return op.reciprocal(-op.expm1(step * math.log(beta))) if beta else 1.0


@optimizers.register("lars")
class LARS(Optimizer):
    """Momentum with a learning rate per parameter, in proportion to the parameter's norm.

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
class LAMB(MomentRule):
    """Adam's direction plus weight_decay * w, scaled to the parameter's norm, times the rate.

    The direction is not scaled if the norm of the parameter or of the direction is 0.

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
