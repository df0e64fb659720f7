"""Losses against plain NumPy; weights, padding, parts of a batch, targets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.nn.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Hinge,
    Huber,
    KullbackLeibler,
    Loss,
    MeanAbsolute,
    MeanSquared,
    losses,
)

RNG = np.random.default_rng(1)
LOGITS = RNG.normal(size=(6, 4)) * 3
LABELS = np.array([0, 3, 1, 2, 2, 0])
TRUTHS = RNG.integers(0, 2, size=(6, 4)).astype(float)


def _log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return x - np.log(np.sum(np.exp(x), axis=axis, keepdims=True))


def _distributions(x: np.ndarray) -> np.ndarray:
    return np.exp(_log_softmax(x))


CASES: dict[str, tuple[Loss, np.ndarray, np.ndarray]] = {
    "cross_entropy": (CrossEntropy(), LABELS, -_log_softmax(LOGITS)[np.arange(6), LABELS]),
    "smoothed": (
        CrossEntropy(label_smoothing=0.1),
        LABELS,
        -np.sum((0.9 * np.eye(4)[LABELS] + 0.1 / 4) * _log_softmax(LOGITS), axis=1),
    ),
    "probabilities": (
        CrossEntropy(label_smoothing=0.2, probabilities=True),
        _distributions(-LOGITS),
        -np.sum((0.8 * _distributions(-LOGITS) + 0.05) * _log_softmax(LOGITS), axis=1),
    ),
    "binary_cross_entropy": (
        BinaryCrossEntropy(),
        TRUTHS,
        np.mean(
            -TRUTHS * np.log(1 / (1 + np.exp(-LOGITS)))
            - (1 - TRUTHS) * np.log(1 / (1 + np.exp(LOGITS))),
            axis=1,
        ),
    ),
    "mean_squared": (MeanSquared(), TRUTHS, np.mean((LOGITS - TRUTHS) ** 2, axis=1)),
    "mean_absolute": (MeanAbsolute(), TRUTHS, np.mean(np.abs(LOGITS - TRUTHS), axis=1)),
    "huber": (
        Huber(delta=1.5),
        TRUTHS,
        np.mean(
            np.where(
                np.abs(LOGITS - TRUTHS) <= 1.5,
                (LOGITS - TRUTHS) ** 2 / 2,
                1.5 * (np.abs(LOGITS - TRUTHS) - 0.75),
            ),
            axis=1,
        ),
    ),
    "hinge": (
        Hinge(),
        2 * TRUTHS - 1,
        np.mean(np.maximum(0, 1 - (2 * TRUTHS - 1) * LOGITS), axis=1),
    ),
    "kl": (
        KullbackLeibler(),
        _distributions(-LOGITS),
        np.sum(_distributions(-LOGITS) * (_log_softmax(-LOGITS) - _log_softmax(LOGITS)), axis=1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_what_numpy_says(name: str) -> None:
    loss, target, expected = CASES[name]
    shape, dtype = loss.target_spec(LOGITS.shape, "float64")
    assert (shape, dtype) == (target.shape, target.dtype)
    prediction = op.input("prediction", LOGITS.shape, dtype="float64")
    wanted = op.input("target", shape, dtype=dtype)
    plan = cd.compile([loss.per_sample(prediction, wanted), loss(prediction, wanted)])
    each, mean = (t.numpy() for t in plan.run({"prediction": LOGITS, "target": target}))
    np.testing.assert_allclose(each, expected, rtol=1e-12)
    np.testing.assert_allclose(mean, expected.mean(), rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_weights_and_parts_of_a_batch_add_up(name: str) -> None:
    loss, target, expected = CASES[name]
    weights = np.array([1.0, 0.0, 2.0, 0.5, 0.0, 1.0])
    prediction = cd.tensor(LOGITS, dtype="float64")
    whole = loss(prediction, cd.tensor(target), weights)
    assert whole.item() == pytest.approx(np.sum(weights * expected) / 4.5, rel=1e-12)
    parts = [
        loss(prediction[part], cd.tensor(target[part]), weights[part], total=4.5).item()
        for part in (slice(0, 2), slice(2, 6))
    ]
    assert sum(parts) == pytest.approx(whole.item(), rel=1e-12)


def test_padding_adds_neither_loss_nor_gradient() -> None:
    w = op.var("w", (4,), fill=cd.one(), dtype="float64")
    target = np.array([0, 1, 2, 3, -1, 99])
    weights = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    padded = CrossEntropy()(cd.tensor(LOGITS, dtype="float64") * w, cd.tensor(target), weights)
    bare = CrossEntropy()(cd.tensor(LOGITS[:4], dtype="float64") * w, cd.tensor(target[:4]))
    assert padded.item() == pytest.approx(bare.item(), rel=1e-14)
    np.testing.assert_allclose(op.grad(padded, w).numpy(), op.grad(bare, w).numpy(), rtol=1e-12)
    # Without the weights a label that is no class must not pass unseen.
    assert np.isnan(CrossEntropy()(cd.tensor(LOGITS), cd.tensor(target)).item())


def test_images_and_sequences_of_logits() -> None:
    logits = RNG.normal(size=(2, 3, 4, 5))
    labels = RNG.integers(0, 3, size=(2, 4, 5))
    log = _log_softmax(logits, axis=1)
    picked = -np.take_along_axis(log, labels[:, None], axis=1)[:, 0]
    loss = CrossEntropy(axis=1)
    assert loss.target_spec((2, 3, 4, 5))[0] == (2, 4, 5)
    found = loss.per_sample(cd.tensor(logits, dtype="float64"), cd.tensor(labels))
    np.testing.assert_allclose(found.numpy(), picked.mean(axis=(1, 2)), rtol=1e-12)
    assert CrossEntropy().target_spec((2, 7, 3)) == ((2, 7), np.dtype("int64"))


def test_targets_have_the_dtype_of_the_predictions() -> None:
    assert MeanSquared().target_spec((5, 2)) == ((5, 2), np.dtype("float32"))
    assert MeanSquared().target_spec((5, 2), "float64") == ((5, 2), np.dtype("float64"))


def test_a_loss_is_found_by_its_name() -> None:
    names = {"cross_entropy", "binary_cross_entropy", "mean_squared", "mse", "mean_absolute"}
    assert names | {"mae", "huber", "hinge", "kl"} <= set(losses)
    assert losses.make("cross_entropy", label_smoothing=0.1) == CrossEntropy(0.1)
    assert losses["mse"]() == MeanSquared()
    for loss, _, _ in CASES.values():
        assert losses.from_config(loss.config()) == loss
    with pytest.raises(cd.ConfigError, match=r"loss: .*did you mean 'cross_entropy'"):
        losses.make("crossentropy")


def test_a_custom_loss_is_a_class_with_one_method() -> None:
    @losses.register("test_log_cosh")
    class LogCosh(Loss):
        def __init__(self, scale: float = 1.0) -> None:
            self.scale = scale

        def per_sample(self, prediction, target):  # type: ignore[no-untyped-def]
            error = (prediction - target) * self.scale
            return op.sum(op.log((op.exp(error) + op.exp(-error)) / 2.0), axis=1)

    loss = losses.make("test_log_cosh", scale=0.5)
    w = op.var("w", (6, 4), fill=LOGITS, dtype="float64")
    value = loss(w, cd.tensor(TRUTHS, dtype="float64"))
    error = (LOGITS - TRUTHS) / 2
    assert value.item() == pytest.approx(np.log(np.cosh(error)).sum(axis=1).mean(), rel=1e-12)
    np.testing.assert_allclose(op.grad(value, w).numpy(), np.tanh(error) / 12, rtol=1e-10)
    assert losses.from_config(loss.config()).arguments() == {"scale": 0.5}


class Total(Loss):
    """A loss that forgets the samples."""

    def per_sample(self, prediction, target):  # type: ignore[no-untyped-def]
        return op.sum(prediction - target)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: CrossEntropy(label_smoothing=1.0), cd.ConfigError, "0 <= label_smoothing < 1"),
        (lambda: Huber(delta=0.0), cd.ConfigError, "delta above 0"),
        (lambda: Total()(cd.tensor(LOGITS), cd.tensor(TRUTHS)), cd.ShapeError, "one loss for each"),
        (
            lambda: MeanSquared()(cd.tensor(LOGITS), cd.tensor(TRUTHS), np.ones(3)),
            cd.ShapeError,
            r"weights of shape \(6,\), one a sample, got \(3,\)",
        ),
        (lambda: MeanSquared()(cd.tensor(LOGITS), cd.tensor(LABELS)), cd.ShapeError, "targets in"),
        (lambda: CrossEntropy().target_spec((6,)), cd.ShapeError, "an axis of classes"),
        (lambda: CrossEntropy(axis=3).target_spec((6, 4)), cd.ShapeError, "CrossEntropy"),
    ],
)
def test_mistakes_are_named(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()
