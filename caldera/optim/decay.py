"""Weight decay: a pull of the parameters towards zero."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from caldera import op
from caldera.base.configurable import Configurable, Family
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError


@dataclass(frozen=True)
class Decay(Configurable, ABC):
    """A pull of some strength; a new one writes `pull`.

    A coupled pull is added to the gradient, as the slope of a penalty would be, and goes through
    whatever the optimizer does to gradients. One that is not is a step of its own, of size rate *
    pull, beside that of the gradient (Loshchilov and Hutter, 2019).

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
        if not 0 <= self.strength < math.inf:
            raise ConfigError.build(
                type(self).__name__, expected="a strength of 0 or more", got=f"{self.strength}"
            )

    @abstractmethod
    def pull(self, parameter: Expr) -> Expr:
        """The slope that pulls a parameter towards zero."""


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
    """Makes w smaller by rate * strength * w, whatever the optimizer does to the gradient.

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
