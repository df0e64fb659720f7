"""`add_loss` and `add_metric` of a layer: a part of the loss, weighed and shared as all losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import comm, nn, op, optim
from caldera.errors import ConfigError, ShapeError
from caldera.parallel import DataParallel

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X[:, :1] - 2 * X[:, 1:2]


@dataclass(eq=False)
class Watched(nn.Layer):
    """Adds squares of what it gives and of its parameter to the loss, and shows its input's."""

    factor: float = 0.5

    def build(self, x: Any) -> None:
        self.scale = self.parameter("scale", (x.shape[-1],), fill=cd.constant(1.5))

    def forward(self, x: Any) -> Any:
        self.add_loss(self.factor * op.square(x * self.scale))
        self.add_loss(0.1 * op.sum(op.square(self.scale)))
        self.add_metric("square", op.square(x))
        return x * self.scale


def network(**options: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((3,)), Watched(), nn.Dense(1, fill=cd.constant(0.5))]
    given: dict[str, Any] = {"loss": "mse", "optimizer": optim.SGD(0.05), "batch_size": 8}
    return cd.NeuralNetwork(layers, metrics=["mae"], **given | options)


def expected(weights: np.ndarray, scale: float = 1.5) -> float:
    """The loss by hand."""
    error = np.square((scale * X).sum(axis=1) * 0.5 - Y[:, 0])
    added = 0.5 * np.square(scale * X).mean(axis=1)
    part = weights / weights.sum()
    return float((part * (error + added)).sum() + 0.1 * 3 * scale**2)


def test_the_loss_is_the_sum_by_hand() -> None:
    found = network().evaluate((X, Y))
    assert found["loss"] == pytest.approx(expected(np.ones(24)), rel=1e-5)
    assert found["square"] == pytest.approx(np.square(X).mean(), rel=1e-5)


def test_samples_are_weighed() -> None:
    weights = np.random.default_rng(1).random(24).astype("float32")
    weights[3] = 0
    x = X.copy()
    x[3] = np.nan
    model = network(batch_size=24, optimizer=optim.SGD(1e-9))
    history = model.fit((x, np.nan_to_num(Y)), sample_weights=weights, epochs=1, verbose=0)
    assert history["loss"][0] == pytest.approx(expected(weights), rel=1e-4)
    squares = np.square(X).mean(axis=1)
    assert history["square"][0] == pytest.approx(
        (weights * squares).sum() / weights.sum(), rel=1e-4
    )


def test_gradients_are_those_of_finite_differences() -> None:
    model = network(dtype="float64")
    model.evaluate((X.astype("float64"), Y.astype("float64")))
    errors = cd.check_model_gradients(model, X[:4].astype("float64"), Y[:4].astype("float64"))
    assert max(errors.values()) < 1e-5
    # Without the added loss the gradient of the scale would be another one.
    assert any("scale" in name for name in errors)


def test_ranks_train_as_one_process_does() -> None:
    alone = network()
    history = alone.fit((X, Y), validation=(X, Y), epochs=2, verbose=0)

    def train(communicator: comm.Communicator) -> tuple[cd.History, np.ndarray]:
        model = network()
        strategy = DataParallel(communicator=communicator)
        found = model.fit((X, Y), validation=(X, Y), epochs=2, verbose=0, parallel=strategy)
        return found, model.parameters()[0].numpy()

    for found, scale in comm.run_virtual_ranks(2, train):
        for name in ("loss", "square", "val_loss", "val_square"):
            assert found[name] == pytest.approx(history[name], rel=1e-5)
        assert scale == pytest.approx(alone.parameters()[0].numpy(), rel=1e-5)


def test_predicting_is_not_disturbed() -> None:
    model = network()
    assert model.predict(X).shape == (24, 1)
    with nn.trace() as traced:
        model(op.input("x", (5, 3)))
    assert len(traced.losses) == 2
    assert list(traced.metrics) == ["square"]


@dataclass(eq=False)
class Wrong(nn.Layer):
    what: str = ""

    def forward(self, x: Any) -> Any:
        if self.what == "shape":
            self.add_loss(op.sum(x, axis=0))
        elif self.what == "name":
            self.add_metric("loss", x)
        elif self.what == "twice":
            self.add_metric("a", x)
            self.add_metric("a", x)
        elif self.what == "dtype":
            self.add_loss(x > 0)
        return x


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("shape", ShapeError, "values for each of"),
        ("name", ConfigError, "distinct name"),
        ("twice", ConfigError, "twice"),
        ("dtype", ShapeError, "numbers to add"),
    ],
)
def test_what_cannot_be_added(what: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        cd.NeuralNetwork([nn.Input((3,)), Wrong(what=what)], loss="mse").fit((X, X), verbose=0)
