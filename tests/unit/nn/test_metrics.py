"""Metrics against plain NumPy; weights, padding, sums over batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.errors import ConfigError
from caldera.nn.metrics import (
    F1,
    R2,
    Accuracy,
    ConfusionMatrix,
    FBeta,
    MeanAbsoluteError,
    MeanMetric,
    MeanSquaredError,
    Metric,
    Pearson,
    Precision,
    Recall,
    TopK,
    ValueMetric,
    metrics,
)

RNG = np.random.default_rng(2)
COUNT, CLASSES = 40, 6
LOGITS = RNG.normal(size=(COUNT, CLASSES))
# Class 4 has no samples but is predicted; class 5 neither occurs nor is predicted.
LOGITS[:, 5] = -9.0
LABELS = RNG.integers(0, 4, size=COUNT)
WEIGHTS = RNG.integers(0, 3, size=COUNT).astype(float)
VALUES, TARGETS = RNG.normal(size=(COUNT, 3)), RNG.normal(size=(COUNT, 3)) + 2
BINARY, TRUTHS = RNG.normal(size=(COUNT, 1)), RNG.integers(0, 2, size=(COUNT, 1)).astype(float)


def _evaluate(
    metric: Metric, prediction: np.ndarray, target: np.ndarray, weights: np.ndarray | None = None
) -> Any:
    """The metric, computed in batches of unequal size whose sums are added."""
    total: dict[str, np.ndarray] = {}
    for part in (slice(0, 7), slice(7, 24), slice(24, None)):
        own = None if weights is None else cd.tensor(weights[part])
        sums = metric.sums(cd.tensor(prediction[part]), cd.tensor(target[part]), own)
        plan = cd.compile(list(sums.values()))
        for name, value in zip(sums, plan.run(), strict=True):
            assert value.dtype == np.float64
            total[name] = total.get(name, 0.0) + value.numpy()
    return metric.result(total)


def _confusion(predicted: np.ndarray, actual: np.ndarray, weights: np.ndarray) -> np.ndarray:
    found = np.zeros((CLASSES, CLASSES))
    for row, column, weight in zip(actual, predicted, weights, strict=True):
        found[row, column] += weight
    return found


def _by_class(weights: np.ndarray) -> dict[str, list[float]]:
    """Precision, recall and F1 of each class, one at a time; nan if there is nothing of it."""
    matrix = _confusion(LOGITS.argmax(axis=1), LABELS, weights)
    names = ("precision", "recall", "f1", "f_beta", "iou")
    values: dict[str, list[float]] = {name: [] for name in names}
    for c in range(CLASSES):
        hit, claimed, there = matrix[c, c], matrix[:, c].sum(), matrix[c].sum()
        precision = hit / claimed if claimed else 0.0
        recall = hit / there if there else 0.0
        both = 2 * precision * recall / (precision + recall) if hit else 0.0
        nothing = not claimed and not there
        union = hit / (claimed + there - hit) if hit else 0.0
        for name, value in zip(names, (precision, recall, both, both, union), strict=True):
            values[name].append(np.nan if nothing else value)
    return values


def _average(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sum(values * weights) / np.sum(weights))


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
class TestAgainstNumPy:
    def test_accuracy(self, weights: np.ndarray | None) -> None:
        right = LOGITS.argmax(axis=1) == LABELS
        expected = _average(right, np.ones(COUNT) if weights is None else weights)
        assert _evaluate(Accuracy(), LOGITS, LABELS, weights) == pytest.approx(expected)
        rows = np.eye(CLASSES)[LABELS]
        assert _evaluate(Accuracy(axis=-1), LOGITS, rows, weights) == pytest.approx(expected)

    def test_top_k(self, weights: np.ndarray | None) -> None:
        factors = np.ones(COUNT) if weights is None else weights
        for k in (1, 3, CLASSES):
            best = np.argsort(-LOGITS, axis=1)[:, :k]
            expected = _average(np.any(best == LABELS[:, None], axis=1), factors)
            assert _evaluate(TopK(k), LOGITS, LABELS, weights) == pytest.approx(expected)

    @pytest.mark.parametrize("name", ["precision", "recall", "f1", "f_beta", "iou"])
    def test_by_class(self, name: str, weights: np.ndarray | None) -> None:
        expected = np.array(_by_class(np.ones(COUNT) if weights is None else weights)[name])
        found = _evaluate(metrics.make(name, per_class=True), LOGITS, LABELS, weights)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert np.isnan(expected[5])
        assert expected[4] == 0.0
        macro = _evaluate(metrics.make(name), LOGITS, LABELS, weights)
        assert macro == pytest.approx(np.nanmean(expected), rel=1e-12)

    def test_confusion_matrix(self, weights: np.ndarray | None) -> None:
        factors = np.ones(COUNT) if weights is None else weights
        expected = _confusion(LOGITS.argmax(axis=1), LABELS, factors)
        found = _evaluate(ConfusionMatrix(), LOGITS, LABELS, weights)
        np.testing.assert_array_equal(found, expected)

    def test_errors(self, weights: np.ndarray | None) -> None:
        factors = np.ones(COUNT) if weights is None else weights
        absolute = _average(np.abs(VALUES - TARGETS).mean(axis=1), factors)
        squared = _average(((VALUES - TARGETS) ** 2).mean(axis=1), factors)
        assert _evaluate(MeanAbsoluteError(), VALUES, TARGETS, weights) == pytest.approx(absolute)
        assert _evaluate(MeanSquaredError(), VALUES, TARGETS, weights) == pytest.approx(squared)

    def test_r2(self, weights: np.ndarray | None) -> None:
        factors = (np.ones(COUNT) if weights is None else weights)[:, None]
        centre = np.sum(factors * TARGETS, axis=0) / factors.sum()
        missed = np.sum(factors * (VALUES - TARGETS) ** 2, axis=0)
        spread = np.sum(factors * (TARGETS - centre) ** 2, axis=0)
        found = _evaluate(R2(), VALUES, TARGETS, weights)
        assert found == pytest.approx(np.mean(1 - missed / spread), rel=1e-10)

    def test_one_number_decides_between_two_classes(self, weights: np.ndarray | None) -> None:
        factors = np.ones(COUNT) if weights is None else weights
        said, is_true = BINARY[:, 0] > 0, TRUTHS[:, 0] > 0
        hits = np.sum(factors * (said & is_true))
        precision, recall = hits / np.sum(factors * said), hits / np.sum(factors * is_true)
        for prediction in (BINARY, BINARY[:, 0]):
            for target in (TRUTHS, TRUTHS[:, 0], TRUTHS[:, 0].astype(int), 2 * TRUTHS - 1):
                found = [
                    _evaluate(metric, prediction, target, weights)
                    for metric in (Accuracy(), Precision(), Recall(), F1())
                ]
                expected = [
                    _average(said == is_true, factors),
                    precision,
                    recall,
                    2 * precision * recall / (precision + recall),
                ]
                np.testing.assert_allclose(found, expected, rtol=1e-12)
        matrix = _evaluate(ConfusionMatrix(), BINARY, TRUTHS, weights)
        assert matrix.shape == (2, 2)
        assert matrix[1, 1] == hits


@pytest.mark.parametrize("name", ["accuracy", "f1", "confusion_matrix", "auc", "mae", "mse", "r2"])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_a_rank_without_samples_adds_nothing(name: str, shape: tuple[int, ...]) -> None:
    metric, is_number = metrics.make(name), name in ("mae", "mse", "r2")
    values = np.zeros((4, *shape)) + 1.0
    targets = values if is_number else np.zeros((4, *shape[:-1]), np.int64)
    whole = metric.sums(cd.tensor(values), cd.tensor(targets))
    nothing = metric.sums(cd.tensor(values[:0]), cd.tensor(targets[:0]))
    for key, total in whole.items():
        np.testing.assert_array_equal(nothing[key].numpy(), np.zeros_like(total.numpy()))


def test_a_threshold_decides_each_of_several_labels() -> None:
    chances = 1 / (1 + np.exp(-LOGITS))
    truths = RNG.integers(0, 2, size=LOGITS.shape).astype(float)
    expected = np.mean((chances > 0.5) == (truths > 0.5))
    assert _evaluate(Accuracy(threshold=0.5), chances, truths) == pytest.approx(expected)
    said = chances > 0.5
    claimed = said.sum(axis=0)
    hits = np.sum(said & (truths > 0), axis=0)
    precision = np.mean((hits / np.maximum(claimed, 1))[claimed + truths.sum(axis=0) > 0])
    assert _evaluate(Precision(threshold=0.5), chances, truths) == pytest.approx(precision)


def test_classes_can_lie_along_another_axis() -> None:
    images = RNG.normal(size=(30, 3, 2, 2))
    labels = RNG.integers(0, 3, size=(30, 2, 2))
    right = images.argmax(axis=1) == labels
    weights = RNG.integers(0, 2, size=30).astype(float)
    found = _evaluate(Accuracy(axis=1), images, labels, weights)
    assert found == pytest.approx(_average(right.mean(axis=(1, 2)), weights))
    found = _evaluate(ConfusionMatrix(axis=1), images, labels, weights)
    assert found.sum() == 4 * weights.sum()
    assert np.trace(found) == pytest.approx(np.sum(right * weights[:, None, None]))
    assert _evaluate(TopK(3, axis=1), images, labels) == 1.0
    first = _evaluate(TopK(1, axis=1), images, labels, weights)
    assert first == pytest.approx(_evaluate(Accuracy(axis=1), images, labels, weights))


def _suited(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and targets that a metric can be asked about."""
    if name in ("cer", "wer"):
        return RNG.normal(size=(COUNT, 4, 3)), RNG.integers(1, 3, size=(COUNT, 2))
    errors = isinstance(metrics.make(name), ValueMetric)
    return (VALUES, TARGETS) if errors else (LOGITS, LABELS)


