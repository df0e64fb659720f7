"""A layer that is changed after plans were made of it: all of them follow."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X[:, :1]


def made(*layers: nn.Layer, **settings: Any) -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((4,)), *layers], **{"loss": "mse", **settings})


def test_predictions_and_evaluations_follow_an_attribute() -> None:
    layer = nn.LeakyReLU(0.1)
    model = made(layer)
    target = np.zeros_like(X)
    before = model.evaluate(X, target)["loss"]
    np.testing.assert_allclose(model.predict(X), np.where(X > 0, X, 0.1 * X), rtol=1e-6)
    layer.slope = -2.0
    np.testing.assert_allclose(model.predict(X), np.where(X > 0, X, -2.0 * X), rtol=1e-6)
    assert model.evaluate(X, target)["loss"] > before


def test_an_activation_may_be_exchanged() -> None:
    model = made(nn.Dense(3, activation="relu"), nn.Residual([nn.Dense(3)], activation="relu"))
    assert (model.predict(X) >= 0).all()
    model.network.layers[2].activation = None  # type: ignore[attr-defined]
    assert (model.predict(X) < 0).any()


def test_training_that_goes_on_follows() -> None:
    dropout = nn.Dropout(0.0)

    class Switch(cd.Callback):
        def epoch_ends(self, run: cd.Run) -> None:
            dropout.rate = 0.9 if run.epoch == 1 else 0.0

    model = made(dropout, nn.Dense(1), optimizer="sgd", learning_rate=1e-9)
    none, much, again = model.fit(X, Y, epochs=3, callbacks=[Switch()], verbose=0)["loss"]
    assert much > 1.5 * none
    assert again == pytest.approx(none, rel=1e-6)


def test_a_model_of_ones_own_follows_too() -> None:
    class Scaled(cd.Model):
        def __init__(self) -> None:
            super().__init__(loss="mse")
            self.factor = 1.0
            self.inner = nn.Sequential([nn.Tanh()])

        def forward(self, x: Any) -> Any:
            self.seen = x.shape
            return self.inner(x) * self.factor

    model = Scaled()
    once = model.predict(X)
    model.factor = 3.0
    np.testing.assert_allclose(model.predict(X), 3 * once, rtol=1e-6)
    model.inner.layers = (nn.ReLU(),)
    np.testing.assert_allclose(model.predict(X), 3 * np.maximum(X, 0), rtol=1e-6)


def test_what_did_not_change_is_not_made_again() -> None:
    changed, other = made(nn.LeakyReLU(0.1)), made(nn.Dense(2), loss="cross_entropy")
    for model in (changed, other):
        model.predict(X)
    kept = list(other._predictors)
    changed.network.layers[1].slope = 0.5  # type: ignore[attr-defined]
    other.fit(X, np.arange(32) % 2, verbose=0)
    other.predict(X)
    assert list(other._predictors) == kept


def test_a_copy_is_changed_by_itself() -> None:
    model = made(nn.LeakyReLU(0.1))
    model.predict(X)
    twin = copy.deepcopy(model)
    twin.network.layers[1].slope = 1.0  # type: ignore[attr-defined]
    np.testing.assert_allclose(twin.predict(X), X, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X), np.where(X > 0, X, 0.1 * X), rtol=1e-6)
