"""The same run once more: is the difference within noise?

Two runs are compared contestant by contestant, by the fast times of their rounds: other programs
only ever make times longer, and what disturbs one time of a round disturbs them all, so a round
counts once, by its fastest tenth. A difference is called one if Welch's
t-test of the logarithms finds it (1 in 100 by chance) and it is larger than `LEAST`: a machine
is never twice in quite the same state.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from caldera.bench.case_runner import Options
from caldera.bench.statistics import Rounds
from caldera.errors import DataError

CHANCE = 0.01
LEAST = 0.05
FAST = 10.0
"""Percent of a round's times that are faster than the one that stands for it. On a machine whose
load went up and down, a tenth slower was found 15 times of 20 by this one, 12 times by medians."""
WITHIN, SLOWER, FASTER, MISSING = "within noise", "slower", "faster", "missing"
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
    chance: float
    """Of a difference as large, if there were none."""

    def __str__(self) -> str:
        if self.verdict == MISSING:
            return f"{self.name}: {MISSING} in one of the runs"
        return f"{self.name}: {self.verdict} ({self.ratio - 1:+.1%}, p = {self.chance:.2g})"


def compare(name: str, before: Rounds, after: Rounds) -> Again:
    """Whether the times of two runs differ.

    >>> compare("a", [[1.0], [1.01], [0.99]], [[1.2], [1.21], [1.19]]).verdict
    'slower'
    """
    old, new = (
        [math.log(np.percentile(each, FAST)) for each in rounds if each]
        for rounds in (before, after)
    )
    if not old or not new:
        return Again(name, MISSING, math.nan, math.nan)
    shift = statistics.fmean(new) - statistics.fmean(old)
    ratio, chance = math.exp(shift), _chance(old, new, shift)
    if chance >= CHANCE or abs(ratio - 1.0) <= LEAST:
        return Again(name, WITHIN, ratio, chance)
    return Again(name, SLOWER if ratio > 1.0 else FASTER, ratio, chance)


def compare_reports(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Again]:
    """All contestants of two files, by work, case and label."""
    old, new = _entries(before), _entries(after)
    return [
        compare(name, old.get(name, []), new.get(name, [])) for name in dict.fromkeys([*old, *new])
    ]


def _entries(report: Mapping[str, Any]) -> dict[str, Rounds]:
    return {f"{each['work']} {each['case']}, {each['label']}": each["rounds"]
            for each in report["entries"]}  # fmt: skip


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