@pytest.mark.parametrize("name", list(metrics))
def test_padding_counts_for_nothing(name: str) -> None:
    metric = metrics.make(name)
    prediction, target = _suited(name)
    filling = np.full((9, *prediction.shape[1:]), np.nan)
    weights = np.concatenate([np.ones(COUNT), np.zeros(9)])
    padded = _evaluate(
        metric,
        np.concatenate([prediction, filling]),
        np.concatenate([target, np.full((9, *target.shape[1:]), -1, dtype=target.dtype)]),
        weights,
    )
    np.testing.assert_allclose(padded, _evaluate(metric, prediction, target), rtol=1e-12)


@pytest.mark.parametrize("name", list(metrics))
def test_without_samples_there_is_no_value(name: str) -> None:
    metric = metrics.make(name)
    prediction, target = _suited(name)
    found = _evaluate(metric, prediction, target, np.zeros(COUNT))
    if name == "confusion_matrix":
        assert not found.any()
    else:
        assert np.isnan(found)


def test_r2_of_targets_that_do_not_vary() -> None:
    same = np.full((COUNT, 1), 0.1)
    assert _evaluate(R2(), same, same) == 1.0
    assert _evaluate(R2(), same + 1.0, same) == 0.0


def test_counts_are_exact_beyond_float32() -> None:
    sums = Accuracy().sums(cd.tensor([[1.0, 0.0]]), cd.tensor([0]), cd.tensor([16777217]))
    assert sums["weight"].item() == 2**24 + 1


