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
"""What a trial reports after a step: metrics by name."""


@dataclass(frozen=True)
class TrialTask:
    """What a worker is told of a trial: plain data, which can be sent to another process."""

    number: int
    point: Point
    seed: int
    epochs: int | None = None
    """How many epochs to train, if the method says so; else those of the search."""
    parent: int | None = None
    """The trial whose saved model this one goes on with."""
    keep: bool = False
    """Whether the model has to be saved, since others may go on with it."""
    best: list[float] | None = None
    """The losses of the best trial so far: a model that beats them is saved."""

    def to_plain(self) -> dict[str, Any]:
        """As what JSON can hold."""
        return encoded(vars(self))

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> TrialTask:
        """What `to_plain` wrote."""
        return cls(**decoded(given))


@dataclass(frozen=True)
class TrialResult:
    """What a worker gives back of a trial: plain data as well."""

    number: int
    state: str
    reason: str = ""
    values: list[float] | None = None
    """The objectives, each in its own direction; None for a trial that failed."""
    violations: list[str] = field(default_factory=list)
    """Constraints that it does not keep, in words."""
    curve: list[Row] = field(default_factory=list)
    """What it reported, step by step."""
    seconds: float = 0.0
    details: str = ""
    """Where an exception came from."""
    digest: str = ""
    """A short name for the weights at the end: the same for the same bits."""
    saved: bool = False
    """Whether the model is in the folder of the study."""
    misconfigured: bool = False
    """Whether it failed because the objective names what is not reported."""
    conditions: str = ""
    """Those under which it was trained, as `Conditions` writes them; in a study their name."""

    def to_plain(self) -> dict[str, Any]:
        """As what JSON can hold."""
        return encoded(vars(self))

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> TrialResult:
        """What `to_plain` wrote; what is of another kind is refused."""
        found = from_plain(cls, decoded(given), "outcome")
        if found.state not in STATES:
            raise DataError.build(
                "outcome.state", expected=", ".join(STATES), got=repr(found.state)[:80]
            )
        return found


@dataclass(repr=False)
class Trial:
    """One set of parameters, what became of it and what it cost.

    - `number`: from 0, in the order in which they were asked for.
    - `parameters`: what `build` gets; `point`: what the study keeps of them, by path.
    - `seed`: that of its model; `parent`: the trial that it goes on with, if it does.
    - `state`: "waiting", "running", "done", "stopped" (early, by the search) or "failed";
      `reason` says why it was stopped or failed.
    - `values`: its objectives, each in its own direction; None until they are known.
    - `curve`: what it reported after each step, metrics by name.
    - `seconds`: what it has cost.

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
    """What the method has written down about it."""
    after: int = 0
    """How many trials had been told to the method when it asked for this one."""
    told: int | None = None
    """How many had been told before this one was."""
    values: tuple[float, ...] | None = None
    violations: list[str] = field(default_factory=list)
    curve: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    started: float | None = None
    """When it was asked for, in seconds since 1970; `ended` likewise."""
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
        """What it reported last."""
        return dict(self.curve[-1]) if self.curve else {}

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in (DONE, STOPPED, FAILED)

    @property
    def is_feasible(self) -> bool:
        """Whether it has a value and keeps all constraints."""
        return self.state == DONE and self.values is not None and not self.violations

    @property
    def model(self) -> Any:
        """The trained model: from its file if it was saved, else trained again with its seed."""
        if self.make is None:
            raise ConfigError.build(
                f"trial {self.number}",
                expected="a study that knows build and data",
                got="one that was only read",
                hint="open it with search.run(build, space, data, "
                "folder=...), which goes on where it is",
            )
        return self.make(self)

    def task(self, best: list[float] | None = None) -> TrialTask:
        """What a worker is told of it."""
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
        """One that no longer changes."""
        return replace(self, curve=list(self.curve))


@dataclass(frozen=True)
class Conditions:
    """The threads of each rank, the ranks that trained it together, and the kernels that served.

    Sums are added up in parts, as many as there are threads and ranks, and each kernel has an order
    of its own.

    >>> from caldera.search.trial import Conditions
    >>> Conditions.from_text(Conditions(threads=2).to_text())
    Conditions(threads=2, ranks=1, choices=ChoiceCache(kernels={}, times={}))
    """

    threads: int
    ranks: int = 1
    choices: ChoiceCache = field(default_factory=ChoiceCache)

    def to_text(self) -> str:
        """As JSON, the same for the same ones. The master of a search passes it on as it is: they
        are half of what it hears of a trial, and it needs nothing of them."""
        return json.dumps(to_plain(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, given: str) -> Conditions:
        """What `to_text` wrote; for a trial of a study that has not kept them, those of here."""
        return from_plain(cls, json.loads(given), "conditions") if given else cls(settings.threads)


def of_all_ranks(written: Sequence[str]) -> str:
    """Those of a trial that several ranks have trained: their samples may have different shapes,
    so that each has choices of its own. Where they have the same they agree."""
    found = [Conditions.from_text(each) for each in written if each]
    if not found:
        # A function that trains nothing.
        return ""
    choices = ChoiceCache()
    for each in reversed(found):
        choices.kernels.update(each.choices.kernels)
        choices.times.update(each.choices.times)
    return Conditions(found[0].threads, found[0].ranks, choices).to_text()
