"""A run of the bench: the order of measurements, and their processes.

For a network, each contestant first gets a process with empty caches. It measures the cold first
step, and computes the results to compare. Then the times are measured: contestants take turns, so
that a temporary slowdown of the machine affects all contestants. Small networks keep one process
for each contestant. Large networks get a new process for each turn, because several processes would
not fit into memory together. On a GPU all processes are kept as far as they fit: see `card_turns`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from caldera.bench.case_runner import CardSession, CaseOptions, CaseRunner, Entries, Tell, rotated
from caldera.bench.comparison import Comparison
from caldera.bench.contestants import (
    REFERENCE,
    Contestant,
    card_contestants,
    contestants,
    has_compiler,
    missing_peers,
)
from caldera.bench.equality import SLACK, TOLERANCES
from caldera.bench.previous_run import BUDGET, is_clear, paired_round
from caldera.bench.results import (
    OURS,
    Report,
    ResultEntry,
    code_version,
    machine_facts,
    package_versions,
)
from caldera.bench.worker_process import WorkerHandle
from caldera.bench.workloads import WORKLOADS, Case, LearningCase, TrainingCase, Workload
from caldera.bench.workloads.base import write_batches

BUSY = 0.5
"""A load of the machine, before anything is measured, that makes times doubtful."""


class BenchSession:
    """Benchmark run that reports its progress.

    `before` is a folder with the code of an earlier run, whose rounds alternate with this code's.
    """

    def __init__(
        self, options: CaseOptions, tell: Tell = lambda line: None, *, before: Path | None = None
    ) -> None:
        self.options = options
        self._before = before
        self._tell = tell
        self._missing = missing_peers(options.peers)
        self._peers = [peer for peer in options.peers if peer not in self._missing]
        self._compiler = options.compile and has_compiler()
        self.report = Report(
            machine=machine_facts(options.threads, options.device),
            options=asdict(options),
            missing=self._missing,
            versions=package_versions(),
            code=code_version(),
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
        if options.on_card:
            self._note_card()

    def run(self, after_work: Callable[[Report], None] = lambda report: None) -> Report:
        """Measure everything; a contestant that fails is reported and does not affect the rest.

        `after_work` receives the report so far each time a named work is done. Ctrl-C ends the run
        but keeps the report of the measurements until then, and sets `stopped`.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="caldera-bench-") as folder:
                for name in self.options.works:
                    work = WORKLOADS[name]
                    if work.left_out and not self.options.quick:
                        self._note(f"{name}: {work.left_out}")
                    self._measure_work(work, Path(folder) / name)
                    after_work(self.report)
        except KeyboardInterrupt:
            self._stop()
            after_work(self.report)
        return self.report

    def _stop(self) -> None:
        """Note that the report is incomplete, and which contestants have no times."""
        self.report.stopped = True
        for entry in self.report.entries:
            if not entry.rounds and not entry.error:
                entry.error = "stopped before its turn"
        begun = set(self.report.works())
        left = [name for name in self.options.works if name not in begun]
        rest = f"; not begun: {', '.join(left)}" if left else ""
        self._note(f"stopped by Ctrl-C: these are the measurements until then{rest}")

    def _note(self, line: str) -> None:
        self.report.notes.append(line)
        self._tell(line)

    def _note_card(self) -> None:
        """Note the comparisons on a GPU and their precisions."""
        for name in self.options.works:
            cases = [case for case in WORKLOADS[name].cases if isinstance(case, TrainingCase)]
            chosen = list(dict.fromkeys(p for c in cases for p in self.options.precisions_of(c)))
            self._note(f"{name}: {', '.join(chosen)}; weights are float32 in every precision")
        if REFERENCE not in self._peers:
            return
        self._note(
            f"compared with {REFERENCE} eager in float32 on the GPU, tf32 off: the first loss, "
            "the losses of all steps (of fit, the means of epochs), of small networks Caldera's "
            "five steps in float64; the gradients of the first batch with those in float64"
        )
        self._note(
            "allowed: "
            + "; ".join(
                f"{name}: first loss {each.first_loss:.0e}, gradients {each.gradients:.0e}, "
                f"losses {each.curve:.0e}"
                for name, each in TOLERANCES.items()
            )
            + f"; for gradients and losses {SLACK:g} times what {REFERENCE} eager in that "
            "precision is away, if that is more"
        )

    def _measure_work(self, work: Workload, folder: Path) -> None:
        runner = CaseRunner(self.options, work, self._tell, compares=REFERENCE in self._peers)
        cases = work.quick if self.options.quick else work.cases
        networks = [case for case in cases if isinstance(case, TrainingCase)]
        for number, case in enumerate(networks):
            with ExitStack() as stack:
                self._network(runner, case.on(self.options.device), folder / str(number), stack)
        for number, training in enumerate(c for c in cases if isinstance(c, LearningCase)):
            with ExitStack() as stack:
                self._learning(runner, training, folder / f"learning{number}", stack)
        with ExitStack() as stack:
            others = [case for case in cases if not isinstance(case, TrainingCase | LearningCase)]
            handles = self._handles(others[0], folder / "all", stack) if others else []
            for single in others:
                self._kernel(runner, single, handles, folder / "arrays")
        shutil.rmtree(folder, ignore_errors=True)

    def _handles(self, case: Case, folder: Path, stack: ExitStack) -> list[WorkerHandle]:
        options = self.options
        data: Path | None = None
        everybody: list[Contestant]
        if isinstance(case, TrainingCase) and case.on_card:
            everybody = card_contestants(
                case,
                self._peers,
                options.precisions_of(case),
                compiler=self._compiler,
                words=options.settings,
                device=options.device,
            )
            data = folder / "data"
            write_batches(case, data)
        else:
            everybody = contestants(
                case,
                self._peers,
                options.accuracies,
                compiler=self._compiler,
                without=options.without,
                workspaces=options.workspaces,
                precisions=options.precisions,
            )
        everybody = [each for one in everybody for each in self._with_before(one)]
        handles = [
            WorkerHandle(
                each, folder / str(number), options.threads, limit=options.limit, data=data
            )
            for number, each in enumerate(everybody)
        ]
        for handle in handles:
            stack.callback(handle.close)
        return handles

    def _with_before(self, contestant: Contestant) -> list[Contestant]:
        """Return a contestant; if it is Caldera, also the code of the earlier run."""
        if self._before is None or contestant.framework != OURS or self.options.on_card:
            return [contestant]
        return [contestant, contestant.before(str(self._before))]

    def _turns(self, entries: Collection[ResultEntry]) -> Iterator[int]:
        """Yield numbers of turns: the requested ones, then more until a comparison is clear.

        The comparison is with the code of the earlier run.
        """
        yield from range(self.options.rounds)
        end = time.monotonic() + BUDGET
        turn = self.options.rounds
        while self._before is not None and time.monotonic() < end and not is_clear(entries):
            yield turn
            turn += 1

    def _apart(self, entries: Entries) -> tuple[Entries, Entries]:
        """Return contestants of the usual turns.

        Caldera, if the code of before is compared with it.
        """
        ours = {
            handle: entry
            for handle, entry in entries.items()
            if self._before is not None and entry.framework == OURS
        }
        return {handle: entries[handle] for handle in entries if handle not in ours}, ours

    def _pairs(self, runner: CaseRunner, case: Case, entries: Entries) -> None:
        for turn in self._turns(entries.values()) if entries else ():
            runner.tell(case, f"compared with the earlier code, round {turn + 1}")
            paired_round(runner, case, entries, turn)

    def _entry(self, work: Workload, case: Case, handle: WorkerHandle) -> ResultEntry:
        entry = ResultEntry(
            work.name,
            case.name,
            handle.contestant.framework,
            handle.contestant.setting,
            precision=handle.contestant.precision,
            part_of=case.part_of,
            group=case.group,
            flops=case.flops,
            level=case.level,
        )
        if isinstance(case, LearningCase):
            entry.batch, entry.shape = case.network.batch, list(case.network.shape)
            entry.ranks, entry.scheme, entry.target = case.ranks, case.scheme, case.target
        if isinstance(case, TrainingCase):
            entry.depth, entry.batch, entry.images = case.depth, case.batch, case.has_images
            entry.shape = list(case.shape)
        self.report.entries.append(entry)
        return entry

    # --- networks

    def _network(
        self, runner: CaseRunner, case: TrainingCase, folder: Path, stack: ExitStack
    ) -> None:
        handles = self._handles(case, folder, stack)
        entries = {handle: self._entry(runner.work, case, handle) for handle in handles}
        if not entries:
            return
        if case.on_card:
            CardSession(runner, case, entries, folder / "arrays").run()
            for handle in handles:
                self.report.versions |= handle.versions
        else:
            self._take_turns(runner, case, entries, folder / "arrays")
        for handle, entry in entries.items():
            handle.close()
            if self.options.test_accuracy and case.dataset and handle.contestant.is_measured:
                epochs = self.options.test_accuracy
                runner.tell(case, f"{entry.label}, {epochs} epochs on real data")
                runner.attempt(handle, entry, partial(runner.train, case))
                handle.close()

    def _take_turns(
        self,
        runner: CaseRunner,
        case: TrainingCase,
        entries: dict[WorkerHandle, ResultEntry],
        folder: Path,
    ) -> None:
        comparison = Comparison(folder, next(iter(entries)).contestant.label)
        for handle, entry in entries.items():
            runner.tell(case, f"{entry.label}, first step and check")
            runner.attempt(handle, entry, partial(_first, runner, case, comparison))
            handle.close()
        comparison.judge(list(entries.values()))
        prepare, measure = partial(runner.prepare, case), partial(runner.measure, case)
        others, ours = self._apart(entries)
        if not case.is_large:
            for handle, entry in others.items():
                runner.attempt(handle, entry, prepare)
        for turn in range(self.options.rounds):
            for handle, entry in rotated(others, turn):
                runner.tell(case, f"{entry.label}, turn {turn + 1}")
                if case.is_large:
                    runner.attempt(handle, entry, prepare)
                runner.attempt(handle, entry, measure)
                if case.is_large:
                    handle.close()
        self._pairs(runner, case, ours)

    # --- trainings

    def _learning(
        self, runner: CaseRunner, case: LearningCase, folder: Path, stack: ExitStack
    ) -> None:
        """Measure whole trainings in turns, each with a seed common to all contestants."""
        handles = self._handles(case, folder, stack)
        entries = {handle: self._entry(runner.work, case, handle) for handle in handles}
        for handle, entry in entries.items():
            runner.tell(case, f"{entry.label}, first epoch")
            runner.attempt(handle, entry, partial(runner.first_epoch, case))
        ours = self._apart(entries)[1]
        for turn in self._turns(ours.values()):
            for handle, entry in rotated(entries if turn < self.options.rounds else ours, turn):
                runner.tell(case, f"{entry.label}, training {turn + 1}")
                runner.attempt(handle, entry, partial(runner.learn, case, turn))

    # --- single computations

    def _kernel(
        self, runner: CaseRunner, case: Case, handles: list[WorkerHandle], folder: Path
    ) -> None:
        self._tell(f"{runner.work.name}: {case.name}")
        entries = {handle: self._entry(runner.work, case, handle) for handle in handles}
        comparison = Comparison(folder, handles[0].contestant.label)
        for handle, entry in entries.items():
            runner.attempt(handle, entry, partial(runner.check, case, comparison))
        comparison.judge(list(entries.values()))
        others, ours = self._apart(entries)
        for handle, entry in others.items():
            runner.attempt(handle, entry, partial(runner.prepare, case))
        for turn in range(self.options.rounds):
            for handle, entry in rotated(others, turn):
                runner.attempt(handle, entry, partial(runner.measure, case))
        self._pairs(runner, case, ours)


def _first(
    runner: CaseRunner,
    case: TrainingCase,
    comparison: Comparison,
    handle: WorkerHandle,
    entry: ResultEntry,
) -> None:
    runner.first_step(case, handle, entry)
    if case.is_large:
        # The check needs the memory that the step has taken.
        handle.close()
    runner.check(case, comparison, handle, entry)
