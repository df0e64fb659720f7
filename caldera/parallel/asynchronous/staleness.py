"""Momentum of gradients that come from older parameters: measured, reported and corrected."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass

from caldera.errors import ConfigError
from caldera.optim import Optimizer

MOMENTUM = ("given", "corrected")
NOTABLE = 0.1
"""Momentum of staleness above which an optimizer with momentum is warned about."""
LEAST = 1e-3
"""Momentum after a correction: with 0 an optimizer would keep no velocity."""


def implicit_momentum(age: float) -> float:
    """Return the momentum of gradients that lack `age` updates on average.

    If ages are geometric, which they are where workers are independent, the mean of the parameters
    moves as with momentum age / (1 + age). Of n workers each lacks n - 1 updates: 1 - 1/n
    (Mitliagkas, Zhang, Hadjis and Ré, "Asynchrony begets momentum", 2016).

    >>> implicit_momentum(0.0), implicit_momentum(3.0)
    (0.0, 0.75)
    """
    return age / (1.0 + age)


@dataclass
class MomentumCorrection:
    """Age of gradients during a run, and the optimizer momentum that remains. `age` is the expected
    age until an epoch has been measured.

    >>> from caldera import optim
    >>> found = MomentumCorrection("Hogwild", corrects=True, age=1.0)
    >>> round(found.corrected(optim.SGD(0.1, momentum=0.9)).momentum, 3)
    0.4
    """

    where: str
    corrects: bool
    age: float
    measured: float = 0.0
    has_warned: bool = False
    changes: int = 0

    def check_unchanged(self, optimizer: Optimizer) -> None:
        """Raise if the optimizer has changed since `check`: other ranks and servers have not."""
        if optimizer.changes != self.changes:
            raise ConfigError.build(
                self.where,
                expected="an optimizer that stays as it was when the run began",
                got=f"another setting: {optimizer!r}",
                hint="assign only optimizer.learning_rate during a run",
            )

    def check(self, optimizer: Optimizer) -> None:
        """Raise if there is no momentum to correct."""
        self.changes = optimizer.changes
        if self.corrects and not hasattr(optimizer, "momentum"):
            raise ConfigError.build(
                self.where,
                expected='an optimizer with momentum, for momentum="corrected"',
                got=type(optimizer).__name__,
                hint="leave out momentum=, or take optim.SGD(momentum=0.9)",
            )

    def corrected(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer with its momentum reduced by the staleness, or the optimizer itself.

        Both share their state. The result has two decimals, so that it changes rarely.
        """
        if not self.corrects:
            return optimizer
        found, given = copy.copy(optimizer), self._given(optimizer)
        left = round(given - implicit_momentum(self.age / optimizer.accumulate), 2)
        vars(found)["momentum"] = min(given, max(left, LEAST))
        return found

    def take(self, age: float, optimizer: Optimizer, *, warns: bool) -> None:
        """Take the mean age of an epoch's gradients; warn once if it matters."""
        self.age = self.measured = age
        given, implicit = self._given(optimizer), implicit_momentum(age / optimizer.accumulate)
        if warns and given and implicit > NOTABLE and not self.corrects and not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"{self.where}: gradients lacked {age:.1f} updates on average, which acts like "
                f"momentum {implicit:.2f} in addition to the optimizer's {given:g}; pass "
                f'momentum="corrected" to train with {max(given - implicit, 0.0):.2f}, or use '
                "an optimizer without momentum",
                stacklevel=2,
            )

    @staticmethod
    def _given(optimizer: Optimizer) -> float:
        return float(getattr(optimizer, "momentum", 0.0))
