"""`SearchJob`: the settings that all workers of a search share, and the code that runs a trial."""

from __future__ import annotations

import hashlib
import math
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.base.file_cache import write_file
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import ConfigError
from caldera.kernels.tuning.choice_store import using
from caldera.parallel import DataParallel
from caldera.search.objective import KNOWN_EARLY, MEASURED, Constraint, MissingMetric, Objective
from caldera.search.samples import TrialData
from caldera.search.space import Space
from caldera.search.trial import DONE, FAILED, STOPPED, Conditions, Row, TrialResult, TrialTask
from caldera.train.callbacks import Callback
from caldera.train.model import Model
from caldera.train.saving.snapshot import Snapshot, progress_bytes, reinitialise, restore_progress
from caldera.train.strategy import SingleProcessStrategy, Strategy
from caldera.train.tracking.history import History

if TYPE_CHECKING:
    from caldera.train.run import Run

Report = Callable[[int, Row], str]
"""Function from a trial's number and report to the reason to stop it, or an empty string."""

_LATENCY_RUNS = 20


@dataclass
class SearchJob:
    """Settings shared by all trials: the model builder, the data, the measured quantities."""

    build: Callable[..., Any]
    space: Space
    objective: Objective
    samples: TrialData | None = None
    """None: `build` is a plain function that returns the results itself."""
    constraints: Sequence[Constraint] = ()
    epochs: int | None = None
    fit: Mapping[str, Any] | None = None
    """Further arguments of `Model.fit`."""
    folder: Path | None = None

    def run(self, task: TrialTask, report: Report, parallel: Strategy | None = None) -> TrialResult:
        """Run a trial to its end. An exception, except Ctrl-C, becomes a failed trial.

        With a strategy several ranks call this with the same task, and each rank receives the
        outcome.
        """
        recorder = _Recorder(self, task, report)
        try:
            if self.samples is None:
                self._call(task, recorder)
            else:
                strategy = parallel or SingleProcessStrategy()
                made = Conditions(settings.threads, strategy.communicator.size)
                with using(made.choices):
                    self._train(task, recorder, strategy)
                recorder.conditions = made.to_text()
            return recorder.outcome()
        except (Exception, SystemExit) as error:
            # No error of a trial, not even SystemExit, ends the study.
            return recorder.failed(error)

    # --- plain functions

    def _call(self, task: TrialTask, recorder: _Recorder) -> None:
        """Call a plain function, which returns its results or yields them step by step."""
        found = self.build(**self._arguments(task))
        if not isinstance(found, Generator):
            recorder.add(_row(found))
            return
        for each in found:
            recorder.add(_row(each))
            if recorder.reason:
                found.close()
                return

    def _arguments(self, task: TrialTask, seed: int | None = None) -> dict[str, Any]:
        found = self.space.decoded(task.point)
        if self._passes_seed:
            found["seed"] = task.seed if seed is None else seed
        return found

    @cached_property
    def _passes_seed(self) -> bool:
        """True if `build` has a parameter `seed` that the space does not set."""
        code = getattr(self.build, "__code__", None)
        if code is None:
            return False
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return "seed" in parameters and "seed" not in self.space.names()[1]

    # --- models

    def model(self, task: TrialTask, seed: int | None = None) -> Model:
        """Return the model of a trial before it is trained, or as its parent left it."""
        seed = task.seed if seed is None else seed
        model = self.build(**self._arguments(task, seed))
        require(
            isinstance(model, Model),
            "build",
            "a model, since there are data to train on",
            type(model).__name__,
            hint="a plain function is searched without data",
        )
        if not self._passes_seed and model.seed != seed:
            model.seed = seed
            if model._signature is not None:
                reinitialise(model)
        if task.parent is not None:
            assert self.samples is not None
            self.load(model, task.parent)
            _give_rate(model)
        return model

    def _train(self, task: TrialTask, recorder: _Recorder, parallel: Strategy) -> None:
        repeats = max(self.objective.seeds, self.objective.folds)
        if repeats == 1:
            self._fit(task, recorder, 0, parallel)
            return
        rows: list[Row] = []
        for repeat in range(repeats):
            inner = _Recorder(self, task, lambda number, row: "")
            self._fit(task, inner, repeat, parallel)
            rows.append(self._summed_up(inner))
            recorder.digest = recorder.digest or inner.digest
            recorder.violations += inner.violations
            # A step is a seed or a fold: a bad first result saves the remaining ones.
            recorder.add({name: sum(r[name] for r in rows) / len(rows) for name in rows[0]})
            # Ranks of a trial must stop together; only the first rank receives the reason.
            recorder.reason = parallel.communicator.bcast_object(recorder.reason)
            if recorder.reason:
                return

    def _summed_up(self, recorder: _Recorder) -> Row:
        """Return the last row of a training, with the values that the objective selects."""
        values = self.objective.values(recorder.curve)
        return recorder.curve[-1] | dict(zip(self.objective.names(), values, strict=True))

    def _fit(self, task: TrialTask, recorder: _Recorder, repeat: int, parallel: Strategy) -> None:
        model = self.model(task, task.seed if self.objective.seeds == 1 else task.seed + repeat)
        leads = parallel.communicator.rank == 0
        history = self._fit_model(model, task, repeat, _Watcher(recorder, leads), parallel)
        if history.stopped == "interrupted":
            raise KeyboardInterrupt
        recorder.digest = digest_of(model)
        if "latency" in self.needs and recorder.curve:
            recorder.curve[-1]["latency"] = latency_of(model, self._parts(repeat)[0])
        if leads and repeat == 0 and self._is_worth_saving(task, recorder):
            self.save(model, task.number)
            recorder.saved = True

    def _parts(self, repeat: int) -> tuple[Any, Any]:
        """Return the training and validation samples of a seed or fold."""
        assert self.samples is not None
        return self.samples.parts(repeat if self.objective.folds > 1 else None)

    def _fit_model(
        self, model: Model, task: TrialTask, repeat: int, watcher: Callback, parallel: Strategy
    ) -> History:
        train, validation = self._parts(repeat)
        given = dict(self.fit or {})
        make_callbacks = given.pop("callbacks", None) or list
        return model.fit(
            train,
            validation=validation,
            epochs=task.epochs or self.epochs,
            verbose=0,
            callbacks=[*make_callbacks(), watcher],
            parallel=parallel,
            **given,
        )

    def train_again(self, task: TrialTask, epochs: int, conditions: Conditions) -> Model:
        """Train the model of a trial again (with several seeds or folds, on the first)."""
        with settings.override(threads=conditions.threads):
            if conditions.ranks == 1:
                return self._fit_again(task, epochs, conditions, SingleProcessStrategy())

            # Ranks that were processes are threads now, which add up in the same order.
            def work(rank: Communicator) -> Model:
                strategy = DataParallel(communicator=rank)
                return self._fit_again(task, epochs, conditions, strategy)

            return run_virtual_ranks(conditions.ranks, work)[0]

    def _fit_again(
        self, task: TrialTask, epochs: int, conditions: Conditions, parallel: Strategy
    ) -> Model:
        # It gets the number of epochs of the first training, since schedules may depend on it.
        ends: Callback = _EndAfter(epochs)
        if max(self.objective.seeds, self.objective.folds) > 1:
            # A step of such a trial is a whole training, which ends as configured, not an epoch.
            ends = _Watcher(_Recorder(self, task, lambda number, row: ""), speaks=False)
        model = self.model(task)
        with using(conditions.choices):
            self._fit_model(model, task, 0, ends, parallel)
        return model

    @cached_property
    def needs(self) -> set[str]:
        """Names to measure in addition to the columns of the history."""
        named = {*self.objective.columns(), *(each.name for each in self.constraints)}
        return named & set(MEASURED)

    # --- saved models

    def _is_worth_saving(self, task: TrialTask, recorder: _Recorder) -> bool:
        if self.folder is None or not recorder.curve:
            return False
        if task.keep:
            return True
        if recorder.reason or recorder.violated() or self.objective.folds > 1:
            return False
        losses = self.objective.losses(self.objective.values(recorder.curve))
        return task.best is None or any(a < b for a, b in zip(losses, task.best, strict=True))

    def path(self, number: int) -> Path:
        """Return the file of a trial's saved model."""
        assert self.folder is not None
        return self.folder / "models" / f"{number:05d}.caldera"

    def save(self, model: Model, number: int) -> None:
        """Save a model and its training progress."""
        path = self.path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path.with_suffix(".progress"), progress_bytes(model))
        model.save(path)

    def load(self, model: Model, number: int) -> None:
        """Restore a model to the saved state of a trial."""
        assert self.samples is not None
        path = self.path(number)
        require(
            path.exists(),
            f"trial {number}",
            f"its model in {path}",
            "no file",
            hint="was the folder moved without it?",
        )
        if model._signature is None:
            model.ensure_built(self.samples.sample())
        model.load_weights(path)
        restore_progress(model, path.with_suffix(".progress").read_bytes())


