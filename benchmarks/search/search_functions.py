"""How near each method comes to the optimum of three standard functions, with libraries beside it.

Sphere, Branin and Ackley of two numbers, the value above the optimum after as many trials, the
median of several seeds. Beside the methods that Optuna's samplers make stand these samplers in
Optuna's own loop; beside swarm and evolution stand Nevergrad's, where it is installed. A method has
found an optimum if it is within what the table says is near: the best 0.5% of the box for Sphere
and Branin, and for Ackley, which has an optimum in each of its waves, the wave of the best.

    pip install nevergrad
    python benchmarks/search/search_functions.py [--trials 200] [--seeds 5] [--jobs 16] \\
        [--out FILE.jsonl]
    python benchmarks/search/search_functions.py --methods gp tpe
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from caldera import search
from caldera.kernels.common.blas_threads import single_threaded_blas

Box = tuple[tuple[float, float], tuple[float, float]]


def sphere(x: float, y: float) -> float:
    """Its optimum is at (1, -2)."""
    return (x - 1) ** 2 + (y + 2) ** 2


def branin(x: float, y: float) -> float:
    """Three optima; 0 is the value of each."""
    first = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return first**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887357729739


def ackley(x: float, y: float) -> float:
    """Waves, the deepest at (0, 0)."""
    waves = math.cos(2 * math.pi * x) + math.cos(2 * math.pi * y)
    return 20 - 20 * math.exp(-0.2 * math.sqrt((x * x + y * y) / 2)) + math.e - math.exp(waves / 2)


FUNCTIONS: dict[str, tuple[Callable[[float, float], float], Box]] = {
    "sphere": (sphere, ((-5, 5), (-5, 5))),
    "branin": (branin, ((-5, 10), (0, 15))),
    # Not around its optimum: some begin in the middle.
    "ackley": (ackley, ((-2.7, 5.3), (-4.9, 3.1))),
}
STEPS = 14
"""Of the grid: as many points as trials, about."""


def count_of(method: str, trials: int) -> int:
    """How many trials a method gets: a Gaussian process takes long, and a grid is what it is."""
    return {"gp": 60, "grid": STEPS**2}.get(method, trials)


def near(name: str) -> float:
    """What counts as found."""
    if name == "ackley":
        return 2.0
    value, ((a, b), (c, d)) = FUNCTIONS[name]
    found = [value(x, y) for x in np.linspace(a, b, 301) for y in np.linspace(c, d, 301)]
    return float(np.quantile(found, 0.005))


# --- ours


METHODS: dict[str, Callable[[], Any]] = {
    "grid": lambda: "grid",
    "random": lambda: "random",
    "tpe": search.TPE,
    "cmaes": search.CMAES,
    "gp": search.GaussianProcess,
    "qmc": search.QuasiRandom,
    "nsga2": search.NSGA2,
    "swarm": search.Swarm,
    "evolution": search.Evolution,
    "hierarchical": search.HierarchicalEvolution,
    "controller": search.Controller,
    "pbt": lambda: search.PBT(population=10),
}


def ours(method: str, function: str, trials: int, seed: int) -> float:
    """The best value of a search of ours."""
    value, box = FUNCTIONS[function]
    steps = [(high - low) / (STEPS - 1) if method == "grid" else None for low, high in box]
    space = {
        name: search.uniform(low, high, step)
        for name, (low, high), step in zip("xy", box, steps, strict=True)
    }
    study = search.run(
        value,
        space,
        method=METHODS[method](),
        trials=count_of(method, trials),
        epochs=trials // 10,
        seed=seed,
        verbose=0,
    )
    assert study.best.value is not None
    return study.best.value


# --- the libraries


def optunas(method: str, function: str, trials: int, seed: int) -> float:
    """The best value of Optuna's own loop with the same sampler."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    value, box = FUNCTIONS[function]
    samplers = optuna.samplers
    sampler = {
        "random": lambda: samplers.RandomSampler(seed=seed),
        "tpe": lambda: samplers.TPESampler(seed=seed, multivariate=True),
        "cmaes": lambda: samplers.CmaEsSampler(seed=seed),
        "gp": lambda: samplers.GPSampler(seed=seed),
        "qmc": lambda: samplers.QMCSampler(seed=seed, scramble=True),
        "nsga2": lambda: samplers.NSGAIISampler(seed=seed, population_size=20),
    }[method]()
    study = optuna.create_study(sampler=sampler)
    study.optimize(
        lambda trial: value(*(trial.suggest_float(n, *b) for n, b in zip("xy", box, strict=True))),
        n_trials=count_of(method, trials),
    )
    return float(study.best_value)


