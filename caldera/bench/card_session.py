"""Measuring a network on a card, which is scarce: processes are kept as long as they fit there.

Each contestant first gets a process with empty caches: the cold first step, and the results to
compare. In a quick run this process is also the one whose steps are timed; else another one is,
which gives the warm first step. Contestants whose processes fit onto the card together take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from caldera.base.machine import card_state
from caldera.bench.case_runner import CaseRunner, rotated
from caldera.bench.comparison import Comparison
from caldera.bench.results import Entry
from caldera.bench.worker_process import WorkerHandle
from caldera.bench.workloads import TrainingCase

MOST_TOGETHER = 16
"""Processes at once: each takes some gigabytes of the host's memory as well."""
LEAST_FREE = 0.5
"""The part of the card's memory that must be free before another process is started."""


class CardSession:
    """One network and its contestants."""

    def __init__(
        self,
        runner: CaseRunner,
        case: TrainingCase,
        entries: dict[WorkerHandle, Entry],
        folder: Path,
    ) -> None:
        self._runner = runner
        self._case = case
        self._entries = entries
        self._comparison = Comparison(folder, next(iter(entries)).contestant.label)
        self._rounds = runner.options.rounds

    def run(self) -> None:
        """Measure everybody."""
        if self._runner.options.quick:
            self._in_groups(self._first_and_kept)
        else:
            for handle, entry in self._entries.items():
                self._attempt(handle, entry, self._first, "first step and check")
                handle.close()
            self._in_groups(partial(self._runner.prepare, self._case))
        self._comparison.judge(list(self._entries.values()))

    def _attempt(
        self,
        handle: WorkerHandle,
        entry: Entry,
        action: Callable[[WorkerHandle, Entry], None],
        what: str,
    ) -> None:
        if not entry.error:
            self._runner.tell(self._case, f"{entry.label}, {what}")
        self._runner.attempt(handle, entry, action)

    # --- processes

    def _first(self, handle: WorkerHandle, entry: Entry) -> None:
        before = card_state()
        self._runner.first_step(self._case, handle, entry)
        after = card_state()
        if before is not None and after is not None:
            entry.card_bytes = max(0, after.used - before.used)
        self._runner.check(self._case, self._comparison, handle, entry)

    def _first_and_kept(self, handle: WorkerHandle, entry: Entry) -> None:
        self._first(handle, entry)
        if self._comparison.is_reference(entry):
            # It has computed in float64 too, and would keep the memory for that.
            handle.close()
            if handle.contestant.is_measured:
                self._runner.prepare(self._case, handle, entry)

    def _in_groups(self, begin: Callable[[WorkerHandle, Entry], None]) -> None:
        """Start the processes of as many as fit, let them take turns, and so on with the rest."""
        group: dict[WorkerHandle, Entry] = {}
        for handle, entry in self._entries.items():
            is_only_compared = not handle.contestant.is_measured
            if is_only_compared and not self._runner.options.quick:
                continue
            if _is_crowded(len(group)):
                self._take_turns(group)
                group = {}
            self._attempt(handle, entry, begin, "started")
            if not is_only_compared:
                group[handle] = entry
        self._take_turns(group)

    def _take_turns(self, group: dict[WorkerHandle, Entry]) -> None:
        measure = partial(self._runner.measure, self._case)
        for turn in range(self._rounds):
            for handle, entry in rotated(group, turn):
                self._attempt(handle, entry, measure, f"turn {turn + 1}")
        for handle in group:
            handle.close()


def _is_crowded(processes: int) -> bool:
    if processes == 0:
        return False
    state = card_state()
    is_full = state is not None and state.free < LEAST_FREE * state.total
    return is_full or processes >= MOST_TOGETHER
