"""`run`: starts or resumes a search and runs it to its end.

The arguments of `run`, with their defaults:

- `method` proposes trials, `stop` ends unpromising ones: names or objects such as `search.TPE()`.
- `trials`, `seconds`: the number of trials of the study, and the time in which new trials start.
- `objective`: a metric such as "val_accuracy" (default "val_loss"), or the result of
  `search.accuracy`, `weighted`, `time_to` or `pareto`; `constraints`: results of `at_most` and
  `at_least`.
- `epochs` of each trial, unless the model defines them; `fit`: further arguments of `Model.fit`.
  Its `callbacks` is a function that makes a list, since each trial needs separate callbacks.
- `validation`: the fraction of the training samples used for selection, the same for all trials, or
  other samples. Test samples (of a data set, or `test`) are used only once: `study.test` contains
  the best model's results on them.
- `folder`: the folder of the study. An existing study is resumed: finished trials are kept, and
  trials that were running are run again.
- `storage`: the address of a database for the study, such as "sqlite:///study.db" or
  "postgresql://user@host/database"; `name` identifies the study there. Several programs, on the
  same or different machines, work together if they are started with the same address and name.
- `seed`: the same seed leads to the same trials.
- `callbacks`: a list of `StudyCallback` objects. `verbose`: 0 for silence, 1 for a live table in a
  terminal and no output elsewhere (the default), 2 for a line per trial.
- `workers`: the number of trials that run in parallel, in separate processes, or as in
  `"threads:4"` in threads. A `dask.distributed.Client`, `"dask:tcp://HOST:PORT"`, `"ray"` or
  `"ray:ADDRESS"` runs one trial per thread or core of a cluster, and `"mpi"` or an
  `mpi4py.futures.MPIPoolExecutor` one per rank of its pool. Under `caldera run -n 9` all ranks
  except the first are the workers, and every rank gets the study. With `ranks_per_trial` several
  ranks train each model.
- `retries`: the number of times a trial is restarted if its worker has died, or has sent no report
  for `hung_after` seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from caldera.base.arguments import require
from caldera.base.file_lock import held_lock
from caldera.core.tensor.random import checked_seed
from caldera.errors import ConfigError
from caldera.search.best_network import keep_network
from caldera.search.callbacks import LiveTable
from caldera.search.job import SearchJob
from caldera.search.method import Method, methods
from caldera.search.objective import Constraint, as_objective
from caldera.search.record import NAME, TrialRecord
from caldera.search.samples import TrialData
from caldera.search.scheduler import Scheduler, StudyCallback
from caldera.search.space import Space
from caldera.search.study import Study
from caldera.search.workers import is_master, parse_workers, run_trials
from caldera.search.workers.ranks import load_study, study_messages
from caldera.train.arguments import folder as checked_folder
from caldera.train.arguments import instances, plain_number, whole_number

_WHERE = "search.run"
LOCKED_WITHIN_S = 2.0
"""A worker that was just started when its master was killed has the study for a moment more."""


def run(
    build: Callable[..., Any],
    space: Space | Mapping[str, Any],
    data: Any = None,
    *,
    method: str | Method = "random",
    stop: str | Method | None = None,
    trials: int | None = None,
    seconds: float | None = None,
    objective: Any = None,
    constraints: Sequence[Constraint] = (),
    epochs: int | None = None,
    validation: Any = 0.2,
    test: Any = None,
    fit: Mapping[str, Any] | None = None,
    folder: Any = None,
    storage: str | None = None,
    name: str = NAME,
    seed: int = 0,
    workers: Any = 1,
    ranks_per_trial: int = 1,
    retries: int = 2,
    hung_after: float | None = None,
    callbacks: Sequence[StudyCallback] = (),
    verbose: int | None = None,
) -> Study:
    """Search a space for the best parameters; return the study of all trials.

    Args:
        build: Function that receives the parameters of a trial by name and returns a model, which
            is trained on `data`. Without data it is a plain function that returns a number (to be
            minimised) or a dict of numbers, or yields them step by step.
        space: Dimensions by the names of parameters.
        data: Data set, or None.
        method: Name or object of a search method.
        stop: Name or object of a rule that ends unpromising trials, such as "asha".
        trials: Number of trials.
        seconds: Time after which no new trials start.
        objective: Quantity to optimise, such as "val_accuracy"; several for a Pareto front.
        epochs: Number of epochs of a trial.
        validation: Fraction of the training samples held out to choose by, or data.
        folder: Folder of the study; an existing one continues.
        seed: Seed of proposals and models.
        workers: Number of parallel trials, a Dask or Ray client, or "mpi".

    Returns:
        The study; `study.best` is the best trial, `study.test` its results on the test data.

    The remaining arguments are described in the module `caldera.search.runner`.

    >>> from caldera import search
    >>> space = {"x": search.uniform(-4, 4), "y": search.uniform(-4, 4)}
    >>> study = search.run(lambda x, y: (x - 1) ** 2 + y * y, space, trials=200, verbose=0)
    >>> len(study.trials), study.best.value < 0.5
    (200, True)
    """
    proposer, stoppers = methods.make(method), [] if stop is None else [methods.make(stop)]
    seed = checked_seed(seed, f"{_WHERE} seed")
    _check_limits(proposer, trials=trials, seconds=seconds, epochs=epochs)
    watchers = instances(callbacks, StudyCallback, "callbacks", _WHERE)
    place = _place(folder, None if data is None else proposer)
    goal = as_objective(objective, "value" if data is None else "val_loss")
    limits = tuple(instances(constraints, Constraint, "constraints", _WHERE))
    samples = data if data is None else TrialData(data, validation, test, goal.folds, seed)
    job = SearchJob(build, _checked_space(space, build), goal, samples, limits, epochs, fit, place)
    options = _worker_options(workers, ranks_per_trial, retries, hung_after)
    if not is_master():
        return _serve(job, options)
    with _record(place, storage, name) as record:
        with record.turn():
            record.begin(job.space, goal, _facts(proposer, stoppers, job, seed, trials))
            study = Study(record, goal, job.space, job)
            watching = [*watchers, LiveTable(verbose, trials=trials)]
            scheduler = Scheduler(study, proposer, stoppers, seed, trials, seconds, watching)
        _run_all(scheduler, job, options)
    return study


def _checked_space(given: Space | Mapping[str, Any], build: Callable[..., Any]) -> Space:
    space = Space(given)
    if not callable(build):
        raise ConfigError.build(
            _WHERE, expected="a function that builds a model", got=repr(build)[:80]
        )
    space.check_build(build, ("seed",))
    return space


def _place(folder: Any, trainer: Method | None) -> Path | None:
    """Return the folder of a study, which a method that saves models cannot do without."""
    place = checked_folder(folder, "folder", _WHERE)
    if trainer is not None and trainer.saves and place is None:
        raise ConfigError.build(
            _WHERE, expected=f"folder=, where {trainer!r} saves models", got="none"
        )
    return place


def _facts(
    method: Method, stoppers: Sequence[Method], job: SearchJob, seed: int, trials: int | None
) -> dict[str, Any]:
    """Return the study's description without its space and objective."""
    return {
        "method": repr(method),
        "stop": [repr(each) for each in stoppers],
        "seed": seed,
        "epochs": job.epochs,
        "trials": trials,
        "samples": job.samples and job.samples.chosen_by,
    }


