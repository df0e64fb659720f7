"""How many epochs searches need: early stopping with TPE beside random search and Optuna alone, and
population-based training beside the best fixed setting of its population.

On digits, and on MNIST with `--mnist FOLDER` (its first 15,000 training images), for each of
several seeds, which also divide the samples anew into those to train with and those to choose by:

- random search trains 100 settings for all epochs; the best validation accuracy that one of them
  ends with is the goal;
- ASHA + TPE, and Optuna's own TPE and successive halving on the same networks and samples, begin
  trials until they have used 40% of random search's epochs: after how many, over all trials, has
  one ended with as much?
- promotion + TPE is the kind of ASHA that goes on later with trials which it has stopped
  (`--kinds promotion`);
- PBT trains a population, and the settings that it began with are trained as long without any
  change: the best validation loss at the end of both.

What is searched is the space of LCBench (Zimmer et al. 2021: learning rate, momentum, weight decay,
dropout, batch, depth and width of a perceptron that SGD trains), with widths from 16 to 256 and
batches from 32 to 256, since the networks are to be small.

Each search has one worker, so that the order of epochs is that of the trials, but for random
search, whose trials do not depend on each other. `--jobs` searches run at once, each on one thread.
All trials are written to `--out`, a line each, when their search is over.

    python benchmarks/search/search_methods.py --jobs 16 --out trials.txt [--mnist FOLDER] \\
        [--seeds 0 1 2]
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import optuna

import caldera as cd
from caldera import data, nn, search
from caldera.bench.timing import Stopwatch
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.search.samples import TrialData
from caldera.train.strategy import SingleProcessStrategy

SPACE = {
    "learning_rate": search.log(1e-4, 1e-1),
    "momentum": search.uniform(0.1, 0.99),
    "weight_decay": search.log(1e-5, 1e-1),
    "dropout": search.uniform(0.0, 0.9),
    "batch_size": search.integer(32, 256, log=True),
    "layers": search.integer(1, 4),
    "hidden": search.integer(16, 256, log=True),
}
PBT_SPACE = {name: SPACE[name] for name in ("learning_rate", "momentum", "weight_decay", "dropout")}
ACCURACY, LOSS = "val_accuracy", "val_loss"
KINDS = ("random", "asha+tpe", "optuna", "pbt", "fixed", "promotion")
Curve = Sequence[float]


def build(
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    dropout: float,
    batch_size: int = 64,
    layers: int = 2,
    hidden: int = 64,
) -> cd.Model:
    """The network of a trial."""
    dense: list[nn.Layer] = []
    for _ in range(layers):
        dense += [nn.Dense(hidden, activation="relu"), nn.Dropout(dropout)]
    return cd.NeuralNetwork(
        [nn.Flatten(), *dense, nn.Dense(10)],
        batch_size=batch_size,
        metrics=["accuracy"],
        optimizer=cd.optim.SGD(learning_rate, momentum=momentum, weight_decay=weight_decay),
    )


# --- what a search gives back from its process


@dataclass(frozen=True)
class Row:
    """One trial."""

    state: str
    curve: Curve
    """Validation accuracies after each epoch."""
    loss: float
    parameters: Mapping[str, Any]
    reason: str = ""

    def __str__(self) -> str:
        shown = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in self.parameters.items()}
        values = ", ".join(f"{name} {value}" for name, value in shown.items())
        last = self.curve[-1] if self.curve else math.nan
        return (
            f"{self.state}, {len(self.curve)} epochs, accuracy {last:.4f}, loss {self.loss:.4f}, "
            f"{values} {self.reason}".rstrip()
        )


@dataclass(frozen=True)
class Found:
    """One search."""

    rows: Sequence[Row]
    test: float = math.nan
    """The test accuracy of what it chose."""
    seconds: float = 0.0

    @property
    def epochs(self) -> int:
        return sum(len(row.curve) for row in self.rows)

    @property
    def best(self) -> float:
        """The best accuracy that a trial ended with."""
        return max((row.curve[-1] for row in self.rows if row.curve), default=math.nan)

    def epochs_to(self, goal: float) -> float:
        """How many epochs there were, over all trials, until one ended as well; infinite if none
        did."""
        count = 0
        for row in self.rows:
            count += len(row.curve)
            if row.curve and row.curve[-1] >= goal:
                return count
        return math.inf


def of_study(study: search.Study) -> Found:
    """What a study of ours has found."""
    rows = [
        Row(
            trial.state,
            [row[ACCURACY] for row in trial.curve],
            trial.results.get(LOSS, math.nan),
            trial.parameters,
            trial.reason,
        )
        for trial in study.trials
    ]
    return Found(rows, (study.test or {}).get("accuracy", math.nan))


# --- the searches


def dataset(given: argparse.Namespace) -> data.Dataset:
    """Digits, or so many images of MNIST; the test images are all there are."""
    if given.mnist is None:
        return data.digits()
    whole = data.mnist(given.mnist)
    train = data.Pipeline.of(whole.train).subset(np.arange(given.images))
    return data.Dataset(train, whole.test, whole.classes, whole.class_names, "mnist")


def arguments(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """What all searches have in common."""
    return {
        "data": dataset(given),
        "validation": given.part,
        "epochs": given.epochs,
        "verbose": 0,
        "seed": seed,
        "objective": search.metric(ACCURACY),
    }


def random_search(given: argparse.Namespace, seed: int) -> Found:
    """All settings with all epochs."""
    return of_study(
        search.run(
            build,
            SPACE,
            method="random",
            trials=given.trials,
            workers=given.workers,
            **arguments(given, seed),
        )
    )


class _Within(search.Method):
    """Begins nothing more once the trials have used so many epochs."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def ask(self, number: int) -> Any:
        used = sum(len(trial.curve) for trial in self.trials)
        return super().ask(number) if used < self.most else None


