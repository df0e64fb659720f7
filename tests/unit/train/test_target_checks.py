"""Targets that do not fit the loss are refused in words about the data, with a way out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
CLASSES = np.arange(20) % 3


def fit(outputs: int, targets: Any, loss: Any = "cross_entropy", **more: Any) -> cd.History:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(outputs)], loss=loss)
    return model.fit((X, targets), verbose=0, **more)


@pytest.mark.parametrize("targets", [X[:, 0], X[:, :1], CLASSES.astype("float64")])
def test_values_are_no_classes(targets: np.ndarray) -> None:
    with pytest.raises(DtypeError, match=r"loss='mean_squared'.*astype"):
        fit(3, targets)


def test_rows_of_probabilities_have_a_loss_of_their_own() -> None:
    rows = np.eye(3, dtype="float32")[CLASSES]
    with pytest.raises(DtypeError, match=r"CrossEntropy\(probabilities=True\)"):
        fit(3, rows)
    fit(3, rows, nn.losses.CrossEntropy(probabilities=True))


def test_one_value_for_each_sample_is_a_column() -> None:
    with pytest.raises(ShapeError, match=r"y\[:, None\]"):
        fit(1, X[:, 0], "mse")


def test_one_class_for_each_sample_is_a_row() -> None:
    with pytest.raises(ShapeError, match=r"y\[:, 0\]"):
        fit(3, CLASSES[:, None])


def test_classes_beyond_the_outputs() -> None:
    with pytest.raises(DataError, match=r"from 0 to 1.*got 0 to 2; give the last layer 3 outputs"):
        fit(2, CLASSES)
    with pytest.raises(DataError, match="got -1 to 1; number the classes from 0"):
        fit(3, CLASSES - 1)


def test_every_label_is_looked_at_and_only_those_of_a_subset() -> None:
    late = np.zeros(20, "int64")
    late[-1] = 7
    with pytest.raises(DataError, match="got 0 to 7"):
        fit(3, late)
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    model.fit(cd.data.ArrayData(X, late).subset(range(10)), verbose=0)


def test_padding_of_no_weight_may_have_any_class() -> None:
    padded = np.where(CLASSES == 2, -1, CLASSES)
    history = fit(2, padded, sample_weights=(padded >= 0).astype(float))
    assert np.isfinite(history["loss"][-1])


def test_texts_are_numbered_elsewhere() -> None:
    names = np.array(["a", "b"])[CLASSES % 2]
    with pytest.raises(DataError, match=r"cd.data.arrays\(x, y\)"):
        fit(2, names)
    data = cd.data.arrays(X, names)
    assert data.outputs == 2
    assert cd.data.arrays(X, X[:, :2], classes=False).outputs == 2


def test_evaluation_refuses_them_too() -> None:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)])
    with pytest.raises(DataError, match="from 0 to 1"):
        model.evaluate((X, CLASSES))


def test_x_and_y_are_one_argument() -> None:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    with pytest.raises(ConfigError, match=r"write fit\(\(x, y\)\)"):
        model.fit(X, CLASSES)


def test_the_shape_of_an_input_is_a_tuple() -> None:
    with pytest.raises(ConfigError, match=r"write nn.Input\(\(4,\)\)"):
        nn.Input(4)  # type: ignore[arg-type]