def _serve(job: SearchJob, options: dict[str, Any]) -> Study:
    """Run trials on a rank that is not the master, and return the master's study."""
    study = Study(TrialRecord(None), job.objective, job.space, job)
    study.record.begin(job.space, job.objective, {})
    load_study(study, run_trials(None, job, **options))
    return study


@contextmanager
def _record(folder: Path | None, storage: str | None, name: str) -> Iterator[TrialRecord]:
    """Open the record of a study; a folder is locked, a database is shared."""
    lock = nullcontext() if folder is None or storage is not None else _locked(folder)
    with lock, closing(TrialRecord(folder, storage, name)) as record:
        yield record


def _run_all(scheduler: Scheduler, job: SearchJob, options: dict[str, Any]) -> None:
    """Run all trials, then evaluate the test samples. After Ctrl-C the study can be resumed."""
    study = scheduler.study

    def end() -> None:
        _evaluate_best(study)
        keep_network(study)

    scheduler.call_callbacks("study_begins")
    try:
        run_trials(scheduler, job, end, partial(study_messages, study), **options)
    except KeyboardInterrupt:
        scheduler.is_cancelled = True
    finally:
        scheduler.call_callbacks("study_ends")


def _check_limits(method: Method, **limits: float | None) -> None:
    for name, given in limits.items():
        if given is not None and name == "seconds":
            plain_number(given, name, 0.0, _WHERE)
        elif given is not None:
            whole_number(given, name, 1, _WHERE)
    require(
        limits["trials"] is not None or limits["seconds"] is not None or method.ends,
        _WHERE,
        f"trials= or seconds=, since {method!r} never ends",
        "neither",
    )


def _worker_options(
    workers: Any, ranks_per_trial: int, retries: int, hung_after: float | None
) -> dict[str, Any]:
    """Return the checked options of `run_trials`."""
    parse_workers(workers)
    if hung_after is not None:
        plain_number(hung_after, "hung_after", 0.0, _WHERE)
    return {
        "workers": workers,
        "ranks_per_trial": whole_number(ranks_per_trial, "ranks_per_trial", 1, _WHERE),
        "retries": whole_number(retries, "retries", 0, _WHERE),
        "hung_after": hung_after,
    }


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the study for this process: two would run the same trials."""
    folder.mkdir(parents=True, exist_ok=True)
    with held_lock(folder / "running.lock", LOCKED_WITHIN_S) as is_held:
        require(
            is_held,
            _WHERE,
            "a study that no other process works on",
            folder,
            hint="wait for it, or name another folder; caldera run -n shares one search",
        )
        yield


def _evaluate_best(study: Study) -> None:
    """Evaluate the best model on the test samples, once: they played no part in selection."""
    samples = None if study.job is None else study.job.samples
    best = study.best_or_none()
    if samples is None or samples.test is None or best is None:
        return
    known = study.record.notes()
    if known.get("tested") == best.number:
        return
    found = best.model.evaluate(samples.test)
    numbers = {name: float(each) for name, each in found.items() if isinstance(each, int | float)}
    study.record.note("test", numbers)
    study.record.note("tested", best.number)
