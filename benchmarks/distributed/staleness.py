"""Accuracy with momentum where gradients come from older parameters, and with it corrected.

The digits of scikit-learn, a perceptron with one hidden layer, SGD with momentum 0.9 and a rate
that one process learns well with, on ranks that are threads. For each strategy the test accuracy
with the optimizer's momentum as given and corrected, and the momentum that staleness added.

    python benchmarks/distributed/staleness.py > benchmarks/results/staleness-x86_64.md
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import caldera as cd
from caldera import data, nn, optim, parallel
from caldera.base.config import settings
from caldera.bench.results import code_version, machine_facts
from caldera.comm import Communicator, run_virtual_ranks

RATE, MOMENTUM, BATCH = 0.1, 0.9, 32
WAYS: dict[str, Callable[..., Any]] = {
    "`ParameterServer()`": parallel.ParameterServer,
    '`ParameterServer(mode="stale", bound=4)`': partial(
        parallel.ParameterServer, mode="stale", bound=4
    ),
    '`ParameterServer(mode="asynchronous")`': partial(
        parallel.ParameterServer, mode="asynchronous"
    ),
    "`Hogwild()`": parallel.Hogwild,
}


def trained(ranks: int, make: Callable[..., Any], epochs: int, seed: int) -> tuple[float, float]:
    """Return the test accuracy, and the momentum of staleness in the last epoch."""
    digits = data.digits()
    models = [
        cd.NeuralNetwork(
            nn.models.mlp(digits.shape, hidden=(64,), classes=digits.outputs),
            optimizer=optim.SGD(RATE, momentum=MOMENTUM),
            batch_size=BATCH,
            seed=seed,
        )
        for _ in range(ranks)
    ]

    def work(comm: Communicator) -> float:
        strategy = make(communicator=comm)
        models[comm.rank].fit(digits.train, epochs=epochs, verbose=0, parallel=strategy)
        return float(strategy.implicit_momentum)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        implicit = run_virtual_ranks(ranks, work)[0]
    return models[0].evaluate(digits.test)["accuracy"], implicit


def shown(found: list[tuple[float, float]]) -> str:
    """Return the mean and the range of accuracies."""
    accuracies = [accuracy for accuracy, _ in found]
    low, high = min(accuracies), max(accuracies)
    return f"{statistics.fmean(accuracies):.1%} ({low:.1%} to {high:.1%})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    machine = machine_facts(settings.threads)
    print("# Momentum and staleness\n")
    print(
        f"Written by `benchmarks/distributed/staleness.py` on {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['time'][:10]}, Caldera {code_version()['version']}: "
        f"digits, SGD({RATE}, momentum={MOMENTUM}), batches of {BATCH}, {options.ranks} ranks as "
        f"threads, {options.epochs} epochs, {options.seeds} seeds.\n"
    )
    print("| strategy | momentum of staleness | as given | corrected |\n|---|---|---|---|")
    for name, make in WAYS.items():
        given, corrected = (
            [
                trained(options.ranks, partial(make, momentum=how), options.epochs, seed)
                for seed in range(options.seeds)
            ]
            for how in ("given", "corrected")
        )
        implicit = statistics.fmean(each for _, each in given + corrected)
        print(f"| {name} | {implicit:.2f} | {shown(given)} | {shown(corrected)} |", flush=True)
    print(
        "\nNo file with every sample stands behind these figures: only means and ranges are kept."
    )


if __name__ == "__main__":
    main()
