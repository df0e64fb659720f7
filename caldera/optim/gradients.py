"""Gradient clipping, gradient accumulation and dynamic loss scaling.

Clipping keeps one bad batch from moving the parameters far away. Loss scaling protects float16
gradients from underflow: the loss is multiplied by a scale, the gradients are divided by it. A
step whose gradients overflowed is undone on the device, and the scale is halved; after enough
good steps it is doubled.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from operator import add

from caldera import op
from caldera.base.arguments import require
from caldera.base.configurable import Configurable, Family
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.node import pinned
from caldera.core.memory import Device
from caldera.core.tensor.dtype import DType
from caldera.optim.sharding import total


@dataclass(frozen=True)
class Clip(Configurable, ABC):
    """Base class of bounds on gradients; subclasses define `clipped`.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> _ = optim.SGD(1.0, clip=optim.ClipValue(0.5)).minimize(x ** 2, [x], steps=1)
    >>> x.numpy().item()
    2.5
    """

    limit: float

    def __post_init__(self) -> None:
        require(0 < self.limit < math.inf, type(self).__name__, "a limit above 0", self.limit)

    @abstractmethod
    def clipped(self, gradients: Sequence[Expr]) -> list[Expr]:
        """Return the gradients of all parameters, bounded."""


clips: Family[Clip] = Family("clip", Clip)


@clips.register("value")
@dataclass(frozen=True)
class ClipValue(Clip):
    """Clips each element of each gradient to -limit to limit.

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
    """Scales all gradients by one factor if their global norm is above the limit.

    Gradients within the limit are left exactly as they are.

    >>> import caldera as cd
    >>> from caldera import optim
    >>> gradients = [cd.tensor([3.0]), cd.tensor([4.0, 0.0])]
    >>> [round(g.numpy()[0].item(), 6) for g in optim.ClipNorm(1.0).clipped(gradients)]
    [0.6, 0.8]
    """

    def clipped(self, gradients: Sequence[Expr]) -> list[Expr]:
        squares = sum((total(op.square(gradient)) for gradient in gradients), 0.0)
        factor = self.limit / op.maximum(op.sqrt(squares), self.limit)
        return [gradient * op.cast(factor, gradient.dtype) for gradient in gradients]


class Accumulation:
    """The weighted mean of the gradients of `count` micro-batches, collected in variables.

    The weight of a micro-batch is what its loss was divided by (its number of samples, say), so
    that micro-batches of different sizes give exactly the gradient of all their samples together.
    Sums are `apart` from their parameters if there is such a device.
    """

    def __init__(self, count: int, device: Device, apart: str | None = None) -> None:
        self.count = count
        self._apart = apart
        self.taken = op.var("micro-batches", (), dtype="int64", device=device)
        self.weight = op.var("weight of micro-batches", (), dtype="float64", device=device)
        self.sums: dict[Variable, Variable] = {}

    def variables(self) -> list[Variable]:
        """Return the variables to checkpoint."""
        return [self.taken, self.weight, *self.sums.values()]

    def collected(
        self,
        variables: Sequence[Variable],
        gradients: Sequence[Expr],
        weight: Expr | float,
        ok: Expr | None,
    ) -> tuple[list[Expr], Expr, list[Expr]]:
        """Return the mean gradients, the condition for a step, and the assignments that accumulate.

        A micro-batch that is not `ok` is left out, as if it had not been.
        """
        # A cast, so that a plain number becomes an expression as well.
        share = op.cast(weight, "float64")
        due = self.taken + 1 == self.count
        total = self.weight + share
        assignments = [
            self._keep(self.taken, self.taken + 1, due, ok),
            self._keep(self.weight, total, due, ok),
        ]
        means = []
        for variable, gradient in zip(variables, gradients, strict=True):
            kept = self.sum_of(variable, gradient.dtype)
            with nullcontext() if self._apart is None else pinned(self._apart):
                collected = kept + gradient * op.cast(share, gradient.dtype)
                assignments.append(self._keep(kept, collected, due, ok))
                means.append(collected / op.cast(total, gradient.dtype))
        return means, due if ok is None else op.logical_and(due, ok), assignments

    def sum_of(self, variable: Variable, dtype: DType) -> Variable:
        """Return the variable that accumulates a parameter's gradients, in this dtype."""
        if variable not in self.sums:
            self.sums[variable] = op.var(
                f"{variable.name}/gradient",
                variable.shape,
                dtype=dtype,
                device=self._apart or variable.tensor.device,
            )
        return self.sums[variable]

    def _keep(self, variable: Variable, new: Expr, due: Expr, ok: Expr | None) -> Expr:
        kept = op.where(due, 0, new)
        return op.assign(variable, kept if ok is None else op.where(ok, kept, variable))


class LossScale:
    """Adaptive scale of the loss, so that gradients in float16 neither underflow nor overflow.

    The scale and the number of steps since its last change are variables of the training step.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (), fill=cd.constant(3.0))
    >>> scale = optim.LossScale(initial=1024.0)
    >>> step = cd.compile(optim.GradientDescent(0.5).train(x ** 2, [x], loss_scale=scale))
    >>> _ = step.run()
    >>> x.numpy().item(), scale.scale.numpy().item()
    (0.0, 1024.0)
    """

    def __init__(
        self,
        initial: float = 65536.0,
        *,
        growth_interval: int = 2000,
        device: Device | str | int | None = None,
    ) -> None:
        require(
            initial > 0 and growth_interval >= 1,
            "LossScale",
            "initial > 0 and growth_interval >= 1",
            f"{initial} and {growth_interval}",
        )
        self.growth_interval = growth_interval
        self.scale = op.var("loss scale", (), fill=float(initial), device=device)
        self.good_steps = op.var("good steps", (), dtype="int64", device=device)

    def scaled(self, loss: Expr) -> Expr:
        """Return the loss, scaled up."""
        return loss * op.cast(self.scale, loss.dtype)

    def unscaled(self, gradients: Sequence[Expr]) -> tuple[list[Expr], Expr]:
        """Return the gradients divided by the loss scale, and whether all are finite."""
        require(len(gradients), "LossScale", "at least one gradient")
        bad = reduce(add, [total(op.logical_not(op.isfinite(each))) for each in gradients])
        down = [gradient / op.cast(self.scale, gradient.dtype) for gradient in gradients]
        return down, bad == 0

    def adapted(self, ok: Expr) -> list[Expr]:
        """The assignments that halve the scale after overflow and double it after a good run."""
        good = op.where(ok, self.good_steps + 1, 0)
        grow = good >= self.growth_interval
        scale = op.where(ok, op.where(grow, self.scale * 2.0, self.scale), self.scale * 0.5)
        return [
            op.assign(self.scale, op.clip(scale, 1.0, 2.0**24)),
            op.assign(self.good_steps, op.where(grow, 0, good)),
        ]
