"""How many epochs searches need: early stopping with TPE beside random search and Optuna alone, and
population-based training beside the best fixed setting of its population.

On digits (or MNIST with `--data FOLDER`), for each of several seeds:

- random search trains 40 settings for 27 epochs each; the best validation accuracy of all their
  epochs is the goal;
- ASHA + TPE, and Optuna's own TPE and successive halving on the same networks, samples and budget,
  have a third of those epochs: after how many do they reach the goal?
- PBT trains 8 members for 27 epochs, and the 8 settings that it began with are trained as long
  without any change: the best validation loss at the end of both.

One worker, so that the order of epochs is that of the trials. All trials are printed.

    python benchmarks/search_methods.py [--seeds 5] [--epochs 27] [--trials 40] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

import optuna

import caldera as cd
from caldera import data, nn, search
from caldera.search.samples import Samples
from caldera.strategy import SingleProcessStrategy

SPACE = {
    "learning_rate": search.log(1e-4, 1e-1),
    "weight_decay": search.log(1e-6, 1e-2),
    "batch_size": search.choice([32, 64, 128]),
    "hidden": search.integer(32, 256, step=32),
    "layers": search.integer(1, 3),
    "activation": search.choice(["relu", "tanh"]),
}
PBT_SPACE = {name: SPACE[name] for name in ("learning_rate", "weight_decay")}
PART = 0.25
Curve = Sequence[float]


def build(
    learning_rate: float, weight_decay: float, batch_size: int = 64, hidden: int = 128,
    layers: int = 2, activation: str = "relu",
) -> cd.Model:  # fmt: skip
    """The network of a trial."""
    dense = [nn.Dense(hidden, activation=activation) for _ in range(layers)]
    return cd.NeuralNetwork(
        [nn.Flatten(), *dense, nn.Dense(10)], optimizer=cd.optim.Adam(learning_rate, weight_decay=weight_decay),
        batch_size=batch_size, metrics=["accuracy"],
    )  # fmt: skip


def curves_of(study: search.Study) -> list[Curve]:
    """The validation accuracy of each trial after each epoch, in the order of the trials."""
    return [[row["val_accuracy"] for row in trial.curve] for trial in study.trials]


def show(name: str, seed: int, study: search.Study) -> None:
    """Every trial in a line."""
    for trial in study.trials:
        values = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in trial.parameters.items()}
        best = max((row["val_accuracy"] for row in trial.curve), default=math.nan)
        lines = (
            f"    {name} seed {seed} trial {trial.number}: {trial.state}, {len(trial.curve)} epochs, "
            f"{trial.seconds:.1f} s, accuracy {best:.4f}, loss {trial.results.get('val_loss', math.nan):.4f}, "
            f"{values} {trial.reason}"
        )
        print(lines, flush=True)


def epochs_to(goal: float, curves: Iterable[Curve]) -> float:
    """How many epochs there were, over all trials, until one was as good; infinite if none was."""
    count = 0
    for curve in curves:
        for value in curve:
            count += 1
            if value >= goal:
                return count
    return math.inf


class _Report(cd.Callback):
    """Tells Optuna of every epoch."""

    def __init__(self, trial: Any, curve: list[float]) -> None:
        self.trial, self.curve = trial, curve

    def epoch_ends(self, run: cd.Run) -> None:
        self.curve.append(run.history["val_accuracy"][-1])
        self.trial.report(self.curve[-1], len(self.curve))
        if self.trial.should_prune():
            run.stop("pruned")


def optuna_alone(samples: Samples, trials: int, epochs: int, seed: int) -> list[Curve]:
    """Optuna's own loop: TPE and successive halving with the same rungs."""
    curves: list[Curve] = []
    train, validation = samples.parts(None)

    def objective(trial: Any) -> float:
        model = build(
            learning_rate=trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
            weight_decay=trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
            batch_size=trial.suggest_categorical("batch_size", [32, 64, 128]),
            hidden=trial.suggest_int("hidden", 32, 256, step=32),
            layers=trial.suggest_int("layers", 1, 3),
            activation=trial.suggest_categorical("activation", ["relu", "tanh"]),
        )
        model.seed = 1000 * seed + trial.number
        curve: list[float] = []
        curves.append(curve)
        history = model.fit(
            train, validation=validation, epochs=epochs, verbose=0,
            callbacks=[_Report(trial, curve)], parallel=SingleProcessStrategy(),
        )  # fmt: skip
        print(
            f"    optuna seed {seed} trial {trial.number}: {history.stopped or 'done'}, {len(curve)} "
            f"epochs, accuracy {max(curve):.4f}, {trial.params}",
            flush=True,
        )
        if history.stopped:
            raise optuna.TrialPruned
        return curve[-1]

    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    )  # fmt: skip
    while len(study.trials) < trials:
        study.optimize(objective, n_trials=1)
    return curves