NEVERGRADS = {"swarm": "PSO", "evolution": "OnePlusOne"}


def nevergrads(method: str, function: str, trials: int, seed: int) -> float:
    """The best value of Nevergrad's particle swarm, or of its simplest evolution."""
    import nevergrad

    value, box = FUNCTIONS[function]
    space = nevergrad.p.Instrumentation(
        *(nevergrad.p.Scalar(lower=low, upper=high) for low, high in box)
    )
    space.random_state = np.random.RandomState(seed)
    optimizer = nevergrad.optimizers.registry[NEVERGRADS[method]](space, budget=trials)
    best = math.inf
    for _ in range(trials):
        asked = optimizer.ask()
        found = value(*asked.args)
        best = min(best, found)
        optimizer.tell(asked, found)
    return best


LIBRARIES = {"caldera": ours, "optuna": optunas, "nevergrad": nevergrads}


def contestants() -> list[tuple[str, str]]:
    """What is installed: (library, method)."""
    known = [name for name in METHODS if name != "gp" or find_spec("torch")]
    known = [name for name in known if name != "cmaes" or find_spec("cmaes")]
    found = [("caldera", name) for name in known]
    found += [("optuna", n) for n in ("random", "tpe", "cmaes", "gp", "qmc", "nsga2") if n in known]
    if find_spec("nevergrad"):
        found += [("nevergrad", name) for name in NEVERGRADS]
    return found


def work(library: str, method: str, function: str, trials: int, seed: int) -> float:
    """In a process of its own."""
    warnings.simplefilter("ignore")
    with single_threaded_blas:
        return LIBRARIES[library](method, function, trials, seed)


def main() -> None:
    """A table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, help="a file for every value, as lines of JSON")
    given = parser.parse_args()
    # The Gaussian process is PyTorch's, which takes every core in each process otherwise.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [who for who in contestants() if who[1] in given.methods]
    kept: list[dict[str, Any]] = []
    limits = {name: near(name) for name in FUNCTIONS}
    print(
        f"Optuna {version('optuna')}; {given.trials} trials (gp 60, grid {STEPS**2}), median of "
        f"{given.seeds} seeds and how many are near: "
        + ", ".join(f"{name} below {limit:.3g}" for name, limit in limits.items())
    )
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        futures = {
            (*who, function): [
                pool.submit(work, *who, function, given.trials, seed) for seed in range(given.seeds)
            ]
            for who in chosen
            for function in FUNCTIONS
        }
        for who in chosen:
            cells = []
            for function, limit in limits.items():
                found = [each.result() for each in futures[*who, function]]
                count = count_of(who[1], given.trials)
                kept.append(
                    {
                        "library": who[0],
                        "method": who[1],
                        "function": function,
                        "trials": count,
                        "values": found,
                    }
                )
                good = sum(value < limit for value in found)
                cells.append(f"{function} {statistics.median(found):8.2g} {good}/{len(found)}")
            print(f"{who[0]:10s}{who[1]:14s}" + "   ".join(cells), flush=True)
            if given.out is not None:
                given.out.write_text("".join(json.dumps(each) + "\n" for each in kept))


if __name__ == "__main__":
    main()