@dataclass
class _Recorder:
    """Reports of a trial so far, and the reason to stop it."""

    job: SearchJob
    task: TrialTask
    report: Report
    started: float = field(default_factory=time.perf_counter)
    curve: list[Row] = field(default_factory=list)
    reason: str = ""
    digest: str = ""
    saved: bool = False
    conditions: str = ""
    violations: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def add(self, row: Row) -> None:
        """Record the results of a step, and report them."""
        row.setdefault("seconds", self.seconds)
        self.curve.append(row)
        self.reason = self.reason or self.report(self.task.number, row)

    def violated(self) -> list[str]:
        """Return the constraints that the last row violates."""
        if not self.curve:
            return self.violations
        last = self.curve[-1]
        found = [each.violated(last) for each in self.job.constraints]
        return list(dict.fromkeys([*self.violations, *filter(None, found)]))

    def outcome(self) -> TrialResult:
        """Return the result of a trial that ran to its end."""
        if not self.curve:
            reason = self.violations[0] if self.violations else "it sent no report"
            return self._over(STOPPED if self.violations else FAILED, reason, None)
        values = list(self.job.objective.values(self.curve))
        named = zip(self.job.objective.names(), values, strict=True)
        if bad := [name for name, value in named if math.isnan(value)]:
            return self._over(FAILED, f"{bad[0]} is NaN", None)
        if self.reason:
            return self._over(STOPPED, self.reason, values)
        return self._over(DONE, "; ".join(self.violated()), values)

    def _over(self, state: str, reason: str, values: list[float] | None) -> TrialResult:
        return TrialResult(
            self.task.number,
            state,
            reason,
            values,
            self.violated(),
            self.curve,
            self.seconds,
            digest=self.digest,
            saved=self.saved,
            conditions=self.conditions,
        )

    def failed(self, error: BaseException) -> TrialResult:
        """Return the result of a trial that raised an exception."""
        details = "".join(traceback.format_exception(error))
        return TrialResult(
            self.task.number,
            FAILED,
            f"{type(error).__name__}: {error}",
            None,
            [],
            self.curve,
            self.seconds,
            details=details,
            misconfigured=isinstance(error, MissingMetric),
        )


