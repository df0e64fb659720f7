"""What an experiment is, and what comes out of one."""

from __future__ import annotations

import importlib
import math
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from caldera.bench.reproduce import experiments
from caldera.bench.statistics import paired_ratio
from caldera.bench.timing import Stopwatch

HOLDS, FAILS, BESIDE, UNDECIDED = "holds", "does not hold", "beside", "undecided"
"""A claim of the seed that is found again, one that is not, a number that only stands beside the
seed's because the machines cannot be compared, and one whose times are too noisy to tell."""
LEAST_TURNS = 9
"""Of times that are to say which is the shorter."""


@dataclass(frozen=True)
class ComparisonRow:
    """One number of the seed and ours.

    >>> ComparisonRow("speed-up", "1.2 to 2", "1.4", HOLDS).predicted
    False
    """

    what: str
    seed: str
    """As the seed has it; empty where it has none."""
    ours: str
    verdict: str
    predicted: bool = False
    """Whether ours comes from a model, not from a run."""


@dataclass(frozen=True)
class Plot:
    """Lines over one pair of axes, drawn like the seed's figure.

    >>> Plot("time", "layers", "s", {"ours": [(2.0, 1.0)]}).log
    False
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log: bool = False
    from_zero: bool = True
    """Whether the axis of y begins there: not where all lines would lie in a narrow band."""


@dataclass
class Sweep:
    """Times of several methods over a parameter: a line for each method, and every sample.

    >>> sweep = Sweep()
    >>> sweep.add(4.0, "4: s", {"ours": [0.5, 0.25]}, lambda seconds: 1e3 * seconds)
    >>> sweep.lines, sweep.samples
    ({'ours': [(4.0, 250.0)]}, {'ours, 4: s': [0.5, 0.25]})
    """

    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(
        self,
        x: float,
        label: str,
        times: Mapping[str, list[float]],
        height: Callable[[float], float],
    ) -> None:
        """Add the times of each method at x; the line shows `height` of the best one."""
        for name, seconds in times.items():
            self.lines.setdefault(name, []).append((float(x), height(min(seconds))))
            self.samples[f"{name}, {label}"] = seconds


@dataclass
class ExperimentResult:
    """What a run of an experiment found.

    >>> ExperimentResult([ComparisonRow("a", "1", "1", HOLDS)]).verdict
    'holds'
    """

    rows: list[ComparisonRow]
    plots: list[Plot] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Every raw number, by what was measured."""
    left_out: list[str] = field(default_factory=list)
    """What a quick run did not do."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of this process and of those it started: what a machine without other programs would take."""

    @property
    def verdict(self) -> str:
        """Whether all claims of the seed hold that can be judged here; what is predicted counts
        only where nothing was measured, and is called so."""
        judged = [row for row in self.rows if row.verdict != BESIDE]
        measured = [row for row in judged if not row.predicted]
        verdicts = [row.verdict for row in measured or judged]
        if not verdicts:
            return BESIDE
        found = next((each for each in (FAILS, UNDECIDED) if each in verdicts), HOLDS)
        return found if measured else f"{found} (predicted)"


@dataclass(frozen=True)
class ExperimentContext:
    """How an experiment is run.

    >>> ExperimentContext(quick=True).repeats
    3
    """

    quick: bool = False
    tell: Callable[[str], None] = lambda line: None

    @property
    def repeats(self) -> int:
        """How often a time is taken."""
        return 3 if self.quick else 9

    def skipped(self, *parts: str) -> list[str]:
        """Return what a quick run leaves out; nothing otherwise.

        >>> ExperimentContext().skipped("large sizes"), ExperimentContext(True).skipped("more")
        ([], ['more'])
        """
        return list(parts) if self.quick else []


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a seed.

    >>> Experiment("x", "MagmaDNN, table 1", "it is linear", reason="no such card").can_run
    False
    """

    name: str
    source: str
    claim: str
    run: Callable[[ExperimentContext], ExperimentResult] | None = None
    reason: str = ""
    """Why it cannot be run here."""
    nearest: str = ""
    """What was run instead."""

    @property
    def can_run(self) -> bool:
        """Whether there is something to run."""
        return self.run is not None


FOUND: list[Experiment] = []
"""The experiments of the modules that were imported, in their order."""


Run = Callable[[ExperimentContext], ExperimentResult]


def claim(name: str, source: str, text: str) -> Callable[[Run], Run]:
    """Make a function the experiment about what a seed says at some place."""

    def add(run: Run) -> Run:
        FOUND.append(Experiment(name, source, text, run))
        return run

    return add


@cache
def find_experiments() -> dict[str, Experiment]:
    """All of them by name, those that can be run first.

    >>> "topk-assumption" in find_experiments()
    True
    """
    for module in pkgutil.iter_modules(experiments.__path__):
        importlib.import_module(f"{experiments.__name__}.{module.name}")
    ordered = sorted(FOUND, key=lambda each: (not each.can_run, each.source, each.name))
    return {each.name: each for each in ordered}


def run_experiment(experiment: Experiment, context: ExperimentContext) -> ExperimentResult:
    """Run one, and take its time."""
    assert experiment.run is not None
    watch, before = Stopwatch(), _cpu_seconds()
    outcome = experiment.run(context)
    outcome.seconds = watch.wall
    outcome.cpu_seconds = _cpu_seconds() - before
    return outcome


def _cpu_seconds() -> float:
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system


def holds(claim: bool) -> str:
    """The verdict on a claim.

    >>> holds(True)
    'holds'
    """
    return HOLDS if claim else FAILS


def faster(one: Sequence[float], other: Sequence[float]) -> tuple[str, str]:
    """How many times as fast one is as another, of times taken in turns; the verdict on "faster".

    >>> faster([1.0] * 9, [2.0] * 9)
    ('2.00 [2.00, 2.00]', 'holds')
    >>> faster([1.0, 3.0] * 5, [2.0] * 10)[1]
    'undecided'
    """
    if min(*one, *other) <= 0.0:
        return "-", UNDECIDED
    ratio = paired_ratio([[each] for each in one], [[each] for each in other])
    text = f"{ratio.value:.2f}"
    if ratio.high < math.inf:
        text += f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    return text, HOLDS if ratio.low > 1.0 else FAILS if ratio.high < 1.0 else UNDECIDED
