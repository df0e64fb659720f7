"""The record of a study: its trials in a storage of Optuna's, so that its tools can read them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from caldera.base.arguments import require
from caldera.base.plain_data import decoded, encoded, json_digest
from caldera.base.registry import optional_import
from caldera.errors import DataError
from caldera.search.dimension import Dimension
from caldera.search.objective import Objective
from caldera.search.space import Space
from caldera.search.storage import Database, Journal
from caldera.search.trial import (
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    WAITING,
    Conditions,
    Trial,
    TrialResult,
)

NAME = "caldera"
_KEY = "caldera"
_OUTCOME = "outcome"
_OWNER = "owner"
_CONDITIONS = "caldera:conditions:"
_REPORT_EVERY_S = 0.5
"""Minimum interval between writes of a running trial's curve; the end writes all."""


def import_optuna(where: str = "search") -> Any:
    """Import Optuna, which owns the storage of a study and several methods."""
    return optional_import("optuna", "optuna", where)


class TrialRecord:
    """The trials of a study in a storage: a journal in a folder, a database, or memory.

    A database may contain several studies, each with a `name`, and several programs may work on the
    same study. Changes that must not overlap are made within `turn()`.
    """

    def __init__(self, folder: Path | None, storage: str | None = None, name: str = NAME) -> None:
        self._optuna = import_optuna()
        self.folder, self.name = folder, name
        self.database: Database | None = None
        with quiet_optuna(self._optuna):
            self._storage = self._open(folder, storage)
        self._ids: dict[int, int] = {}
        self._mine: set[int] = set()
        """The trials that this program runs, or has run."""
        self._reported: dict[int, float] = {}
        self._kept: set[str] | None = None
        """The names of conditions that are written down, once somebody has looked."""
        self._study = self._find()
        self._foreign: dict[str, Any] = {}
        """Facts about a study that plain Optuna made."""

    def open_foreign(self) -> None:
        """Open a study that plain Optuna made, for reading: by name, or the only one."""
        known = self._storage.get_all_studies()
        is_only = self.name == NAME and len(known) == 1
        found = [each for each in known if is_only or each.study_name == self.name]
        if not found or not self._storage.get_n_trials(found[0]._study_id):
            return
        self._study, self.name = found[0]._study_id, found[0].study_name
        kinds = self._storage.get_study_directions(self._study)
        attributes = self._storage.get_study_system_attrs(self._study)
        usual = [f"value{place}" for place in range(len(kinds))] if len(kinds) > 1 else ["value"]
        self._foreign = {
            "objective": {
                "names": attributes.get("study:metric_names", usual),
                "modes": ["max" if each.name == "MAXIMIZE" else "min" for each in kinds],
            }
        }

    @property
    def names(self) -> list[str]:
        """Names of the studies that are stored with this one."""
        return [each.study_name for each in self._storage.get_all_studies()]

    def _find(self) -> int | None:
        found = [each for each in self._storage.get_all_studies() if each.study_name == self.name]
        return found[0]._study_id if found else None

    def _open(self, folder: Path | None, storage: str | None) -> Any:
        storages = self._optuna.storages
        if storage is not None:
            self.database = Database(self._optuna, storage, self.name)
            return self.database.storage
        if folder is None:
            return storages.InMemoryStorage()
        file = folder if folder.is_file() else folder / "journal.log"
        return storages.JournalStorage(Journal(file))

    @property
    def place(self) -> str:
        """Location of the study, for messages."""
        if self.database is not None:
            return f"{self.database.address}, name {self.name!r}"
        return "memory" if self.folder is None else str(self.folder)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Exclude other programs from proposing or finishing trials within the block."""
        with nullcontext() if self.database is None else self.database.turn():
            yield

    def close(self) -> None:
        """Stop running trials here; stored data remain readable."""
        if self.database is not None:
            self.database.close()

    @property
    def exists(self) -> bool:
        """True if a study was started here and has stored its description."""
        return self._study is not None and bool(self.facts())

    # --- what the study is

    def begin(self, space: Space, objective: Objective, facts: Mapping[str, Any]) -> None:
        """Start the study, or check that the stored study is the same."""
        described = {"space": space.describe(), "objective": objective.describe(), **facts}
        kinds = self._optuna.study.StudyDirection
        directions = [kinds.MAXIMIZE if m == "max" else kinds.MINIMIZE for m in objective.modes]
        # Another program may have started it since `_find` was called.
        self._study = self._study if self._study is not None else self._find()
        if self._study is None:
            with quiet_optuna(self._optuna):
                self._study = self._storage.create_new_study(directions, self.name)
        if self._is_unnamed(directions):
            self.note(_KEY, described)
            return
        known = self.facts()
        for part in ("space", "objective"):
            require(
                json_digest(known.get(part)) == json_digest(described[part]),
                f"study in {self.place}",
                f"the {part} that it was begun with",
                f"another {part}",
                hint="name another folder, or delete this one"
                if self.database is None
                else "give this study another name=",
            )
        if known != described:
            self.note(_KEY, described)

    def _is_unnamed(self, directions: list[Any]) -> bool:
        """Return True if the study has no description yet.

        It is new, or its first program was killed before it stored the description.
        """
        return (
            not self.notes()
            and not self._storage.get_n_trials(self._study)
            and self._storage.get_study_directions(self._study) == directions
        )

    def facts(self) -> dict[str, Any]:
        """Return the description of the study: its space, objective, method, seed."""
        return self.notes().get(_KEY, self._foreign)

    def note(self, key: str, value: Any) -> None:
        """Write down something about the whole study."""
        self._storage.set_study_user_attr(self._study, key, encoded(value))

    def notes(self) -> dict[str, Any]:
        """Return all notes about the whole study."""
        return decoded(self._storage.get_study_user_attrs(self._study))

    # --- conditions of trials, each once: trials of the same network have mostly the same

    def with_kept_conditions(self, outcome: TrialResult) -> TrialResult:
        """Return the outcome with the name of its conditions, which are written down by then."""
        if not outcome.conditions:
            return outcome
        name = blake2b(outcome.conditions.encode(), digest_size=8).hexdigest()
        self.keep_conditions(name, outcome.conditions)
        return replace(outcome, conditions=name)

    def keep_conditions(self, name: str, text: str) -> None:
        """Store conditions, unless they are stored already."""
        if self._kept is None:
            self._kept = set(self.conditions())
        if name not in self._kept:
            # No attribute of the user's: tools show those.
            self._storage.set_study_system_attr(self._study, _CONDITIONS + name, text)
            self._kept.add(name)

    def conditions(self) -> dict[str, str]:
        """Return all stored conditions, by name."""
        found = self._storage.get_study_system_attrs(self._study)
        return {
            key.removeprefix(_CONDITIONS): str(text)
            for key, text in found.items()
            if key.startswith(_CONDITIONS)
        }

    def conditions_of(self, trial: Trial) -> Conditions:
        """Return the conditions of a trial, or the current ones if none are stored."""
        kept = self.conditions() if trial.conditions else {}
        return Conditions.from_text(kept.get(trial.conditions, ""))

    # --- trials

    def add(self, trial: Trial, space: Space) -> int:
        """Store a proposed trial; return its number."""
        distributions: dict[str, Any] = {}

        def pick(path: str, dimension: Dimension) -> Any:
            distributions[path] = dimension.distribution(self._optuna)
            return trial.point[path]

        space.walk(pick)
        own: dict[str, Any] = {
            "seed": trial.seed,
            "parent": trial.parent,
            "epochs": trial.epochs,
            "keep": trial.keep,
            "note": trial.note,
            "after": trial.after,
        }
        frozen = self._optuna.trial.create_trial(
            state=self._optuna.trial.TrialState.RUNNING,
            params=dict(trial.point),
            distributions=distributions,
            user_attrs={_KEY: encoded(own), **self._owner()},
        )
        identity = self._storage.create_new_trial(self._study, template_trial=frozen)
        number: int = self._storage.get_trial_number_from_id(identity)
        self._ids[number] = identity
        self._mine.add(number)
        return number

    def claim(self, number: int) -> None:
        """Register this program as the owner of a trial that another program started."""
        self._mine.add(number)
        for key, value in self._owner().items():
            self._storage.set_trial_user_attr(self._ids[number], key, value)

    def _owner(self) -> dict[str, str]:
        return {} if self.database is None else {_OWNER: self.database.owner}

    def report(self, trial: Trial, loss_or_value: float) -> None:
        """Write down the last point of a running trial's curve, if the last one is old enough."""
        moment = now()
        last = self._reported.get(trial.number, trial.started or 0.0)
        if moment - last >= _REPORT_EVERY_S:
            self._reported[trial.number] = moment
            identity = self._ids[trial.number]
            # Another program may have thought this one dead, and have finished the trial.
            with self.turn(), suppress(self._optuna.exceptions.UpdateFinishedTrialError):
                self._storage.set_trial_intermediate_value(
                    identity, len(trial.curve), loss_or_value
                )

    def finish(self, trial: Trial, outcome: TrialResult) -> None:
        """Write down what became of a trial."""
        identity = self._ids[trial.number]
        kept = {**outcome.to_plain(), "told": trial.told, "ended": trial.ended}
        self._storage.set_trial_user_attr(identity, _OUTCOME, kept)
        self._close(identity, trial.state, trial.values)

    def _close(self, identity: int, state: str, values: tuple[float, ...] | None) -> None:
        states = self._optuna.trial.TrialState
        ends = {DONE: states.COMPLETE, STOPPED: states.PRUNED, FAILED: states.FAIL}
        given = None if values is None or state == FAILED else list(values)
        # Another program that has read the outcome may already have finished the trial.
        with suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            self._storage.set_trial_state_values(identity, ends[state], given)

    def trials(self, space: Space | None) -> list[Trial]:
        """Return all trials by number; without a space their parameters are the stored values."""
        return self.news((), space)

    def news(self, trials: Sequence[Trial], space: Space | None) -> list[Trial]:
        """Return the trials that are not among these yet, or were not over when these were read."""
        found = []
        for frozen in self._storage.get_all_trials(self._study, deepcopy=False):
            number = frozen.number
            known = number < len(trials) and trials[number].is_over
            if known or (number in self._mine and _OUTCOME not in frozen.user_attrs):
                continue
            self._ids[number] = frozen._trial_id
            found.append(self._read(frozen, space))
        return found

    def _read(self, frozen: Any, space: Space | None) -> Trial:
        own = decoded(frozen.user_attrs.get(_KEY, {}))
        point = dict(frozen.params)
        is_ours = space is not None and set(own) >= {"seed", "after"}
        parameters = space.decoded(point) if space and is_ours else dict(point)
        started = frozen.datetime_start
        trial = Trial(
            frozen.number,
            point,
            parameters,
            own.get("seed", 0),
            WAITING,
            parent=own.get("parent"),
            epochs=own.get("epochs"),
            keep=own.get("keep", False),
            note=own.get("note", {}),
            after=own.get("after", 0),
            started=None if started is None else started.timestamp(),
        )
        if _OUTCOME in frozen.user_attrs:
            kept = dict(frozen.user_attrs[_OUTCOME])
            told, ended = kept.pop("told"), kept.pop("ended")
            if not isinstance(kept.get("conditions"), str):
                # Of before studies kept them, or kept them with each trial.
                kept["conditions"] = ""
            try:
                apply(trial, TrialResult.from_plain(kept), told, ended)
            except TypeError as problem:
                raise DataError.build(
                    f"study in {self.place}, trial {trial.number}",
                    expected="an outcome",
                    got=str(problem),
                    hint="was it written by another version?",
                ) from None
            if not frozen.state.is_finished():
                # Killed between the two lines.
                self._close(frozen._trial_id, trial.state, trial.values)
        elif self._foreign:
            self._apply_foreign(trial, frozen)
        elif self.database is not None and self.database.is_alive(frozen.user_attrs.get(_OWNER)):
            trial.state = RUNNING
        return trial

    def _apply_foreign(self, trial: Trial, frozen: Any) -> None:
        """Set the state and results of a trial that plain Optuna ran."""
        ends = {"COMPLETE": DONE, "PRUNED": STOPPED, "FAIL": FAILED, "RUNNING": RUNNING}
        trial.state = ends.get(frozen.state.name, WAITING)
        trial.values = tuple(frozen.values) if frozen.values and trial.state == DONE else None
        name = self._foreign["objective"]["names"][0]
        trial.curve = [{name: value} for _, value in sorted(frozen.intermediate_values.items())]
        if frozen.datetime_complete is not None:
            trial.ended, trial.told = frozen.datetime_complete.timestamp(), frozen.number
            trial.seconds = trial.ended - (trial.started or trial.ended)


def apply(trial: Trial, outcome: TrialResult, told: int | None, ended: float | None) -> None:
    """Let a trial have this outcome."""
    kept = {name: value for name, value in vars(outcome).items() if name != "misconfigured"}
    vars(trial).update(kept, told=told, ended=ended)
    trial.values = None if outcome.values is None else tuple(outcome.values)


@contextmanager
def quiet_optuna(optuna: Any) -> Iterator[None]:
    """Suppress Optuna's lines about each study and trial, and warnings about its own options."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


def now() -> float:
    """Return seconds since 1970."""
    return datetime.now().timestamp()
