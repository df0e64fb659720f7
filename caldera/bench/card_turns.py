"""Measuring a network on a card, which is scarce: processes are kept as long as they fit there.

Each contestant first gets a process with empty caches: the cold first step, and the results to
compare. In a quick run this process is also the one whose steps are timed; else another one is,
which gives the warm first step. Contestants whose processes fit onto the card together take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from caldera.bench.asking import Asking, turned
from caldera.bench.card import card_state
from caldera.bench.comparison import Comparison
from caldera.bench.results import Entry
from caldera.bench.slot import Slot
from caldera.bench.work import TrainingCase

MOST_TOGETHER = 16
"""Processes at once: each takes some gigabytes of the host's memory as well."""
LEAST_FREE = 0.5
"""The part of the card's memory that must be free before another process is started."""


class CardTurns:
    """One network and its contestants."""

    def __init__(
        self, asking: Asking, case: TrainingCase, entries: dict[Slot, Entry], folder: Path
    ) -> None:
        self._asking = asking
        self._case = case
        self._entries = entries
        self._comparison = Comparison(folder, next(iter(entries)).contestant.label)
        self._rounds = asking.options.rounds

    def run(self) -> None:
        """Measure everybody."""
        if self._asking.options.quick:
            self._in_groups(self._first_and_kept)
        else:
            for slot, entry in self._entries.items():
                self._attempt(slot, entry, self._first, "first step and check")
                slot.close()
            self._in_groups(partial(self._asking.prepare, self._case))
        self._comparison.judge(list(self._entries.values()))

    def _attempt(
        self, slot: Slot, entry: Entry, action: Callable[[Slot, Entry], None], what: str
    ) -> None:
        if not entry.error:
            self._asking.tell(self._case, f"{entry.label}, {what}")
        self._asking.attempt(slot, entry, action)

    # --- processes

    def _first(self, slot: Slot, entry: Entry) -> None:
        before = card_state()
        self._asking.first_step(self._case, slot, entry)
        after = card_state()
        if before is not None and after is not None:
            entry.card_bytes = max(0, after.used - before.used)
        self._asking.check(self._case, self._comparison, slot, entry)

    def _first_and_kept(self, slot: Slot, entry: Entry) -> None:
        self._first(slot, entry)
        if self._comparison.is_reference(entry):
            # It has computed in float64 too, and would keep the memory for that.
            slot.close()
            if slot.contestant.is_measured:
                self._asking.prepare(self._case, slot, entry)

    def _in_groups(self, begin: Callable[[Slot, Entry], None]) -> None:
        """Start the processes of as many as fit, let them take turns, and so on with the rest."""
        group: dict[Slot, Entry] = {}
        for slot, entry in self._entries.items():
            is_only_compared = not slot.contestant.is_measured
            if is_only_compared and not self._asking.options.quick:
                continue
            if _is_crowded(len(group)):
                self._take_turns(group)
                group = {}
            self._attempt(slot, entry, begin, "started")
            if not is_only_compared:
                group[slot] = entry
        self._take_turns(group)

    def _take_turns(self, group: dict[Slot, Entry]) -> None:
        measure = partial(self._asking.measure, self._case)
        for turn in range(self._rounds):
            for slot, entry in turned(group, turn):
                self._attempt(slot, entry, measure, f"turn {turn + 1}")
        for slot in group:
            slot.close()


def _is_crowded(processes: int) -> bool:
    if processes == 0:
        return False
    state = card_state()
    is_full = state is not None and state.free < LEAST_FREE * state.total
    return is_full or processes >= MOST_TOGETHER
