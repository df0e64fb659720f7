"""Experiments, their samples and their verdicts."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from caldera import op
from caldera.base.config import settings
from caldera.bench.reproduce import experiments
from caldera.bench.reproduce.criteria import (
    FAILS,
    HOLDS,
    LEAST_TURNS,
    NOT_COMPARABLE,
    ON_GPU,
    UNDECIDED,
    Claim,
    Criterion,
    Findings,
    Quantity,
    claims,
)
from caldera.bench.timing import SHORT, Stopwatch, Work, in_turns, share_of_others
from caldera.compiler.lazy import Variable
from caldera.core.memory import device as find_device
from caldera.core.memory.gpus import card_count

BUSY = 0.2
"""Share of the cores used by other programs at the start above which they disturb times."""
SECOND_LOOK = 4
"""Factor of the number of turns of an experiment that is measured again."""
Samples = Mapping[str, Mapping[str, Sequence[float]]]
"""Raw numbers by case and by method."""
Times = dict[str, list[float]]
"""Seconds by method."""


@dataclass(frozen=True)
class ComparisonRow:
    """A quantity compared with the paper's figure, with its criterion and verdict."""

    criterion: Criterion
    case: str
    quantity: Quantity
    verdict: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Case and quantity, the paper's figure, the criterion, the measured value, the verdict."""
        case = f"{self.case}: " if self.case else ""
        predicted = " (predicted)" if self.quantity.predicted else ""
        return (
            f"{case}{self.criterion.measured}",
            self.criterion.figure,
            self.criterion.rule,
            self.quantity.text,
            f"{self.verdict}{predicted}",
        )


@dataclass(frozen=True)
class Plot:
    """Lines over one pair of axes, drawn like the paper's figure.

    >>> Plot("time", "layers", "s", {"ours": [(2.0, 1.0)]}).log
    False
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log: bool = False
    from_zero: bool = True
    """False if all lines run in a narrow band far from zero."""


@dataclass
class Measurement:
    """Samples of a run with plots, and the parts that a quick run skipped."""

    samples: Samples
    plots: list[Plot] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    undecided: Samples = field(default_factory=dict)
    """Samples of a first look that left the verdict open; they are not judged again."""


@dataclass
class ExperimentResult:
    """A measurement judged by the criteria of its claim."""

    claim: Claim
    findings: Findings
    measurement: Measurement = field(default_factory=lambda: Measurement({}))
    busy: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of this process and its children."""

    @cached_property
    def rows(self) -> list[ComparisonRow]:
        """A row for each case of each criterion; missing cases are undecided."""
        rows = []
        for criterion in self.claim.criteria:
            found = dict(self.findings.get(criterion.name, {}))
            absent = criterion.cases - len(found)
            if absent > 0 and not criterion.context:
                found[f"{absent} more"] = Quantity.missing("not measured")
            rows += [
                ComparisonRow(criterion, case, each, criterion.judge(each, busy=self.busy))
                for case, each in found.items()
            ]
        return rows

    @property
    def verdict(self) -> str:
        """The claim fails if a criterion fails, and is undecided if a criterion is undecided.

        The verdict is marked as predicted where no measured quantity supports it.
        """
        judged = [row for row in self.rows if row.verdict != NOT_COMPARABLE]
        verdicts = {row.verdict for row in judged}
        for each in (FAILS, UNDECIDED, HOLDS):
            if each in verdicts:
                sources = {row.quantity.predicted for row in judged if row.verdict == each}
                return f"{each} (predicted)" if sources == {True} else each
        return NOT_COMPARABLE

    @property
    def needs_turns(self) -> bool:
        """True if the verdict is undecided only for want of turns.

        The interval of a timed ratio contains a bound. A missing part, a busy machine and a range
        over seeds are other reasons: more turns would not change them.
        """
        open_rows = [row for row in self.rows if row.verdict == UNDECIDED]
        timed = all(row.criterion.speed and row.quantity.turns for row in open_rows)
        return self.verdict == UNDECIDED and timed and not self.busy