class _Watcher(Callback):
    """Reports each epoch of a trial, and ends it when it should stop."""

    def __init__(self, recorder: _Recorder, speaks: bool) -> None:
        self.recorder = recorder
        self.speaks = speaks
        self.decides_by = next(iter(recorder.job.objective.columns()), "")
        self._known: Row = {}

    def run_begins(self, run: Run) -> None:
        job, model = self.recorder.job, run.model
        self._known = {"parameters": float(sum(each.size for each in model.trainable()))}
        if job.needs & {"flops", "memory"}:
            found = model.summary(show=False)
            self._known["flops"] = float(found.flops)
            self._known["memory"] = float(
                3 * found.parameter_bytes + run.loader.batch_size * found.activation_bytes
            )
        early = [each for each in job.constraints if each.name in KNOWN_EARLY]
        violated = [each.violated(self._known) for each in early]
        self.recorder.violations += [each for each in violated if each]
        if any(violated):
            run.stop("a constraint")

    def epoch_ends(self, run: Run) -> None:
        history = run.history
        row = {name: history[name][-1] for name in history.numbers()}
        row |= {"epochs": float(run.model.epochs_done + run.epoch), **self._known}
        row["seconds"] = self.recorder.seconds
        if self.speaks:
            self.recorder.add(row)
        else:
            self.recorder.curve.append(row)
        if self.recorder.reason:
            run.stop(self.recorder.reason)
        elif self.recorder.job.objective.is_reached(row):
            run.stop("the objective is reached")


class _EndAfter(Callback):
    """Callback that ends a run after the epoch at which another one was ended."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def epoch_ends(self, run: Run) -> None:
        if run.epoch >= self.epochs:
            run.stop("the trial ended here")


def _row(found: Any) -> Row:
    """Convert the result of a plain function to a row; a number is the value."""
    if isinstance(found, Mapping):
        return {str(name): _number(value, str(name)) for name, value in found.items()}
    return {"value": _number(found, "value")}


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError.build(
            "trial",
            expected=f"{name} as a number",
            got=repr(value)[:80],
            hint="give a number, or a dict of numbers by name",
        ) from None


def _give_rate(model: Model) -> None:
    """Set the learning rate that the model was built with instead of its parent's rate."""
    rate = model.learning_rate
    if isinstance(rate, int | float) and model.optimizer.state:
        model.optimizer.learning_rate.assign(rate)


def digest_of(model: Model) -> str:
    """Return a short name for the weights of a model: the same for the same bits."""
    found = hashlib.blake2b(digest_size=16)
    for name, values in sorted(Snapshot.of(model).values.items()):
        found.update(name.encode())
        found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()


def latency_of(model: Model, data: Any) -> float:
    """Return the median seconds of `predict` for one sample."""
    inputs = data.batch(np.arange(1))[: len(model.signature.inputs)]
    model.predict(*inputs)
    taken = []
    for _ in range(_LATENCY_RUNS):
        started = time.perf_counter()
        model.predict(*inputs)
        taken.append(time.perf_counter() - started)
    return float(median(taken))
