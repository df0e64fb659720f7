"""Dynamic loss scaling: keeps float16 gradients away from underflow.

The loss is multiplied by a scale, the gradients divided by it. A step whose gradients overflowed is
undone on the device, and the scale is halved; after enough good steps it is doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.memory import Device
from caldera.errors import ConfigError
from caldera.optim.sharding import total


class LossScale:
    """A scale that adapts; its two numbers are variables of the training step.

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
        if initial <= 0 or growth_interval < 1:
            raise ConfigError.build(
                "LossScale",
                expected="initial > 0 and growth_interval >= 1",
                got=f"{initial} and {growth_interval}",
            )
        self.growth_interval = growth_interval
        self.scale = op.var("loss scale", (), fill=float(initial), device=device)
        self.good_steps = op.var("good steps", (), dtype="int64", device=device)

    def scaled(self, loss: Expr) -> Expr:
        """The loss, scaled up."""
        return loss * op.cast(self.scale, loss.dtype)

    def unscaled(self, gradients: Sequence[Expr]) -> tuple[list[Expr], Expr]:
        """The gradients scaled down again, and whether all of them are finite."""
        bad: Expr | None = None
        for gradient in gradients:
            count = total(op.logical_not(op.isfinite(gradient)))
            bad = count if bad is None else bad + count
        if bad is None:
            raise ConfigError.build("LossScale", expected="at least one gradient", got="none")
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
