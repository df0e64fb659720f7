"""Does `caldera bench --again` tell equal codes from slower ones? Twenty verdicts on each.

    python benchmarks/verdicts/again_runs.py > benchmarks/results/again-$(uname -m).md

As `--again` does, workers with the code of before and workers with the present one take turns until
it is clear whether they differ. The present code is once a copy of this one, and once a copy whose
every call takes a tenth of its CPU time more. Copies are made of the files here: no history is
needed.

`--jobs N` looks for N verdicts side by side, each with a core of its own. What other programs do to
this machine meanwhile is in the times, and the load is in the first line.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import caldera
from caldera.bench.case_runner import CaseOptions, CaseRunner, Entries
from caldera.bench.contestants import Contestant
from caldera.bench.previous_run import (
    BUDGET,
    CPU_TIME,
    SLOWER,
    UNDECIDED,
    WITHIN,
    Again,
    compare_in_turns,
    paired_round,
)
from caldera.bench.results import ResultEntry
from caldera.bench.worker_process import WorkerHandle
from caldera.bench.workloads import WORKLOADS

BEFORE, SAME, MORE = "before", "the same", "10% slower"
_TIMED = "    task.wait()\n    return watch.wall, watch.cpu\n"
_SLOWED = """    task.wait()
    more = 0.1 * watch.cpu
    begun = time.thread_time()
    while time.thread_time() - begun < more:
        pass
    return watch.wall, watch.cpu
"""


@dataclass(frozen=True)
class Verdicts:
    """On both codes, and how long they took."""

    found: dict[str, Again]
    rounds: int
    seconds: float


def copied(folder: Path, *, slowed: bool = False) -> Path:
    """A copy of this code, perhaps a tenth slower."""
    package = folder / "caldera"
    source = Path(caldera.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    if slowed:
        file = package / "bench" / "timing.py"
        text = file.read_text()
        assert text.count(_TIMED) == 1
        file.write_text(text.replace(_TIMED, _SLOWED))
    return folder


def verdicts(work: str, folder: Path, number: int, deadline: float) -> Verdicts | None:
    """What `--again` would say of each that takes turns with the code of before."""
    if time.time() > deadline:
        return None
    start = time.monotonic()
    runner = CaseRunner(CaseOptions([work], quick=True), WORKLOADS[work], _tell, compares=False)
    case = WORKLOADS[work].quick[0]
    with ExitStack() as stack:
        entries: Entries = {}
        for name in (BEFORE, SAME, MORE):
            contestant = Contestant("caldera", "strict", {"accuracy": "strict"}).before(
                str(folder / name)
            )
            # Nobody's luck in choosing kernels is handed on to the next verdict.
            handle = WorkerHandle(contestant, folder / "caches" / f"{number} {name}", 1)
            stack.callback(handle.close)
            entries[handle] = ResultEntry(work, case.name, name, "")
        before, *others = entries.values()
        for turn in count():
            paired_round(runner, case, entries, turn)
            if failed := [each.error for each in entries.values() if each.error]:
                raise RuntimeError(failed[0])
            found = {each.framework: compare_in_turns(work, before, each) for each in others}
            is_clear = all(each.verdict != UNDECIDED for each in found.values())
            seconds = time.monotonic() - start
            if is_clear or seconds > BUDGET or time.time() > deadline:
                _tell(
                    f"{number + 1}: {turn + 1} rounds, {seconds:.0f} s, "
                    + "; ".join(map(str, found.values()))
                )
                # What the limit of time has cut short is no verdict.
                cut = not is_clear and seconds <= BUDGET
                return None if cut else Verdicts(found, turn + 1, seconds)
    return None


def all_verdicts(options: argparse.Namespace, folder: Path) -> Iterator[Verdicts]:
    """As many as were asked for, or as fit into the limit of time."""
    context = get_context("spawn")
    cores = context.Queue()
    for core in sorted(os.sched_getaffinity(0))[: options.jobs]:
        cores.put(core)
    one = partial(verdicts, options.work, folder, deadline=time.time() + options.limit)
    with ProcessPoolExecutor(options.jobs, context, _take_core, (cores,)) as pool:
        yield from (
            each for each in pool.map(_numbered, [one] * options.runs, range(options.runs)) if each
        )


def _numbered(one: partial[Verdicts | None], number: int) -> Verdicts | None:
    return one(number=number)


def _take_core(cores: object) -> None:
    """Everything that this process starts stays on one core."""
    os.sched_setaffinity(0, {cores.get()})  # type: ignore[attr-defined]


def _tell(line: str) -> None:
    if line[:1].isdigit():
        print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Take turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="input")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="verdicts side by side, a core each")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for all of them")
    options = parser.parse_args()
    options.jobs = min(options.jobs, len(os.sched_getaffinity(0)))
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for name in (BEFORE, SAME, MORE):
            copied(Path(folder) / name, slowed=name == MORE)
        done = list(all_verdicts(options, Path(folder)))
    if not done:
        raise SystemExit("no verdict within the limit of time")
    _print_table(options, done, load)


def _print_table(options: argparse.Namespace, done: list[Verdicts], load: float) -> None:
    taken = [each.seconds for each in done]
    lost = statistics.fmean(again.lost for each in done for again in each.found.values())
    print(
        f"`python benchmarks/verdicts/again_runs.py --work {options.work} --jobs {options.jobs}` "
        f"on {platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the start, "
        f"{os.getloadavg()[0]:.1f} at the end, others had {lost:.0%} of the cores' time; two "
        f"verdicts took {statistics.median(taken):.0f} s (at most {max(taken):.0f}) and "
        f"{statistics.median(each.rounds for each in done):.0f} rounds.\n"
    )
    print("| the present code is | must be called | was | all verdicts | by CPU time | found |")
    print("|---|---|---|---|---|---|")
    for name, right in ((SAME, WITHIN), (MORE, SLOWER)):
        found = [each.found[name] for each in done]
        counts = Counter(each.verdict for each in found)
        ratios = sorted(each.ratio - 1 for each in found)
        by_cpu = sum(each.clock == CPU_TIME for each in found)
        print(
            f"| {name} | {right} | {counts[right]} of {len(found)} "
            f"| {', '.join(f'{count} {each}' for each, count in counts.items())} | {by_cpu} "
            f"| {statistics.median(ratios):+.1%} ({ratios[0]:+.1%} to {ratios[-1]:+.1%}) |"
        )
    print("\nNo file with every sample stands behind these figures: they are counts of verdicts.")


if __name__ == "__main__":
    main()
