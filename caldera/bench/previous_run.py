"""Comparison of a benchmark run with an earlier run.

Where git still has the code of the earlier run, rounds of that code alternate with rounds of the
present code, so that both meet the same disturbances. Rounds continue until the side of `LEAST` on
which the difference lies is clear, for at most `BUDGET` seconds per case. A difference that is not
clear by then is called undecided. If other programs used more than `DISTURBED` of the cores and the
clock does not decide, CPU time decides, and the report states it.

The time of the same code depends partly on chance: on the addresses of its arrays, and on the
choices that a loader or a kernel selection made from a few noisy times. This effect lasts as long
as the task, and repeated timing does not average it out. Newly prepared tasks of the same code
differed by 3% (a standard deviation, adding 4 million numbers) to 14% (shuffled batches), tasks in
different processes by no more. A round is therefore a separate task on each side, and the
statistics count rounds, not times.

Without the earlier code, two runs are compared by their files, contestant by contestant, by the
fast times of rounds. A difference is reported if Welch's t-test of the logarithms finds it (1 in
100 by chance) and it is larger than `LEAST`: a machine is never twice in quite the same state.
"""

from __future__ import annotations

import io
import json
import math
import re
import statistics
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol

import caldera
from caldera.base.children import run_program
from caldera.bench.case_runner import CaseOptions, CaseRunner, Entries
from caldera.bench.contestants import BEFORE
from caldera.bench.results import ResultEntry, sources_digest
from caldera.bench.statistics import Estimate, Rounds, fast_times, paired_ratio, welch_chance
from caldera.bench.workloads import Case, TrainingCase
from caldera.errors import DataError

TURNS = 4
"""Of each side in a round, short ones: what slows the machine down for a second slows both."""
ROUNDS_OF_PROCESS = 8
"""After which both sides get new processes; these take longer to start than to measure."""


def paired_round(runner: CaseRunner, case: Case, entries: Entries, number: int) -> None:
    """Prepare all contestants again, and take turns in random order."""
    order, random = list(entries.items()), Random(number)
    is_large = isinstance(case, TrainingCase) and case.is_large
    if number % ROUNDS_OF_PROCESS == 0:
        for handle in entries:
            handle.close()
    random.shuffle(order)
    if is_large:
        # Together they would not fit into memory.
        for handle, entry in order:
            runner.attempt(handle, entry, partial(runner.prepare, case))
            runner.attempt(handle, entry, partial(runner.measure, case))
            handle.close()
        return
    for handle, entry in order:
        runner.attempt(handle, entry, partial(runner.prepare, case))
    for turn in range(TURNS):
        random.shuffle(order)
        measure = partial(runner.measure, case, turn=turn, turns=TURNS)
        for handle, entry in order:
            runner.attempt(handle, entry, measure)


_COMMIT = re.compile(r"[0-9a-f]{40}")
_GIT_SECONDS = 60


def previous_sources(
    code: Mapping[str, Any], folder: Path, package: Path | None = None
) -> Path | None:
    """Write the code that a results file names into a folder, if it is the code that was measured.

    Only a commit in this clone's history with the digest in the file is accepted: a results file
    selects the code to compare with, not the code to run. Return None if git, the commit or the
    digest is missing, as after measurements of uncommitted changes.
    """
    package = package or Path(caldera.__file__).parent
    commit, digest = code.get("commit"), code.get("sources")
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        return None
    try:
        _git(package, "merge-base", "--is-ancestor", commit, "HEAD")
        archive = _git(package, "archive", "--format=tar", commit, "--", ".")
    except OSError:
        return None
    found = folder / package.name
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        # Set as an attribute: Python before 3.11.4 lacks this argument.
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(found)
    return folder if sources_digest(found) == digest else None


def _git(folder: Path, *words: str) -> bytes:
    done = run_program("git", "-C", str(folder), *words, seconds=_GIT_SECONDS)
    if done is None or done.returncode:
        raise OSError(f"git {words[0]} did not answer")
    return done.stdout


CHANCE = 0.01
LEAST = 0.05
BUDGET = 120.0
"""Maximum seconds of additional rounds in a case, until a difference is clear."""
DISTURBED = 0.05
"""Share of its cores' time that others had, above which the wall clock is not the only witness."""
WALL_TIME, CPU_TIME = "wall time", "CPU time"
WITHIN, SLOWER, FASTER, MISSING = "within noise", "slower", "faster", "missing"
UNDECIDED = "undecided"


@dataclass(frozen=True)
class Again:
    """A contestant of both runs; `ratio` is the new time over the old one.

    >>> Again("mlp caldera strict", WITHIN, 1.01, 0.4).verdict
    'within noise'
    """

    name: str
    verdict: str
    ratio: float
    chance: float = math.nan
    """p-value of the difference, for runs that are compared by their files."""
    interval: tuple[float, float] | None = None
    """98% confidence interval of the ratio, for versions whose rounds were interleaved."""
    to_file: float = math.nan
    """Ratio of the new time to the time in the file, which also depends on the machine's state."""
    lost: float = 0.0
    """The share of its cores' time that others had; of codes that took turns."""
    clock: str = WALL_TIME
    """Clock that decided: `WALL_TIME` or `CPU_TIME`."""

    def __str__(self) -> str:
        if self.verdict == MISSING:
            return f"{self.name}: {MISSING} in one of the runs"
        if self.interval is None:
            return f"{self.name}: {self.verdict} ({self.ratio - 1:+.1%}, p = {self.chance:.2g})"
        low, high = (each - 1 for each in self.interval)
        others = f"; others had {self.lost:.0%} of the cores" if self.lost > DISTURBED else ""
        return (
            f"{self.name}: {self.verdict} by {self.clock} ({self.ratio - 1:+.1%}, {low:+.1%} to "
            f"{high:+.1%}, in turns with the code of before; {self.to_file - 1:+.1%} to the file"
            f"{others})"
        )


