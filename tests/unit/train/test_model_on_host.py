"""A model on the host of a machine that may have a card: nobody looks for one, which takes hundreds
of MiB and seconds where there is one."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.base.config import settings
from caldera.core.memory import devices
from caldera.data import ArrayData


@pytest.fixture
def no_look_at_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked() -> int:
        raise AssertionError("somebody looked whether there is a card")

    monkeypatch.setattr(devices, "card_count", looked)
    monkeypatch.setattr(settings, "accelerator", "auto")


@pytest.mark.usefixtures("no_look_at_cards")
def test_training_evaluation_and_prediction_stay_there() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 7, (24, 6)), rng.integers(0, 3, 24)
    layers = [
        nn.Input((6,), dtype="int64"),
        nn.Embedding(7, 8),
        nn.PositionalEmbedding(6),
        nn.TransformerBlock(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Dense(3),
    ]
    model = cd.NeuralNetwork(layers, loss="cross_entropy", optimizer="adam", device="cpu")
    model.fit(x, y, epochs=2, batch_size=8, validation=ArrayData(x, y), verbose=0)
    model.evaluate(x, y)
    model.predict(x)


@pytest.mark.usefixtures("no_look_at_cards")
def test_a_custom_model_stays_there() -> None:
    class Rivals(cd.CustomModel):
        def __init__(self) -> None:
            super().__init__({"left": "sgd"}, batch_size=4, device="cpu")
            self.left = nn.Dense(2)

        def losses(self, x: cd.Expr) -> dict[str, cd.Expr]:
            return {"left": op.mean(op.square(self.left(x) - np.array([1.0, 2.0], "float32")))}

    Rivals().fit(np.ones((8, 2), "float32"), epochs=2, verbose=0)


@pytest.mark.usefixtures("no_look_at_cards")
def test_an_expression_of_a_variable_there_and_an_array_stays_there() -> None:
    x = op.var("x", (3,), fill=np.ones(3, "float32"), device="cpu")
    given = x * (np.array([1.0, 2.0, 3.0], "float32") * op.full((3,), 2.0))
    assert cd.compile(given).run()[0].tolist() == [2.0, 4.0, 6.0]
