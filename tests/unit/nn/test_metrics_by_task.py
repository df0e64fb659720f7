"""Every metric against scikit-learn's, for every kind of target that a loss can have.

The kind is the loss's to say. What makes no sense for it is refused, by a model at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.nn.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Hinge,
    Huber,
    KullbackLeibler,
    Loss,
    MeanSquared,
    losses,
)
from caldera.nn.metrics import (
    AUC,
    F1,
    R2,
    Accuracy,
    ConfusionMatrix,
    MeanAbsoluteError,
    MeanSquaredError,
    Metric,
    Precision,
    Recall,
    TopK,
    metrics,
)

known = pytest.importorskip("sklearn.metrics")
RNG = np.random.default_rng(4)
COUNT = 24
WEIGHTS = RNG.integers(0, 4, COUNT).astype(float)
both = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])


def measured(
    loss: Loss, found: list[Metric], prediction: Any, target: Any, weights: np.ndarray | None
) -> list[Any]:
    """Metrics for the targets of a loss, over two batches."""
    bound = [metric.for_task(loss.task()) for metric in found]
    totals: list[dict[str, np.ndarray]] = [{} for _ in bound]
    for part in (slice(0, 9), slice(9, None)):
        own = None if weights is None else cd.tensor(weights[part])
        sums = [m.sums(cd.tensor(prediction[part]), cd.tensor(target[part]), own) for m in bound]
        values = iter(cd.compile([each for one in sums for each in one.values()]).run())
        for total, one in zip(totals, sums, strict=True):
            for name in one:
                total[name] = total.get(name, 0.0) + next(values).numpy()
    return [metric.result(total) for metric, total in zip(bound, totals, strict=True)]


def averages(truth: np.ndarray, said: np.ndarray, **more: Any) -> list[float]:
    given = {"average": "macro", "zero_division": 0, **more}
    names = (known.precision_score, known.recall_score, known.f1_score)
    return [each(truth, said, **given) for each in names]


BY_CLASS: list[Metric] = [Precision(), Recall(), F1()]
EACH_CLASS: list[Metric] = [Precision(per_class=True), Recall(per_class=True), F1(per_class=True)]


@both
def test_classes(weights: np.ndarray | None) -> None:
    logits, labels = RNG.normal(size=(COUNT, 4)), RNG.integers(0, 4, COUNT)
    said, more = logits.argmax(1), {"sample_weight": weights}
    expected = [
        known.accuracy_score(labels, said, **more),
        *averages(labels, said, **more),
        known.top_k_accuracy_score(labels, logits, k=2, **more),
    ]
    chosen: list[Metric] = [Accuracy(), *BY_CLASS, TopK(2)]
    found = measured(CrossEntropy(), chosen, logits, labels, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    each = measured(CrossEntropy(), EACH_CLASS, logits, labels, weights)
    np.testing.assert_allclose(each, averages(labels, said, average=None, **more), rtol=1e-12)
    (matrix,) = measured(CrossEntropy(), [ConfusionMatrix()], logits, labels, weights)
    np.testing.assert_allclose(matrix, known.confusion_matrix(labels, said, **more))
    rows = np.eye(4)[labels]
    for loss in (CrossEntropy(probabilities=True), KullbackLeibler()):
        np.testing.assert_allclose(measured(loss, chosen, logits, rows, weights), expected)


@both
def test_classes_along_another_axis(weights: np.ndarray | None) -> None:
    """As many classes as positions: only the loss knows which is which."""
    logits, labels = RNG.normal(size=(COUNT, 3, 3)), RNG.integers(0, 3, (COUNT, 3))
    said, flat = logits.argmax(1).ravel(), labels.ravel()
    more = {"sample_weight": None if weights is None else np.repeat(weights, 3)}
    expected = [known.accuracy_score(flat, said, **more), *averages(flat, said, **more)]
    found = measured(CrossEntropy(axis=1), [Accuracy(), *BY_CLASS], logits, labels, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    (matrix,) = measured(CrossEntropy(axis=1), [ConfusionMatrix()], logits, labels, weights)
    np.testing.assert_allclose(matrix, known.confusion_matrix(flat, said, **more))


@both
def test_sequences(weights: np.ndarray | None) -> None:
    logits, labels = RNG.normal(size=(COUNT, 5, 3)), RNG.integers(0, 3, (COUNT, 5))
    said, flat = logits.argmax(2).ravel(), labels.ravel()
    more = {"sample_weight": None if weights is None else np.repeat(weights, 5)}
    found = measured(CrossEntropy(), [Accuracy(), *BY_CLASS], logits, labels, weights)
    expected = [known.accuracy_score(flat, said, **more), *averages(flat, said, **more)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@both
@pytest.mark.parametrize("low", [0.0, -1.0], ids=["cross-entropy", "hinge"])
def test_two_classes(low: float, weights: np.ndarray | None) -> None:
    loss: Loss = Hinge() if low else BinaryCrossEntropy()
    logits, truth = RNG.normal(size=(COUNT, 1)), RNG.integers(0, 2, (COUNT, 1))
    target = np.where(truth, 1.0, low)
    said, true, more = logits[:, 0] > 0, truth[:, 0], {"sample_weight": weights}
    found = measured(loss, [Accuracy(), *BY_CLASS], logits, target, weights)
    expected = [known.accuracy_score(true, said, **more)]
    expected += averages(true, said, average="binary", **more)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    (matrix,) = measured(loss, [ConfusionMatrix()], logits, target, weights)
    np.testing.assert_allclose(matrix, known.confusion_matrix(true, said, **more))


@both
def test_labels_of_which_several_can_be_right(weights: np.ndarray | None) -> None:
    logits, truth = RNG.normal(size=(COUNT, 4)), RNG.integers(0, 2, (COUNT, 4)).astype(float)
    truth[:, 3], more = 0.0, {"sample_weight": weights}
    for threshold in (None, 0.7):
        limit = 0.5 if threshold is None else threshold
        said = 1 / (1 + np.exp(-logits)) > limit
        chosen = [type(each)(threshold=threshold) for each in (Accuracy(), *BY_CLASS)]
        found = measured(BinaryCrossEntropy(), chosen, logits, truth, weights)
        expected = [1 - known.hamming_loss(truth, said, **more), *averages(truth, said, **more)]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    said = logits > 0
    each = measured(BinaryCrossEntropy(), EACH_CLASS, logits, truth, weights)
    np.testing.assert_allclose(each, averages(truth, said, average=None, **more), rtol=1e-12)


def test_images_of_labels() -> None:
    """Where they lie has to be said: an image has more axes than samples and labels."""
    logits, truth = RNG.normal(size=(COUNT, 2, 3, 3)), RNG.integers(0, 2, (COUNT, 2, 3, 3))
    said = np.moveaxis(logits > 0, 1, -1).reshape(-1, 2)
    true, factors = np.moveaxis(truth, 1, -1).reshape(-1, 2), np.repeat(WEIGHTS, 9)
    chosen: list[Metric] = [Precision(axis=1), Recall(axis=1), F1(axis=1)]
    target = truth.astype(float)
    found = measured(BinaryCrossEntropy(), chosen, logits, target, WEIGHTS)
    np.testing.assert_allclose(found, averages(true, said, sample_weight=factors), rtol=1e-12)
    with pytest.raises(cd.ShapeError, match="f1: expected axis= of the labels"):
        measured(BinaryCrossEntropy(), [F1()], logits, target, None)
    with pytest.raises(
        cd.ShapeError, match=r"a single label, or mutually exclusive classes.*F1\(per_class=True\)"
    ):
        measured(BinaryCrossEntropy(), [ConfusionMatrix(axis=1)], logits, target, None)


@both
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3)])
def test_values(shape: tuple[int, ...], weights: np.ndarray | None) -> None:
    target = RNG.normal(size=(COUNT, *shape)) + 5
    prediction, more = target + RNG.normal(size=target.shape) * 0.3, {"sample_weight": weights}
    chosen: list[Metric] = [MeanAbsoluteError(), MeanSquaredError(), R2()]
    found = measured(Huber(), chosen, prediction, target, weights)
    a, b = target.reshape(COUNT, -1), prediction.reshape(COUNT, -1)
    judges = (known.mean_absolute_error, known.mean_squared_error, known.r2_score)
    np.testing.assert_allclose(found, [each(a, b, **more) for each in judges], rtol=1e-10)
    truth = (target > 5).astype(float)
    (share,) = measured(MeanSquared(), [Accuracy(threshold=0.5)], truth, truth, weights)
    assert share == 1.0


ONLY_VALUES = ("mae", "mse", "r2", "rmse", "mape", "pearson")
OF_DISTRIBUTIONS = {"poisson", "gaussian_likelihood", "gaussian_nll", "contrastive", "triplet"}
"""Losses whose predictions are compared with targets by no metric."""
OF_SEQUENCES = ("cer", "wer")


def ours(family: Any) -> list[str]:
    """Names that no test has registered."""
    return [name for name in family if family[name].__module__.startswith("caldera.nn.")]


def test_most_losses_say_what_they_predict() -> None:
    silent = {name for name in ours(losses) if losses.make(name).task() is None}
    assert silent == OF_DISTRIBUTIONS


@pytest.mark.parametrize("name", [each for each in ours(losses) if each not in OF_DISTRIBUTIONS])
def test_every_metric_is_for_a_loss_or_refused(name: str) -> None:
    task = losses.make(name).task()
    assert task is not None
    for metric in ours(metrics):
        made = metrics.make(metric)
        fits = (made.name in ONLY_VALUES) == (task.kind == "regression")
        fits = fits and (metric in OF_SEQUENCES) == (task.kind == "sequence")
        fits = fits and not (metric == "top_k" and task.kind == "multi-label")
        if fits:
            assert made.for_task(task).name == made.name
            continue
        with pytest.raises(cd.ConfigError, match=f"{made.name}: expected a loss of"):
            made.for_task(task)


class Quartic(Loss):
    """One that does not say what it is about."""

    def per_sample(self, prediction: Any, target: Any) -> Any:
        return op.mean((prediction - target) ** 4, axis=1)


def test_without_a_task_nothing_is_guessed() -> None:
    numbers = cd.tensor(RNG.normal(size=(4, 3)))
    for made in (Accuracy(), F1(), ConfusionMatrix()):
        with pytest.raises(
            cd.ShapeError, match=r"pass axis=-1 for one-hot .*threshold= for several labels"
        ):
            made.for_task(Quartic().task()).sums(numbers, numbers)
    assert Accuracy(axis=-1).sums(numbers, numbers)["sum"].item() == 4
    with pytest.raises(cd.ConfigError, match="no threshold where the largest output decides"):
        Accuracy(threshold=0.5).for_task(CrossEntropy().task())
    with pytest.raises(cd.ConfigError, match="between 0 and 1, for probabilities, got 2"):
        Accuracy(threshold=2).for_task(BinaryCrossEntropy().task())
    with pytest.raises(cd.ShapeError, match="after the sample axis"):
        Accuracy(axis=0).sums(numbers, numbers)


# --- models


def test_a_model_of_several_labels_counts_those_that_are_right() -> None:
    x = RNG.normal(size=(64, 5)).astype("float32")
    y = (x @ RNG.normal(size=(5, 4)) > 0).astype("float32")
    layers = [nn.Input((5,)), nn.Dense(4)]
    model = cd.NeuralNetwork(layers, loss="binary_cross_entropy", learning_rate=0.1)
    history = model.fit((x, y), epochs=4, verbose=0)
    right = np.mean((model.predict(x) > 0) == y)
    assert model.evaluate((x, y))["accuracy"] == pytest.approx(right)
    assert history["accuracy"][-1] > 0.7


def made(**settings: Any) -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((5,)), nn.Dense(4)], **settings)


def test_a_model_refuses_metrics_that_make_no_sense() -> None:
    with pytest.raises(cd.ConfigError, match=r"accuracy: .*got one of values; use .*'mae'"):
        made(loss="mse", metrics=["accuracy"])
    with pytest.raises(cd.ConfigError, match="mae: expected a loss of values"):
        made(loss="binary_cross_entropy", metrics=["mae"])
    with pytest.raises(cd.ConfigError, match="distinct names, got accuracy, accuracy"):
        made(loss="binary_cross_entropy", metrics=["accuracy", Accuracy(threshold=0.9)])
    with pytest.raises(cd.ConfigError, match=r"metrics=\['accuracy'\]"):
        made(metrics="accuracy")


@pytest.mark.parametrize(
    ("loss", "usual"),
    [("cross_entropy", "accuracy"), ("kl", "accuracy"), ("hinge", "accuracy"), ("huber", "mae")],
)
def test_usual_metrics(loss: str, usual: str) -> None:
    assert [each.name for each in made(loss=loss).metrics] == [usual]


# --- the order of samples


@both
@pytest.mark.parametrize("scale", [0.5, 8.0])
def test_the_area_under_the_curve(weights: np.ndarray | None, scale: float) -> None:
    def expected(target: np.ndarray, scores: np.ndarray) -> float:
        return known.roc_auc_score(
            target, scores, sample_weight=weights, multi_class="ovr", average="macro"
        )

    label = (np.arange(COUNT) % 3 == 0).astype(float)
    scores = RNG.normal(size=(COUNT, 3)) * scale
    (found,) = measured(
        BinaryCrossEntropy(), [AUC(bins=1 << 18)], scores[:, :1], label[:, None], weights
    )
    assert found == pytest.approx(expected(label, scores[:, 0]), abs=1e-12)
    labels = np.stack([label, 1 - label, np.arange(COUNT) % 2], 1)
    (found,) = measured(BinaryCrossEntropy(), [AUC(bins=1 << 18)], scores, labels, weights)
    assert found == pytest.approx(expected(labels, scores), abs=1e-12)
    classes = np.arange(COUNT) % 3
    odds = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    fine = [AUC(bins=1 << 18), AUC(bins=1 << 18, per_class=True)]
    found, each = measured(CrossEntropy(), fine, scores, classes, weights)
    assert found == pytest.approx(expected(classes, odds), abs=1e-12)
    assert each == pytest.approx([expected(classes == k, odds[:, k]) for k in range(3)])


def test_the_area_of_a_class_that_never_occurs_is_not_known() -> None:
    scores, classes = RNG.normal(size=(COUNT, 3)), np.arange(COUNT) % 2
    found, each = measured(CrossEntropy(), [AUC(), AUC(per_class=True)], scores, classes, None)
    assert np.isnan(each).tolist() == [False, False, True]
    assert found == pytest.approx(each[:2].mean())
    scores[3, 0] = np.nan
    (found,) = measured(CrossEntropy(), [AUC()], scores, classes, None)
    assert np.isnan(found)
    certain = np.where(classes == 1, np.inf, -np.inf)[:, None]
    (found,) = measured(BinaryCrossEntropy(), [AUC()], certain, classes[:, None] * 1.0, None)
    assert found == 1.0


def test_a_model_learns_to_put_samples_in_order() -> None:
    x = RNG.normal(size=(64, 2)).astype("float32")
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], metrics=["auc"], learning_rate=0.1)
    assert model.fit(x, (x[:, 0] > 0).astype(int), epochs=5, verbose=0)["auc"][-1] > 0.9
