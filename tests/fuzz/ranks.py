"""Trains random networks on ranks, which are threads, and in one process, in float64, and compares
losses, metrics, parameters, running statistics and evaluations.

    python -m tests.fuzz.ranks --count 200
    python -m tests.fuzz.ranks --seed 17 --count 1

The networks are those of `training.py`, with dropout and shuffled samples; strategies are all that
equal one process by their documentation. Batches are so small that ranks often have no samples, and
neither batches nor epochs divide by ranks.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np

from caldera import dmath as dm
from caldera import nn, parallel
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import CalderaError, CommError
from caldera.train.model import Model
from caldera.train.strategy import Strategy
from tests.fuzz.card import Outcome, counted
from tests.fuzz.networks import SMALL, RandomNetwork, random_network
from tests.fuzz.settings import Made
from tests.fuzz.several import SeveralNetwork, several_network
from tests.fuzz.training import comparable

TOLERANCE = 1e-8
"""Of the largest number of a result, at least `LEAST`: sums over ranks are in another order."""
LEAST = 1e-2
METRICS = {
    "cross_entropy": ("accuracy", "f1", "precision", "recall", "confusion_matrix"),
    "mse": ("r2", "mae", "mse"),
    "mae": ("r2", "mae", "mse"),
    "huber": ("r2", "mse"),
    "binary_cross_entropy": ("accuracy", "precision", "recall"),
    "hinge": (),
}
"""Metrics that go with a loss."""
PLACED = (nn.Dense, nn.Conv2D, nn.LSTM, nn.GRU, nn.BatchNorm, nn.LayerNorm, nn.MultiHeadAttention)
"""Layers that may have a layout of their own."""
BAD = ("difference", "hang", "crash")
"""Outcomes that no case may have."""
VALIDATION = 7
"""Samples that networks are also evaluated on between epochs."""


class Way(NamedTuple):
    """A strategy as it is made for a rank: its name and arguments."""

    name: str
    arguments: Mapping[str, Any]

    def __call__(self, comm: Communicator) -> Strategy:
        made: Strategy = getattr(parallel, self.name)(**self.arguments, communicator=comm)
        return made


def _data_parallel(random: Random, ranks: int, norms: bool) -> Way:
    options: dict[str, Any] = {"bucket_bytes": random.choice((1, 1000, 4 << 20))}
    options["overlap"] = random.random() < 0.5
    kind = random.choice(("plain", "factors", "shards"))
    if kind == "factors":
        options["factors"] = True
    elif kind == "shards":
        options["shards"] = random.randint(ranks, 2 * ranks)
    options["algorithm"] = random.choice(("auto", "ring", "doubling", "halving", "direct"))
    return Way("DataParallel", options)


def _sharded(random: Random, ranks: int, norms: bool) -> Way:
    stage = random.randint(1, 3)
    return Way("Sharded", {"stage": stage, "bucket_bytes": random.choice((1, 1000, 4 << 20))})


def _server(random: Random, ranks: int, norms: bool) -> Way:
    stale = {"mode": "stale", "bound": 0}
    given = random.choice(({"mode": "synchronous"}, stale))
    return Way("ParameterServer", {"servers": random.randint(1, min(2, ranks)), **given})


def _tensor(random: Random, ranks: int, norms: bool) -> Way:
    return Way("TensorParallel", {"least": random.choice((1, 64))})


def _hybrid(random: Random, ranks: int, norms: bool) -> Way:
    model = _divisor(random, ranks)
    axes = {"data": ranks // model, "model": model}
    named: dict[str, Any] = {"samples": random.choice(("data", "all")), "least": 1}
    if named["samples"] == "data" and random.random() < 0.5:
        named["splits"] = {nn.Dense: _layout(random, model)}
    return Way("Hybrid", {"axes": axes, **named})


def _divisor(random: Random, ranks: int) -> int:
    return random.choice([each for each in range(1, ranks + 1) if ranks % each == 0])


def _layout(random: Random, ranks: int) -> Any:
    """A layout for what layers give, or a word for one."""
    words: list[Any] = ["rows", "columns", "replicated", "auto", dm.Rows(), dm.Columns()]
    words += [dm.Replicated(), dm.Blocks(rows=random.randint(1, 3)), dm.Blocks(columns=2)]
    words += [dm.Blocks(rows=2, columns=2), dm.Rows(ranks=random.sample(range(ranks), ranks))]
    words += [dm.Rows(ranks=[ranks - 1]), dm.Grid(1, ranks), dm.BlockCyclic(1, grid=(ranks,))]
    return random.choice(words)


def _pipeline(random: Random, ranks: int, norms: bool) -> Way:
    stages = _divisor(random, ranks)
    model = _divisor(random, ranks // stages)
    # Batch normalisation is over a micro-batch.
    micro = 1 if norms else random.randint(1, 4)
    named: dict[str, Any] = {"stages": stages, "micro_batches": micro}
    if model > 1:
        named |= {"model": model, "least": 1}
    return Way("PipelineParallel", {**named, "schedule": random.choice(("1f1b", "fill-drain"))})


def _layouts(random: Random, ranks: int, norms: bool) -> Way:
    """As the network suggests; `_finished` draws some for its layers."""
    return Way("Layouts", {"layouts": "auto"})


def _local(random: Random, ranks: int, norms: bool) -> Way:
    return Way("LocalSGD", {"every": 1})


WAYS: tuple[Callable[[Random, int, bool], Way], ...] = (
    _data_parallel,
    _data_parallel,
    _sharded,
    _server,
    _server,
    _tensor,
    _hybrid,
    _pipeline,
    _layouts,
    _layouts,
    _local,
)


class Case(NamedTuple):
    """A network, what it is trained with, and how ranks share that."""

    network: RandomNetwork
    ranks: int
    way: Way
    metrics: Sequence[str]

    def model(self) -> Model:
        """A new model."""
        return self.network.model("cpu", metrics=list(self.metrics))


def case_of(seed: int, ranks: int | None = None) -> Case:
    """The case of a seed, on this many ranks or on some."""
    random = Random(f"ranks of {seed}")
    if random.random() < 0.35:
        return _finished(random, several_network(seed), ranks)
    kind = random.choice(({}, {"varied": True}, {"varied": True}, {"blocks": True}))
    drawn = random_network(seed, SMALL, alone=True, **kind)  # type: ignore[arg-type]
    plain = comparable(drawn)
    settings = replace(plain.settings, shuffle=random.random() < 0.5, rest=random.randint(0, 4))
    network = replace(
        plain,
        layers=drawn.layers if random.random() < 0.5 else plain.layers,
        settings=settings,
        dtype="float64",
        batch=min(drawn.batch, random.randint(1, 9)),
    )
    return _finished(random, network, ranks)


def _finished(random: Random, network: RandomNetwork, given: int | None) -> Case:
    """The case of a network, with what its strategy equals one process for."""
    drawn = random.randint(2, 5)
    ranks = drawn if given is None else given
    norms = any("BatchNorm" in repr(layer) for layer in network.layers)
    way = random.choice(WAYS)(random, ranks, norms)
    if isinstance(network, SeveralNetwork):
        network = replace(comparable(network), layers=network.layers)
    if way.name == "Layouts" and random.random() < 0.8:
        built = network.model("cpu")
        built.build_for(*network.data()[: network.inputs])
        placed = [each.path for each in built.walk() if isinstance(each, PLACED)]
        layouts = {path: _layout(random, ranks) for path in placed if random.random() < 0.6}
        way = Way("Layouts", {"layouts": layouts or "auto"})
    if way.name == "LocalSGD":
        # Means of models are one step by the mean of gradients for this rule alone.
        layers = tuple(each for each in network.layers if each.name != "BatchNorm")
        network = replace(network, layers=layers, optimizer=Made("SGD", (1e-2,), {}, "optim"))
        if isinstance(network, SeveralNetwork):
            towers = tuple(
                (kind, shape, tuple(each for each in given if each.name != "BatchNorm"))
                for kind, shape, given in network.towers
            )
            network = replace(network, towers=towers)
    known = METRICS[network.loss]
    return Case(network, ranks, way, random.sample(known, random.randint(0, min(2, len(known)))))


def results(model: Model, case: Case, strategy: Strategy | None) -> dict[str, np.ndarray]:
    """Everything that training gives, by name."""
    given = case.network.data()
    inputs = given[: case.network.inputs]
    held = {"validation": tuple(each[:VALIDATION] for each in given)}
    options = {**case.network.options(), **held, "verbose": 0, "parallel": strategy}
    found: dict[str, np.ndarray] = {}
    for fit in range(case.network.settings.fits):
        history = model.fit(given, **options)
        for name in history:
            if name != "seconds":
                found[f"{name} of fit {fit}"] = np.array(history[name], np.float64)
    kept = [*model.parameters(), *model.states(), *model.optimizer.variables()]
    found |= {each.name: np.array(each.numpy(), np.float64) for each in kept}
    return found | {"predictions": np.array(model.predict(*inputs), np.float64)}


def difference(there: Mapping[str, np.ndarray], here: Mapping[str, np.ndarray]) -> str:
    """What is apart by more than roundings; empty if nothing is."""
    if there.keys() != here.keys():
        return f"names {sorted(there.keys() ^ here.keys())}"
    for name, expected in there.items():
        got = here[name]
        if got.shape != expected.shape or (np.isfinite(got) != np.isfinite(expected)).any():
            return f"{name}: {got} instead of {expected}"
        finite = np.isfinite(expected)
        size = max(float(np.abs(expected[finite]).max(initial=0.0)), LEAST)
        apart = float(np.abs(got[finite] - expected[finite]).max(initial=0.0)) / size
        if apart > TOLERANCE:
            return f"{name}: {apart:.1e} away"
    return ""


def compared(case: Case) -> Outcome:
    """Train on ranks and alone, and compare."""
    seed = case.network.seed
    try:
        expected = results(case.model(), case, None)
    except CalderaError as error:
        return Outcome(seed, "refused alone", f"{type(error).__name__}: {error}"[:200])
    except Exception:
        return Outcome(seed, "crash", traceback.format_exc(limit=-6))
    models = [case.model() for _ in range(case.ranks)]

    def work(comm: Communicator) -> dict[str, np.ndarray]:
        return results(models[comm.rank], case, case.way(comm))

    try:
        found = run_virtual_ranks(case.ranks, work)
    except CommError as error:
        # No way to share training may disagree about messages, or wait for what nobody sends.
        return Outcome(seed, "hang", f"{type(error).__name__}: {error}"[:600])
    except CalderaError as error:
        return Outcome(seed, "refused", f"{type(error).__name__}: {error}"[:300])
    except Exception:
        return Outcome(seed, "crash", traceback.format_exc(limit=-6))
    for rank, each in enumerate(found):
        apart = difference(expected, each)
        if apart:
            return Outcome(seed, "difference", f"on rank {rank}, {apart}")
    return Outcome(seed, "agreed")


def described(case: Case) -> str:
    """A case in a line."""
    network = case.network
    layers = ", ".join(map(repr, network.layers))
    return (
        f"{case.ranks} ranks, {case.way.name} {dict(case.way.arguments)}, batches of "
        f"{network.batch} of {network.count}, {network.settings}, loss {network.loss}, "
        f"{network.optimizer}, metrics {list(case.metrics)}: {layers}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if any case differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="cases")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    options = parser.parse_args(arguments)
    found = []
    for seed in range(options.seed, options.seed + options.count):
        case = case_of(seed)
        found.append(compared(case))
        print(f"seed {seed}: {case.way.name}: {found[-1].what} {found[-1].detail}", flush=True)
        if found[-1].what in BAD or found[-1].what == "refused":
            print(f"    {described(case)}", flush=True)
    print(counted(found))
    return int(any(each.what in BAD for each in found))


if __name__ == "__main__":
    sys.exit(main())
