"""A run of the bench: who is measured when, in which process.

For a network, each contestant first gets a process with empty caches: the cold first step, and the
results to compare. Then the times: contestants take turns, so that what slows the machine down for
a while slows all of them down. Small networks keep one process for each contestant; large ones get
a new one for each turn, because together they would not fit into memory.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from caldera.bench.comparison import Comparison
from caldera.bench.contestants import REFERENCE, contestants, has_compiler, missing_peers
from caldera.bench.machine import machine_facts, package_versions
from caldera.bench.protocol import CHECK, MEASURE, PREPARE, TRAIN, WorkerError
from caldera.bench.results import Entry, Report
from caldera.bench.slot import Slot
from caldera.bench.work import WORK, Case, TrainingCase, Work

SETTLE = 0.1
"""Seconds between turns, in which threads that wait busily for more work go to sleep."""
BUSY = 0.5
"""A load of the machine, before anything is measured, that makes times doubtful."""
LEAST = 3
"""Times taken in a turn, however long they are."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What a run measures, and how long.

    >>> Options(["mlp"], quick=True).rounds
    3
    """

    works: Sequence[str]
    peers: Sequence[str] = ()
    accuracies: Sequence[str] = ("strict", "fast")
    threads: int = 1
    repeats: int | None = None
    quick: bool = False
    compile: bool = True
    """Whether torch.compile takes part; it needs minutes for each large network."""
    test_accuracy: int = 0
    """Epochs on real data; 0 for none."""
    device: str = "cpu"

    @property
    def rounds(self) -> int:
        """Turns of each contestant."""
        return self.repeats or (3 if self.quick else 7)

    def seconds(self, case: Case) -> float:
        """Of one turn."""
        if not isinstance(case, TrainingCase):
            return 0.05 if self.quick else 0.15
        return 0.3 if self.quick else 1.0


class Session:
    """Measures, and tells what it is doing."""

    def __init__(self, options: Options, tell: Tell = lambda line: None) -> None:
        self.options = options
        self._tell = tell
        self._missing = missing_peers(options.peers)
        self._peers = [peer for peer in options.peers if peer not in self._missing]
        self._compiler = options.compile and has_compiler()
        self.report = Report(
            machine=machine_facts(options.threads),
            options=asdict(options),
            missing=self._missing,
            versions=package_versions(),
        )
        load = self.report.machine["load before"]
        if load is not None and load > BUSY:
            self._note(f"the machine was busy already (load {load}), so times are doubtful")
        for peer, command in self._missing.items():
            self._note(f"{peer} is not installed, so it is missing here: {command}")
        if "torch" in self._peers and not self._compiler:
            why = "no C++ compiler works here" if options.compile else "left out by --no-compile"
            self._note(f"{why}, so torch.compile is missing")
        if REFERENCE not in self._peers:
            self._note(f"without {REFERENCE} no results are compared: equality is not checked")

    def run(self, after_work: Callable[[Report], None] = lambda report: None) -> Report:
        """Measure everything; a contestant that fails is reported and leaves the others alone.

        `after_work` is given what there is so far each time a named work is done.
        """
        with tempfile.TemporaryDirectory(prefix="caldera-bench-") as folder:
            for name in self.options.works:
                work = WORK[name]
                if work.left_out and not self.options.quick:
                    self._note(f"{name}: {work.left_out}")
                self._measure_work(work, Path(folder) / name)
                after_work(self.report)
        return self.report

    def _note(self, line: str) -> None:
        self.report.notes.append(line)
        self._tell(line)

    def _measure_work(self, work: Work, folder: Path) -> None:
        cases = work.quick if self.options.quick else work.cases
        networks = [case for case in cases if isinstance(case, TrainingCase)]
        for number, case in enumerate(networks):
            with ExitStack() as stack:
                slots = self._slots(case, folder / str(number), stack)
                self._training(work, case, slots, folder / "arrays")
        with ExitStack() as stack:
            others = [case for case in cases if not isinstance(case, TrainingCase)]
            slots = self._slots(others[0], folder / "all", stack) if others else []
            for single in others:
                self._kernel(work, single, slots, folder / "arrays")
        shutil.rmtree(folder, ignore_errors=True)

    def _slots(self, case: Case, folder: Path, stack: ExitStack) -> list[Slot]:
        everybody = contestants(case, self._peers, self.options.accuracies, compiler=self._compiler)
        slots = [
            Slot(each, folder / str(number), self.options.threads)
            for number, each in enumerate(everybody)
        ]
        for slot in slots:
            stack.callback(slot.close)
        return slots

    # --- networks

    def _training(self, work: Work, case: TrainingCase, slots: list[Slot], folder: Path) -> None:
        entries = {slot: self._entry(work, case, slot) for slot in slots}
        comparison = Comparison(folder, slots[0].contestant.label)
        for slot, entry in entries.items():
            self._tell(f"{work.name} {case.name}: {entry.label}, first step and check")
            self._attempt(slot, entry, partial(self._first, work, case, comparison))
            slot.close()
        comparison.judge(list(entries.values()))
        if not case.is_large:
            for slot, entry in entries.items():
                self._attempt(slot, entry, partial(self._prepare, work, case))
        for turn in range(self.options.rounds):
            for slot, entry in _turned(entries, turn):
                self._tell(f"{work.name} {case.name}: {entry.label}, turn {turn + 1}")
                if case.is_large:
                    self._attempt(slot, entry, partial(self._prepare, work, case))
                self._attempt(slot, entry, partial(self._measure, case))
                if case.is_large:
                    slot.close()
        for slot, entry in entries.items():
            slot.close()
            if self.options.test_accuracy and case.dataset:
                epochs = self.options.test_accuracy
                self._tell(f"{work.name} {case.name}: {entry.label}, {epochs} epochs on real data")
                self._attempt(slot, entry, partial(self._train, work, case))
                slot.close()

    def _first(
        self, work: Work, case: TrainingCase, comparison: Comparison, slot: Slot, entry: Entry
    ) -> None:
        reply = slot.ask(PREPARE, work=work.name, case=case.name)
        entry.first_cold_s = reply["first s"]
        if case.is_large:
            # The check needs the memory that the step has taken.
            slot.close()
        self._check(work, case, comparison, slot, entry)

    def _train(self, work: Work, case: Case, slot: Slot, entry: Entry) -> None:
        epochs = self.options.test_accuracy
        reply = slot.ask(TRAIN, work=work.name, case=case.name, epochs=epochs)
        entry.accuracy = reply["accuracy"]

    # --- single computations

    def _kernel(self, work: Work, case: Case, slots: list[Slot], folder: Path) -> None:
        self._tell(f"{work.name}: {case.name}")
        entries = {slot: self._entry(work, case, slot) for slot in slots}
        comparison = Comparison(folder, slots[0].contestant.label)
        for slot, entry in entries.items():
            self._attempt(slot, entry, partial(self._check, work, case, comparison))
            self._attempt(slot, entry, partial(self._prepare, work, case))
        comparison.judge(list(entries.values()))
        for turn in range(self.options.rounds):
            for slot, entry in _turned(entries, turn):
                self._attempt(slot, entry, partial(self._measure, case))

    # --- both

    def _entry(self, work: Work, case: Case, slot: Slot) -> Entry:
        entry = Entry(
            work.name, case.name, slot.contestant.framework, slot.contestant.setting,
            part_of=case.part_of, group=case.group, flops=case.flops,
            depth=case.depth if isinstance(case, TrainingCase) else 0,
        )  # fmt: skip
        self.report.entries.append(entry)
        return entry

    def _attempt(self, slot: Slot, entry: Entry, action: Callable[[Slot, Entry], None]) -> None:
        """Do something with a contestant, unless it failed before."""
        if entry.error:
            return
        try:
            action(slot, entry)
        except WorkerError as error:
            entry.error = str(error)
            slot.close()
            self._tell(f"{entry.work} {entry.case}: {error}")

    def _check(
        self, work: Work, case: Case, comparison: Comparison, slot: Slot, entry: Entry
    ) -> None:
        has_reference = REFERENCE in self._peers
        if not has_reference and not isinstance(case, TrainingCase):
            return
        found = slot.ask(
            CHECK, work=work.name, case=case.name, folder=str(comparison.folder_of(entry)),
            quick=self.options.quick, truth=comparison.is_reference(entry),
        )  # fmt: skip
        entry.loss, entry.loss_steps = found.get("loss"), found.get("steps", 0)
        if has_reference:
            comparison.add(entry, found)

    def _prepare(self, work: Work, case: Case, slot: Slot, entry: Entry) -> None:
        reply = slot.ask(PREPARE, work=work.name, case=case.name)
        entry.first_warm_s.append(reply["first s"])
        entry.import_s = slot.import_s

    def _measure(self, case: Case, slot: Slot, entry: Entry) -> None:
        time.sleep(SETTLE)
        reply = slot.ask(MEASURE, seconds=self.options.seconds(case), least=LEAST)
        entry.rounds.append(reply["times"])
        entry.peak_bytes = max(entry.peak_bytes, reply["peak"])
        entry.growth_bytes = max(entry.growth_bytes, reply["growth"])


def _turned(entries: dict[Slot, Entry], turn: int) -> list[tuple[Slot, Entry]]:
    """Everybody, each round beginning with another: nobody always follows the same neighbour."""
    order = list(entries.items())
    start = turn % len(order)
    return order[start:] + order[:start]
