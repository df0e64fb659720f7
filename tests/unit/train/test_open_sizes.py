"""Samples of any size: each size has a plan, few of them are kept, and padding is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import CalderaError, ConfigError, DataError
from caldera.train.step import MOST_SIZES

GENERATOR = np.random.default_rng(0)


def images(*shape: int) -> np.ndarray:
    return GENERATOR.normal(size=shape).astype("float32")


def network(**settings: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((3, None, None)), nn.Conv2D(4, 3, padding="same", activation="relu")]
    return cd.NeuralNetwork([*layers, nn.Conv2D(2, 1)], "mean_squared", **settings)


def test_a_convolutional_network_takes_images_of_any_size(tmp_path: Path) -> None:
    model = network(seed=1)
    fixed = cd.NeuralNetwork([nn.Input((3, 9, 7)), *list(model.layers)[1:]], "mean_squared")
    x = images(5, 3, 9, 7)
    np.testing.assert_array_equal(model.predict(x), fixed.predict(x))
    assert model.predict(images(1, 3, 20, 31)).shape == (1, 2, 20, 31)
    again = cd.load(model.save(tmp_path / "open.caldera"))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    for given in (images(1, 4, 9, 7), images(1, 9, 7)):
        with pytest.raises(DataError, match=r"samples of shape \(3, any, any\), got"):
            model.predict(given)
    with pytest.raises(ConfigError, match=r"samples of a fixed size.*got one for any size"):
        cd.onnx.export(model, tmp_path / "open.onnx")


def test_images_of_different_sizes_are_predicted_together() -> None:
    model = network()
    given = [images(3, *sizes) for sizes in ((8, 9), (5, 5), (8, 9))]
    found = model.predict(given)
    for one, whole in zip(given, found, strict=True):
        np.testing.assert_allclose(model.predict(one[None])[0], whole, atol=1e-6)
    pooled = cd.NeuralNetwork([*model.layers, nn.GlobalAveragePool()], "mean_squared")
    assert pooled.predict(given).shape == (3, 2)


def test_a_network_learns_from_one_size_after_the_other() -> None:
    """The sizes of the data count, not those with which the network was made."""
    model = network(learning_rate=0.02)
    for size in (8, 12):
        x = images(32, 3, size, size)
        y = x[:, :2] * 0.5
        history = model.fit(x, y, epochs=8, verbose=0, validation=(x, y))
        assert history["loss"][-1] < history["loss"][0]
        assert model.evaluate(x, y)["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-4)
    with pytest.raises(CalderaError, match=r"targets of shape \(2, 12, 12\).*got \(2, 8, 8\)"):
        model.fit(x, y[:, :, :8, :8], verbose=0)


def test_a_network_with_its_own_forward_says_which_sizes_are_open() -> None:
    class Net(cd.Model):
        def __init__(self) -> None:
            super().__init__(loss="mean_squared")
            self.convolution = nn.Conv2D(2, 3)

        def forward(self, x: cd.Expr) -> cd.Expr:
            return self.convolution(x)

    model = Net()
    model.build_for(nn.Input((3, None, 8)))
    assert model.predict(images(2, 3, 30, 8)).shape == (2, 2, 28, 6)
    with pytest.raises(DataError, match=r"shape \(3, any, 8\), got \(3, 8, 9\)"):
        model.predict(images(2, 3, 8, 9))
    closed = Net()
    closed.predict(images(1, 3, 8, 8))
    with pytest.raises(DataError, match=r"a size of None in nn\.Input is open"):
        closed.predict(images(1, 3, 9, 9))


def test_layers_that_need_one_size_say_so() -> None:
    model = cd.NeuralNetwork([nn.Input((None, None)), nn.Flatten(), nn.Dense(2)])
    with pytest.raises(CalderaError, match=r"1-Flatten|2-Dense"):
        model.predict(images(1, 5, 5))


def test_words_without_a_mask_are_not_padded() -> None:
    layers = [nn.Input((None,), dtype="int64"), nn.Embedding(9, 4), nn.GRU(3)]
    model = cd.NeuralNetwork(layers, "mean_squared")
    words = [[1, 2, 3], [4], [5, 6, 7, 8, 1, 2, 3, 4, 5], [2, 1, 3]]
    found = model.predict(words)
    for one, whole in zip(words, found, strict=True):
        np.testing.assert_allclose(model.predict([one])[0], whole, atol=1e-6)


def test_many_sizes_keep_few_plans() -> None:
    model = cd.NeuralNetwork([nn.Input((None, 2)), nn.MeanPooling(), nn.Dense(1)], "mean_squared")
    wide = cd.NeuralNetwork([nn.Input((1, None)), nn.GlobalAveragePool()], "mean_squared")
    for length in range(1, 76):
        x = images(2, length, 2)
        found = model.predict(x)
        assert found.shape == (2, 1)
        np.testing.assert_allclose(
            wide.predict(x.reshape(2, 1, -1))[:, 0], x.mean((1, 2)), atol=1e-6
        )
    assert len(model._predictors) <= MOST_SIZES
    assert len(wide._predictors) <= MOST_SIZES
