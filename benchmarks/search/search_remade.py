"""How many trials of a study differ in bits when they are trained again, and in which studies.

    python benchmarks/search/search_remade.py --seeds 0 1 --out remade.txt [--kinds processes asha]

Small networks on digits, by every way to run a study: here, in threads, in processes, with trials
that are stopped, with models that others go on with, opened again with other workers, and with
several ranks a trial; on one thread and on two; with no choices of kernels remembered, and with
what the study before it has left there. Each study has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import caldera as cd
from caldera import data, nn, search
from caldera.comm import world
from caldera.kernels.tuning.choose import choices
from caldera.search.job import digest_of

SPACE = {
    "learning_rate": search.log(1e-3, 1e-1),
    "momentum": search.uniform(0.1, 0.99),
    "batch_size": search.integer(32, 256, log=True),
    "layers": search.integer(1, 3),
    "hidden": search.integer(16, 256, log=True),
    "channels": search.choice([0, 8]),
}
PBT_SPACE = {name: SPACE[name] for name in ("learning_rate", "momentum")}
KINDS: dict[str, list[dict[str, Any]]] = {
    "here": [{"trials": 10}],
    "threads": [{"trials": 10, "workers": "threads:2"}],
    "processes": [{"trials": 10, "workers": 2}],
    "asha": [{"trials": 14, "workers": 2, "method": "tpe", "stop": "asha"}],
    "pbt": [{"method": search.PBT(population=4, interval=1)}],
    "promotion": [{"trials": 14, "method": "promotion"}],
    "resumed": [{"trials": 6, "workers": 2}, {"trials": 10}],
    "ranks": [{"trials": 4, "ranks_per_trial": 2}],
}
"""By name, the calls of `search.run`, one after the other on the same folder."""


def build(
    learning_rate: float,
    momentum: float,
    batch_size: int = 64,
    layers: int = 2,
    hidden: int = 64,
    channels: int = 8,
) -> cd.Model:
    """The network of a trial."""
    found: list[nn.Layer] = [nn.Conv2D(channels, 3, activation="relu")] if channels else []
    found.append(nn.Flatten())
    for _ in range(layers):
        found += [nn.Dense(hidden, activation="relu"), nn.Dropout(0.1)]
    return cd.NeuralNetwork(
        [*found, nn.Dense(10)],
        batch_size=batch_size,
        metrics=["accuracy"],
        optimizer=cd.optim.SGD(learning_rate, momentum=momentum),
    )


def study_here(kind: str, seed: int, threads: int, memory: str) -> None:
    """Make a study in this process, train all of its trials again, and print what differs."""
    cd.settings.threads = threads
    if memory == "cold":
        choices.clear()
    how: dict[str, Any] = {
        "epochs": 4,
        "verbose": 0,
        "seed": seed,
        "objective": search.metric("val_accuracy"),
        "validation": 0.5,
    }
    with tempfile.TemporaryDirectory() as folder:
        for each in KINDS[kind]:
            # Ranks would each make a folder of their own.
            place = {} if kind == "ranks" else {"folder": folder}
            space = PBT_SPACE if kind == "pbt" else SPACE
            study = search.run(build, space, data.digits(), **how, **place, **each)
        if world().rank:
            return
        over = [trial for trial in study.trials if trial.digest]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            differ = [each.number for each in over if digest_of(study.remake(each)) != each.digest]
    print(json.dumps({"made": len(over), "differ": differ}), flush=True)


def study_in_a_process(
    kind: str, seed: int, threads: int, memory: str, cache: str
) -> dict[str, Any]:
    """What `study_here` prints there."""
    command = [__file__, "--kinds", kind, "--seeds", str(seed), "--threads", str(threads)]
    command += ["--memory", memory]
    ranks = ["-m", "caldera", "run", "-n", "3"] if kind == "ranks" else []
    environment = {**os.environ, "CALDERA_CACHE": cache}
    done = subprocess.run(
        [sys.executable, *ranks, *command],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env=environment,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Every kind of study, cold and warm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", help="a file for all studies, one a line")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.threads:
        study_here(given.kinds[0], given.seeds[0], given.threads, given.memory)
        return
    with tempfile.TemporaryDirectory() as cache:
        run_all(given, cache)


def run_all(given: argparse.Namespace, cache: str) -> None:
    """The table; compiled kernels are kept in the cache for all studies."""
    print("| kind | threads | studies | with a trial that differs | trials | that differ |")
    print("|---|---|---|---|---|---|")
    for kind in given.kinds:
        for threads in (1, 2):
            rows = []
            for seed, memory in product(given.seeds, ("cold", "warm")):
                row = study_in_a_process(kind, seed, threads, memory, cache)
                rows.append(row)
                told = {"kind": kind, "seed": seed, "threads": threads, "memory": memory}
                if given.out:
                    with Path(given.out).open("a") as file:
                        file.write(json.dumps({**told, **row}) + "\n")
            differ = [len(row["differ"]) for row in rows]
            made = sum(row["made"] for row in rows)
            print(
                f"| {kind} | {threads} | {len(rows)} | {sum(map(bool, differ))} | {made} "
                f"| {sum(differ)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
