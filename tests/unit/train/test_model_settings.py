"""Settings of a model: checked when it is made; assigned later they work, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.errors import ConfigError
from tests.unit.train.small import points

ROW = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")


def made(**settings: Any) -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], **settings)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("batch_size", 0, "batch_size= an integer >= 1, got 0"),
        ("batch_size", 1.5, "batch_size= an integer >= 1, got 1.5"),
        ("batch_size", True, "batch_size= an integer"),
        ("batch_size", optim.ReduceOnPlateau(0.1), "optim.GrowingBatch"),
        ("epochs", 1.5, "epochs= an integer >= 0, got 1.5"),
        ("epochs", float("inf"), "epochs= an integer >= 0, got inf"),
        ("epochs", -1, "epochs= an integer >= 0, got -1"),
        ("seed", -1, r"seed: expected an int from 0 to 2\*\*64 - 1, got -1"),
        ("seed", 1.5, "seed: expected an int"),
        ("precision", "float4", "precision: expected one of"),
        ("optimizer", "adm", "did you mean 'adam'"),
        ("optimizer", 3, "optimizer.* expected .*got 3|expected optimizer= .*got 3"),
        ("loss", "crossentropy", "did you mean 'cross_entropy'"),
        ("loss", {}, "loss: expected a loss for an output, got none"),
        ("metrics", "accuracy", r"write metrics=\['accuracy'\]"),
        ("metrics", ["acuracy"], "did you mean 'accuracy'"),
        ("metrics", ["r2"], "r2: expected a loss of values"),
    ],
)
def test_the_same_is_refused_at_first_and_later(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**{name: value})
    model = made()
    with pytest.raises(ConfigError, match=said):
        setattr(model, name, value)


def test_what_cannot_be_changed_later_is_refused() -> None:
    model = made()
    with pytest.raises(ConfigError, match=r"model.optimizer = optim.Adam\(0.1\)"):
        model.learning_rate = 0.1
    with pytest.raises(AttributeError):
        model.dtype = "float64"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        model.metrics.append("f1")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="dtype= a float"):
        made(dtype="int64")
    assert made(learning_rate=0.5).learning_rate == 0.5


def test_an_optimizer_by_name_trains_as_one_that_was_there_from_the_start() -> None:
    x, y = points()
    later, first = made(optimizer="adam", seed=3), made(optimizer="sgd", seed=3)
    later.optimizer = "sgd"
    assert later.fit((x, y), verbose=0)["loss"] == first.fit((x, y), verbose=0)["loss"]
    assert isinstance(later.optimizer, optim.SGD)


def test_another_loss_is_used_by_everything_at_once() -> None:
    model = made(loss="mse")
    before = model.evaluate((ROW, ROW))
    model.loss = "mae"
    after = model.evaluate((ROW, ROW))
    assert after["loss"] == pytest.approx(before["mae"], rel=1e-5)
    model.loss = nn.losses.BinaryCrossEntropy()
    assert [each.name for each in model.metrics] == ["accuracy"]
    assert set(model.evaluate((ROW, (ROW > 0).astype("float32")))) == {"loss", "accuracy"}


def test_a_loss_for_which_the_chosen_metrics_make_no_sense() -> None:
    model = made(loss="mse", metrics=["mae"])
    with pytest.raises(ConfigError, match="mae: expected a loss of values"):
        model.loss = "cross_entropy"
    assert isinstance(model.loss, nn.losses.MeanSquared)
    model.metrics = None
    model.loss = "cross_entropy"
    assert [each.name for each in model.metrics] == ["accuracy"]


def test_other_metrics_are_measured_next() -> None:
    x, y = points()
    model = made()
    assert set(model.evaluate((x, y))) == {"loss", "accuracy"}
    model.metrics = ["f1", nn.metrics.TopK(1)]
    assert set(model.evaluate((x, y))) == {"loss", "f1", "top_1"}
    assert "f1" in model.fit((x, y), verbose=0)


def test_a_device_that_is_assigned_is_moved_to() -> None:
    model = made()
    model.device = "loopback"
    assert model.parameters()[0].tensor.device.name == "loopback:0"
    with pytest.raises(cd.DeviceError):
        model.device = "nowhere"


def test_weights_of_losses() -> None:
    for wrong in (-1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(ConfigError, match="loss_weights: expected a number of at least 0"):
            made(loss={"output": "mse"}, loss_weights={"output": wrong})
