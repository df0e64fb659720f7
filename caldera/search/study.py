"""`Study`: the trials of a search, the best trial, and the costs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from caldera.base.arguments import checked, require
from caldera.draw.svg import Picture
from caldera.errors import CalderaError, ConfigError, DataError
from caldera.search.analysis import Importance, Overview
from caldera.search.charts import plot_study, study_html, table_of
from caldera.search.job import SearchJob, digest_of
from caldera.search.luck import Luck
from caldera.search.objective import Objective
from caldera.search.page import write_page
from caldera.search.record import NAME, TrialRecord
from caldera.search.space import Space
from caldera.search.trial import DONE, FAILED, RUNNING, STOPPED, WAITING, Trial


class Study:
    """All trials of a search. `search.run` makes one, `search.load` reads one from its folder.

    - `trials`: every one, also those that failed or were stopped;
    - `best`: the best trial; `front`: those that no other beats, with several objectives;
    - `seconds`: what all trials have cost together;
    - `test`: results of the best model on the test samples, which are looked at once, at the end.

    >>> from caldera import search
    >>> study = search.run(lambda x: (x - 1) ** 2, {"x": search.integer(0, 3)}, method="grid", verbose=0)
    >>> study.best.parameters
    {'x': 1}
    """  # noqa: E501

    def __init__(
        self,
        record: TrialRecord,
        objective: Objective,
        space: Space | None = None,
        job: SearchJob | None = None,
    ) -> None:
        self.record = record
        self.objective = objective
        self.space = space
        self.job = job
        self.trials: list[Trial] = []
        for trial in record.trials(space) if record.exists else []:
            self.adopt(trial)
        self._models: dict[int, Any] = {}

    @property
    def folder(self) -> Path | None:
        """Folder of the study, or None."""
        return self.record.folder

    def adopt(self, trial: Trial) -> None:
        """Let a trial that is written down be one of this study."""
        if self.job is not None and self.job.samples is not None:
            trial.make = self.model_of
        self.trials.append(trial)

    def add(self, trial: Trial) -> None:
        """Add a proposed trial; the record assigns its number."""
        assert self.space is not None
        trial.number = self.record.add(trial, self.space)
        self.adopt(trial)

    def catch_up(self) -> list[Trial]:
        """Read the changes of other programs; return newly finished trials in their order.

        Trials that a dead program was running are set to waiting.
        """
        over = []
        for found in self.record.news(self.trials, self.space):
            if found.number == len(self.trials):
                self.adopt(found)
            else:
                known = self.trials[found.number]
                vars(known).update(vars(found), make=known.make)
            if found.is_over:
                over.append(self.trials[found.number])
        return sorted(over, key=lambda trial: trial.told or 0)

    # --- looking at it

    def of_state(self, *states: str) -> list[Trial]:
        """Return the trials in one of these states."""
        return [trial for trial in self.trials if trial.state in states]

    def counts(self) -> dict[str, int]:
        """Return the number of trials in each state."""
        order = (DONE, STOPPED, FAILED, RUNNING, WAITING)
        return {state: len(self.of_state(state)) for state in order}

    def losses(self, trial: Trial) -> tuple[float, ...]:
        """Return the objectives of a trial as numbers that should be small.

        Infinite if it is not done.
        """
        return self.objective.losses(trial.values if trial.is_feasible else None)

    @property
    def best(self) -> Trial:
        """The best trial that is done and keeps all constraints (by the first of several
        objectives)."""
        found = self.best_or_none()
        if found is None:
            counts = ", ".join(f"{n} {state}" for state, n in self.counts().items() if n)
            failed = self.of_state(FAILED)
            raise ConfigError.build(
                "study.best",
                expected="a trial that is done",
                got=counts or "no trial",
                hint=f"the last one failed: {failed[-1].reason}" if failed else "",
            )
        return found

    def best_or_none(self) -> Trial | None:
        """Return the best trial, or None."""
        good = [trial for trial in self.trials if math.isfinite(self.losses(trial)[0])]
        return min(good, key=lambda trial: (self.losses(trial), trial.number), default=None)

    @property
    def front(self) -> list[Trial]:
        """The trials that no other beats in all objectives."""
        good = [trial for trial in self.trials if trial.is_feasible]
        losses = {trial.number: self.losses(trial) for trial in good}
        return [
            trial
            for trial in good
            if not any(dominates(losses[o.number], losses[trial.number]) for o in good)
        ]

    @property
    def seconds(self) -> float:
        """Total cost of all trials in worker seconds."""
        return sum(trial.seconds for trial in self.trials)

    def seconds_to(self, value: float) -> float:
        """Return the seconds of tuning until a trial was as good as `value`: all trials count, also
        the bad ones. Infinite if none was."""
        wanted = self.objective.losses((value,) * len(self.objective.modes))[0]
        spent = 0.0
        for trial in sorted(self.trials, key=lambda each: each.ended or math.inf):
            spent += trial.seconds
            if self.losses(trial)[0] <= wanted:
                return spent
        return math.inf

    @property
    def test(self) -> dict[str, float] | None:
        """Results of the best model on the test samples; None before the end of the search."""
        return self.record.notes().get("test")

    @property
    def facts(self) -> dict[str, Any]:
        """Description stored at the start: space, objective, method, seed."""
        return self.record.facts()

    def rows(self) -> list[dict[str, Any]]:
        """Return a flat dict for each trial.

        Its keys are number, state, values, parameters (None for parameters that the trial does not
        have), cost and reason.
        """
        names = self.objective.names()
        paths = list(dict.fromkeys(path for trial in self.trials for path in trial.point))
        return [
            {
                "number": trial.number,
                "state": trial.state,
                **dict(zip(names, trial.values or (math.nan,) * len(names), strict=True)),
                **{path: trial.point.get(path) for path in paths},
                "seconds": trial.seconds,
                "steps": len(trial.curve),
                "reason": trial.reason,
            }
            for trial in self.trials
        ]

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {state}" for state, n in self.counts().items() if n)
        best = self.best_or_none()
        if best is None:
            return f"Study({counts or 'no trial yet'})"
        names = zip(self.objective.names(), best.values or (), strict=True)
        shown = ", ".join(f"{name} {value:.6g}" for name, value in names)
        return f"Study({counts}; best: trial {best.number}, {shown})"

    # --- what a person sees

    def table(self) -> Any:
        """Return every trial as a row: number, state, values, parameters, cost and reason. A
        `pandas.DataFrame` where pandas is installed, else a `Table` that prints like one.

        >>> from caldera import search
        >>> space = {"x": search.integer(1, 2)}
        >>> study = search.run(lambda x: x * x, space, method="grid", verbose=0)
        >>> list(study.table()["value"])
        [1.0, 4.0]
        """
        return table_of(self.rows())

    @checked
    def plot(self, path: str | PathLike[str] | None = None) -> Picture | Path:
        """Return history, learning curves, slices and front as one picture, which a notebook shows;
        with a path it is written to that .svg file, and the path is returned."""
        return plot_study(Overview(self), path)

    def _repr_html_(self) -> str:
        return study_html(Overview(self))

    @checked
    def page(self, path: str | PathLike[str]) -> Path:
        """Write one HTML page with all there is to see; the path. `caldera report FOLDER` does so
        for a study that is kept in a folder."""
        return write_page(Overview(self), path)

    def luck(self) -> Luck | None:
        """Estimate the share of luck in the best value.

        The estimate covers luck of drawing, and luck of measuring if the size of the validation
        data is known. The result is None for several objectives or fewer than two values.
        """
        return Overview(self).luck

    def importances(self) -> list[Importance]:
        """Return the importance of each parameter for the first objective, highest first.

        The list is empty for fewer than ten values. This requires scikit-learn.
        """
        return Overview(self).find_importances()

    # --- models

    def model_of(self, trial: Trial) -> Any:
        """Return the trained model of a trial: from its file, else trained again with its seed."""
        if trial.number not in self._models:
            self._models[trial.number] = self._read_model(trial) or self.remake(trial)
        return self._models[trial.number]

    def _read_model(self, trial: Trial) -> Any:
        job = self._job()
        if not trial.saved or job.folder is None or not job.path(trial.number).exists():
            return None
        model = job.model(trial.task())
        job.load(model, trial.number)
        if digest_of(model) != trial.digest:
            warnings.warn(
                f"study: the file of trial {trial.number} has other weights than the trial had; "
                "it is trained again",
                stacklevel=4,
            )
            return None
        return model

    def remake(self, trial: Trial) -> Any:
        """Train a trial again under the same conditions.

        The seed, samples and number of epochs are the same, and so are the numbers of threads and
        ranks and the kernels, which the study has stored. The weights are identical to the bit,
        unless this kind of machine differs from the original one; then a warning is issued.
        """
        conditions = self.record.conditions_of(trial)
        model = self._job().train_again(trial.task(), len(trial.curve), conditions)
        if trial.digest and digest_of(model) != trial.digest:
            warnings.warn(
                f"study: trial {trial.number} was trained again, and its weights differ in some "
                "bits: another machine, other data, or more than two ranks?",
                stacklevel=3,
            )
        return model

    def _job(self) -> SearchJob:
        if self.job is None or self.job.samples is None:
            raise ConfigError.build(
                "study",
                expected="a study that stores build and data",
                got="one that was only read",
                hint="open it with search.run(build, space, data, folder=...)",
            )
        return self.job


def dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return True if losses dominate others: nowhere larger, and somewhere smaller.

    >>> dominates((1, 2), (1, 3)), dominates((1, 2), (1, 2))
    (True, False)
    """
    pairs = list(zip(first, second, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


_KINDS = {
    "seed": int,
    "parent": int,
    "epochs": int,
    "told": int,
    "ended": int | float,
    "started": int | float,
    "note": dict,
}


def is_study(folder: str | PathLike[str]) -> bool:
    """Return True if a folder contains a study, as `search.run(folder=...)` writes it.

    >>> from caldera import search
    >>> search.is_study("/none")
    False
    """
    return (Path(folder) / "journal.log").is_file()


def load(
    folder: str | PathLike[str] | None = None, storage: str | None = None, name: str = NAME
) -> Study:
    """Load a study from a folder or a database for reading: trials, best, table, page.

    To resume it, or to get its models, call `search.run` with the same folder. A study that plain
    Optuna made can also be loaded from its journal file or database. `name` selects the study
    unless it is the only one.

    >>> import tempfile
    >>> from caldera import search
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     space = {"x": search.integer(1, 3)}
    ...     _ = search.run(lambda x: x, space, method="grid", folder=folder, verbose=0)
    ...     search.load(folder)
    Study(3 done; best: trial 0, value 1)
    """
    if isinstance(folder, str) and "://" in folder:
        folder, storage = None, folder
    path = None if folder is None else Path(folder)
    if storage is None and (path is None or not (is_study(path) or path.is_file())):
        raise ConfigError.build(
            "search.load",
            expected=f"a study in {path}" if path else "folder= or storage=",
            got="no journal.log in it" if path else "neither",
            hint="name the folder= that search.run was given, or a journal file of Optuna",
        )
    place = path if storage is None else storage.rpartition("@")[2]
    try:
        record = TrialRecord(path, storage, name)
        place = record.place
        if not record.exists:
            record.open_foreign()
        require(
            record.exists,
            "search.load",
            f"a study in {place}",
            "none, or an empty one",
            hint=f"choose one with name=: {', '.join(record.names)}" if record.names else "",
        )
        study = Study(record, _read_objective(record.facts()))
        _check_kinds(study)
        record.close()
    except CalderaError:
        raise
    except Exception as problem:
        # Optuna replays the file, so that a damaged one can cause any exception.
        raise DataError.build(
            f"study in {place}",
            expected="files written by a search",
            got=f"{type(problem).__name__}: {problem}"[:200],
            hint="the file is damaged",
        ) from problem
    return study


def _check_kinds(study: Study) -> None:
    """Reject values that no search writes before they are used in computations."""
    names, modes = study.objective.names(), study.objective.modes
    if not all(isinstance(name, str) for name in names) or not set(modes) <= {"min", "max"}:
        raise TypeError(f"objectives {names!r} with modes {modes!r}")
    if not isinstance(study.facts.get("space", {}), dict):
        raise TypeError(f"a space that is {study.facts['space']!r}")
    for trial in study.trials:
        if trial.values is not None and len(trial.values) != len(modes):
            raise ValueError(f"trial {trial.number} with {len(trial.values)} values")
        for name, kinds in _KINDS.items():
            value = getattr(trial, name)
            if value is not None and not isinstance(value, kinds):
                raise TypeError(f"trial {trial.number} with {name} {value!r}")


class _Described(Objective):
    """An objective of a study that is only read: its names and modes."""

    def __init__(self, names: Sequence[str], modes: Sequence[str]) -> None:
        super().__init__(tuple(modes))
        object.__setattr__(self, "_names", tuple(names))

    def names(self) -> tuple[str, ...]:
        return self._names  # type: ignore[attr-defined]

    def measure(self, row: Mapping[str, float]) -> float:
        raise ConfigError.build(
            "study",
            expected="its objective",
            got="a study that was only read from its folder",
            hint="continue it with search.run, with the same folder and objective",
        )


def _read_objective(facts: dict[str, Any]) -> Objective:
    described = facts.get("objective", {})
    return _Described(described.get("names", ["value"]), described.get("modes", ["min"]))