class TPEWithin(_Within, search.TPE):
    """TPE that ends."""


class PromotionWithin(_Within, search.Promotion):
    """Promotion that ends."""


def asha_and_tpe(given: argparse.Namespace, seed: int) -> Found:
    """Ours, with its defaults."""
    method = TPEWithin(most_epochs(given))
    study = search.run(
        build, SPACE, method=method, stop="asha", trials=10 * given.trials, **arguments(given, seed)
    )
    return of_study(study)


def promotion_and_tpe(given: argparse.Namespace, seed: int) -> Found:
    """The kind that promotes, with its defaults; a model that waits is in a folder meanwhile."""
    method = PromotionWithin(most_epochs(given))
    with tempfile.TemporaryDirectory() as folder:
        study = search.run(
            build,
            SPACE,
            method=method,
            trials=10 * given.trials,
            folder=folder,
            **arguments(given, seed),
        )
        return of_study(study)


def most_epochs(given: argparse.Namespace) -> int:
    """What the searches that stop early may use."""
    return int(given.share * given.trials * given.epochs)


class _Report(cd.Callback):
    """Tells Optuna of every epoch."""

    def __init__(self, trial: Any, curve: list[float]) -> None:
        self.trial, self.curve = trial, curve

    def epoch_ends(self, run: cd.Run) -> None:
        self.curve.append(run.history[ACCURACY][-1])
        self.trial.report(self.curve[-1], len(self.curve))
        if self.trial.should_prune():
            run.stop("pruned")


def optuna_alone(given: argparse.Namespace, seed: int) -> Found:
    """Optuna's own loop: TPE and successive halving with the same rungs."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rows: list[Row] = []
    train, validation = TrialData(dataset(given), given.part, None, seed=seed).parts(None)

    def objective(trial: Any) -> float:
        model = build(
            learning_rate=trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
            momentum=trial.suggest_float("momentum", 0.1, 0.99),
            weight_decay=trial.suggest_float("weight_decay", 1e-5, 1e-1, log=True),
            dropout=trial.suggest_float("dropout", 0.0, 0.9),
            batch_size=trial.suggest_int("batch_size", 32, 256, log=True),
            layers=trial.suggest_int("layers", 1, 4),
            hidden=trial.suggest_int("hidden", 16, 256, log=True),
        )
        model.seed = 1000 * seed + trial.number
        curve: list[float] = []
        history = model.fit(
            train,
            validation=validation,
            epochs=given.epochs,
            verbose=0,
            callbacks=[_Report(trial, curve)],
            parallel=SingleProcessStrategy(),
        )
        stopped = bool(history.stopped) and len(curve) < given.epochs
        loss = history[LOSS][-1]
        rows.append(Row("stopped" if stopped else "done", curve, loss, trial.params))
        if stopped:
            raise optuna.TrialPruned
        return curve[-1]

    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    )
    while Found(rows).epochs < most_epochs(given):
        study.optimize(objective, n_trials=1)
    return Found(rows)


def population(given: argparse.Namespace, seed: int) -> Found:
    """PBT; the models are kept while it goes on."""
    method = search.PBT(population=given.population, interval=given.interval)
    how = arguments(given, seed) | {"objective": search.metric(LOSS)}
    with tempfile.TemporaryDirectory() as folder:
        return of_study(search.run(build, PBT_SPACE, method=method, folder=folder, **how))


def fixed_settings(given: argparse.Namespace, seed: int) -> Found:
    """The settings with which PBT begins, for all epochs: those that random search draws first."""
    how = arguments(given, seed) | {"objective": search.metric(LOSS)}
    return of_study(search.run(build, PBT_SPACE, method="random", trials=given.population, **how))


SEARCHES = dict(
    zip(
        KINDS,
        (random_search, asha_and_tpe, optuna_alone, population, fixed_settings, promotion_and_tpe),
        strict=True,
    )
)


def work(kind: str, given: argparse.Namespace, seed: int) -> Found:
    """In a process of its own: one search on one thread."""
    cd.settings.threads = 1
    began = Stopwatch()
    with single_threaded_blas:
        found = SEARCHES[kind](given, seed)
    return Found(found.rows, found.test, began.wall)


# --- all of them, and what they come to


def run_all(given: argparse.Namespace) -> dict[tuple[str, int], Found]:
    """As many searches at once as there are jobs; each is shown when it is over."""
    found: dict[tuple[str, int], Found] = {}
    began = Stopwatch()
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        # The longest first.
        futures = {
            pool.submit(work, kind, given, seed): (kind, seed)
            for kind in given.kinds
            for seed in given.seeds
        }
        for future in as_completed(futures):
            kind, seed = futures[future]
            found[kind, seed] = one = future.result()
            print(
                f"  {began.wall:4.0f} s: {kind} seed {seed}: {len(one.rows)} "
                f"trials, {one.epochs} epochs, {one.seconds:.0f} s, best {one.best:.4f}",
                flush=True,
            )
            write(given.out, kind, seed, one)
    return found


def write(path: str | None, kind: str, seed: int, found: Found) -> None:
    """Every trial in a line."""
    if path is None:
        return
    with open(path, "a") as file:
        for number, row in enumerate(found.rows):
            file.write(f"{kind} seed {seed} trial {number}: {row}\n")


def show_stopping(found: Mapping[tuple[str, int], Found], seeds: Iterable[int]) -> None:
    """The part of random search's epochs that the others take to its best."""
    print("seed  random search's best (after epochs, test)  ASHA + TPE (test)  Optuna alone")
    met, not_behind, count = 0, 0, 0
    for seed in seeds:
        if any((kind, seed) not in found for kind in KINDS[:3]):
            continue
        random, ours, theirs = (found[kind, seed] for kind in KINDS[:3])
        goal, budget = random.best, random.epochs
        shares = [each.epochs_to(goal) / budget for each in (ours, theirs)]
        count += 1
        met += shares[0] <= 1 / 3
        not_behind += shares[0] <= shares[1]
        cells = [
            f"{share:.0%}" if share < math.inf else f"not within {each.epochs / budget:.0%}"
            for share, each in zip(shares, (ours, theirs), strict=True)
        ]
        print(
            f"{seed:4d}  {goal:.4f} ({random.epochs_to(goal):g} of {budget}, {random.test:.4f})"
            f"  {cells[0]}, best {ours.best:.4f} ({ours.test:.4f})  {cells[1]}, "
            f"best {theirs.best:.4f}"
        )
        if ("promotion", seed) in found:
            promoted = found["promotion", seed]
            print(
                f"      promotion + TPE {promoted.epochs_to(goal) / budget:.0%}, "
                f"best {promoted.best:.4f} ({promoted.test:.4f})"
            )
    print(
        f"ASHA + TPE needs at most a third on {met} of {count} seeds; Optuna alone needs fewer "
        f"epochs than it on {count - not_behind}"
    )


