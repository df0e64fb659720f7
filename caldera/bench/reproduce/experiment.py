"""What an experiment is, and what comes out of one."""

from __future__ import annotations

import importlib
import os
import pkgutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from caldera.bench.reproduce import experiments

HOLDS, FAILS, BESIDE = "holds", "does not hold", "beside"
"""A claim of the seed that is found again, one that is not, and a number that only stands beside
the seed's because the machines cannot be compared."""


MORE, SHORT = 7, 1.0
"""How many times as many turns are taken of what takes no time, and seconds of all of them."""


@dataclass(frozen=True)
class Row:
    """One number of the seed and ours.

    >>> Row("speed-up", "1.2 to 2", "1.4", HOLDS).predicted
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
class Outcome:
    """What a run of an experiment found.

    >>> Outcome([Row("a", "1", "1", HOLDS)]).verdict
    'holds'
    """

    rows: list[Row]
    plots: list[Plot] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Every raw number, by what was measured."""
    left_out: list[str] = field(default_factory=list)
    """What a quick run did not do."""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """Whether all claims of the seed hold that can be judged here; what is predicted counts
        only where nothing was measured, and is called so."""
        judged = [row for row in self.rows if row.verdict != BESIDE]
        if not judged:
            return BESIDE
        measured = [row for row in judged if not row.predicted]
        found = holds(all(row.verdict == HOLDS for row in measured or judged))
        return found if measured else f"{found} (predicted)"


@dataclass(frozen=True)
class Context:
    """How an experiment is run.

    >>> Context(quick=True).repeats
    3
    """

    quick: bool = False
    tell: Callable[[str], None] = lambda line: None

    @property
    def repeats(self) -> int:
        """How often a time is taken."""
        return 3 if self.quick else 9


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a seed.

    >>> Experiment("x", "MagmaDNN, table 1", "it is linear", reason="no such card").can_run
    False
    """

    name: str
    source: str
    claim: str
    run: Callable[[Context], Outcome] | None = None
    reason: str = ""
    """Why it cannot be run here."""
    nearest: str = ""
    """What was run instead."""

    @property
    def can_run(self) -> bool:
        """Whether there is something to run."""
        return self.run is not None


@cache
def find_experiments() -> dict[str, Experiment]:
    """All of them by name, those that can be run first.

    >>> "topk-assumption" in find_experiments()
    True
    """
    found: list[Experiment] = []
    for module in pkgutil.iter_modules(experiments.__path__):
        content: Any = importlib.import_module(f"{experiments.__name__}.{module.name}")
        found += getattr(content, "EXPERIMENTS", [])
    found.sort(key=lambda each: (not each.can_run, each.source, each.name))
    return {each.name: each for each in found}


def run_experiment(experiment: Experiment, context: Context) -> Outcome:
    """Run one, and take its time."""
    assert experiment.run is not None
    start = time.perf_counter()
    outcome = experiment.run(context)
    outcome.seconds = time.perf_counter() - start
    return outcome


def holds(claim: bool) -> str:
    """The verdict on a claim.

    >>> holds(True)
    'holds'
    """
    return HOLDS if claim else FAILS


def seconds_of(work: Callable[[], object], repeats: int, least: float = 2e-3) -> list[float]:
    """The time of a call, so often; short ones are called many times and divided.

    >>> len(seconds_of(lambda: None, 3))
    3
    """
    work()
    calls = 1
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        taken = time.perf_counter() - start
        if taken >= least:
            break
        calls = max(calls + 1, int(calls * min(16.0, 1.3 * least / max(taken, 1e-9))))
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        found.append((time.perf_counter() - start) / calls)
    return found


def in_turns(
    contestants: Mapping[str, Callable[[], object]], repeats: int, least: float = 2e-3
) -> dict[str, list[float]]:
    """The times of several, taken in turns: what slows one turn slows all of them.

    Turns that take no time are taken more often, so that one that was disturbed does not count.

    >>> sorted(in_turns({"a": lambda: None, "b": lambda: None}, 2))
    ['a', 'b']
    """
    found: dict[str, list[float]] = {name: [] for name in contestants}
    start, turns = time.perf_counter(), 0
    while turns < repeats or (turns < MORE * repeats and time.perf_counter() - start < SHORT):
        for name, work in contestants.items():
            found[name] += seconds_of(work, 1, least)
        turns += 1
    return found


def load_per_core() -> float:
    """Programs that want a core, for each core: times of several ranks mean little above 1/2.

    >>> load_per_core() >= 0.0
    True
    """
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0


def median(values: Sequence[float]) -> float:
    """The median.

    >>> median([3.0, 1.0, 2.0])
    2.0
    """
    return statistics.median(values)
