"""Claims of the reference papers as data, and the rule that judges measured quantities by them.

Each experiment has a file in `claims`, written before its run: the sentence and the figure of the
paper, the quantity to measure, and the interval of values for which the claim holds. A measured
quantity has an interval too. The claim holds if the measured interval lies inside, does not hold
if it lies outside, and is undecided otherwise or if the quantity is missing.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from caldera.bench.statistics import paired_ratio
from caldera.errors import ConfigError

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
NOT_COMPARABLE = "not comparable"
"""Verdict on figures of other machines, printed for context only."""
ON_GPU = "-gpu"
"""End of the name of an experiment that repeats another one on a GPU."""
LEAST_TURNS = 9
"""Interleaved turns that a comparison of speed needs for a finite interval."""
BLOCKS = 12
"""Groups of consecutive turns, from whose medians the interval of a speedup is computed."""


@dataclass(frozen=True)
class Quantity:
    """A number with its interval, measured here or predicted by the planner.

    >>> Quantity.exact(0.5)
    Quantity(value=0.5, low=0.5, high=0.5, note='', predicted=False, turns=0)
    """

    value: float
    low: float
    high: float
    note: str = ""
    predicted: bool = False
    turns: int = 0
    """Interleaved turns of the two times whose ratio it is; 0 if it is no such ratio."""

    @classmethod
    def exact(cls, value: float, note: str = "", *, predicted: bool = False) -> Quantity:
        """Return a number without an interval, such as a count or an error bound."""
        return cls(value, value, value, note, predicted)

    @classmethod
    def missing(cls, reason: str) -> Quantity:
        """Return the quantity of a run that failed or was left out."""
        return cls(math.nan, -math.inf, math.inf, reason)

    @classmethod
    def largest(cls, values: Sequence[float]) -> Quantity:
        """Return the largest of exact numbers; missing if any number is not finite.

        >>> Quantity.largest([0.5, math.nan]).text, Quantity.largest([0.5, 1.5]).text
        ('no result', '1.5')
        """
        if not values or not all(map(math.isfinite, values)):
            return cls.missing("no result")
        return cls.exact(max(values))

    @classmethod
    def over_seeds(cls, values: Sequence[float], note: str = "") -> Quantity:
        """Return the mean over seeds with their range; one seed has no finite interval.

        >>> Quantity.over_seeds([0.5, 1.0]).low, Quantity.over_seeds([0.5]).low
        (0.5, -inf)
        """
        if not values or not all(map(math.isfinite, values)):
            return cls.missing(note or "no result")
        if len(values) < 2:
            return cls(values[0], -math.inf, math.inf, note)
        return cls(math.fsum(values) / len(values), min(values), max(values), note)

    @classmethod
    def speedup(cls, before: Sequence[float], after: Sequence[float], note: str = "") -> Quantity:
        """Return the speedup of `after` over `before`, from interleaved turns.

        Consecutive turns are correlated: clocks, caches and processes change slowly. If there are
        more than `BLOCKS` turns, the interval follows from the medians of blocks of consecutive
        turns, so that more turns of the same second do not count as more evidence.

        >>> Quantity.speedup([2.0] * 9, [1.0] * 9).text
        '2 (9 turns)'
        """
        if not before or not after or not all(0.0 < each < math.inf for each in (*before, *after)):
            return cls.missing(note or "no positive times")
        turns = min(len(before), len(after))
        gains = np.log(before[:turns]) - np.log(after[:turns])
        blocks = np.array_split(gains, min(turns, BLOCKS))
        medians = [[math.exp(float(np.median(block)))] for block in blocks]
        ratio = paired_ratio([[1.0]] * len(medians), medians)
        return cls(ratio.value, ratio.low, ratio.high, note, turns=turns)

    @property
    def text(self) -> str:
        """The number with three digits, its interval if that is finite, and its turns."""
        if math.isnan(self.value):
            return self.note or "no number"
        shown = f"{self.value:.3g}"
        if self.low < self.high and not math.isinf(self.high - self.low):
            shown += f" [{self.low:.3g}, {self.high:.3g}]"
        details = [self.note] * bool(self.note) + [f"{self.turns} turns"] * bool(self.turns)
        return f"{shown} ({'; '.join(details)})" if details else shown


Findings = Mapping[str, Mapping[str, Quantity]]
"""Quantities by criterion and case."""


@dataclass(frozen=True)
class Criterion:
    """Criterion by which a part of a claim is judged."""

    name: str
    figure: str
    """The paper's number or words."""
    measured: str
    low: float
    high: float
    """Bounds between which the claim holds, both exclusive."""
    speed: bool = False
    """True if it compares times, which a busy machine leaves undecided."""
    context: str = ""
    """Reason why the quantity is printed and not judged."""
    cases: int = 1
    """Least number of cases to judge."""

    @property
    def rule(self) -> str:
        """The rule in words.

        >>> Criterion("speed", "", "", 1.0, math.inf).rule
        'above 1'
        """
        if self.context:
            return self.context
        if math.isinf(self.high):
            return f"above {self.low:g}"
        return f"below {self.high:g}" if math.isinf(self.low) else f"{self.low:g} to {self.high:g}"

    def judge(self, found: Quantity, *, busy: bool = False) -> str:
        """Return the verdict on a quantity.

        >>> slower = Quantity.speedup([1.0] * 9, [2.0] * 9)
        >>> Criterion("speed", "", "", 1.0, math.inf).judge(slower)
        'does not hold'
        """
        if self.context:
            return NOT_COMPARABLE
        noisy = self.speed and busy and not found.predicted
        if noisy or not math.isfinite(found.value):
            return UNDECIDED
        if self.low < found.low and found.high < self.high:
            return HOLDS
        return FAILS if found.high <= self.low or found.low >= self.high else UNDECIDED


