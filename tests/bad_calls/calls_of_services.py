"""A valid call of each function and class of the packages for search, distributed arrays, services,
estimators, reports and benchmarks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import caldera as cd
from caldera import bench, dmath, nn, search
from caldera.bench import levels
from caldera.bench.honesty import Run
from caldera.bench.levels import reference, schemes
from caldera.bench.levels.learner import PROBLEM
from caldera.search.record import TrialRecord
from tests.bad_calls.calls_of_op import labels, square, x
from tests.bad_calls.damage import Given

RUN = Run("a", "ours", "mlp", "network", seconds=(0.1,), seconds_of="step")
OPERATIONS = {"dense": lambda: nn.Dense(4), "nothing": lambda: nn.Activation("relu")}


def model() -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)])


def loss_of(rate: float = 0.1) -> float:
    return (rate - 1.0) ** 2


def table() -> dict[str, Any]:
    return {"rate": search.uniform(0.0, 1.0)}


def study() -> search.Study:
    return search.run(loss_of, table(), trials=2)


def array() -> dmath.Array:
    """A distributed array of a session in this process alone."""
    return dmath.array(x(4, 3))


def session() -> dmath.Session:
    return dmath.spmd()


SEARCH: dict[str, Given] = {
    **{
        name: lambda f: f()
        for name in [
            "ASHA",
            "CMAES",
            "Controller",
            "Evolution",
            "GaussianProcess",
            "Grid",
            "HierarchicalEvolution",
            "Hyperband",
            "Median",
            "NSGA2",
            "PBT",
            "Promotion",
            "QuasiRandom",
            "Random",
            "Swarm",
            "TPE",
            "accuracy",
        ]
    },
    "Constraint": lambda f: f("seconds", 1.0),
    "Space": lambda f: f(table()),
    "Study": lambda f: f(TrialRecord(None), search.metric("loss", "min")),
    "TensorBoard": lambda f: f("folder"),
    "Threshold": lambda f: f(0.5),
    "at_least": lambda f: f("accuracy", 0.5),
    "at_most": lambda f: f("seconds", 1.0),
    "build_like": lambda f: f(model()),
    "cell": lambda f: f(["dense"], 2, 2),
    "choice": lambda f: f([1, 2]),
    "hierarchy": lambda f: f(OPERATIONS, [(3, 3), (1, 4)]),
    "integer": lambda f: f(1, 8),
    "is_study": lambda f: f("missing"),
    "layers": lambda f: f({"Dense": {"units": search.integer(1, 4)}}, 1, 2),
    "load": lambda f: f("missing"),
    "log": lambda f: f(1e-3, 1.0),
    "luck": lambda f: f([0.1, 0.5, 0.4]),
    "make_cell": lambda f: f([{"sources": [0, 0], "operations": ["dense", "nothing"]}], OPERATIONS),
    "make_layers": lambda f: f([{"layer": "Dense", "units": 3}]),
    "metric": lambda f: f("loss", "min"),
    "pareto": lambda f: f("accuracy", "seconds"),
    "repeat": lambda f: f(search.integer(1, 4), 1, 2),
    "run": lambda f: f(loss_of, table(), trials=1, verbose=0),
    "space_of": lambda f: f(model()),
    "time_to": lambda f: f("accuracy", 0.9),
    "uniform": lambda f: f(0.0, 1.0),
    "weighted": lambda f: f({"accuracy": 1.0}),
}
DMATH: dict[str, Given] = {
    "Axis": lambda f: f(0),
    "BlockCyclic": lambda f: f(2, grid=(1, 1)),
    "Blocks": lambda f: f(1, 1),
    "Columns": lambda f: f(),
    "Grid": lambda f: f(1, 1),
    "Replicated": lambda f: f(),
    "Rows": lambda f: f(),
    "add_row_col_sum": lambda f: f(dmath.array(x(3)), array()),
    "arange": lambda f: f(0, 4),
    "array": lambda f: f(x(4, 3)),
    "connect": lambda f: f(0),
    "evaluate": lambda f: f([array() + 1.0]),
    "eye": lambda f: f(3),
    "from_dask": lambda f: f(x(4, 3)),
    "from_pandas": lambda f: f(x(4, 3)),
    "full": lambda f: f((4, 3), 1.5),
    "load": lambda f: f("missing.npy"),
    "normal": lambda f: f((4, 3)),
    "ones": lambda f: f((4, 3)),
    "random": lambda f: f((4, 3)),
    "save": lambda f: f("a.npy", array()),
    "spmd": lambda f: f(),
    "svd": lambda f: f(dmath.array(square())),
    "svd_bound": lambda f: f(dmath.array(square()), 2),
    "zeros": lambda f: f((4, 3)),
}
SERVE: dict[str, Given] = {
    "Limits": lambda f: f(),
    "application": lambda f: f(model()),
    "run": lambda f: f("no model"),
}
SKLEARN: dict[str, Given] = {
    "CalderaClassifier": lambda f: f((4,)),
    "CalderaRegressor": lambda f: f((4,)),
    "CalderaSearchCV": lambda f: f("an estimator", table()),
}
BENCH: dict[str, Given] = {
    "Claims": lambda f: f("training", ()),
    "check": lambda f: f(bench.Claims("training", (RUN,))),
}
LEVELS: dict[str, Given] = {
    "learner": lambda f: f("reference"),
    "validate_batches": lambda f: f([(x(4, 2), labels(4))], x(4, 2), labels(4)),
    "validate_compression": lambda f: f(lambda: reference.ReferenceTopK(0.1)),
    "validate_network": lambda f: f(
        levels.learner("reference"),
        levels.learner("reference"),
        PROBLEM.data("float64")[:1],
    ),
    "validate_operator": lambda f: f(reference.ReferenceSoftmax(), [x(4, 6).astype(float)]),
    "validate_optimizer": lambda f: f(
        lambda: reference.ReferenceAdam(0.01), lambda: reference.ReferenceAdam(0.01), steps=2
    ),
    "validate_sampler": lambda f: f(lambda: reference.Shuffled(1), samples=16),
    "validate_scheme": lambda f: f(schemes.AllReduce, ranks=2, steps=2),
    "validation_page": lambda f: f([]),
}
REPORT: dict[str, Given] = {
    "compare_page": lambda f: f([cd.RunFolder("missing")]),
    "run_page": lambda f: f(cd.RunFolder("missing")),
}
PACKAGES = {
    "search.": SEARCH,
    "dmath.": DMATH,
    "serve.": SERVE,
    "sklearn.": SKLEARN if find_spec("sklearn") is not None else {},
    "bench.": BENCH,
    "bench.levels.": LEVELS,
    "train.report.": REPORT,
}
CALLS: dict[str, Given] = {
    prefix + name: given for prefix, calls in PACKAGES.items() for name, given in calls.items()
}