def stopping(train: Any, given: argparse.Namespace, seed: int) -> tuple[float, float, float]:
    """The parts of random search's epochs that ASHA + TPE and Optuna alone took to its best."""
    how = {
        "data": train, "validation": PART, "epochs": given.epochs, "verbose": 0, "seed": seed,
        "objective": search.metric("val_accuracy"),
    }  # fmt: skip
    random = search.run(build, SPACE, method="random", trials=given.trials, **how)  # type: ignore[arg-type]
    show("random", seed, random)
    goal = max(max(curve) for curve in curves_of(random) if curve)
    budget = sum(map(len, curves_of(random)))
    ours = search.run(build, SPACE, method="tpe", stop="asha", trials=given.stopped, **how)  # type: ignore[arg-type]
    show("asha+tpe", seed, ours)
    samples = Samples(train, PART, None, seed=seed)
    theirs = optuna_alone(samples, given.stopped, given.epochs, seed)
    itself = epochs_to(goal, curves_of(random))
    found = [epochs_to(goal, curves) for curves in (curves_of(ours), theirs)]
    print(
        f"  seed {seed}: random search's best is {goal:.4f}, after {itself:g} of {budget} epochs; "
        f"ASHA + TPE needs {found[0]:g} ({found[0] / budget:.0%}), Optuna alone {found[1]:g} "
        f"({found[1] / budget:.0%})",
        flush=True,
    )
    return found[0] / budget, found[1] / budget, itself / budget


def populations(train: Any, given: argparse.Namespace, seed: int) -> tuple[float, float]:
    """The best validation loss at the end of PBT, and of the settings that it began with."""
    how = {
        "data": train, "validation": PART, "epochs": given.epochs, "verbose": 0, "seed": seed,
        "objective": search.metric("val_loss"),
    }  # fmt: skip
    method = search.PBT(population=given.population, interval=given.interval)
    pbt = search.run(build, PBT_SPACE, method=method, folder=given.folder and f"{given.folder}/pbt{seed}", **how)  # type: ignore[arg-type]
    show("pbt", seed, pbt)
    first = [trial.parameters for trial in pbt.trials[: given.population]]
    last = pbt.trials[-given.population :]
    found = min(trial.value for trial in last if trial.value is not None)
    points = search.choice([tuple(each.values()) for each in first])
    names = tuple(first[0])

    def fixed(point: Sequence[float]) -> cd.Model:
        return build(**dict(zip(names, point, strict=True)))

    alone = search.run(fixed, {"point": points}, method="grid", **how)  # type: ignore[arg-type]
    show("fixed", seed, alone)
    best = min(trial.value for trial in alone.trials if trial.value is not None)
    epochs = [sum(len(trial.curve) for trial in study.trials) for study in (pbt, alone)]
    print(
        f"  seed {seed}: PBT {found:.4f} after {epochs[0]} epochs; the best of its {len(first)} "
        f"settings, fixed, {best:.4f} after {epochs[1]}",
        flush=True,
    )
    return found, best


def main() -> None:
    """Everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--trials", type=int, default=40, help="of random search")
    parser.add_argument("--stopped", type=int, default=80, help="of those that stop early")
    parser.add_argument("--population", type=int, default=8)
    parser.add_argument("--interval", type=int, default=3)
    parser.add_argument("--data", help="a folder with MNIST; digits without")
    parser.add_argument("--folder", help="where PBT keeps its models")
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    began = time.process_time()
    dataset = data.mnist(given.data) if given.data else data.digits()
    print(f"{platform.machine()}, Python {platform.python_version()}, {'MNIST' if given.data else 'digits'}")
    print("ASHA + TPE beside random search and Optuna alone")
    shares = [stopping(dataset.train, given, seed) for seed in range(given.seeds)]
    print("population-based training beside its settings, fixed")
    losses = [populations(dataset.train, given, seed) for seed in range(given.seeds)]
    ours, theirs, itself = (statistics.median(column) for column in zip(*shares, strict=True))
    print(
        f"median of {given.seeds} seeds: ASHA + TPE takes {ours:.0%} of random search's epochs to its "
        f"best, Optuna alone {theirs:.0%}, random search itself {itself:.0%}"
    )
    ahead = sum(found < best for found, best in losses)
    print(f"PBT has the smaller loss in {ahead} of {given.seeds} seeds")
    print(f"{time.process_time() - began:.0f} s of CPU time")


if __name__ == "__main__":
    main()