@dataclass(frozen=True)
class Claim:
    """A claim of a paper with its criteria."""

    name: str
    source: str
    text: str
    scale: str
    """Sizes and machine at which it is judged."""
    criteria: tuple[Criterion, ...]
    seconds: float
    """Usual time of a quick run on two cores, from which the time left is estimated."""
    note: str = ""
    """Known limits of the comparison, such as rows of the paper that contradict its claim."""
    device: str = "cpu"
    """Device of its experiment: "cpu" or "cuda"."""
    package: str = ""
    """Package that its experiment needs."""


@cache
def claims() -> dict[str, Claim]:
    """Return all claims by the names of their experiments.

    >>> [each.name for each in claims()["fusion"].criteria]
    ['faster', 'equal', 'one-pass']
    """
    folder = resources.files(__package__) / "claims"
    files = sorted(
        (each for each in folder.iterdir() if each.name.endswith(".toml")), key=lambda f: f.name
    )
    found = [
        claim for each in files for claim in _claims_of(each.name[:-5], each.read_text("utf-8"))
    ]
    return {each.name: each for each in found}


def _claims_of(name: str, text: str) -> list[Claim]:
    """Return the claim of a file, and the same claim on a GPU if the file has a table `gpu`."""
    given = tomllib.loads(text)
    criteria = tuple(_criterion(name, each) for each in given.pop("criteria"))
    gpu = given.pop("gpu", None)
    found = [Claim(name, criteria=criteria, **given)]
    if gpu is not None:
        found.append(replace(found[0], name=name + ON_GPU, device="cuda", **gpu))
    return found


def _criterion(claim: str, given: dict[str, Any]) -> Criterion:
    low, high = given.pop("above", -math.inf), given.pop("below", math.inf)
    found = Criterion(low=low, high=high, **given)
    if bool(found.context) == (low > -math.inf or high < math.inf):
        raise ConfigError.build(
            f"criterion {found.name} of {claim}",
            expected='either a bound ("above", "below") or a "context"',
            got=str(given),
        )
    return found


@dataclass(frozen=True)
class Figure:
    """A table, figure or number of a paper: reproduced by an experiment, or not with the reason."""

    place: str
    says: str
    experiment: str = ""
    reason: str = ""
    nearest: str = ""
    """The nearest measurement, if there is no experiment."""
    recorded: str = ""
    """Verdict of a measurement that takes too long to repeat, with its file of results."""
    file: str = ""
    evidence: tuple[str, ...] = ()
    """Lines of that file from which the verdict follows."""


@cache
def figures() -> tuple[Figure, ...]:
    """Return all figures in the order of the papers.

    >>> figures()[0].place
    'MagmaDNN, table 1'
    """
    text = (resources.files(__package__) / "papers.toml").read_text("utf-8")
    return tuple(Figure(**each) for each in tomllib.loads(text)["figures"])
