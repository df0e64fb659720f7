"""What it costs to hand trials to workers, and whether a study outlives kills.

Trials only sleep, so a study on N workers that cost nothing would take trials * seconds / N. Prints
for each contestant the part of that time which its workers slept (efficiency), and the CPU time of
the master for a trial, in turns, several times: Caldera's processes and threads, joblib with Optuna
in each process (a journal file between them), Optuna's own threads, and Ray Tune with Optuna's
sampler, where they are installed. Starting the workers counts, but for Ray's, which are up before
its clock starts.

Then what the master computes alone, without workers: it asks, writes down, encodes what a worker is
told, decodes what a worker says and tells the method. Outcomes are made up, as long as those of a
ResNet-20 of ten epochs, with the kernels that served and without. Beside it Optuna's own ask and
tell with the same sampler and a journal file, which hears a number of each trial and no more.

Then a study of 400 trials is killed a hundred times, its master or one of its workers, at random
moments: every trial must be there once, and none may begin again after it was over.

    pip install joblib "ray[tune]"
    python benchmarks/search/search.py --workers 8 --trials 128 --kills 100
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from caldera import search
from caldera.kernels.tuning.choice_store import ChoiceCache
from caldera.search.method import methods
from caldera.search.objective import as_objective
from caldera.search.record import TrialRecord, import_optuna
from caldera.search.scheduler import Scheduler
from caldera.search.space import Space
from caldera.search.study import Study as CalderaStudy
from caldera.search.trial import Conditions, TrialResult, TrialTask

SECONDS = 0.5
Study = Callable[[int, int, Path], int]
"""Runs trials on workers in a folder; how many were done."""


def caldera(kind: str, method: str = "tpe") -> Study:
    """Ours, in processes or threads; random search shows what is ours of the master's cost, and TPE
    what Optuna's sampler adds."""

    def run(workers: int, trials: int, folder: Path) -> int:
        def sleeping(x: float, y: float) -> float:
            time.sleep(SECONDS)
            return x * x + y * y

        space = {"x": search.uniform(-5, 5), "y": search.uniform(-5, 5)}
        study = search.run(
            sleeping,
            space,
            method=method,
            trials=trials,
            workers=f"{kind}:{workers}",
            folder=folder,
            verbose=0,
        )
        return study.counts()["done"]

    return run


def _optuna_objective(trial: Any) -> float:
    x, y = trial.suggest_float("x", -5, 5), trial.suggest_float("y", -5, 5)
    time.sleep(SECONDS)
    return float(x * x + y * y)


def _optuna_part(path: str, trials: int, seed: int) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storages = optuna.storages
    storage = storages.JournalStorage(storages.journal.JournalFileBackend(path))
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.load_study(study_name="sleep", storage=storage, sampler=sampler)
    study.optimize(_optuna_objective, n_trials=trials)


