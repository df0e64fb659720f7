"""Losses of regions, values and vectors against their formulas in NumPy, and against PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import CalderaError
from caldera.nn.losses import (
    Contrastive,
    CosineDistance,
    Dice,
    Focal,
    GaussianLikelihood,
    LogCosh,
    Loss,
    MeanAbsolutePercentage,
    MeanSquaredLogarithmic,
    Poisson,
    Quantile,
    SquaredHinge,
    Triplet,
    Tversky,
)

RNG = np.random.default_rng(3)
X, T = RNG.normal(size=(6, 4)) * 2, RNG.normal(size=(6, 4))
YES = RNG.integers(0, 2, size=(6, 4)).astype(float)
IMAGES, CLASSES = RNG.normal(size=(2, 3, 4, 5)), RNG.integers(0, 3, size=(2, 4, 5))
P = 1 / (1 + np.exp(-X))
SHARES = np.exp(IMAGES) / np.exp(IMAGES).sum(1, keepdims=True)
HOT = np.eye(3)[CLASSES].transpose(0, 3, 1, 2)
VECTORS = RNG.normal(size=(6, 3, 4))


def tversky(p: np.ndarray, y: np.ndarray, alpha: float, beta: float, axes: Any) -> np.ndarray:
    hits = (p * y).sum(axes)
    return 1 - hits / (hits + alpha * (p * (1 - y)).sum(axes) + beta * ((1 - p) * y).sum(axes))


def focal(alpha: float | None, gamma: float) -> np.ndarray:
    right = np.where(YES == 1, P, 1 - P)
    weight = 1 if alpha is None else np.where(YES == 1, alpha, 1 - alpha)
    return (-weight * (1 - right) ** gamma * np.log(right)).mean(1)


def distance(i: int) -> np.ndarray:
    return np.sqrt(((VECTORS[:, 0] - VECTORS[:, i]) ** 2).sum(1))


RIGHT = np.take_along_axis(SHARES, CLASSES[:, None], 1)[:, 0]
LEVELS = np.array([0.1, 0.5, 0.8, 0.9])
CASES: dict[str, tuple[Loss, Any, Any, Any]] = {
    "focal": (Focal(), X, YES, focal(None, 2.0)),
    "focal with weights": (Focal(1.5, 0.25), X, YES, focal(0.25, 1.5)),
    "focal of no power": (Focal(0.0), X, YES, focal(None, 0.0)),
    "focal of classes": (
        Focal(2.0, 0.25, axis=1),
        IMAGES,
        CLASSES,
        (-0.25 * (1 - RIGHT) ** 2 * np.log(RIGHT)).mean((1, 2)),
    ),
    "tversky": (Tversky(0.3, 0.7), X, YES, tversky(P, YES, 0.3, 0.7, 1)),
    "dice": (Dice(), X, YES, 1 - 2 * (P * YES).sum(1) / (P + YES).sum(1)),
    "dice of classes": (
        Dice(axis=1),
        IMAGES,
        CLASSES,
        tversky(SHARES, HOT, 0.5, 0.5, (2, 3)).mean(1),
    ),
    "log_cosh": (LogCosh(), X, T, np.log(np.cosh(X - T)).mean(1)),
    "mape": (MeanAbsolutePercentage(), X, T, (100 * np.abs((X - T) / T)).mean(1)),
    "msle": (
        MeanSquaredLogarithmic(),
        X,
        np.abs(T),
        ((np.log1p(np.maximum(X, 0)) - np.log1p(np.abs(T))) ** 2).mean(1),
    ),
    "squared_hinge": (
        SquaredHinge(),
        X,
        2 * YES - 1,
        (np.maximum(1 - X * (2 * YES - 1), 0) ** 2).mean(1),
    ),
    "quantile": (Quantile(0.2), X, T, np.where(T > X, 0.2 * (T - X), 0.8 * (X - T)).mean(1)),
    "quantiles": (
        Quantile(LEVELS.tolist()),
        X,
        T[:, 0],
        np.where(T[:, :1] > X, LEVELS * (T[:, :1] - X), (1 - LEVELS) * (X - T[:, :1])).mean(1),
    ),
    "poisson": (Poisson(), X, np.abs(T), (np.exp(X) - np.abs(T) * X).mean(1)),
    "poisson of rates": (Poisson(log_rate=False), P, YES, (P - YES * np.log(P)).mean(1)),
    "gaussian": (
        GaussianLikelihood(),
        X,
        T[:, :2],
        (X[:, 2:] / 2 + (X[:, :2] - T[:, :2]) ** 2 / np.exp(X[:, 2:]) / 2).mean(1),
    ),
    "cosine": (
        CosineDistance(),
        X,
        T,
        1 - (X * T).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(T, axis=1),
    ),
    "contrastive": (
        Contrastive(3.0),
        VECTORS[:, :2],
        YES[:, 0],
        np.where(YES[:, 0] == 1, distance(1) ** 2, np.maximum(3 - distance(1), 0) ** 2),
    ),
    "triplet": (
        Triplet(0.5),
        VECTORS,
        np.zeros(6),
        np.maximum(distance(1) - distance(2) + 0.5, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_their_formulas(name: str) -> None:
    loss, x, target, wanted = CASES[name]
    np.testing.assert_allclose(loss.per_sample(cd.tensor(x), cd.tensor(target)), wanted, rtol=1e-5)
    shape, dtype = loss.target_spec(x.shape)
    assert (shape, dtype.kind) == (target.shape, target.dtype.kind)
    loss.check_targets(target)


@pytest.mark.parametrize("name", CASES)
def test_their_slopes_are_finite_at_extremes(name: str) -> None:
    loss, x, target, _ = CASES[name]
    for value in (-80.0, 0.0, 80.0):
        at = op.var("x", x.shape, fill=np.full(x.shape, value), dtype="float32")
        kind = "int64" if target.dtype.kind == "i" else "float32"
        slope = op.grad(loss(at, cd.tensor(target.astype(kind))), at).numpy()
        assert np.isfinite(slope).all(), value


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("poisson", lambda f, x, t: f.poisson_nll_loss(x, t, log_input=True)),
        ("poisson of rates", lambda f, x, t: f.poisson_nll_loss(x, t, log_input=False)),
        ("gaussian", lambda f, x, t: f.gaussian_nll_loss(x[:, :2], t, x[:, 2:].exp())),
        ("triplet", lambda f, x, t: f.triplet_margin_loss(x[:, 0], x[:, 1], x[:, 2], 0.5)),
        ("cosine", lambda f, x, t: (1 - f.cosine_similarity(x, t)).mean()),
    ],
)
def test_losses_and_slopes_are_those_of_pytorch(name: str, theirs: Any) -> None:
    torch = pytest.importorskip("torch")
    loss, x, target, _ = CASES[name]
    given = torch.tensor(x, requires_grad=True)
    wanted = theirs(torch.nn.functional, given, torch.tensor(target))
    wanted.backward()
    at = op.var("x", x.shape, fill=x, dtype="float64")
    found = loss(at, cd.tensor(target))
    np.testing.assert_allclose(found.item(), wanted.item(), rtol=1e-5)
    np.testing.assert_allclose(op.grad(found, at), given.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "outputs", "target"),
    [
        (Focal(axis=-1), 3, RNG.integers(0, 3, 16)),
        (Dice(), 4, RNG.integers(0, 2, (16, 4)).astype("float32")),
        (Quantile([0.1, 0.9]), 2, RNG.normal(size=16).astype("float32")),
        (Poisson(), 1, RNG.poisson(3.0, (16, 1)).astype("float32")),
        (GaussianLikelihood(), 4, RNG.normal(size=(16, 2)).astype("float32")),
        ("log_cosh", 2, RNG.normal(size=(16, 2)).astype("float32")),
    ],
)
def test_models_train_with_them_and_keep_them(
    loss: Any, outputs: int, target: np.ndarray, tmp_path: Path
) -> None:
    x = RNG.normal(size=(16, 3)).astype("float32")
    model = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(outputs)], loss=loss, seed=0, metrics=[])
    before = model.evaluate((x, target))["loss"]
    model.fit(x, target, epochs=30, verbose=0, batch_size=16)
    assert model.evaluate((x, target))["loss"] < before
    model.save(tmp_path / "model.caldera")
    assert cd.load(tmp_path / "model.caldera").loss.config() == model.loss.config()


def test_the_mean_of_what_a_loss_predicts_is_its_prediction() -> None:
    for loss in (Poisson(), Focal(), Dice(axis=1)):
        x = cd.tensor(IMAGES) * 1.0
        again = loss.meaning(loss.prediction_of(loss.meaning(x)))
        np.testing.assert_allclose(again, loss.meaning(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: Focal(-1.0), "gamma >= 0"),
        (lambda: Focal(alpha=1.0), "0 < alpha < 1"),
        (lambda: Tversky(alpha=-1.0), "alpha >= 0"),
        (lambda: Quantile(1.0), "levels between 0 and 1"),
        (lambda: Quantile([]), "levels between 0 and 1"),
        (lambda: Quantile([0.1, 0.9]).target_spec((5, 3)), r"predictions \(N, ..., 2\)"),
        (lambda: Triplet(0.0), "margin > 0"),
        (lambda: Triplet().target_spec((5, 2, 3)), r"predictions \(N, 3, C\).*op.stack"),
        (lambda: GaussianLikelihood().target_spec((5, 3)), r"predictions \(N, ..., 2 C\)"),
        (lambda: Poisson().check_targets(np.array([-1.0])), "targets of at least 0"),
        (lambda: Contrastive().check_targets(np.array([2.0])), r"targets of 1 \(alike\) and 0"),
        (lambda: Dice().check_targets(np.array([2.0])), "from 0"),
    ],
)
def test_mistakes_say_what_was_expected(write: Any, message: str) -> None:
    with pytest.raises(CalderaError, match=message):
        write()
