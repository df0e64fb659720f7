"""Checking the gradients of a whole model finds what is wrong, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from caldera import nn, op
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.train.debug.gradient_check import check_model_gradients
from caldera.train.model import Model
from caldera.train.neural_network import NeuralNetwork
from tests.unit.train.small import classifier, points, same_bits, values


@pytest.mark.parametrize("training", [True, False])
def test_right_gradients_pass_and_nothing_changes(training: bool) -> None:
    model = classifier()
    before = values(model)
    errors = check_model_gradients(model, *points(12), training=training)
    assert set(errors) == {each.name for each in model.trainable()}
    assert max(errors.values()) < 1e-6
    assert same_bits(values(model), before)


def test_convolutions_and_recurrence_pass() -> None:
    generator = np.random.default_rng(0)
    images = NeuralNetwork(
        [
            nn.Input((2, 6, 6)),
            nn.Conv2D(3, 3),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Flatten(),
            nn.Dense(3),
        ]
    )
    errors = check_model_gradients(
        images, generator.normal(size=(4, 2, 6, 6)), np.arange(4) % 3, samples=5
    )
    assert max(errors.values()) < 1e-6
    words = NeuralNetwork([nn.Embedding(7, 4), nn.LSTM(5), nn.Dense(3)])
    errors = check_model_gradients(
        words, generator.integers(0, 7, (3, 5)), np.arange(3) % 3, samples=5
    )
    assert max(errors.values()) < 1e-6


@dataclass(eq=False)
class WrongScale(nn.Layer):
    """x * scale, whose gradient for the scale is a tenth too small."""

    def build(self, x: Expr) -> None:
        self.scale = self.parameter("scale", (x.shape[-1],), fill=np.ones(x.shape[-1]))

    def forward(self, x: Expr) -> Expr:
        right = x * self.scale
        return right + 0.1 * (op.stop_gradient(right) - right)


def test_a_wrong_gradient_is_found() -> None:
    model = NeuralNetwork([nn.Input((2,)), WrongScale(), nn.Dense(2)])
    errors = check_model_gradients(model, *points(8))
    assert 0.05 < errors["1-WrongScale/scale"] < 0.2
    assert errors["2-Dense/weight"] < 1e-6


def test_frozen_parameters_are_left_out() -> None:
    layers = [nn.Input((2,)), nn.Dense(3), nn.Dense(2)]
    layers[1].freeze()
    assert set(check_model_gradients(NeuralNetwork(layers), *points(8))) == {
        "2-Dense/weight",
        "2-Dense/bias",
    }


def test_several_inputs_and_outputs_pass() -> None:
    class Two(Model):
        def __init__(self) -> None:
            losses = {"sum": "mse", "product": "mse"}
            super().__init__(loss=losses, loss_weights={"product": 0.5}, metrics=[])
            self.left = nn.Dense(3)
            self.right = nn.Dense(3)

        def forward(self, a: Expr, b: Expr) -> Any:
            left, right = self.left(a), self.right(b)
            return {"sum": left + right, "product": left * right}

    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(6, 2)), generator.normal(size=(6, 4))
    y1, y2 = generator.normal(size=(2, 6, 3))
    errors = check_model_gradients(Two(), a, b, y1, y2)
    assert len(errors) == 4
    assert max(errors.values()) < 1e-6


def test_settings_without_sense_are_refused() -> None:
    with pytest.raises(ConfigError):
        check_model_gradients(classifier(), *points(8), samples=0)
