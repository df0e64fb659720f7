"""Each row of the table of elastic strategies, from three ranks to two and back."""

from __future__ import annotations

import functools
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import compress, nn, parallel
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import CalderaError
from caldera.train.strategy import Strategy

PAGE = Path(__file__).parents[3] / "docs" / "distributed" / "cluster.md"
ROWS = re.findall(r"^\| `(parallel\.\w+\(.*\))` \| (.+?) \|$", PAGE.read_text(), re.M)
STEPS = ((3, 1), (2, 2), (3, 3))
"""Ranks, and the epoch after which they end."""


def network() -> cd.NeuralNetwork:
    layers = [nn.Input((6,)), *[nn.Dense(n, activation="tanh") for n in (12, 8)], nn.Dense(1)]
    return cd.NeuralNetwork(
        layers,
        loss="mean_squared",
        optimizer="momentum",
        learning_rate=0.05,
        dtype="float64",
        batch_size=12,
    )


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(36, 6))
    return x, x[:, :1]


@functools.cache
def alone() -> list[np.ndarray]:
    model = network()
    model.fit(data(), epochs=STEPS[-1][1], verbose=0)
    return [each.numpy() for each in model.parameters()]


def train(strategy: str, folder: Path, ranks: int, epochs: int) -> tuple[cd.NeuralNetwork, float]:
    """Train on ranks that are threads, from the last checkpoint; rank 0's model and last loss."""
    models = [network() for _ in range(ranks)]

    def work(communicator: Communicator) -> Any:
        code = f"{strategy[:-1]}{'' if strategy.endswith('()') else ', '}communicator=communicator)"
        made = eval(code, {"parallel": parallel, "compress": compress} | locals())
        settings = {"checkpoint": folder / "run", "resume": True, "verbose": 0}
        history = models[communicator.rank].fit(data(), epochs=epochs, parallel=made, **settings)
        assert history.epochs[-1] == epochs - 1
        return history["loss"][-1]

    with warnings.catch_warnings():
        # Of momentum that asynchronous updates add.
        warnings.simplefilter("ignore", UserWarning)
        return models[0], run_virtual_ranks(ranks, work)[0]


def test_the_table_has_every_strategy() -> None:
    named = {strategy.partition("(")[0].removeprefix("parallel.") for strategy, _ in ROWS}
    public = {name: getattr(parallel, name) for name in parallel.__all__}
    assert named == {
        name
        for name, kind in public.items()
        if isinstance(kind, type) and issubclass(kind, Strategy)
    }


@pytest.mark.parametrize(("strategy", "promise"), ROWS)
def test_ranks_that_go_and_come(strategy: str, promise: str, tmp_path: Path) -> None:
    model, loss = train(strategy, tmp_path, *STEPS[0])
    if promise == "error":
        with pytest.raises(CalderaError, match=r"expected .*ranks"):
            train(strategy, tmp_path, *STEPS[1])
        return
    model, loss = train(strategy, tmp_path, *STEPS[1])
    if promise == "error with more ranks":
        with pytest.raises(CalderaError, match="resume on at most the earlier number of ranks"):
            train(strategy, tmp_path, *STEPS[2])
        return
    model, loss = train(strategy, tmp_path, *STEPS[2])
    assert promise in ("same result", "continues")
    assert math.isfinite(loss)
    if promise == "same result":
        for mine, its in zip(model.parameters(), alone(), strict=True):
            np.testing.assert_allclose(mine.numpy(), its, rtol=0, atol=1e-6)
