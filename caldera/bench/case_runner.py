"""Execution of benchmark cases by their contestants, on the CPU and on a GPU.

GPU memory is scarce, so processes are kept as long as they fit on the GPU. Each contestant first
gets a process with empty caches, which yields the cold first step and the results to compare. In
a quick run the steps of the same process are timed. Otherwise a second process is timed, which
also yields the warm first step. Contestants whose processes fit on the GPU together are timed in
turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from caldera.base.machine import card_state
from caldera.bench.comparison import Comparison
from caldera.bench.results import ResultEntry
from caldera.bench.worker_process import (
    CHECK,
    LEARN,
    MEASURE,
    PREPARE,
    TRAIN,
    WorkerError,
    WorkerHandle,
)
from caldera.bench.workloads import Case, TrainingCase, Workload


@dataclass(frozen=True)
class CaseOptions:
    """Cases and settings of a run, and its durations.

    >>> CaseOptions(["mlp"], quick=True).rounds
    3
    """

    works: Sequence[str]
    peers: Sequence[str] = ()
    accuracies: Sequence[str] = ("strict", "fast")
    threads: int = 1
    repeats: int | None = None
    quick: bool = False
    compile: bool = True
    """True if torch.compile is measured too; it needs minutes for each large network."""
    test_accuracy: int = 0
    """Epochs on real data; 0 for none."""
    device: str = "cpu"
    precisions: Sequence[str] = ()
    """Precisions to measure. If empty: on a GPU the precisions of each work, on the CPU float32."""
    settings: Sequence[str] = ()
    """Words of which a contestant's label must contain one on a GPU; if empty, all are measured."""
    without: Sequence[str] = ()
    """Passes to measure on the CPU, each by leaving it out once."""
    workspaces: Sequence[int] = ()
    """Workspace limits to measure on the CPU, in MiB."""
    limit: float | None = None
    """Seconds that a contestant may take for everything in a case."""

    @property
    def on_card(self) -> bool:
        """True if a GPU is measured."""
        return self.device != "cpu"

    @property
    def rounds(self) -> int:
        """Turns of each contestant."""
        return self.repeats or (3 if self.quick else 7)

    def precisions_of(self, case: TrainingCase) -> Sequence[str]:
        """Return the precisions in which a case is measured on a GPU."""
        return self.precisions or case.precisions

    def seconds(self, case: Case) -> float:
        """Return the seconds of a turn."""
        if not isinstance(case, TrainingCase):
            return 0.05 if self.quick else 0.15
        return 0.3 if self.quick else 1.0


SETTLE = 0.1
"""Seconds between turns of several threads, in which threads that busy-wait for work fall asleep.
"""
LEAST = 3
"""Minimum number of times taken in a turn, regardless of their length."""
SHORTEST_TURN = 0.05
"""Seconds."""

Tell = Callable[[str], None]
Entries = dict[WorkerHandle, ResultEntry]