def joblib_and_optuna(workers: int, trials: int, folder: Path) -> int:
    """As Optuna's own documents advise: as many processes, which share a file."""
    import joblib
    import optuna

    storages = optuna.storages
    path = str(folder / "journal.log")
    storage = storages.JournalStorage(storages.journal.JournalFileBackend(path))
    study = optuna.create_study(study_name="sleep", storage=storage)
    joblib.Parallel(n_jobs=workers)(
        joblib.delayed(_optuna_part)(path, trials // workers, seed) for seed in range(workers)
    )
    return len(study.trials)


def optuna_threads(workers: int, trials: int, folder: Path) -> int:
    """Optuna alone: its own threads, one study, a journal file."""
    import optuna

    storages = optuna.storages
    storage = storages.JournalStorage(storages.journal.JournalFileBackend(str(folder / "log")))
    sampler = optuna.samplers.TPESampler(seed=1, multivariate=True)
    study = optuna.create_study(storage=storage, sampler=sampler)
    study.optimize(_optuna_objective, n_trials=trials, n_jobs=workers)
    return len(study.trials)


def _ray_trial(config: dict[str, float]) -> dict[str, float]:
    time.sleep(SECONDS)
    return {"value": config["x"] ** 2 + config["y"] ** 2}


def ray_tune(workers: int, trials: int, folder: Path) -> int:
    """Ray Tune with Optuna's TPE, as many trials at once."""
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    tuner = tune.Tuner(
        tune.with_resources(_ray_trial, {"cpu": 1}),
        param_space={"x": tune.uniform(-5, 5), "y": tune.uniform(-5, 5)},
        tune_config=tune.TuneConfig(
            metric="value",
            mode="min",
            num_samples=trials,
            max_concurrent_trials=workers,
            search_alg=OptunaSearch(seed=1),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    return len(tuner.fit())


def contestants(workers: int) -> dict[str, Study]:
    """Those that are installed."""
    found = {
        "caldera, random": caldera("processes", "random"),
        "caldera, TPE": caldera("processes"),
        "caldera, TPE, threads": caldera("threads"),
    }
    found[f"Optuna {version('optuna')} alone, threads"] = optuna_threads
    if find_spec("joblib"):
        found[f"joblib {version('joblib')} + Optuna {version('optuna')}"] = joblib_and_optuna
    if find_spec("ray"):
        import ray

        logging.disable(logging.WARNING)
        ray.init(num_cpus=workers, log_to_driver=False, include_dashboard=False)
        found[f"Ray Tune {version('ray')}"] = ray_tune
    return found


def race(workers: int, trials: int, rounds: int) -> None:
    """All contestants in turns."""
    found = contestants(workers)
    ideal = trials * SECONDS / workers
    print(f"{trials} trials of {SECONDS:g} s on {workers} workers: {ideal:.1f} s if nothing cost")
    for _ in range(rounds):
        for name, study in found.items():
            with tempfile.TemporaryDirectory() as folder:
                used, began = time.process_time(), time.perf_counter()
                done = study(workers, trials, Path(folder))
                wall, cpu = time.perf_counter() - began, time.process_time() - used
            assert done == trials, f"{name} has done {done}"
            print(
                f"  {name:34s} {wall:6.2f} s  efficiency {ideal / wall:6.1%}  master's CPU time "
                f"{1e3 * cpu / trials:6.2f} ms a trial",
                flush=True,
            )


# --- the master alone


def made_up_conditions(networks: int = 12) -> list[str]:
    """Those of so many networks, each with as many kernels as ResNet-20 has."""
    random = np.random.default_rng(0)

    def choices() -> ChoiceCache:
        names = [random.bytes(8).hex() for _ in range(70)]
        kernels = {name: f"kernel {random.integers(9)}" for name in names}
        times = {name: {f"kernel {k}": random.random() for k in range(4)} for name in names[:12]}
        return ChoiceCache(kernels, times)

    return [Conditions(2, 1, choices()).to_text() for _ in range(networks)]


def master(method: str, trials: int, folder: Path, conditions: list[str]) -> float:
    """Milliseconds of CPU time for a trial."""
    space = Space({"x": search.uniform(-5, 5), "y": search.uniform(-5, 5)})
    goal = as_objective(None, "value")
    record = TrialRecord(folder)
    record.begin(space, goal, {})
    row = dict.fromkeys(("loss", "accuracy", "val_loss", "val_accuracy", "rate", "seconds"), 0.123)
    used = 0.0
    scheduler = Scheduler(CalderaStudy(record, goal, space), methods.make(method), trials=trials)
    for number in range(trials):
        began = time.process_time()
        asked = scheduler.next()
        assert asked is not None
        line = json.dumps(asked.to_plain())
        used += time.process_time() - began
        task = TrialTask.from_plain(json.loads(line))
        values = [sum(float(each) ** 2 for each in task.point.values())]
        kernels = conditions[number % len(conditions)] if conditions else ""
        curve = [{**row, "epochs": float(epoch)} for epoch in range(10)]
        said = TrialResult(
            number, "done", "", values, [], curve, 9.5, "", "0" * 32, conditions=kernels
        )
        line = json.dumps(said.to_plain())
        began = time.process_time()
        scheduler.finish(TrialResult.from_plain(json.loads(line)))
        used += time.process_time() - began
    return 1e3 * used / trials


def optunas_master(trials: int, folder: Path) -> float:
    """The same of Optuna's own ask and tell."""
    import optuna

    storages = optuna.storages
    storage = storages.JournalStorage(storages.journal.JournalFileBackend(str(folder / "log")))
    study = optuna.create_study(
        storage=storage, sampler=optuna.samplers.TPESampler(seed=1, multivariate=True)
    )
    began = time.process_time()
    for _ in range(trials):
        trial = study.ask()
        x, y = trial.suggest_float("x", -5, 5), trial.suggest_float("y", -5, 5)
        study.tell(trial, x * x + y * y)
    return 1e3 * (time.process_time() - began) / trials


def race_masters(trials: int, rounds: int) -> None:
    """All of them in turns, the first round for nothing."""
    kernels = made_up_conditions()
    found: dict[str, Callable[[Path], float]] = {
        "caldera, random": lambda folder: master("random", trials, folder, []),
        "caldera, random, kernels kept": lambda folder: master("random", trials, folder, kernels),
        "caldera, TPE": lambda folder: master("tpe", trials, folder, []),
        "caldera, TPE, kernels kept": lambda folder: master("tpe", trials, folder, kernels),
        f"Optuna {version('optuna')} alone, TPE": lambda folder: optunas_master(trials, folder),
    }
    taken: dict[str, list[float]] = {name: [] for name in found}
    sizes: dict[str, float] = {}
    for _ in range(rounds + 1):
        for name, each in found.items():
            with tempfile.TemporaryDirectory() as folder:
                taken[name].append(each(Path(folder)))
                sizes[name] = sum(file.stat().st_size for file in Path(folder).iterdir()) / trials
    print(f"the master alone, {trials} trials, CPU time in ms a trial:")
    for name, times in taken.items():
        print(
            f"  {name:34s} {min(times[1:]):5.2f} to {max(times[1:]):5.2f}  "
            f"{sizes[name] / 1e3:4.1f} KB a trial in its file"
        )


def kill(kills: int) -> None:
    """A study that is killed again and again."""
    from tests.unit.search import test_kills

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = test_kills.kill_again_and_again(folder, kills, trials=400)
        test_kills.check(folder, 400)
        begun = sum(line.startswith("begins") for line in test_kills.diary(folder))
    print(f"{found} kills: 400 trials, each once; {begun - 400} were begun again when they died")


def main() -> None:
    """Everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--masters", type=int, default=3, help="rounds of the master alone")
    parser.add_argument("--kills", type=int, default=100)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    print(f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores")
    if given.rounds:
        race(given.workers, given.trials, given.rounds)
    if given.masters:
        race_masters(given.trials, given.masters)
    if given.kills:
        kill(given.kills)


if __name__ == "__main__":
    main()
