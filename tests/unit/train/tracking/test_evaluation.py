"""What is written down of predictions on test data, against oracles that count one by one."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import caldera as cd
from caldera import nn
from caldera.draw.charts import thumbnail
from caldera.errors import DataError
from caldera.train.tracking import evaluation
from caldera.train.tracking.evaluation import calibration, roc
from caldera.train.tracking.run_folder import _check_classes
from caldera.train.tracking.summary import blocks_of


@pytest.mark.parametrize("seed", range(5))
def test_the_area_under_roc_is_the_part_of_pairs_in_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    # Few different scores, so that many are equal.
    scores = random.integers(0, 6 + 40 * (seed % 2), 60) / 50
    positive = random.random(60) < 0.4
    pairs = [np.sign(a - b) for a in scores[positive] for b in scores[~positive]]
    found = roc(scores, positive)
    assert found.area == pytest.approx((np.mean(pairs) + 1) / 2)
    assert (found.false_positive[0], found.true_positive[0]) == (0, 0)
    assert (found.false_positive[-1], found.true_positive[-1]) == (1, 1)
    assert np.all(np.diff(found.false_positive) >= 0)


def test_a_class_without_samples_has_no_curve() -> None:
    found = roc(np.array([0.1, 0.9]), np.array([False, False]))
    assert np.isnan(found.area)
    assert found.true_positive == []


def test_calibration_counts_by_certainty() -> None:
    likely = np.array([[0.91, 0.09], [0.95, 0.05], [0.55, 0.45], [1.0, 0.0]])
    low, high = calibration(likely, np.array([0, 1, 0, 0]))
    assert (low.samples, low.accuracy) == (1, 1.0)
    assert (high.samples, high.accuracy) == (3, pytest.approx(2 / 3))
    assert high.confidence == pytest.approx((0.91 + 0.95 + 1.0) / 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_what_samples_look_like(channels: int) -> None:
    sample = np.zeros((channels, 4, 5), "float32")
    sample[:, 1, 2] = 1.0
    with Image.open(io.BytesIO(base64.b64decode(thumbnail(sample)))) as picture:
        assert picture.size == (5, 4)
        assert np.asarray(picture)[1, 2].max() == 255
        assert np.asarray(picture).sum() == 255 * channels
    large = thumbnail(np.random.default_rng(0).normal(size=(channels, 300, 200)))
    with Image.open(io.BytesIO(base64.b64decode(large))) as picture:
        assert max(picture.size) == 96
    assert thumbnail(np.full((1, 3, 3), np.nan)) != ""
    assert thumbnail(np.zeros((2, 8, 8))) == ""


class Fixed(nn.Layer):
    """Gives a given linear function of its input."""

    def __init__(self, weights: np.ndarray) -> None:
        super().__init__()
        self.weights = weights.astype("float32")

    def forward(self, x: object) -> object:
        return cd.op.matmul(x, cd.tensor(self.weights))


def _model(data: cd.data.Dataset, weights: np.ndarray, **options: object) -> cd.NeuralNetwork:
    model = cd.NeuralNetwork([nn.Input(data.shape), Fixed(weights)], **options)
    model.predict(data.test.x[:1])
    return model


def test_mistakes_counts_and_columns_of_a_classifier() -> None:
    x = np.random.default_rng(1).normal(size=(300, 3)).astype("float32")
    labels = (x[:, 0] > 0).astype("int64")
    labels[::17] ^= 1
    data = cd.data.arrays(x, labels, test=0.5)
    weights = np.zeros((3, 2))
    weights[0] = (-2, 2)
    counts, found = evaluation.tested_classes(_model(data, weights), data)
    assert found is not None
    x, y = data.test.x, data.test.y
    said = (x[:, 0] > 0).astype(int)
    assert y is not None
    expected = [[int(((y == a) & (said == b)).sum()) for b in (0, 1)] for a in (0, 1)]
    assert counts == expected
    sure = 1 / (1 + np.exp(-4 * np.abs(x[:, 0])))
    wrong = np.flatnonzero(said != y)
    order = wrong[np.argsort(-sure[wrong])]
    assert [each.sample for each in found.mistakes] == order[:18].tolist()
    first = found.mistakes[0]
    assert first.confidence == pytest.approx(sure[order[0]], rel=1e-5)
    assert first.confidence + first.probability == pytest.approx(1)
    assert first.picture == ""
    assert found.train == np.bincount(data.train.y).tolist()
    assert found.columns[0].name == "column 1"
    assert found.columns[0].loss > 0.2
    assert [each.loss for each in found.columns[1:]] == [0.0, 0.0]


def test_two_classes_from_one_number() -> None:
    x = np.linspace(-1, 1, 40).reshape(-1, 1).astype("float32")
    data = cd.data.arrays(x, (x[:, 0] > 0.2).astype("int64"), test=0.5)
    model = _model(data, np.ones((1, 1)), loss="binary_cross_entropy")
    counts, found = evaluation.tested_classes(model, data)
    assert found is not None
    assert counts is not None
    assert np.sum(counts) == 20
    assert found.roc[0].area == 1.0
    assert {(each.true, each.predicted) for each in found.mistakes} == {(0, 1)}


def test_values() -> None:
    x = np.random.default_rng(2).normal(size=(100, 2)).astype("float32")
    data = cd.data.arrays(x, x[:, :1] + 0.5, classes=False)
    model = _model(data, np.array([[1.0], [0.0]]), loss="mse")
    pairs, found = evaluation.tested_values(model, data)
    assert found is not None
    assert pairs is not None
    true = np.array(pairs)[:, 0]
    assert found.root_mean_square == pytest.approx(0.5)
    assert found.mean_absolute == pytest.approx(0.5)
    assert found.r2 == pytest.approx(1 - 0.25 / np.var(true))
    assert [each.name for each in found.columns] == ["column 1", "column 2"]
    assert found.columns[1].loss == 0.0


def test_blocks_of_a_network_with_a_way_around() -> None:
    inside = [nn.Dense(4, activation="relu"), nn.Dense(4)]
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(4), nn.Residual(inside), nn.Dense(2)])
    found = blocks_of(model)
    reads = {each.path: each.reads for each in found}
    assert [each.kind for each in found].count("Dense") == 4
    assert found[0].reads == [-1]
    # The last layer reads the sum: what went through the block, and what went around it.
    assert len(reads[found[-1].path]) == 2
    assert sum(each.parameters for each in found) == nn.count_parameters(model)


def test_what_does_not_fit_together_is_refused() -> None:
    x = np.random.default_rng(1).normal(size=(40, 3)).astype("float32")
    data = cd.data.arrays(x, x.argmax(axis=1), test=0.5)
    _, good = evaluation.tested_classes(_model(data, np.eye(3)[::-1]), data)
    assert good is not None
    _check_classes(good, 3)
    wrong = good.mistakes[0]
    curve = good.roc[0]
    for bad in (
        replace(good, mistakes=[replace(wrong, true=3)]),
        replace(good, train=[1, 2]),
        replace(good, train=[1, 2, -3]),
        replace(good, roc=good.roc[:2]),
        replace(good, roc=[replace(curve, true_positive=[]), *good.roc[1:]]),
        replace(
            good,
            roc=[
                replace(curve, false_positive=[np.nan] * len(curve.false_positive)),
                *good.roc[1:],
            ],
        ),
        replace(good, calibration=[replace(good.calibration[0], accuracy=2.0)]),
        replace(good, calibration=[replace(good.calibration[0], samples=0)]),
    ):
        with pytest.raises(DataError, match=r"run\.json"):
            _check_classes(bad, 3)


def test_learning_rates_go_with_a_history(tmp_path: Path) -> None:
    data = cd.data.digits()
    layers = [nn.Input(data.shape), nn.Flatten(), nn.Dense(10)]
    rate = cd.optim.StepDecay(0.1, every=23, factor=0.5)
    model = cd.NeuralNetwork(layers, optimizer=cd.optim.SGD(rate), batch_size=64, epochs=3)
    history = model.fit(data.train, verbose=0)
    assert history.learning_rates == pytest.approx([0.05, 0.025, 0.0125])
    again = cd.History.from_dict(history.to_dict())
    assert again.learning_rates == history.learning_rates
    assert again == history
    with pytest.raises(DataError, match="learning rates"):
        cd.History.from_dict({**history.to_dict(), "learning_rates": [0.1] * 4})