class CaseRunner:
    """Requests about the cases of a work. `compares` is true if there is a reference."""

    def __init__(self, options: CaseOptions, work: Workload, tell: Tell, *, compares: bool) -> None:
        self.options = options
        self.work = work
        self._tell = tell
        self._compares = compares

    def tell(self, case: Case, what: str) -> None:
        """Report the current action on a case."""
        self._tell(f"{self.work.name} {case.name}: {what}")

    def attempt(
        self,
        handle: WorkerHandle,
        entry: ResultEntry,
        action: Callable[[WorkerHandle, ResultEntry], None],
    ) -> None:
        """Do something with a contestant, unless it failed before."""
        if entry.error:
            return
        try:
            action(handle, entry)
        except WorkerError as error:
            entry.error = str(error)
            handle.close()
            self._tell(f"{entry.work} {entry.case}: {error}")

    def first_step(self, case: Case, handle: WorkerHandle, entry: ResultEntry) -> None:
        """The first step of a process with empty caches."""
        reply = handle.ask(PREPARE, work=self.work.name, case=case.name)
        entry.first_cold_s = reply["first s"]
        entry.card_peak_bytes = reply.get("card peak", 0)
        entry.import_s = handle.import_s

    def prepare(self, case: Case, handle: WorkerHandle, entry: ResultEntry) -> None:
        """The first step of another process with the same caches."""
        reply = handle.ask(PREPARE, work=self.work.name, case=case.name)
        entry.first_warm_s.append(reply["first s"])
        entry.import_s = handle.import_s

    def check(
        self, case: Case, comparison: Comparison, handle: WorkerHandle, entry: ResultEntry
    ) -> None:
        """Compute a contestant's results and compare them with the reference's."""
        if not self._compares and not isinstance(case, TrainingCase):
            return
        is_reference = comparison.is_reference(entry)
        found = handle.ask(
            CHECK,
            work=self.work.name,
            case=case.name,
            folder=str(comparison.folder_of(entry)),
            quick=self.options.quick,
            truth=self._compares and is_reference,
            float64=isinstance(case, TrainingCase)
            and case.is_small
            and (is_reference or handle.contestant.framework == "caldera"),
        )
        entry.loss, entry.loss_steps = found.get("loss"), found.get("steps", 0)
        entry.loss_mean_of = found.get("mean of", 0)
        if self._compares:
            comparison.add(entry, found)

    def measure(
        self, case: Case, handle: WorkerHandle, entry: ResultEntry, *, turn: int = 0, turns: int = 1
    ) -> None:
        """Measure the times of a turn; several turns make up a round."""
        if self.options.threads > 1:
            time.sleep(SETTLE)
        seconds = max(SHORTEST_TURN, self.options.seconds(case) / turns)
        reply = handle.ask(MEASURE, seconds=seconds, least=LEAST)
        # Codes of before know no CPU time.
        entry.add_times(reply["times"], reply.get("cpu"), reply.get("lost"), new_round=turn == 0)
        entry.peak_bytes = max(entry.peak_bytes, reply["peak"])
        entry.growth_bytes = max(entry.growth_bytes, reply["growth"])

    def first_epoch(self, case: Case, handle: WorkerHandle, entry: ResultEntry) -> None:
        """Run the first epoch of a process with empty caches, compilation included."""
        reply = handle.ask(LEARN, work=self.work.name, case=case.name, seed=0, epochs=1)
        entry.first_cold_s = reply["seconds"]
        entry.import_s = handle.import_s

    def learn(self, case: Case, seed: int, handle: WorkerHandle, entry: ResultEntry) -> None:
        """Run a whole training, with the order of samples given by a seed."""
        reply = handle.ask(LEARN, work=self.work.name, case=case.name, seed=seed, epochs=None)
        cpu = reply.get("cpu seconds")
        entry.add_times([reply["seconds"]], None if cpu is None else [cpu], reply.get("lost"))
        entry.seeds.append(seed)
        entry.trainings.append(reply)
        entry.accuracies.append(reply["accuracy"])
        entry.peak_bytes = max(entry.peak_bytes, int(reply["metrics"]["peak memory"]["value"]))

    def train(self, case: Case, handle: WorkerHandle, entry: ResultEntry) -> None:
        """Training on real data."""
        epochs = self.options.test_accuracy
        reply = handle.ask(TRAIN, work=self.work.name, case=case.name, epochs=epochs)
        entry.accuracy = reply["accuracy"]


def rotated(entries: Entries, turn: int) -> list[tuple[WorkerHandle, ResultEntry]]:
    """Return all contestants, rotated by the turn and reversed in every second turn.

    This way no contestant always follows the same neighbour.
    """
    order = list(entries.items())
    if turn % 2:
        order.reverse()
    start = turn % len(order) if order else 0
    return order[start:] + order[:start]


MOST_TOGETHER = 16
"""Maximum number of simultaneous processes: each needs some gigabytes of host memory as well."""
LEAST_FREE = 0.5
"""Fraction of GPU memory that must be free before another process is started."""


class CardSession:
    """Measurement of a network's contestants on a GPU, each in a separate process."""

    def __init__(
        self,
        runner: CaseRunner,
        case: TrainingCase,
        entries: dict[WorkerHandle, ResultEntry],
        folder: Path,
    ) -> None:
        self._runner = runner
        self._case = case
        self._entries = entries
        self._comparison = Comparison(folder, next(iter(entries)).contestant.label)
        self._rounds = runner.options.rounds

    def run(self) -> None:
        """Measure all contestants."""
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
        entry: ResultEntry,
        action: Callable[[WorkerHandle, ResultEntry], None],
        what: str,
    ) -> None:
        if not entry.error:
            self._runner.tell(self._case, f"{entry.label}, {what}")
        self._runner.attempt(handle, entry, action)

    # --- processes

    def _first(self, handle: WorkerHandle, entry: ResultEntry) -> None:
        before = card_state()
        self._runner.first_step(self._case, handle, entry)
        after = card_state()
        if before is not None and after is not None:
            entry.card_bytes = max(0, after.used - before.used)
        self._runner.check(self._case, self._comparison, handle, entry)

    def _first_and_kept(self, handle: WorkerHandle, entry: ResultEntry) -> None:
        self._first(handle, entry)
        if self._comparison.is_reference(entry):
            # It has computed in float64 too, and would keep the memory for that.
            handle.close()
            if handle.contestant.is_measured:
                self._runner.prepare(self._case, handle, entry)

    def _in_groups(self, begin: Callable[[WorkerHandle, ResultEntry], None]) -> None:
        """Start the processes of as many as fit, let them take turns, and so on with the rest."""
        group: dict[WorkerHandle, ResultEntry] = {}
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

    def _take_turns(self, group: dict[WorkerHandle, ResultEntry]) -> None:
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