@dataclass(frozen=True)
class ExperimentContext:
    """Options of a run."""

    quick: bool = False
    tell: Callable[[str], None] = lambda line: None
    device: str = "cpu"
    """Device of the experiment's claim."""
    factor: int = 1
    """Factor of the number of turns."""

    def turns(self, usual: int = LEAST_TURNS) -> int:
        """Return the number of turns of a comparison of speed that usually has `usual` turns.

        >>> ExperimentContext(factor=4).turns(6)
        24
        """
        return self.factor * usual

    def in_turns(self, contestants: Mapping[str, Work], least: float = 2e-3) -> Times:
        """Return seconds per call of each contestant in interleaved turns, GPU work included."""
        wait = find_device(self.device).stream.synchronize
        return in_turns(contestants, self.turns(), least, short=self.factor * SHORT, wait=wait)

    def variable(self, values: np.ndarray[Any, Any], name: str = "given") -> Variable:
        """Return a variable with these values on the device."""
        return op.var(name, values.shape, fill=values, device=self.device)

    def skipped(self, *parts: str) -> list[str]:
        """Return the parts that a quick run skips; an empty list in a full run.

        >>> ExperimentContext().skipped("large sizes"), ExperimentContext(True).skipped("more")
        ([], ['more'])
        """
        return list(parts) if self.quick else []


Measure = Callable[[ExperimentContext], Measurement]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper, with the functions that measure it and derive quantities.

    The second function depends only on samples, so that recorded samples can be judged again, and
    samples that contradict the claim can be tested.
    """

    claim: Claim
    measure: Measure
    evaluate: Callable[[Samples], Findings]

    @property
    def name(self) -> str:
        """The name on the command line."""
        return self.claim.name

    @property
    def missing(self) -> str:
        """The reason for which this machine cannot run it; empty if it can."""
        if self.claim.device == "cuda" and not card_count():
            return "requires a GPU"
        package = self.claim.package
        return f"requires {package}" if package and find_spec(package) is None else ""

    def judge(self, measurement: Measurement, *, busy: bool = False) -> ExperimentResult:
        """Return the verdict on samples."""
        found = self.evaluate(measurement.samples)
        return ExperimentResult(self.claim, found, measurement, busy)


_FOUND: dict[str, Experiment] = {}


def experiment(name: str, evaluate: Callable[[Samples], Findings]) -> Callable[[Measure], Measure]:
    """Register a function as the experiment of the claim with this name."""

    def add(measure: Measure) -> Measure:
        for each in (name, name + ON_GPU):
            if each in claims():
                _FOUND[each] = Experiment(claims()[each], measure, evaluate)
        return measure

    return add


@cache
def find_experiments() -> dict[str, Experiment]:
    """Return all experiments by name, in the order of their papers.

    >>> "topk-assumption" in find_experiments()
    True
    """
    for module in pkgutil.iter_modules(experiments.__path__):
        importlib.import_module(f"{experiments.__name__}.{module.name}")
    ordered = sorted(_FOUND.values(), key=lambda each: (each.claim.source, each.name))
    return {each.name: each for each in ordered}


def run_experiment(experiment: Experiment, context: ExperimentContext) -> ExperimentResult:
    """Measure and judge an experiment, a second time if more turns could decide.

    A full run whose verdict is undecided for want of turns measures everything again, with
    `SECOND_LOOK` times the number of turns. The new samples replace the first ones, and their
    verdict is final. Both numbers of turns are fixed beforehand. Intervals are at 98%, so that at
    a ratio equal to a bound a look finds in at most 1% of runs that the claim holds. Two looks
    find it in at most 2% of runs, below the 2.5% of a single interval at 95%. Adding turns until
    the interval leaves the bound would have no such limit.
    """
    watch, before, busy = Stopwatch(), _cpu_seconds(), share_of_others() > BUSY
    context = replace(context, device=experiment.claim.device)
    # Networks and arrays without a device would otherwise be placed on a GPU.
    with settings.override(accelerator=context.device):
        outcome = experiment.judge(experiment.measure(context), busy=busy)
        if outcome.needs_turns and not context.quick:
            context.tell(f"undecided: again, with {SECOND_LOOK} times the number of turns")
            first = outcome.measurement.samples
            again = experiment.measure(replace(context, factor=SECOND_LOOK))
            outcome = experiment.judge(replace(again, undecided=first))
    outcome.seconds = watch.wall
    outcome.cpu_seconds = _cpu_seconds() - before
    return outcome


def _cpu_seconds() -> float:
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system
