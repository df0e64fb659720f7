"""What all optimizers share. An optimizer writes the mathematics of one parameter, in `update`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from caldera import op
from caldera.errors import ConfigError
from caldera.lazy import Expr, Variable, compile
from caldera.memory import Device
from caldera.optim.loss_scale import LossScale
from caldera.optim.schedule import Schedule, require_positive


@dataclass(frozen=True)
class Minimum:
    """What `minimize` found.

    >>> from caldera import optim
    >>> optim.Minimum(value=-2.0, steps=120, converged=True).converged
    True
    """

    value: float
    steps: int
    converged: bool


class Optimizer(ABC):
    """Turns gradients into new values of variables.

    A new one names the state it keeps for each parameter in `keeps`, and writes `update`: from the
    parameter, its gradient, its state, the learning rate and the number of this step (from 1) to
    the new parameter and the new state. Everything is an expression, so a whole training step is
    one graph.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> class SignDescent(optim.Optimizer):
    ...     def update(self, parameter, gradient, state, rate, step):
    ...         return parameter - rate * op.sign(gradient), {}
    >>> x = op.var("x", (), fill=cd.constant(1.0))
    >>> _ = SignDescent(0.25).minimize(x * x, [x], steps=4)
    >>> x.numpy().item()
    0.0
    """

    keeps: ClassVar[tuple[str, ...]] = ()

    def __init__(self, learning_rate: float | Schedule) -> None:
        if not isinstance(learning_rate, Schedule):
            require_positive(type(self).__name__, learning_rate)
        self._given_rate = learning_rate
        self.state: dict[Variable, dict[str, Variable]] = {}
        self._step: Variable | None = None
        self._learning_rate: Variable | None = None

    @abstractmethod
    def update(
        self,
        parameter: Expr,
        gradient: Expr,
        state: Mapping[str, Expr],
        rate: Expr,
        step: Expr,
    ) -> tuple[Expr, Mapping[str, Expr]]:
        """The new parameter and the new state."""

    @property
    def step(self) -> Variable:
        """How many steps have been taken: a variable, so plans and checkpoints know it."""
        return self._created(self._step)

    @property
    def learning_rate(self) -> Variable:
        """The learning rate, if it is not a schedule: assign to it to change running plans.

        >>> import caldera as cd
        >>> from caldera import op, optim
        >>> x = op.var("x", (), fill=cd.constant(3.0))
        >>> descent = optim.GradientDescent(0.5)
        >>> step = cd.compile(descent.train(x ** 2, [x]))
        >>> descent.learning_rate.assign(0.25)
        >>> _ = step.run()
        >>> x.numpy().item()
        1.5
        """
        return self._created(self._learning_rate)

    def _created(self, variable: Variable | None) -> Variable:
        if variable is None:
            raise ConfigError.build(
                type(self).__name__, expected="an optimizer that was given variables", got="none yet",
                hint="call train, apply or minimize first",
            )  # fmt: skip
        return variable

    def _create(self, device: Device) -> Variable:
        if self._step is None:
            self._step = op.var("step", (), dtype="int64", device=device)
            if not isinstance(self._given_rate, Schedule):
                self._learning_rate = op.var(
                    "learning rate", (), fill=float(self._given_rate), dtype="float64", device=device
                )
        return self._step

    def _rate(self, count: Expr) -> Expr:
        if isinstance(self._given_rate, Schedule):
            return self._given_rate.rate(count)
        return self.learning_rate

    def apply(
        self, variables: Sequence[Variable], gradients: Sequence[Expr], *, ok: Expr | None = None
    ) -> list[Expr]:
        """The assignments of one step. Where `ok` is false nothing changes, not even the count."""
        taken = self._create(variables[0].tensor.device)
        assignments = []
        for variable, gradient in zip(variables, gradients, strict=True):
            state = self._state_of(variable)
            count = op.cast(taken, variable.dtype)
            rate = op.cast(self._rate(count), variable.dtype)
            new, kept = self.update(variable, gradient, state, rate, count + 1.0)
            if kept.keys() != state.keys():
                raise ConfigError.build(
                    f"{type(self).__name__}.update", expected=f"new values for {sorted(state)}",
                    got=f"{sorted(kept)}", hint="keeps and update must name the same state",
                )  # fmt: skip
            assignments.append(_assign(variable, new, ok))
            assignments += [_assign(state[name], kept[name], ok) for name in state]
        assignments.append(_assign(taken, taken + 1, ok))
        return assignments

    def train(
        self, loss: Expr, variables: Sequence[Variable], *, loss_scale: LossScale | None = None
    ) -> list[Expr]:
        """The assignments of one step that makes `loss` smaller, with its gradients."""
        if loss_scale is None:
            return self.apply(variables, op.grad(loss, list(variables)))
        scaled = op.grad(loss_scale.scaled(loss), list(variables))
        gradients, ok = loss_scale.unscaled(scaled)
        return [*self.apply(variables, gradients, ok=ok), *loss_scale.adapted(ok)]

    def minimize(
        self,
        loss: Expr,
        variables: Sequence[Variable],
        *,
        steps: int = 1000,
        tolerance: float = 1e-6,
    ) -> Minimum:
        """Step until no gradient is larger than `tolerance`, at most `steps` times.

        >>> import caldera as cd
        >>> from caldera import op, optim
        >>> x = op.var("x", (), fill=cd.constant(3.0))
        >>> found = optim.GradientDescent(0.05).minimize(x ** 2 - 2.0, [x])
        >>> found.converged, round(found.value, 6)
        (True, -2.0)
        """
        gradients = op.grad(loss, list(variables))
        plan = compile([loss, *gradients, *self.apply(variables, gradients)])
        count = 1 + len(gradients)
        for taken in range(1, steps + 1):
            value, *slopes = [result.numpy() for result in plan.run()[:count]]
            if not np.isfinite(value):
                raise ConfigError.build(
                    f"{type(self).__name__}.minimize", expected="a finite loss",
                    got=f"{value} at step {taken}", hint="use a smaller learning rate",
                )  # fmt: skip
            if max(float(np.abs(slope).max(initial=0.0)) for slope in slopes) <= tolerance:
                return Minimum(float(value), taken, converged=True)
        return Minimum(float(loss), steps, converged=False)

    def _state_of(self, variable: Variable) -> dict[str, Variable]:
        if variable not in self.state:
            self.state[variable] = {
                name: op.var(
                    f"{variable.name}/{name}", variable.shape, dtype=variable.dtype,
                    device=variable.tensor.device,
                )
                for name in self.keeps
            }  # fmt: skip
        return self.state[variable]


def _assign(variable: Variable, new: Expr, ok: Expr | None) -> Expr:
    return op.assign(variable, new if ok is None else op.where(ok, new, variable))
