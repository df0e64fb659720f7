"""Parameter groups with their own learning rate and weight decay, and weight decay rules."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, ClassVar

from caldera import op
from caldera.base.arguments import require
from caldera.base.configurable import Configurable, Family
from caldera.compiler.lazy import Expr, Variable
from caldera.optim.sharding import whole_of

Match = str | Variable


@dataclass(frozen=True, eq=False)
class Group(Configurable):
    """The parameters that `match`: a name pattern, a variable, or a list of such.

    A parameter belongs to the first group that matches it.

    Args:
        match: Pattern (with *, ? and [...]) of the whole name or its end after a slash: "bias"
            matches every bias, "head/*" every parameter in the layer named head.
        learning_rate_factor: Factor of the learning rate.
        weight_decay: Strength that replaces the optimizer's; None leaves it.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> w = op.var("dense/weight", (), fill=cd.one())
    >>> b = op.var("dense/bias", (), fill=cd.one())
    >>> descent = optim.SGD(0.25, groups=[optim.Group("bias", learning_rate_factor=2.0)])
    >>> _ = descent.minimize(w + b, [w, b], steps=1)
    >>> w.numpy().item(), b.numpy().item()
    (0.75, 0.5)
    """

    match: Match | Sequence[Match]
    learning_rate_factor: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        require(
            all(isinstance(each, str | Variable) for each in self._matches()),
            "Group",
            "match= a name pattern, a variable or a list",
            repr(self.match),
        )
        require(
            0 <= self.learning_rate_factor < math.inf,
            "Group",
            "a learning rate factor >= 0",
            self.learning_rate_factor,
        )

    def _matches(self) -> Sequence[Match]:
        return [self.match] if isinstance(self.match, str | Variable) else self.match

    def holds(self, variable: Variable) -> bool:
        """Return True if the variable belongs to this group."""
        for each in self._matches():
            if isinstance(each, Variable):
                if each is variable:
                    return True
            elif fnmatchcase(variable.name, each) or fnmatchcase(variable.name, f"*/{each}"):
                return True
        return False

    def arguments(self) -> dict[str, Any]:
        """Return the patterns as passed, with names in place of variables, for files."""
        names = [each if isinstance(each, str) else escape(each.name) for each in self._matches()]
        return super().arguments() | {"match": names}


groups: Family[Group] = Family("group", Group)
groups.register("group")(Group)


def assign_groups(
    where: str, groups: Sequence[Group], variables: Sequence[Variable]
) -> dict[Variable, Group]:
    """Return the group of each variable that is in one.

    A group that gets no variable is an error.
    """
    found: dict[Variable, Group] = {}
    for variable in variables:
        group = next((each for each in groups if each.holds(whole_of(variable))), None)
        if group is not None:
            found[variable] = group
    for group in groups:
        require(
            group in found.values(),
            where,
            f"a parameter for the group {group.match!r}",
            "only " + ", ".join(variable.name for variable in variables),
            "correct the pattern; a parameter belongs to the first group that matches it",
        )
    return found


@dataclass(frozen=True)
class Decay(Configurable, ABC):
    """Weight decay of some strength; a subclass defines `pull`.

    A coupled pull is added to the gradient, as the gradient of a penalty would be, and the
    optimizer processes the sum. A decoupled pull is a separate step of size rate * pull, in
    addition to the gradient's step (Loshchilov and Hutter, 2019).

    >>> from dataclasses import dataclass
    >>> from caldera import op, optim
    >>> @dataclass(frozen=True)
    ... class Cauchy(optim.Decay):
    ...     def pull(self, parameter):
    ...         return self.strength * parameter / (1.0 + op.square(parameter))
    >>> descent = optim.SGD(0.1, decay=Cauchy(1e-3))
    """

    strength: float

    coupled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            0 <= self.strength < math.inf,
            type(self).__name__,
            "a strength >= 0",
            self.strength,
        )

    @abstractmethod
    def pull(self, parameter: Expr) -> Expr:
        """Return the slope that pulls a parameter towards zero."""


decays: Family[Decay] = Family("decay", Decay)


@decays.register("l2")
@dataclass(frozen=True)
class L2(Decay):
    """Adds strength * w to the gradient: the slope of the penalty strength / 2 * sum(w ** 2).

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(2.0))
    >>> _ = optim.SGD(0.5, decay=optim.L2(0.5)).minimize(0.0 * x, [x], steps=1)
    >>> x.numpy().item()
    1.5
    """

    def pull(self, parameter: Expr) -> Expr:
        return self.strength * parameter


@decays.register("l1")
@dataclass(frozen=True)
class L1(Decay):
    """Adds strength * sign(w) to the gradient: the slope of the penalty strength * sum(|w|).

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(-2.0))
    >>> _ = optim.SGD(0.5, decay=optim.L1(0.5)).minimize(0.0 * x, [x], steps=1)
    >>> x.numpy().item()
    -1.75
    """

    def pull(self, parameter: Expr) -> Expr:
        return self.strength * op.sign(parameter)


@decays.register("decoupled")
@dataclass(frozen=True)
class Decoupled(Decay):
    """Decoupled decay: subtracts rate * strength * w, independent of the gradient.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(2.0))
    >>> _ = optim.Adam(0.5, decay=optim.Decoupled(0.5)).minimize(0.0 * x, [x], steps=1)
    >>> x.numpy().item()
    1.5
    """

    coupled: ClassVar[bool] = False

    def pull(self, parameter: Expr) -> Expr:
        return self.strength * parameter
