"""Complex parameters of layers: trained as their two parts, saved, copied and resumed."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
TURN = np.exp(1j * np.array([0.3, -1.2, 2.0]))
Y = (X * TURN).imag.astype("float32")


@nn.register
@dataclass(eq=False)
class Turned(nn.Layer):
    """The imaginary part of a product with complex numbers."""

    fill: Any = None

    def build(self, x: Any) -> None:
        self.weight = self.parameter("weight", x.shape[1:], self.fill, is_complex=True)

    def forward(self, x: Any) -> Any:
        return op.imag(op.cast(x, self.weight.dtype) * self.weight)


def made(**settings: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((3,)), Turned(cd.normal(0.0, 1.0))]
    given = {"optimizer": optim.Adam(0.05), "epochs": 3, "batch_size": 24} | settings
    return cd.NeuralNetwork(layers, loss="mse", **given)


def test_adam_treats_both_parts_as_real_numbers() -> None:
    model = made()
    weight = model.layers[1].weight.numpy().astype("complex128")
    model.fit(X, Y, verbose=0)
    mean, square = np.zeros((3, 2)), np.zeros((3, 2))
    for step in range(1, 4):
        slope = 2 * (X * ((X * weight).imag - Y)).sum(axis=0) / Y.size
        parts = np.stack([0 * slope, slope], axis=-1)
        mean, square = 0.9 * mean + 0.1 * parts, 0.999 * square + 0.001 * parts**2
        change = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        weight = weight - 0.05 * (change[:, 0] + 1j * change[:, 1])
    np.testing.assert_allclose(model.layers[1].weight.numpy(), weight, rtol=1e-4)


def test_they_are_learned_saved_and_copied(tmp_path: Path) -> None:
    model = made(epochs=150)
    model.fit(X, Y, verbose=0)
    np.testing.assert_allclose(model.layers[1].weight.numpy().imag, TURN.imag, atol=0.02)
    wanted = model.predict(X)
    loaded = cd.load(model.save(tmp_path / "turned.caldera"))
    for again in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict(X), wanted)
        assert again.layers[1].weight.parts is again.parameters()[0]
        again.fit(X, -Y, epochs=2, verbose=0)
        assert not np.array_equal(again.predict(X), wanted)
    np.testing.assert_array_equal(model.predict(X), wanted)


def test_fills_and_dtypes() -> None:
    layer = Turned(np.array([1 + 2j, 3, 4j]))
    layer(op.input("x", (2, 3)))
    assert layer.weight.numpy().tolist() == [1 + 2j, 3, 4j]
    assert layer.weight.dtype == np.complex64
    layer.weight.assign(TURN)
    np.testing.assert_allclose(layer.weight.numpy(), TURN, rtol=1e-6)
    assert made(dtype="float64").layers[1].weight.dtype == np.complex128
    with nn.trace(dtype="float64"):
        wide = Turned(cd.normal(0.0, 2.0))
        wide(op.input("x", (2, 20000), "float64"))
    assert np.abs(wide.weight.numpy()).std() > 0.5
    assert np.sqrt(np.mean(np.abs(wide.weight.numpy()) ** 2)) == pytest.approx(2.0, rel=0.02)
