"""How long measuring kernels may take.

A process may spend `settings.tune_budget_s` at once. What it has spent comes back, a tenth of a
second in each second that it does something else. Otherwise a large network would leave nothing
for those that the same process trains after it: their kernels would be guessed, however long they
are trained. So measuring takes a tenth of a long run at the most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from caldera.base.config import settings

BACK_A_SECOND = 0.1
"""Seconds that come back in each second."""


class TuningBudget:
    """What measuring has taken in this process of late, and what it may still take.

    >>> from caldera.kernels.tuning_budget import TuningBudget
    >>> budget = TuningBudget()
    >>> with budget.spending():
    ...     pass
    >>> budget.left > 4.9
    True
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Have all of it again.

        >>> TuningBudget().reset()
        """
        self._spent_s = 0.0
        self._as_of = perf_counter()

    @property
    def left(self) -> float:
        """Seconds that measuring may take now; below 0 after one that took longer than it should.

        >>> import caldera as cd
        >>> with cd.settings.override(tune_budget_s=0.0):
        ...     TuningBudget().left
        0.0
        """
        self._refill()
        return settings.tune_budget_s - self._spent_s

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What happens inside is taken from the budget.

        >>> with TuningBudget().spending():
        ...     pass
        """
        self._refill()
        try:
            yield
        finally:
            now = perf_counter()
            self._spent_s, self._as_of = self._spent_s + now - self._as_of, now

    def _refill(self) -> None:
        now = perf_counter()
        back = BACK_A_SECOND * (now - self._as_of)
        self._spent_s, self._as_of = max(self._spent_s - back, 0.0), now
