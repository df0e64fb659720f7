"""A trial: its task, its result, and the conditions that decide about the bits of its weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caldera.base.config import settings
from caldera.base.formatting import shortened
from caldera.base.plain_data import decoded, encoded, from_plain, to_plain
from caldera.errors import ConfigError, DataError
from caldera.kernels.tuning.choice_store import ChoiceCache
from caldera.search.space import Point

WAITING, RUNNING, DONE, STOPPED, FAILED = "waiting", "running", "done", "stopped", "failed"
STATES = (WAITING, RUNNING, DONE, STOPPED, FAILED)
"""Waiting for a worker; running; trained to its end; stopped early by the search; raised or NaN."""

Row = dict[str, float]
"""Metrics by name that a trial reports after a step."""


@dataclass(frozen=True)
class TrialTask:
    """Task of a worker: plain data, which can be sent to another process."""

    number: int
    point: Point
    seed: int
    epochs: int | None = None
    """Number of epochs if the method sets it, else None for the search's number."""
    parent: int | None = None
    """Number of the trial whose saved model this one continues."""
    keep: bool = False
    """True if the model must be saved, since other trials may continue from it."""
    best: list[float] | None = None
    """The losses of the best trial so far: a model that beats them is saved."""

    def to_plain(self) -> dict[str, Any]:
        """Return the task as JSON-serialisable data."""
        return encoded(vars(self))

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> TrialTask:
        """Return the object from the data of `to_plain`."""
        return cls(**decoded(given))


@dataclass(frozen=True)
class TrialResult:
    """Result that a worker returns for a trial, also plain data."""

    number: int
    state: str
    reason: str = ""
    values: list[float] | None = None
    """The objectives, each in its own direction; None for a trial that failed."""
    violations: list[str] = field(default_factory=list)
    """Violated constraints, as texts."""
    curve: list[Row] = field(default_factory=list)
    """Reports of the trial, step by step."""
    seconds: float = 0.0
    details: str = ""
    """Traceback of an exception."""
    digest: str = ""
    """A short name for the weights at the end: the same for the same bits."""
    saved: bool = False
    """True if the model is in the folder of the study."""
    misconfigured: bool = False
    """True if the trial failed because the objective names an unreported metric."""
    conditions: str = ""
    """Training conditions as text of `Conditions`; in a study the name of that text."""

    def to_plain(self) -> dict[str, Any]:
        """Return the result as JSON-serialisable data."""
        return encoded(vars(self))

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> TrialResult:
        """Load the data that `to_plain` wrote; reject other types."""
        found = from_plain(cls, decoded(given), "outcome")
        if found.state not in STATES:
            raise DataError.build(
                "outcome.state", expected=", ".join(STATES), got=repr(found.state)[:80]
            )
        return found


@dataclass(repr=False)
class Trial:
    """A set of parameters with its result and cost.

    - `number`: from 0, in the order of proposals.
    - `parameters`: the arguments of `build`; `point`: their stored form, by path.
    - `seed`: the seed of the model; `parent`: the trial that this one continues, if any.
    - `state`: "waiting", "running", "done", "stopped" (early, by the search) or "failed"; `reason`
      is the reason for stopping or failing.
    - `values`: the objectives, each in its own direction; None until they are known.
    - `curve`: the reports after each step, metrics by name.
    - `seconds`: the cost.

    >>> from caldera import search
    >>> study = search.run(lambda x: x * x, {"x": search.integer(-2, 2)}, method="grid", verbose=0)
    >>> study.trials[0].parameters, study.trials[0].value, study.trials[0].state
    ({'x': -2}, 4.0, 'done')
    >>> study.best
    <Trial 2: done: 0: x=0>
    """

    number: int
    point: Point
    parameters: dict[str, Any]
    seed: int
    state: str = WAITING
    reason: str = ""
    parent: int | None = None
    epochs: int | None = None
    keep: bool = False
    note: dict[str, Any] = field(default_factory=dict)
    """Note that the method stored with the trial."""
    after: int = 0
    """Number of finished trials that the method had received when it proposed this one."""
    told: int | None = None
    """Number of finished trials that the method had received before this one."""
    values: tuple[float, ...] | None = None
    violations: list[str] = field(default_factory=list)
    curve: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    started: float | None = None
    """Time of the proposal in seconds since 1970; `ended` is the time of the end."""
    ended: float | None = None
    details: str = ""
    digest: str = ""
    saved: bool = False
    conditions: str = ""
    """By which name the study keeps those under which it was trained."""
    make: Callable[[Trial], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def value(self) -> float | None:
        """The objective, or the first of several."""
        return None if self.values is None else self.values[0]

    @property
    def results(self) -> Row:
        """Last report of the trial."""
        return dict(self.curve[-1]) if self.curve else {}

    @property
    def is_over(self) -> bool:
        """True if the trial is done, stopped or failed."""
        return self.state in (DONE, STOPPED, FAILED)

    @property
    def is_feasible(self) -> bool:
        """True if the trial has a value and satisfies all constraints."""
        return self.state == DONE and self.values is not None and not self.violations

    @property
    def model(self) -> Any:
        """The trained model: from its file if it was saved, else trained again with its seed."""
        if self.make is None:
            raise ConfigError.build(
                f"trial {self.number}",
                expected="a study that stores build and data",
                got="one that was only read",
                hint="open it with search.run(build, space, data, folder=...), which continues it",
            )
        return self.make(self)

    def task(self, best: list[float] | None = None) -> TrialTask:
        """Return the worker's task for this trial."""
        return TrialTask(
            self.number, dict(self.point), self.seed, self.epochs, self.parent, self.keep, best
        )

    def __repr__(self) -> str:
        parts = [f"Trial {self.number}", self.state]
        if self.values is not None:
            parts.append(", ".join(f"{value:.6g}" for value in self.values))
        parts.append(", ".join(f"{name}={value}" for name, value in self.point.items()))
        if self.reason:
            parts.append(self.reason)
        return f"<{shortened(': '.join(part for part in parts if part), 200)}>"

    def copy(self) -> Trial:
        """Return a copy of the trial that no longer changes."""
        return replace(self, curve=list(self.curve))


@dataclass(frozen=True)
class Conditions:
    """Training conditions: threads per rank, ranks of the trial, and the kernels used.

    Sums are computed in parts, one per thread and rank, and each kernel has a different order of
    summation.

    >>> from caldera.search.trial import Conditions
    >>> Conditions.from_text(Conditions(threads=2).to_text())
    Conditions(threads=2, ranks=1, choices=ChoiceCache(kernels={}, times={}))
    """

    threads: int
    ranks: int = 1
    choices: ChoiceCache = field(default_factory=ChoiceCache)

    def to_text(self) -> str:
        """Return deterministic JSON.

        The master of a search passes the text on unparsed: it is half of a trial's data and not
        used there.
        """
        return json.dumps(to_plain(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, given: str) -> Conditions:
        """Load the text of `to_text`; for an empty text return the current conditions."""
        return from_plain(cls, json.loads(given), "conditions") if given else cls(settings.threads)


def of_all_ranks(written: Sequence[str]) -> str:
    """Merge the conditions of a trial that several ranks have trained.

    Ranks may have samples of different shapes and therefore different kernel choices. For equal
    shapes their choices agree.
    """
    found = [Conditions.from_text(each) for each in written if each]
    if not found:
        # A plain function trains no model and has no conditions.
        return ""
    choices = ChoiceCache()
    for each in reversed(found):
        choices.kernels.update(each.choices.kernels)
        choices.times.update(each.choices.times)
    return Conditions(found[0].threads, found[0].ranks, choices).to_text()
