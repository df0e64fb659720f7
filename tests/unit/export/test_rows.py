"""Networks that mix the rows of a batch are refused; all others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.export.functions import check_model

MIXING: dict[str, Callable[[Expr], Expr]] = {
    "mean": lambda x: x - op.mean(x, axis=0),
    "matmul": lambda x: op.softmax(x @ op.transpose(x)) @ x,
    "softmax": lambda x: op.softmax(x, axis=0),
    "cumsum": lambda x: op.cumsum(x, axis=0),
    "flip": lambda x: op.flip(x, axis=0),
    "max": lambda x: x / op.max(x),
}
SEPARATE: dict[str, Callable[[Expr], Expr]] = {
    "mean of a row": lambda x: x - op.mean(x, axis=1, keepdims=True),
    "rows along another axis": lambda x: op.transpose(op.cumsum(op.transpose(x), axis=0)),
    "merged rows": lambda x: op.reshape(op.softmax(op.reshape(x, (-1, 2))), x.shape),
}


def _model(function: Callable[[Expr], Expr]) -> cd.NeuralNetwork:
    layers = [nn.Input((4,)), nn.Dense(6), nn.Lambda(function), nn.Dense(2)]
    return cd.NeuralNetwork(layers, loss="mean_squared")


@pytest.mark.parametrize("name", MIXING)
def test_a_network_that_mixes_rows_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"op\.{name}: expected a network that computes rows"):
        check_model(_model(MIXING[name]), 4)


@pytest.mark.parametrize("name", SEPARATE)
def test_a_network_of_separate_rows_is_accepted(name: str) -> None:
    check_model(_model(SEPARATE[name]), 4)


def test_rows_of_integers_are_compared(tmp_path: Path) -> None:
    def mixed(x: Expr) -> Expr:
        return x - op.mean(x, axis=0)

    layers = [nn.Input((5,), dtype="int64"), nn.Embedding(2, 6), nn.LSTM(7)]
    check_model(cd.NeuralNetwork(layers, loss="mean_squared"), 4)
    model = cd.NeuralNetwork([*layers, nn.Lambda(mixed)], loss="mean_squared")
    with pytest.raises(ConfigError, match=r"op\.mean"):
        cd.export.c(model, tmp_path, name="wing", batch=(1,))


def test_states_and_open_sizes_are_refused(tmp_path: Path) -> None:
    layers = [nn.Input((6, 4)), nn.LSTM(3, stateful=5)]
    with pytest.raises(ConfigError, match="no states between batches, got 1-LSTM"):
        cd.export.c(cd.NeuralNetwork(layers, loss="mean_squared"), tmp_path, name="wing")
    model = cd.NeuralNetwork([nn.Input((None, 4)), nn.LSTM(3)], loss="mean_squared")
    with pytest.raises(ConfigError, match="samples of a fixed size, or sequences"):
        cd.export.c(model, tmp_path, name="wing")
