"""Metrics of targets far from 0 keep their digits, over batches, ranks and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import comm, nn, parallel

RANDOM = np.random.default_rng(0)
NOISE = RANDOM.normal(size=(101, 2))


class Same(cd.Model):
    """The input as the prediction."""

    def forward(self, x: Any) -> Any:
        return x * 1.0


def model(**settings: Any) -> cd.Model:
    return Same(loss="mse", metrics=["r2"], dtype="float64", batch_size=16, **settings)


def r2(prediction: np.ndarray, target: np.ndarray) -> float:
    exact, found = target.astype(np.longdouble), prediction.astype(np.longdouble)
    spread = np.square(exact - exact.mean(0)).sum(0)
    return float((1 - np.square(exact - found).sum(0) / spread).mean())


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8, -1e12, [1e8, -3.0], [0.0, 1e10]])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_r2_is_that_of_two_passes(offset: Any, scale: float) -> None:
    y = scale * RANDOM.normal(size=(101, 2)) + offset
    x = y + 0.5 * scale * NOISE
    found = model().evaluate(x, y)["r2"]
    assert found == pytest.approx(r2(x, y), rel=1e-6)


def test_each_evaluation_has_a_mean_of_its_own() -> None:
    one = model()
    for offset in (0.0, 1e9, -1e6):
        y = RANDOM.normal(size=(50, 2)) + offset
        x = y + 0.25
        assert one.evaluate(x, y)["r2"] == pytest.approx(r2(x, y), rel=1e-6)


def test_training_and_validation() -> None:
    y = RANDOM.normal(size=(64, 1)) + 1e8
    layers = [nn.Input((1,)), nn.Dense(1, fill="identity")]
    network = cd.NeuralNetwork(
        layers, loss="mse", metrics=["r2"], dtype="float64", optimizer="sgd", learning_rate=1e-30
    )
    x = y + 0.5 * RANDOM.normal(size=(64, 1))
    for _ in range(2):
        history = network.fit(x, y, validation=(x[:20], y[:20]), verbose=0)
        assert history["r2"][0] == pytest.approx(r2(x, y), rel=1e-6)
        assert history["val_r2"][0] == pytest.approx(r2(x[:20], y[:20]), rel=1e-6)


def _stream(x: np.ndarray, y: np.ndarray) -> cd.data.IterableData:
    return cd.data.IterableData(lambda: zip(x, y, strict=True))


def test_streams_are_about_their_first_sample() -> None:
    y = RANDOM.normal(size=(64, 1)) + 1e8
    x = y + 0.5 * RANDOM.normal(size=(64, 1))
    assert model().evaluate(_stream(x, y))["r2"] == pytest.approx(r2(x, y), rel=1e-6)


def test_ranks_subtract_the_same_from_streams() -> None:
    y = RANDOM.normal(size=(48, 1)) + 1e8
    x = y + 0.5 * RANDOM.normal(size=(48, 1))

    def on_rank(communicator: Any) -> float:
        strategy = parallel.DataParallel(communicator=communicator)
        return float(model().evaluate(_stream(x, y), parallel=strategy)["r2"])

    assert comm.run_virtual_ranks(2, on_rank) == pytest.approx([r2(x, y)] * 2, rel=1e-6)


def test_ranks_subtract_one_mean() -> None:
    y = RANDOM.normal(size=(50, 2)) + 1e9
    x = y + 0.5 * RANDOM.normal(size=(50, 2))

    def on_rank(communicator: Any) -> float:
        strategy = parallel.DataParallel(communicator=communicator)
        return float(model().evaluate(x, y, parallel=strategy)["r2"])

    for found in comm.run_virtual_ranks(3, on_rank):
        assert found == pytest.approx(r2(x, y), rel=1e-6)
