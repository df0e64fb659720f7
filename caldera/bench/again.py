"""The same run once more: is the difference within noise?

Where git still has the code of the run before, that code takes turns with the present one
(`caldera.bench.previous`): both meet the same disturbances, and turns go on until it is clear on
which side of `LEAST` the difference lies, for `BUDGET` seconds a case at most. What is not clear
then is called undecided.

Else two runs are compared by their files, contestant by contestant, by the fast times of rounds: a
difference is called one if Welch's t-test of the logarithms finds it (1 in 100 by chance) and it is
larger than `LEAST`: a machine is never twice in quite the same state.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from caldera.bench.case_runner import Options
from caldera.bench.contestants import BEFORE
from caldera.bench.results import Entry
from caldera.bench.statistics import Estimate, Rounds, fast_times, paired_ratio
from caldera.errors import DataError

CHANCE = 0.01
LEAST = 0.05
BUDGET = 60.0
"""Seconds of turns in a case, beyond those that were asked for, until a difference is clear."""
WITHIN, SLOWER, FASTER, MISSING = "within noise", "slower", "faster", "missing"
UNDECIDED = "undecided"
_STEPS = 20_000


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
    """Of a difference as large, if there were none; of runs that are compared by their files."""
    interval: tuple[float, float] | None = None
    """Of the ratio, with 95% confidence; of codes that took turns."""
    to_file: float = math.nan
    """The new time over that of the file: what the machine, too, has to do with."""

    def __str__(self) -> str:
        if self.verdict == MISSING:
            return f"{self.name}: {MISSING} in one of the runs"
        if self.interval is None:
            return f"{self.name}: {self.verdict} ({self.ratio - 1:+.1%}, p = {self.chance:.2g})"
        low, high = (each - 1 for each in self.interval)
        return (
            f"{self.name}: {self.verdict} ({self.ratio - 1:+.1%}, {low:+.1%} to {high:+.1%}, "
            f"in turns with the code of before; {self.to_file - 1:+.1%} to the file)"
        )


def compare_in_turns(name: str, before: Rounds, after: Rounds) -> Again:
    """Whether two codes differ whose rounds were taken in turns.

    >>> compare_in_turns("a", [[1.0]] * 8, [[1.1]] * 8).verdict
    'slower'
    >>> compare_in_turns("a", [[1.0]] * 3, [[1.1]] * 3).verdict
    'undecided'
    """
    ratio = paired_ratio(before, after)
    return Again(name, _side(ratio), ratio.value, interval=(ratio.low, ratio.high))


def _side(ratio: Estimate) -> str:
    """On which side of the least difference all of an interval lies."""
    if ratio.low > 1.0 + LEAST:
        return SLOWER
    if ratio.high < 1.0 / (1.0 + LEAST):
        return FASTER
    inside = ratio.low > 1.0 / (1.0 + LEAST) and ratio.high < 1.0 + LEAST
    return WITHIN if inside else UNDECIDED


def compare(name: str, before: Rounds, after: Rounds) -> Again:
    """Whether the times of two runs differ.

    >>> compare("a", [[1.0], [1.01], [0.99]], [[1.2], [1.21], [1.19]]).verdict
    'slower'
    """
    old, new = (fast_times(rounds).tolist() for rounds in (before, after))
    if not old or not new:
        return Again(name, MISSING, math.nan, math.nan)
    shift = statistics.fmean(new) - statistics.fmean(old)
    ratio, chance = math.exp(shift), _chance(old, new, shift)
    if chance >= CHANCE or abs(ratio - 1.0) <= LEAST:
        return Again(name, WITHIN, ratio, chance)
    return Again(name, SLOWER if ratio > 1.0 else FASTER, ratio, chance)


def compare_reports(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Again]:
    """All contestants of two files, by work, case and label; codes that took turns by these."""
    old, new = _entries(before), _entries(after)
    turns = _entries(after, of_before=True)
    found = []
    for name in dict.fromkeys([*old, *new]):
        by_files = compare(name, old.get(name, []), new.get(name, []))
        if turns.get(name) and new.get(name):
            in_turns = compare_in_turns(name, turns[name], new[name])
            found.append(replace(in_turns, to_file=by_files.ratio))
        else:
            found.append(by_files)
    return found


def is_clear(entries: Iterable[Entry]) -> bool:
    """Whether of all that took turns with the code of before it is known whether they differ."""
    by_label = {entry.label: entry for entry in entries}
    for entry in by_label.values():
        now = by_label.get(entry.label.removesuffix(BEFORE))
        if now is None or now is entry or now.error or entry.error:
            continue
        if compare_in_turns(entry.label, entry.rounds, now.rounds).verdict == UNDECIDED:
            return False
    return True


def _entries(report: Mapping[str, Any], *, of_before: bool = False) -> dict[str, Rounds]:
    return {f"{each['work']} {each['case']}, {each['label'].removesuffix(BEFORE)}": each["rounds"]
            for each in report["entries"]
            if each["label"].endswith(BEFORE) is of_before}  # fmt: skip


def read_report(path: str | Path) -> dict[str, Any]:
    """What `caldera bench --json` wrote."""
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
    found: dict[str, Any] = content
    return found


def options_of(report: Mapping[str, Any]) -> Options:
    """The options that a run was made with."""
    given = report["options"]
    known = {each.name for each in fields(Options)}
    return Options(**{name: value for name, value in given.items() if name in known})


def _chance(old: Sequence[float], new: Sequence[float], shift: float) -> float:
    """Welch's t-test, both sides."""
    if len(old) < 2 or len(new) < 2:
        # One round has no spread: nothing can be said.
        return 1.0
    parts = [statistics.variance(each) / len(each) for each in (old, new)]
    error = math.sqrt(sum(parts))
    if error == 0.0:
        return 0.0 if shift else 1.0
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(each) - 1) for part, each in zip(parts, (old, new), strict=True)
    )
    return _both_tails(abs(shift) / error, degrees)


def _both_tails(t: float, degrees: float) -> float:
    """The chance of a t as large.

    >>> round(_both_tails(2.228, 10), 3)
    0.05
    """
    # With t = sqrt(n) tan(a) the density is a power of the cosine, over a finite range.
    start = math.atan(t / math.sqrt(degrees))
    angles = np.linspace(0.0, math.pi / 2, _STEPS)
    density = np.cos(angles) ** (degrees - 1.0) if degrees > 1.0 else np.ones_like(angles)
    density = np.where(np.isfinite(density), density, 0.0)
    total = np.trapezoid(density, angles)
    tail = np.trapezoid(np.where(angles >= start, density, 0.0), angles)
    return float(min(1.0, tail / total))