def test_names_and_descriptions() -> None:
    known = {"accuracy", "top_k", "precision", "recall", "f1", "confusion_matrix", "mae", "mse"}
    assert known | {"r2"} <= set(metrics)
    assert [Accuracy().name, F1().name, R2().name] == ["accuracy", "f1", "r2"]
    assert TopK(3).name == "top_3"
    assert F1(per_class=True).name == "f1_per_class"
    for metric in (Accuracy(threshold=0.5), TopK(2, axis=1), F1(per_class=True), R2()):
        assert metrics.from_config(metric.config()) == metric
    with pytest.raises(cd.ConfigError, match=r"metric: .*did you mean 'accuracy'"):
        metrics.make("acuracy")


def test_a_custom_metric() -> None:
    @metrics.register("test_within")
    class Within(MeanMetric):
        def __init__(self, margin: float = 1.0) -> None:
            self.margin = margin

        def per_sample(self, prediction, target):  # type: ignore[no-untyped-def]
            return op.max(op.abs(prediction - target), axis=1) < self.margin

    metric = metrics.make("test_within", margin=2.5)
    expected = np.mean(np.abs(VALUES - TARGETS).max(axis=1) < 2.5)
    assert 0 < expected < 1
    assert _evaluate(metric, VALUES, TARGETS) == pytest.approx(expected)
    assert metric.name == "test_within"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TopK(0), cd.ConfigError, "a k >= 1"),
        (
            lambda: _evaluate(Accuracy(), LOGITS, LABELS[:, None]),
            cd.ShapeError,
            r"accuracy: .*targets of shape \(7, 1\) for predictions of \(7, 6\)",
        ),
        (
            lambda: _evaluate(MeanSquaredError(), VALUES, LABELS),
            cd.ShapeError,
            "mse: expected targets in the shape of the predictions",
        ),
        (
            lambda: _evaluate(R2(), np.ones((40, 2, 3)), np.ones((40, 3, 2))),
            cd.ShapeError,
            "r2: expected targets",
        ),
        (
            lambda: Accuracy().sums(cd.tensor(LOGITS), cd.tensor(LABELS), cd.tensor(WEIGHTS[:3])),
            cd.ShapeError,
            "weights: expected shape",
        ),
    ],
)
def test_mistakes_are_named(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_f_beta_weighs_recall() -> None:
    hits, claimed, there = np.array([3.0]), np.array([4.0]), np.array([6.0])
    precision, recall = 3 / 4, 3 / 6
    wanted = 5 * precision * recall / (4 * precision + recall)
    assert FBeta(2.0).values(hits, claimed, there) == pytest.approx(wanted)
    with pytest.raises(ConfigError, match="beta > 0"):
        FBeta(0.0)


def test_metrics_of_relative_errors_and_correlation() -> None:
    difference = VALUES - TARGETS
    of = {"rmse": np.sqrt(np.average((difference**2).mean(1), weights=WEIGHTS))}
    of["mape"] = 100 * np.average(np.abs(difference / TARGETS).mean(1), weights=WEIGHTS)
    rows = np.repeat(np.arange(COUNT), WEIGHTS.astype(int))
    of["pearson"] = np.mean(
        [np.corrcoef(VALUES[rows, i], TARGETS[rows, i])[0, 1] for i in range(3)]
    )
    for name, wanted in of.items():
        found = _evaluate(metrics.make(name), VALUES, TARGETS, WEIGHTS)
        assert found == pytest.approx(wanted, rel=1e-10), name
    far = cd.tensor(VALUES.mean(0) + 1e8)
    moved = _evaluate(Pearson().about(far), VALUES + 1e8, TARGETS + 1e8, WEIGHTS)
    assert moved == pytest.approx(of["pearson"], rel=1e-6)
    assert np.isnan(_evaluate(Pearson(), np.ones((COUNT, 1)), TRUTHS))
