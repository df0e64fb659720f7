"""`Conditions`: what decides about the bits of a trial's weights besides its seed and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from caldera.config import settings
from caldera.kernels.held_choices import HeldChoices
from caldera.plain_data import from_plain, to_plain

Written = dict[str, int | dict[str, dict[str, str | dict[str, float]]]]
"""As what JSON can hold."""


@dataclass(frozen=True)
class Conditions:
    """The threads of each rank, the ranks that trained it together, and the kernels that served.

    Sums are added up in parts, as many as there are threads and ranks, and each kernel has an order
    of its own.

    >>> from caldera.search.conditions import Conditions
    >>> Conditions.from_plain(Conditions(threads=2).to_plain())
    Conditions(threads=2, ranks=1, choices=HeldChoices(kernels={}, times={}))
    """

    threads: int
    ranks: int = 1
    choices: HeldChoices = field(default_factory=HeldChoices)

    def to_plain(self) -> Written:
        """As what JSON can hold."""
        found: Written = to_plain(self)
        return found

    @classmethod
    def from_plain(cls, given: Written) -> Conditions:
        """What `to_plain` wrote; for a trial of a study that has not kept them, those of here."""
        return from_plain(cls, given, "conditions") if given else cls(settings.threads)


def of_all_ranks(written: Sequence[Written]) -> Written:
    """Those of a trial that several ranks have trained: their samples may have different shapes,
    so that each has choices of its own. Where they have the same they agree."""
    found = [Conditions.from_plain(each) for each in written if each]
    if not found:
        # A function that trains nothing.
        return {}
    choices = HeldChoices()
    for each in reversed(found):
        choices.kernels.update(each.choices.kernels)
        choices.times.update(each.choices.times)
    return Conditions(found[0].threads, found[0].ranks, choices).to_plain()
