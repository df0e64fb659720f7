"""Parameter groups: some parameters with a learning rate and a weight decay of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from caldera.base.configurable import Configurable, Family
from caldera.compiler.lazy import Variable
from caldera.errors import ConfigError
from caldera.optim.sharding import whole_of

Match = str | Variable


@dataclass(frozen=True, eq=False)
class Group(Configurable):
    """The parameters that `match`: a name pattern, a variable, or a list of such.

    A pattern (with *, ? and [...]) must fit the whole name or the end of it after a slash: "bias"
    is every bias, "head/*" all that is in the layer named head. Their learning rate is multiplied
    by `learning_rate_factor`; `weight_decay`, if given, replaces the strength of the optimizer's.
    A parameter belongs to the first group that matches it.

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
        if not all(isinstance(each, str | Variable) for each in self._matches()):
            raise ConfigError.build(
                "Group",
                expected="match= a name pattern, a variable or a list of them",
                got=repr(self.match),
            )
        if not 0 <= self.learning_rate_factor < math.inf:
            raise ConfigError.build(
                "Group",
                expected="a learning rate factor of 0 or more",
                got=f"{self.learning_rate_factor}",
            )

    def _matches(self) -> Sequence[Match]:
        return [self.match] if isinstance(self.match, str | Variable) else self.match

    def holds(self, variable: Variable) -> bool:
        """Whether the variable belongs to this group."""
        for each in self._matches():
            if isinstance(each, Variable):
                if each is variable:
                    return True
            elif fnmatchcase(variable.name, each) or fnmatchcase(variable.name, f"*/{each}"):
                return True
        return False

    def arguments(self) -> dict[str, Any]:
        """As they were given, but with names in the place of variables: files hold names."""
        names = [each if isinstance(each, str) else escape(each.name) for each in self._matches()]
        return super().arguments() | {"match": names}


groups: Family[Group] = Family("group", Group)
groups.register("group")(Group)


def assign_groups(
    where: str, groups: Sequence[Group], variables: Sequence[Variable]
) -> dict[Variable, Group]:
    """The group of each variable that is in one; a group that gets no variable is an error."""
    found: dict[Variable, Group] = {}
    for variable in variables:
        group = next((each for each in groups if each.holds(whole_of(variable))), None)
        if group is not None:
            found[variable] = group
    for group in groups:
        if group not in found.values():
            raise ConfigError.build(
                where,
                expected=f"a parameter for the group {group.match!r}",
                got="only " + ", ".join(variable.name for variable in variables),
                hint="mend the pattern; a parameter belongs to the first group that matches it",
            )
    return found
