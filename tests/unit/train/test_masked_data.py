"""Values behind the mask of numpy.ma are used nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.comm import SingleProcess
from caldera.errors import DataError

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
HIDDEN = np.arange(32) % 3 == 0
ROW = np.ma.masked_array(np.where(HIDDEN, 1000.0, X[:, 0]), mask=HIDDEN)
COLUMN = ROW[:, None]


def made() -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((4,)), nn.Dense(1)], loss="mse")


@pytest.mark.parametrize("y", [ROW, COLUMN, list(COLUMN)], ids=["row", "column", "list"])
@pytest.mark.parametrize(
    "use",
    [
        lambda y: made().fit(X, y, verbose=0),
        lambda y: made().fit((X, y), verbose=0),
        lambda y: made().fit({"x": X, "y": y}, verbose=0),
        lambda y: made().fit(X, X[:, :1], validation=(X, y), verbose=0),
        lambda y: made().evaluate(X, y),
        lambda y: cd.data.arrays(X, y),
        lambda y: cd.data.arrays(X, X[:, 0], test=(X, y)),
        lambda y: made().fit(X, X[:, :1], sample_weights=y, validation=0.2, verbose=0),
        lambda y: nn.ctc_targets(y, np.ones(32, int)),
        lambda y: SingleProcess().Send(np.ma.ravel(ROW), 0),
        lambda y: cd.data.table({"a": ROW, "y": X[:, 0]}, target="y"),
        lambda y: cd.data.table({"a": X[:, 0], "y": np.ma.ravel(ROW)}, target="y"),
        lambda y: cd.data.table({"a": [*ROW], "y": X[:, 0]}, target="y"),
    ],
)
def test_masked_targets_are_refused(use: Callable[[Any], Any], y: Any) -> None:
    with pytest.raises(DataError, match="without masked elements"):
        use(y)


def test_a_mask_that_hides_nothing_is_no_mask() -> None:
    y = np.ma.masked_array(X[:, 0])
    assert made().fit(X, y, verbose=0)["loss"] == made().fit(X, X[:, 0], verbose=0)["loss"]


def test_estimators_refuse_them_too() -> None:
    estimators = pytest.importorskip("caldera.sklearn")
    with pytest.raises(DataError, match="without masked elements"):
        estimators.CalderaRegressor().fit(X, ROW)
