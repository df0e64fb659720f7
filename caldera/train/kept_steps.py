"""The plans of the last `fit`, for the next one: training in many short calls plans once.

They are taken again only if nothing that they were made of has changed. Changes of layers are seen
by the steps themselves; the rest is compared here. What cannot be compared is planned anew.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from caldera.base.config import settings
from caldera.compiler.plan.cache import MOST_BYTES
from caldera.train.batch_source import BatchSource, HostSource
from caldera.train.step import Steps
from caldera.train.strategy import SingleProcessStrategy, Strategy

if TYPE_CHECKING:
    from caldera.train.model import Model

Facts = tuple[Any, ...]
"""What a model's steps depend on, beside its layers."""


class KeptSteps:
    """The steps of a model's last run, as long as they hold no more than a few plans may."""

    def __init__(self) -> None:
        self._facts: Facts | None = None
        self._steps: Steps | None = None

    def take(self, facts: Facts | None, model: Model) -> Steps | None:
        """The steps that were made for these facts, as new, if there are any. They are kept again
        by `keep`, once a run has ended well."""
        steps = self._steps if facts is not None and facts == self._facts else None
        self.clear()
        if steps is not None:
            steps.model = model
            steps.begin_again(model.seed, model.steps_done)
        return steps

    def keep(self, facts: Facts | None, steps: Steps) -> None:
        """Keep the steps of a run that has ended, for others with the same facts."""
        if facts is not None and steps.nbytes <= MOST_BYTES:
            self._facts, self._steps = facts, steps
            # A model that nobody uses goes at once: what it keeps must not hold on to it.
            loose: Any = weakref.proxy(steps.model)
            steps.model = loose

    def clear(self) -> None:
        """Let go of them."""
        self._facts = self._steps = None


def facts_of(
    model: Model, strategy: Strategy, source: BatchSource, *, weighted: bool, targets: int
) -> Facts | None:
    """What steps for this would depend on; None if that cannot be told."""
    alone = type(strategy) is SingleProcessStrategy
    fed = isinstance(source, HostSource) and not source.has_stages
    if not (alone and fed) or model.precision == "float16":
        # Ranks plan together; data lie on the device; a loss scale begins anew with each run.
        return None
    optimizer = model.optimizer
    if not type(optimizer).__module__.startswith("caldera."):
        # Nobody knows what the rule of somebody else reads.
        return None
    numbers = {
        name: value
        for name, value in vars(optimizer).items()
        if name != "state" and not name.startswith("_")
    }
    return (
        id(strategy),
        model.objective,
        optimizer,
        numbers,
        model.metrics,
        model.dtype,
        model.precision,
        model.device,
        model.seed,
        model.signature,
        weighted,
        targets,
        repr(settings),
    )