class Measured(Protocol):
    """Measurements of a version of the code, as in `ResultEntry`."""

    @property
    def rounds(self) -> list[list[float]]:
        """Seconds a step, of every round."""

    @property
    def cpu_rounds(self) -> list[list[float]]:
        """CPU seconds per step, of every round."""

    @property
    def lost(self) -> list[float]:
        """The share of its cores' time that others had, of every turn."""


def compare_in_turns(name: str, before: Measured, after: Measured) -> Again:
    """Compare two versions of the code whose rounds were interleaved.

    >>> old = ResultEntry("mlp", "mlp", "caldera", "strict", rounds=[[1.0]] * 9)
    >>> new = ResultEntry("mlp", "mlp", "caldera", "strict", rounds=[[1.1]] * 9)
    >>> compare_in_turns("a", old, new).verdict
    'slower'
    """
    lost = statistics.fmean([*before.lost, *after.lost] or [0.0])
    ratio, clock = paired_ratio(before.rounds, after.rounds), WALL_TIME
    if _side(ratio) == UNDECIDED and lost > DISTURBED and before.cpu_rounds and after.cpu_rounds:
        by_cpu = paired_ratio(before.cpu_rounds, after.cpu_rounds)
        if _side(by_cpu) != UNDECIDED:
            ratio, clock = by_cpu, CPU_TIME
    interval = (ratio.low, ratio.high)
    return Again(name, _side(ratio), ratio.value, interval=interval, lost=lost, clock=clock)


def _side(ratio: Estimate) -> str:
    """Return the verdict: slower, faster, within the least difference, or undecided."""
    if ratio.low > 1.0 + LEAST:
        return SLOWER
    if ratio.high < 1.0 / (1.0 + LEAST):
        return FASTER
    inside = ratio.low > 1.0 / (1.0 + LEAST) and ratio.high < 1.0 + LEAST
    return WITHIN if inside else UNDECIDED


def compare(name: str, before: Rounds, after: Rounds) -> Again:
    """Compare the times of two runs.

    >>> compare("a", [[1.0], [1.01], [0.99]], [[1.2], [1.21], [1.19]]).verdict
    'slower'
    """
    old, new = (fast_times(rounds).tolist() for rounds in (before, after))
    if not old or not new:
        return Again(name, MISSING, math.nan, math.nan)
    ratio, chance = math.exp(statistics.fmean(new) - statistics.fmean(old)), welch_chance(old, new)
    if chance >= CHANCE or abs(ratio - 1.0) <= LEAST:
        return Again(name, WITHIN, ratio, chance)
    return Again(name, SLOWER if ratio > 1.0 else FASTER, ratio, chance)


def compare_reports(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Again]:
    """Return all contestants of two files, by work, case and label.

    Codes that took turns by these.
    """
    old, new = _entries(before), _entries(after)
    turns = _entries(after, of_before=True)
    found = []
    for name in dict.fromkeys([*old, *new]):
        old_rounds, new_rounds = (each[name].rounds if name in each else [] for each in (old, new))
        by_files = compare(name, old_rounds, new_rounds)
        if name in turns and turns[name].rounds and new_rounds:
            in_turns = compare_in_turns(name, turns[name], new[name])
            found.append(replace(in_turns, to_file=by_files.ratio))
        else:
            found.append(by_files)
    return found


def is_clear(entries: Iterable[ResultEntry]) -> bool:
    """Return True if no interleaved comparison with the earlier code is undecided."""
    by_label = {entry.label: entry for entry in entries}
    for entry in by_label.values():
        now = by_label.get(entry.label.removesuffix(BEFORE))
        if now is None or now is entry or now.error or entry.error:
            continue
        if not entry.rounds or compare_in_turns(entry.label, entry, now).verdict == UNDECIDED:
            return False
    return True


@dataclass(frozen=True)
class _Row:
    """A row of a file; one that was written before there were CPU times has none."""

    rounds: list[list[float]]
    cpu_rounds: list[list[float]]
    lost: list[float]


def _entries(report: Mapping[str, Any], *, of_before: bool = False) -> dict[str, _Row]:
    return {
        f"{each['work']} {each['case']}, {each['label'].removesuffix(BEFORE)}": _Row(
            each["rounds"], each.get("cpu_rounds", []), each.get("lost", [])
        )
        for each in report["entries"]
        if each["label"].endswith(BEFORE) is of_before
    }


def read_report(path: str | Path) -> dict[str, Any]:
    """Return what `caldera bench --json` wrote."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        _entries(content)
        options_of(content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError.build(f"--again {path}", expected="a file of results", got=reason) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError.build(
            f"--again {path}", expected="a file of caldera bench --json", got="something else"
        ) from None
    return content


def options_of(report: Mapping[str, Any]) -> CaseOptions:
    """Return the options of a run."""
    given = report["options"]
    known = {each.name for each in fields(CaseOptions)}
    return CaseOptions(**{name: value for name, value in given.items() if name in known})
