"""Gradient clipping: keeps one bad batch from throwing the parameters far away."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from caldera import op
from caldera.base.configurable import Configurable, Family
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.optim.sharding import total


@dataclass(frozen=True)
class Clip(Configurable, ABC):
    """A bound on gradients; a new one writes `clipped`.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.SGD(1.0, clip=optim.ClipValue(0.5)).minimize(x ** 2, [x], steps=1)
    >>> x.numpy().item()
    2.5
    """

    limit: float

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf:
            raise ConfigError.build(
                type(self).__name__, expected="a limit above 0", got=f"{self.limit}"
            )

    @abstractmethod
    def clipped(self, gradients: Sequence[Expr]) -> list[Expr]:
        """The gradients of all parameters, bounded."""


clips: Family[Clip] = Family("clip", Clip)


@clips.register("value")
@dataclass(frozen=True)
class ClipValue(Clip):
    """Each element of each gradient is kept from -limit to limit.

    >>> import caldera as cd
    >>> from caldera import optim
    >>> optim.ClipValue(1.0).clipped([cd.tensor([0.5, -3.0])])[0].tolist()
    [0.5, -1.0]
    """

    def clipped(self, gradients: Sequence[Expr]) -> list[Expr]:
        return [op.clip(gradient, -self.limit, self.limit) for gradient in gradients]


@clips.register("norm")
@dataclass(frozen=True)
class ClipNorm(Clip):
    """All gradients are scaled down together where their common length is above the limit.

    Gradients within the limit are left exactly as they are.

    >>> import caldera as cd
    >>> from caldera import optim
    >>> gradients = [cd.tensor([3.0]), cd.tensor([4.0, 0.0])]
    >>> [round(g.numpy()[0].item(), 6) for g in optim.ClipNorm(1.0).clipped(gradients)]
    [0.6, 0.8]
    """

    def clipped(self, gradients: Sequence[Expr]) -> list[Expr]:
        squares: Expr | float = 0.0
        for gradient in gradients:
            squares = total(op.square(gradient)) + squares
        factor = self.limit / op.maximum(op.sqrt(squares), self.limit)
        return [gradient * op.cast(factor, gradient.dtype) for gradient in gradients]
