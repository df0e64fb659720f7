"""`Conditions`: what decides about the bits of a trial's weights besides its seed and samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from caldera.base.config import settings
from caldera.base.plain_data import from_plain, to_plain
from caldera.kernels.tuning.choice_store import ChoiceCache


@dataclass(frozen=True)
class Conditions:
    """The threads of each rank, the ranks that trained it together, and the kernels that served.

    Sums are added up in parts, as many as there are threads and ranks, and each kernel has an order
    of its own.

    >>> from caldera.search.conditions import Conditions
    >>> Conditions.from_text(Conditions(threads=2).to_text())
    Conditions(threads=2, ranks=1, choices=ChoiceCache(kernels={}, times={}))
    """

    threads: int
    ranks: int = 1
    choices: ChoiceCache = field(default_factory=ChoiceCache)

    def to_text(self) -> str:
        """As JSON, the same for the same ones. The master of a search passes it on as it is: they
        are half of what it hears of a trial, and it needs nothing of them."""
        return json.dumps(to_plain(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, given: str) -> Conditions:
        """What `to_text` wrote; for a trial of a study that has not kept them, those of here."""
        return from_plain(cls, json.loads(given), "conditions") if given else cls(settings.threads)


def of_all_ranks(written: Sequence[str]) -> str:
    """Those of a trial that several ranks have trained: their samples may have different shapes,
    so that each has choices of its own. Where they have the same they agree."""
    found = [Conditions.from_text(each) for each in written if each]
    if not found:
        # A function that trains nothing.
        return ""
    choices = ChoiceCache()
    for each in reversed(found):
        choices.kernels.update(each.choices.kernels)
        choices.times.update(each.choices.times)
    return Conditions(found[0].threads, found[0].ranks, choices).to_text()
