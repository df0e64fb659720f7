"""Choices of kernels that hold while something is computed, and when it is computed again.

Each kernel adds up in an order of its own, so that the same training by other kernels ends with
other bits. And choices do change: what was predicted is measured later, another process measures
for itself, the time for measuring is used up. Who has to compute the same again keeps the choices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from caldera.kernels.table import Kernel
from caldera.kernels.verdict import Verdict

_here = threading.local()


@dataclass(frozen=True)
class HeldChoices:
    """The kernel for each node, by a digest of its tuning key; and the seconds of its rivals where
    those say into which slices a batch is cut.

    >>> from caldera.kernels.held_choices import HeldChoices, held_choices, holding
    >>> with holding(HeldChoices()) as held:
    ...     held is held_choices()
    True
    """

    kernels: dict[str, str] = field(default_factory=dict)
    times: dict[str, dict[str, float]] = field(default_factory=dict)

    def find(self, digest: str, kernels: Sequence[Kernel]) -> Verdict | None:
        """What was chosen for a node, if that is one of these kernels."""
        name = self.kernels.get(digest)
        kernel = next((each for each in kernels if each.name == name), None)
        return None if kernel is None else Verdict(kernel, self.times.get(digest), "remembered")


@contextmanager
def holding(held: HeldChoices) -> Iterator[HeldChoices]:
    """Inside, plans that this thread makes go by these choices, and those they lack are added."""
    before = held_choices()
    _here.held = held
    try:
        yield held
    finally:
        _here.held = before


def held_choices() -> HeldChoices | None:
    """Those that plans of this thread go by; None if they choose freely."""
    return getattr(_here, "held", None)


def held_or(
    choose: Callable[[], Verdict | None],
    digest: str,
    kernels: Sequence[Kernel],
    is_final: bool,
    *,
    is_timed: bool,
) -> Verdict | None:
    """What is held for a node, else what `choose` chooses, which is held from now on. None, the
    first kernel as a guess, is held too.

    What is not `is_final` serves a first run alone, and is a choice of its own. With `is_timed`,
    where a batch can be cut, the times of all kernels are held: they say how it is.
    """
    held = held_choices()
    if held is None:
        return choose()
    word = digest if is_final else f"{digest} at first"
    known = held.find(word, kernels)
    if known is not None:
        return known
    found = choose()
    held.kernels[word] = (kernels[0] if found is None else found.kernel).name
    if is_timed and found is not None and found.times is not None:
        held.times[word] = dict(found.times)
    return found