def show_populations(
    found: Mapping[tuple[str, int], Found], seeds: Iterable[int], members: int
) -> None:
    """The best loss at the end of PBT and of its settings."""
    print("seed  PBT: validation loss, test accuracy, epochs  the best of its settings, fixed")
    ahead, count = 0, 0
    for seed in seeds:
        if any((kind, seed) not in found for kind in KINDS[3:5]):
            continue
        pbt, fixed = (found[kind, seed] for kind in KINDS[3:5])
        losses = [min(row.loss for row in rows) for rows in (pbt.rows[-members:], fixed.rows)]
        count += 1
        ahead += losses[0] < losses[1]
        print(
            f"{seed:4d}  {losses[0]:.4f}, {pbt.test:.4f}, {pbt.epochs}  "
            f"{losses[1]:.4f}, {fixed.test:.4f}, {fixed.epochs}"
        )
    print(f"PBT has the smaller loss on {ahead} of {count} seeds")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", help="a folder with MNIST; digits without")
    parser.add_argument("--images", type=int, default=15_000, help="of MNIST")
    parser.add_argument("--part", type=float, help="of the samples, to choose by")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--epochs", type=int, help="of a whole trial")
    parser.add_argument("--trials", type=int, default=100, help="of random search")
    parser.add_argument("--share", type=float, default=0.4, help="of them for the others")
    parser.add_argument("--population", type=int, default=16)
    parser.add_argument("--interval", type=int, help="of PBT, in epochs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--workers", type=int, default=2, help="of random search, beside --jobs")
    parser.add_argument("--out", help="a file for all trials")
    given = parser.parse_args()
    is_digits = given.mnist is None
    given.part = given.part or (1 / 2 if is_digits else 1 / 3)
    given.epochs = given.epochs or (27 if is_digits else 9)
    given.interval = given.interval or (3 if is_digits else 1)
    return given


def main() -> None:
    """Everything."""
    given = parsed()
    began = Stopwatch()
    images = dataset(given)
    print(
        f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{given.jobs} jobs; {images.name}, {len(images.train)} samples of which {given.part:.0%} "
        f"choose, {len(images.test)} to test; {given.epochs} epochs, {given.trials} trials of "
        f"random search, {most_epochs(given)} epochs for each of the others; PBT of "
        f"{given.population} members, {given.interval} epochs a stretch",
        flush=True,
    )
    found = run_all(given)
    show_stopping(found, given.seeds)
    show_populations(found, given.seeds, given.population)
    print(f"{began.wall:.0f} s in all")


if __name__ == "__main__":
    main()
