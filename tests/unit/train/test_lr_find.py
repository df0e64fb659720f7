"""Looking for a learning rate leaves no trace."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera import nn, optim
from caldera.errors import ConfigError
from caldera.train.callbacks import Callback
from caldera.train.lr_find import lr_find
from caldera.train.neural_network import NeuralNetwork
from caldera.train.run import Run
from tests.unit.train.small import classifier, points, same_bits, values


def line(**settings: Any) -> NeuralNetwork:
    return NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mse", **settings)


def test_everything_is_as_it_was_before() -> None:
    model, other = classifier(), classifier()
    data = points()
    model.fit(data, verbose=0)
    other.fit(data, verbose=0)
    before = {each.name: each.numpy() for each in model.optimizer.variables()}
    lr_find(model, data, steps=20)
    assert same_bits(values(model), values(other))
    after = {each.name: each.numpy() for each in model.optimizer.variables()}
    assert same_bits(after, before)
    model.fit(data, epochs=2, verbose=0)
    other.fit(data, epochs=2, verbose=0)
    assert same_bits(values(model), values(other))


def test_it_leaves_no_trace_in_the_middle_of_a_run() -> None:
    class Look(Callback):
        def batch_ends(self, run: Run) -> None:
            if run.step == 4:
                before = run.steps.training_totals.results()
                lr_find(run.model, points(), steps=5)
                assert run.steps.training_totals.results() == before

    looked, plain = classifier(), classifier()
    looked.fit(points(), epochs=2, verbose=0, callbacks=[Look()])
    plain.fit(points(), epochs=2, verbose=0)
    assert same_bits(values(looked), values(plain))


def test_it_leaves_no_trace_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier()
    before = values(model)

    def fail(*arguments: Any) -> None:
        raise RuntimeError("tripped")

    monkeypatch.setattr("caldera.train.metric_totals.MetricTotals.loss", fail)
    with pytest.raises(RuntimeError, match="tripped"):
        lr_find(model, points())
    assert same_bits(values(model), before)


def test_the_suggestion_trains_and_a_hundred_times_of_it_does_not() -> None:
    x = np.random.default_rng(0).normal(size=(256, 2)).astype("float32")
    y = x[:, :1] * 3 - x[:, 1:]
    found = lr_find(line(optimizer="sgd", batch_size=16), (x, y))
    # For this loss, plain descent diverges above a rate of about 0.5.
    assert 0.003 < found.suggestion < 0.4
    good = line(optimizer="sgd", batch_size=16, learning_rate=found.suggestion)
    assert good.fit((x, y), epochs=5, verbose=0)["loss"][-1] < 0.5


def test_rates_grow_by_a_constant_factor_until_the_loss_explodes() -> None:
    found = lr_find(line(optimizer="sgd"), (points()[0], points()[0][:, :1]), highest=1e6)
    ratios = np.array(found.learning_rates[1:]) / found.learning_rates[:-1]
    assert np.allclose(ratios, ratios[0])
    assert found.learning_rates[0] == pytest.approx(1e-6)
    assert found.learning_rates[-1] < 1e6
    assert len(found.learning_rates) == len(found.losses) == len(found.smoothed) < 100
    assert np.isfinite(found.losses).all()


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.SGD(optim.OneCycle(0.1, steps=10), momentum=0.9),
        optim.Adam(optim.ReduceOnPlateau(0.1), clip=optim.ClipNorm(1.0)),
        "adamw",
    ],
)
def test_every_optimizer_and_schedule_will_do(optimizer: Any) -> None:
    assert lr_find(line(optimizer=optimizer), (points()[0], points()[0][:, :1])).suggestion > 0


def test_the_picture_shows_the_suggestion(tmp_path: Path) -> None:
    found = lr_find(classifier(), points(), steps=30)
    root = ElementTree.parse(found.plot(tmp_path / "rates.svg")).getroot()
    texts = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert f"suggestion {found.suggestion:.2g}" in texts
    assert "learning rate" in texts


@pytest.mark.parametrize("wrong", [{"lowest": 0.0}, {"lowest": 2.0, "highest": 1.0}, {"steps": 1}])
def test_a_range_without_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="lr_find"):
        lr_find(line(), points(), **wrong)


def test_data_with_nan_is_an_error_that_says_so() -> None:
    x = np.full((50, 2), np.nan, np.float32)
    with pytest.raises(ConfigError, match="nan in the data"):
        lr_find(line(), (x, x[:, :1]))


def test_a_trained_model_is_refused_and_a_new_one_is_not() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(256, 4)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int64")
    layers = lambda: [nn.Input((4,)), nn.Dense(8, activation="relu"), nn.Dense(2)]  # noqa: E731
    model = NeuralNetwork(layers(), learning_rate=0.05)
    assert model.lr_find((x, y)).suggestion > 1e-4
    model.fit(x, y, epochs=30, verbose=0)
    with pytest.raises(ConfigError, match="trained for 240 steps"):
        model.lr_find((x, y))
    # Other data, of which it knows nothing, suggest a rate again.
    assert model.lr_find((x, 1 - y)).suggestion > 1e-4
