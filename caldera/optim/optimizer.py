"""Base class of optimizers. An optimizer defines the update of a single parameter in `update`."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypedDict

import numpy as np

from caldera import op
from caldera.base.arguments import require, shown
from caldera.base.configurable import Family
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.core.graph.node import pinned
from caldera.core.memory import Device
from caldera.core.tensor.dtype import float32, is_complex, promote
from caldera.errors import DtypeError
from caldera.optim.gradients import Clip, LossScale
from caldera.optim.parameter_groups import L2, Decay, Group, assign_groups
from caldera.optim.schedule import EpochRule, Schedule, require_count, require_positive
from caldera.optim.sharding import check_sharded_update, updating
from caldera.optim.state import OptimizerState, Rate

State = Mapping[str, Expr]
"""State of an optimizer for a parameter, by name."""


@dataclass(frozen=True)
class MinimizeResult:
    """Result of `minimize`.

    >>> from caldera import optim
    >>> optim.MinimizeResult(value=-2.0, steps=120, converged=True).converged
    True
    """

    value: float
    steps: int
    converged: bool


class OptimizerOptions(TypedDict, total=False):
    """Arguments of every optimizer, in addition to its own (see `Optimizer`)."""

    weight_decay: float | None
    decay: Decay | None
    clip: Clip | None
    accumulate: int
    groups: Sequence[Group]
    device: str | None


class Optimizer(OptimizerState, ABC):
    """Base class of optimizers, which compute new values of variables from gradients.

    - `learning_rate`: a number, a `Schedule` (a function of the step) or an `EpochRule`.
    - `weight_decay`: strength of the usual decay of this optimizer; `decay` is any other one.
    - `clip`: `ClipNorm` or `ClipValue`, applied to the gradients before anything else.
    - `accumulate`: number of micro-batches whose gradients make one step. Only every
      `accumulate`-th run of the plan changes the parameters; gradients left at the end of an epoch
      count for the next.
    - `groups`: parameters with a separate learning rate or weight decay.
    - `device`: device of the state and of the updates, by default the device of the parameters.
      With "cpu" a GPU has memory for a larger model. Without it, the host stores the state that
      does not fit in GPU memory. `apart` is that device once it is known.

    A subclass lists its state variables for each parameter in `keeps`, and defines `update`. Its
    arguments are the parameter, its gradient, its state, the learning rate and the number of this
    step (from 1). It returns the new parameter and the new state, as expressions: a whole training
    step is one graph.

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

    keeps: tuple[str, ...] = ()
    usual_decay: ClassVar[type[Decay]] = L2
    usual_strength: ClassVar[float] = 0.0
    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": ("near", 30.0),
        "weight_decay": ("log", 1e-6, 1e-2),
    }
    """Reasonable values of arguments, for `search.space_of`: see `Layer.ranges`.

    ("near", factor) is any number up to `factor` times smaller or larger.
    """
    gives_way: ClassVar[Mapping[str, str]] = {"decay": "weight_decay"}
    decays_inside: ClassVar[bool] = False
    """True if `update` itself adds decoupled decay to the step, by `self.pull`."""

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        *,
        weight_decay: float | None = None,
        decay: Decay | None = None,
        clip: Clip | None = None,
        accumulate: int = 1,
        groups: Sequence[Group] = (),
        device: str | None = None,
    ) -> None:
        name = type(self).__name__
        if not isinstance(learning_rate, EpochRule | Schedule):
            require_positive(name, learning_rate)
        decays = (weight_decay, decay)
        controls = getattr(learning_rate, "controls", "learning_rate")
        of_groups = not isinstance(groups, Group) and all(isinstance(g, Group) for g in groups)
        for ok, expected, got in (
            (controls == "learning_rate", "a rule for the learning rate", learning_rate),
            (
                self.follows_rate or not isinstance(learning_rate, EpochRule | Schedule),
                "a number as the learning rate: only the first step reads it",
                learning_rate,
            ),
            (None in decays, "weight_decay= or decay=", decays),
            (isinstance(decay, Decay | None), "decay= an object such as optim.L2(1e-3)", decay),
            (isinstance(clip, Clip | None), "clip= an object such as optim.ClipNorm(1.0)", clip),
            (of_groups, "groups= a list of optim.Group", groups),
            (isinstance(device, str | None), 'device= a name such as "cpu"', device),
        ):
            require(ok, name, expected, repr(got))
        require_count(name, "accumulate", accumulate)
        strength = self.usual_strength if weight_decay is None else weight_decay
        self.decay = self.usual_decay(strength) if decay is None else decay
        self._given_rate = learning_rate
        self.clip = clip
        self.accumulate = accumulate
        self.groups = tuple(groups)
        self.device = device
        self._begin_state()
        if isinstance(learning_rate, EpochRule):
            self._given_rate = learning_rate.owned_by(self._token)

    @abstractmethod
    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        """Return the new parameter and the new state."""

    # --- what it knows

    @property
    def weight_decay(self) -> float:
        """The strength of the decay; assigning changes the next steps.

        >>> from caldera import optim
        >>> adam = optim.AdamW(1e-3)
        >>> adam.weight_decay = 0.1
        >>> adam.decay
        Decoupled(strength=0.1)
        """
        return self.decay.strength

    @weight_decay.setter
    def weight_decay(self, given: float) -> None:
        self.decay = replace(self.decay, strength=given)

    @property
    def epoch_rule(self) -> EpochRule | None:
        """The rule that decides the learning rate between epochs, if there is one."""
        return self._given_rate if isinstance(self._given_rate, EpochRule) else None

    @property
    def epoch_rules(self) -> list[EpochRule]:
        """The rules that decide learning rates between epochs."""
        return [] if self.epoch_rule is None else [self.epoch_rule]

    def current_rate(self) -> float:
        """Return the learning rate of the next step, as a number.

        >>> import caldera as cd
        >>> from caldera import op, optim
        >>> x = op.var("x", (), fill=cd.constant(3.0))
        >>> descent = optim.SGD(optim.Exponential(0.5, factor=0.5))
        >>> _ = descent.minimize(x ** 2, [x], steps=2)
        >>> descent.current_rate()
        0.125
        """
        return float(self._rate(op.cast(self.step, "float64")))

    def known_rate(self) -> float | None:
        """Return the learning rate of the next step; None before `train` or `minimize`.

        >>> from caldera import optim
        >>> print(optim.SGD(0.5).known_rate())
        None
        """
        return None if self._step is None else self.current_rate()

    def after_epoch(self, metrics: Mapping[str, Any]) -> None:
        """Let an `EpochRule` set the learning rate; a training loop calls it after each epoch."""
        if self.epoch_rule is not None:
            self.learning_rate.assign(self.epoch_rule.after_epoch(metrics))

    # --- taking steps

    def apply(
        self,
        variables: Sequence[Variable],
        gradients: Sequence[Expr],
        *,
        ok: Expr | None = None,
        weight: Expr | float = 1.0,
        loss: Expr | None = None,
    ) -> list[Expr]:
        """Return the assignments of a step. If `ok` is false, no variable or count changes.

        `weight` matters where gradients are accumulated: it is the weight of this micro-batch (its
        number of samples, if its loss is a mean over them). Only rules that search along a line
        read the `loss`.
        """
        self._check(variables, gradients)
        self._choose_place(variables)
        return self._assignments(variables, gradients, ok, weight, loss)

    def _assignments(
        self,
        variables: Sequence[Variable],
        gradients: Sequence[Expr],
        ok: Expr | None,
        weight: Expr | float,
        loss: Expr | None,
    ) -> list[Expr]:
        """Write the update of each parameter; a rule for all parameters together overrides this."""
        taken = self._create(self._place_of(variables[0]))
        # An update is computed where its state is.
        apart = bool(self.apart) or len({each.tensor.device for each in variables}) > 1

        def at(place: Device) -> AbstractContextManager[None]:
            return pinned(place.name) if apart else nullcontext()

        with at(taken.tensor.device):
            rate = self._rate(op.cast(taken, "float64"))
        gradients = [
            op.cast(gradient, promote(variable.dtype, float32))
            for variable, gradient in zip(variables, gradients, strict=True)
        ]
        assignments: list[Expr] = []
        if self._accumulation is not None:
            gradients, ok, assignments = self._accumulation.collected(
                variables, gradients, weight, ok
            )
        if self.clip is not None:
            gradients = self.clip.clipped(gradients)
        groups = assign_groups(type(self).__name__, self.groups, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            group = groups.get(variable)
            own = rate if group is None else rate * group.learning_rate_factor
            with updating(variable), at(self._place_of(variable)):
                new, kept = self._rule_of(group)._decayed_update(variable, gradient, own, taken)
                state = self._state_of(variable)
                assignments.append(assigned(variable, new, ok))
                assignments += [assigned(state[name], kept[name], ok) for name in state]
        with at(taken.tensor.device):
            assignments.append(assigned(taken, taken + 1, ok))
        return assignments

    def train(
        self,
        loss: Expr,
        variables: Sequence[Variable],
        *,
        loss_scale: LossScale | None = None,
        weight: Expr | float = 1.0,
        unused: str = "error",
    ) -> list[Expr]:
        """Return the assignments of a step that reduces `loss`, with its gradients.

        A variable that `loss` does not depend on is an error, unless `unused="zero"`.
        """
        if loss_scale is None:
            found = op.grad(loss, list(variables), unused=unused)
            return self.apply(variables, found, weight=weight, loss=loss)
        scaled = op.grad(loss_scale.scaled(loss), list(variables), unused=unused)
        gradients, ok = loss_scale.unscaled(scaled)
        updates = self.apply(variables, gradients, ok=ok, weight=weight, loss=loss)
        return [*updates, *loss_scale.adapted(ok)]

    def minimize(
        self,
        loss: Expr,
        variables: Sequence[Variable],
        *,
        steps: int = 1000,
        tolerance: float = 1e-6,
    ) -> MinimizeResult:
        """Step until no gradient is larger than `tolerance`, at most `steps` times.

        >>> import caldera as cd
        >>> from caldera import op, optim
        >>> x = op.var("x", (), fill=cd.constant(3.0))
        >>> found = optim.GradientDescent(0.05).minimize(x ** 2 - 2.0, [x])
        >>> found.converged, round(found.value, 6)
        (True, -2.0)
        """
        gradients = op.grad(loss, list(variables))
        plan = compile([loss, *gradients, *self.apply(variables, gradients, loss=loss)])
        count = 1 + len(gradients)
        for taken in range(1, steps + 1):
            value, *found = [result.numpy() for result in plan.run()[:count]]
            require(
                np.isfinite(value),
                f"{type(self).__name__}.minimize",
                "a finite loss",
                f"{value} at step {taken}",
                "use a smaller learning rate",
            )
            if max(float(np.abs(each).max(initial=0.0)) for each in found) <= tolerance:
                return MinimizeResult(float(value), taken, converged=True)
        return MinimizeResult(float(loss), steps, converged=False)

    # --- the parts of a step

    def pull(self, parameter: Expr) -> Expr | float:
        """Return the term that decoupled decay adds to a step, for rules that decay inside."""
        if self.decay.coupled or not self.decay.strength:
            return 0.0
        return self.decay.pull(parameter)

    def _decayed_update(
        self, variable: Variable, gradient: Expr, rate: Expr, taken: Variable
    ) -> tuple[Expr, State]:
        where, state, given = type(self).__name__, self._state_of(variable), gradient
        wide = gradient.dtype
        rate = op.cast(rate, wide)
        parameter = op.cast(variable, wide)
        if self.decay.strength and self.decay.coupled:
            gradient = gradient + self.decay.pull(parameter)
        elif self.decay.strength and not self.decays_inside:
            parameter = parameter - rate * self.decay.pull(parameter)
        found = self.update(parameter, gradient, state, rate, op.cast(taken, wide) + 1.0)
        require(
            isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[1], Mapping),
            f"{where}.update",
            "the new parameter and a dict of new state, as a tuple",
            shown(found),
            "end with return parameter, {...}; the dict is empty without state",
        )
        new, kept = found
        require(
            kept.keys() == state.keys(),
            f"{where}.update",
            f"new values for {sorted(state)}",
            sorted(kept),
            "keeps and update must name the same state",
        )
        check_sharded_update(where, [variable, given, *state.values()], [new, *kept.values()])
        return new, kept

    def _rule_of(self, group: Group | None) -> Self:
        """Return this optimizer, or a copy with the group's weight decay if it has one."""
        if group is None or group.weight_decay is None:
            return self
        rule = copy.copy(self)
        rule.decay = replace(self.decay, strength=group.weight_decay)
        return rule

    def _rate(self, count: Expr) -> Expr:
        if isinstance(self._given_rate, Schedule):
            return self._given_rate.rate(count)
        return self.learning_rate

    def _check(self, variables: Sequence[Variable], gradients: Sequence[Expr]) -> None:
        require(
            0 < len(set(variables)) == len(variables) == len(gradients),
            type(self).__name__,
            "different variables, and a gradient for each",
            f"{len(gradients)} gradients for "
            + (", ".join(variable.name for variable in variables) or "no variables"),
        )
        for variable in variables:
            require(
                not is_complex(variable.dtype),
                type(self).__name__,
                "real variables",
                f"{variable.name} {variable.dtype}",
                "train its parts: two real variables, joined by op.complex",
                DtypeError,
            )


optimizers: Family[Optimizer] = Family("optimizer", Optimizer)


def assigned(variable: Variable, new: Expr, ok: Expr | None) -> Expr:
    """Return the assignment of a new value, where `ok` is true or None."""
    return op.assign(variable, new if ok is None else op.where(ok, new, variable))
