"""A loss that means is the loss whose mean it is: with weights, on ranks, in each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import comm, nn, op, parallel
from caldera.errors import ConfigError, ShapeError
from caldera.nn.losses import as_loss

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(21, 4))
Y = RANDOM.normal(size=(21, 3))
Given = Callable[[Any, Any], Any]
PAIRS: dict[str, tuple[Given, Given]] = {
    "mean": (lambda y, z: op.mean((y - z) ** 2), lambda y, z: (y - z) ** 2),
    "half": (lambda y, z: 0.5 * op.mean((y - z) ** 2), lambda y, z: 0.5 * (y - z) ** 2),
    "rows": (lambda y, z: op.mean(op.sum(abs(y - z), axis=1)), lambda y, z: op.sum(abs(y - z), 1)),
    "sum": (
        lambda y, z: op.mean((y - z) ** 2) + 0.3 * op.mean(abs(y)) / 2 - 1.5,
        lambda y, z: (y - z) ** 2 + 0.15 * abs(y) - 1.5,
    ),
    "negative": (lambda y, z: -op.mean(y * z), lambda y, z: -(y * z)),
    "operation": (op.mean_squared_error, lambda y, z: (y - z) ** 2),
}


def trained(loss: Given, **options: Any) -> np.ndarray:
    layers = [nn.Input((4,)), nn.Dense(5, activation="tanh"), nn.Dense(3)]
    model = cd.NeuralNetwork(layers, loss=loss, batch_size=8, dtype="float64", seed=2)
    history = model.fit(X, Y, epochs=2, verbose=0, **options)
    weights = np.concatenate([each.numpy().ravel() for each in model.parameters()])
    return np.append(weights, history["loss"])


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("weighted", [False, True])
def test_training_is_that_of_the_numbers(name: str, weighted: bool) -> None:
    means, numbers = PAIRS[name]
    options = {"sample_weights": np.linspace(0, 2, 21)} if weighted else {}
    np.testing.assert_allclose(trained(means, **options), trained(numbers, **options), rtol=1e-9)


def test_ranks_with_unequal_shares_agree_with_one_process() -> None:
    means, numbers = PAIRS["sum"]

    def on_rank(communicator: Any) -> np.ndarray:
        return trained(means, parallel=parallel.DataParallel(communicator=communicator))

    for found in comm.run_virtual_ranks(3, on_rank):
        np.testing.assert_allclose(found, trained(numbers), rtol=1e-9)


@pytest.mark.parametrize("name", PAIRS)
def test_weighted_means_are_those_of_numpy(name: str) -> None:
    means, numbers = PAIRS[name]
    y, z, weights = cd.tensor(X[:5, :3]), cd.tensor(Y[:5]), np.array([0.0, 1.0, 2.0, 0.5, 3.0])
    by_sample = np.asarray(numbers(op.cast(y, "float64"), z).numpy()).reshape(5, -1).mean(1)
    assert as_loss(means)(y, z, weights).item() == pytest.approx(
        np.average(by_sample, weights=weights), rel=1e-12
    )


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, z: op.sqrt(op.mean((y - z) ** 2)),
        lambda y, z: op.mean(y) * op.mean(z),
        lambda y, z: op.sum((y - z) ** 2),
        lambda y, z: op.mean(op.transpose((y - z) ** 2)),
        lambda y, z: op.mean(op.transpose(y[:, :3] - z)),
        lambda y, z: 1.0 / op.mean((y - z) ** 2),
    ],
)
def test_what_is_no_mean_over_samples_is_refused(loss: Given) -> None:
    # As many samples as numbers each: shapes alone would not tell the axes apart.
    with pytest.raises(ShapeError, match="or their mean"):
        as_loss(loss)(cd.tensor(X[:3, :3]), cd.tensor(Y[:3]))


MIXING: list[Given] = [
    lambda y, z: op.mean((y - op.mean(y) - z) ** 2),
    lambda y, z: (y - op.mean(y, axis=0, keepdims=True) - z) ** 2,
    lambda y, z: (y - z) ** 2 / op.max(abs(z)),
]


@pytest.mark.parametrize("loss", MIXING)
@pytest.mark.parametrize("strategy", [parallel.DataParallel, parallel.PipelineParallel])
def test_a_loss_that_compares_samples_needs_all_of_them(loss: Given, strategy: Any) -> None:
    assert np.isfinite(trained(loss)).all()

    def on_rank(communicator: Any) -> None:
        trained(loss, parallel=strategy(communicator=communicator))

    with pytest.raises(ConfigError, match=r"each sample.*op\.(mean|max) over"):
        comm.run_virtual_ranks(2, on_rank)
