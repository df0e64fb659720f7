"""Blends of members on tables: folds, linear models, weights, and the trained network."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import CalderaError, DataError
from caldera.nn.losses import CrossEntropy, MeanSquared
from caldera.train.tables import members, training
from caldera.train.tables.blending import TargetCurve, best_temperature, blend_weights
from caldera.train.tables.folds import FoldLoss, Rows, fold_numbers, softmax
from caldera.train.tables.intervals import with_interval
from caldera.train.tables.linear import PENALTIES, linear_members

RANDOM = np.random.default_rng(5)


def rows_of(count: int = 60, classes: int = 3, folds: int = 5) -> Rows:
    x = RANDOM.normal(size=(count, 4)).astype("float32")
    y = (x[:, 0] + 0.3 * RANDOM.normal(size=count) > 0).astype(np.int64)
    y[x[:, 1] > 1] = classes - 1
    return Rows(x, y, fold_numbers(y, folds), folds, classes, True)


# --- folds


def test_folds_are_even_and_have_similar_targets() -> None:
    y = np.r_[np.zeros(80), np.ones(20)]
    found = fold_numbers(y, 5, seed=3)
    assert np.ptp(np.bincount(found)) <= 1
    assert np.bincount(found[y == 1], minlength=5).tolist() == [4, 4, 4, 4, 4]
    assert not np.array_equal(found, fold_numbers(y, 5, seed=4))


@pytest.mark.parametrize("classes", [True, False])
def test_the_loss_leaves_out_the_members_of_a_rows_fold(classes: bool) -> None:
    z = RANDOM.normal(size=(7, 6, 3 if classes else 1)).astype("float32")
    folds, members = RANDOM.integers(0, 4, 7), (0, 0, 1, 1, 2, 2)
    y = RANDOM.integers(0, 3, 7)
    kind = "int64" if classes else "float32"
    found = FoldLoss(members, CrossEntropy() if classes else MeanSquared()).per_sample(
        cd.tensor(z) * 1.0, cd.tensor(np.stack([y, folds], 1).astype(kind))
    )
    for n in range(7):
        learns = [m for m, fold in enumerate(members) if fold != folds[n]]
        if classes:
            losses = [-np.log(softmax(z[n, m])[y[n]]) for m in learns]
        else:
            losses = [(z[n, m, 0] - y[n]) ** 2 for m in learns]
        assert found.numpy()[n] == pytest.approx(np.mean(losses), rel=1e-5)


def test_intervals_are_wide_where_errors_are_large_and_cover_new_rows() -> None:
    random = np.random.default_rng(5)
    x = random.uniform(-1, 1, (700, 2)).astype("float32")
    errors = np.where(x[:, 0] > 0, 4.0, 0.5) * random.exponential(size=700)
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(1, fill=cd.zero())], loss="mean_squared")
    found = with_interval(model, x[:400], errors[:400], 0.8)
    value, low, high = found.predict(x[400:]).T
    assert not value.any()
    inside = (errors[400:] >= low) & (errors[400:] <= high)
    assert 0.7 < inside.mean() < 0.9
    is_wide, width = x[400:, 0] > 0.1, high - low
    assert width[is_wide].mean() > 2 * width[x[400:, 0] < -0.1].mean()
    assert inside[is_wide].mean() > 0.65
    # Few rows and errors that depend on nothing: intervals of almost equal width.
    few = with_interval(model, x[:40], errors[random.permutation(40)], 0.8, seconds=0.2)
    assert np.ptp(few.predict(x)[:, 2]) < 2 * errors.std()
    assert few.evaluate(x, errors[:, None])["mae"] == pytest.approx(errors.mean(), rel=1e-4)


def test_members_never_learn_from_the_rows_of_their_fold() -> None:
    rows = rows_of(40, 2)
    weights = []
    for changed in (False, True):
        y = rows.targets.copy()
        y[rows.folds == 1] = 1 - y[rows.folds == 1] if changed else y[rows.folds == 1]
        model = cd.NeuralNetwork(
            [
                nn.Input((4,)),
                nn.EnsembleDense(6, 10, 5, activation="relu"),
                nn.EnsembleDense(2, 10, 10),
            ],
            loss=FoldLoss(tuple(np.repeat(range(5), 2).tolist()), CrossEntropy()),
            metrics=[],
            learning_rate=0.01,
        )
        model.fit((rows.x, np.stack([y, rows.folds], 1)), epochs=2, verbose=0)
        weights.append([each.numpy() for each in model.parameters()])
    for before, after in zip(*weights, strict=True):
        size = len(before) // 5
        assert np.array_equal(before[size : 2 * size], after[size : 2 * size])
        assert not np.array_equal(before[:size], after[:size])


# --- members beside scikit-learn


def test_linear_members_are_those_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    rows = rows_of(80)
    found = linear_members(rows)
    assert found.penalty in PENALTIES
    for fold in range(5):
        learnt = rows.folds != fold
        known = linear_model.LogisticRegression(C=1 / found.penalty, max_iter=5000, tol=1e-8)
        known.fit(rows.x[learnt], rows.targets[learnt])
        likely = known.predict_proba(rows.x[~learnt])
        assert np.abs(found.predictions[~learnt] - likely).max() < 5e-3
    likely = known.fit(rows.x, rows.targets).predict_proba(rows.x)
    assert np.abs(softmax(rows.x @ found.weight + found.bias) - likely).max() < 5e-3
    y = rows.x @ [1.0, -2.0, 0.5, 0.0] + RANDOM.normal(size=80)
    given = RANDOM.uniform(0.5, 2, 80)
    values = Rows(rows.x, y, rows.folds, 5, 1, False, given)
    found = linear_members(values)
    ridge = linear_model.Ridge(alpha=found.penalty).fit(rows.x, y, sample_weight=given)
    assert np.allclose(found.weight[:, 0], ridge.coef_, atol=1e-4)
    assert np.allclose(found.bias[0], ridge.intercept_, atol=1e-4)


# --- blending


def test_better_members_weigh_more_and_few_rows_keep_weights_equal() -> None:
    for count, low, high in ((400, 0.8, 1.0), (10, 0.5, 0.75)):
        rows = rows_of(count, 2)
        right = np.eye(2)[rows.targets] * 0.6 + 0.2
        weights = blend_weights(rows, [right, 1 - right])
        assert weights.sum() == pytest.approx(1)
        assert low < weights[0] < high
        values = Rows(rows.x, rows.x[:, 0].astype(float), rows.folds, 5, 1, False)
        good, bad = values.targets[:, None] + 0.1, values.targets[:, None] + 2.0
        assert blend_weights(values, [bad, good])[1] > 0.6


@pytest.mark.parametrize("classes", [True, False])
def test_equally_good_members_weigh_as_their_prior(classes: bool) -> None:
    rows = rows_of(60, 2)
    right = np.eye(2)[rows.targets] * 0.6 + 0.2
    if not classes:
        rows = Rows(rows.x, rows.x[:, 0].astype(float), rows.folds, 5, 1, False)
        right = rows.targets[:, None] + 0.1
    assert blend_weights(rows, [right] * 3, [0.15, 0.15, 0.7])[2] == pytest.approx(0.7, abs=0.01)


def test_a_temperature_is_used_only_where_it_surely_helps() -> None:
    rows = rows_of(600, 2)
    logits = RANDOM.normal(size=(600, 2)) * 2
    y = (RANDOM.random(600) < softmax(logits)[:, 1]).astype(np.int64)
    rows = Rows(rows.x, y, rows.folds, 5, 2, True)
    assert best_temperature(rows, softmax(logits)) == 1.0
    assert 1.5 < best_temperature(rows, softmax(logits * 2)) < 2.6
    few = Rows(rows.x[:6], y[:6], rows.folds[:6], 5, 2, True)
    assert 0.3 < best_temperature(few, softmax(logits[:6])) < 3


def test_curves_of_targets_are_undone() -> None:
    y = np.r_[0.0, RANDOM.lognormal(2, 1, 50)]
    for is_log in (False, True):
        curve = TargetCurve.of(y, is_log)
        assert np.allclose(curve.undone(curve.applied(y)), y)
    rate, factor, start, least, most = curve.within(TargetCurve(3.0, 2.0), y)
    values = curve.applied(y)
    assert least < values.min() < values.max() < most
    assert np.allclose(3.0 + 2.0 * (start + factor * np.exp(rate * values)), y)


def test_a_blend_is_the_weighted_mean_of_its_branches() -> None:
    x = RANDOM.normal(size=(5, 3)).astype("float32")
    one, two = nn.Dense(2), nn.EnsembleDense(2, 4, 4)
    z, w = one(x).numpy(), two(x).numpy()
    found = nn.Blend([one, two], [0.3, 0.7], classes=True, temperature=2.0)(x).numpy()
    mixed = 0.3 * softmax(z) + 0.7 * softmax(w).mean(axis=1)
    assert np.allclose(found, np.log(mixed) / 2, atol=1e-5)
    found = nn.Blend([one, two], [0.5, 0.5], curve=(0.5, 2.0, -1.0, -1.0, 1.0))(x).numpy()
    each = [-1 + 2 * np.exp(0.5 * np.clip(v, -1, 1)) for v in (z, w.mean(axis=1))]
    assert np.allclose(found, (each[0] + each[1]) / 2, atol=1e-5)
    for bad in ({"weights": [1.0]}, {"weights": [1.0, float("nan")]}, {"temperature": 0.0}):
        with pytest.raises(CalderaError):
            nn.Blend([one, two], **{"weights": [0.5, 0.5], **bad})


def test_embedded_columns_of_members_are_separate() -> None:
    x = RANDOM.normal(size=(6, 9)).astype("float32")
    layer = nn.ColumnEmbedding([(1, 5), (6, 9)], 2, members=3)
    found = layer(x).numpy()
    assert found.shape == (6, 3, 2 + 2 + 2)
    first, second = (each.numpy() for each in layer.weights)
    for member in range(3):
        parts = [x[:, :1], x[:, 5:6], x[:, 1:5] @ first[member], x[:, 6:9] @ second[member]]
        assert np.allclose(found[:, member], np.concatenate(parts, axis=1), atol=1e-6)
    assert np.allclose(layer(np.repeat(x[:, None], 3, axis=1)).numpy(), found, atol=1e-6)


# --- from a table to a model


@pytest.fixture(scope="module")
def homes() -> tuple[cd.data.Dataset, cd.TableRun]:
    random = np.random.default_rng(0)
    area, city = random.uniform(20, 200, 90), random.choice(["Oslo", "Roma"], 90)
    price = np.exp(area / 60 + (city == "Oslo") + 0.1 * random.normal(size=90)) * 1000
    found = cd.data.table({"area": area, "city": city, "price": price}, "price")
    return found, cd.train_table(found, seconds=0.5)


def test_a_skewed_target_is_learnt_as_its_logarithm(
    homes: tuple[cd.data.Dataset, cd.TableRun], tmp_path: Path
) -> None:
    found, run = homes
    assert run.notes
    assert run.results["r2"] > 0.6
    assert len(run.rows) == len(found.train)
    assert np.array_equal(run.targets, found.train.y[run.rows, 0])
    again = cd.load(run.model.save(tmp_path / "homes.caldera"))
    outputs = run.model.predict(found.test.x)
    assert np.array_equal(again.predict(found.test.x), outputs)
    assert np.sqrt(np.mean((outputs - found.test.y) ** 2)) < found.test.y.std()
    assert again.evaluate(found.test)["mae"] == pytest.approx(
        np.abs(outputs - found.test.y).mean(), rel=1e-4
    )
    reasons = again.explain([{"area": 190.0, "city": "Roma"}])
    assert reasons.largest(1)[0][0].column == "area"
    assert sum(run.weights.values()) == pytest.approx(1)


def test_classes_with_weights_folds_and_gaps() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(80, 2))
    kind = np.where(x[:, 0] > 0.8, "rare", "usual")
    x[random.random(80) < 0.1, 1] = np.nan
    table = {"a": x[:, 0], "b": x[:, 1], "kind": kind}
    found = cd.data.table(table, "kind", test=0)
    folds = np.arange(80) % 3
    run = cd.train_table(found, seconds=0.3, folds=folds, class_weights="balanced")
    assert set(run.folds) == {0, 1, 2}
    assert run.predictions.shape == (80, 2)
    assert np.allclose(run.predictions.sum(axis=1), 1, atol=1e-5)
    assert run.results["accuracy"] > 0.8
    assert list(run.model.schema.classes) == ["rare", "usual"]
    names = run.model.schema.decode(run.model.predict([{"a": 3.0, "b": 0.0}]))["kind"]
    assert names.tolist() == ["rare"]


def test_time_that_is_left_trains_more_members(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"a": n / 40, "b": (n * 7) % 11, "y": n / 20} for n in range(40)]
    found = cd.data.table(rows, "y", test=0)
    ticks, rounds = itertools.count(), list[int]()

    def counted(*given: Any, **named: Any) -> Any:
        rounds.append(1)
        return members.fit_members(*given, **named)

    # Each round takes one second of this clock.
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr(training, "time", clock)
    monkeypatch.setattr(training, "fit_members", counted)
    for seconds, expected in ((0.001, 1), (3.2, 2)):
        run = cd.train_table(found, seconds=seconds)
        assert len(rounds) == expected
        assert np.isfinite(run.predictions).all()
        rounds.clear()


def test_bad_arguments_are_refused() -> None:
    rows = [{"a": n, "y": n / 2} for n in range(20)]
    found = cd.data.table(rows, "y", test=0)
    for name, bad in (
        ("seconds", -1),
        ("seconds", "long"),
        ("seed", 1.5),
        ("folds", [0, 1]),
        ("folds", [0] * 20),
        ("folds", [0.5] * 20),
        ("sample_weights", [1.0]),
        ("class_weights", "balanced"),
    ):
        with pytest.raises(CalderaError, match=name.partition("_")[2][:6] or name):
            cd.train_table(found, **{name: bad})
    with pytest.raises(CalderaError):
        cd.train_table(rows)
    gaps = cd.data.arrays(np.full((20, 2), np.nan, "float32"), np.arange(20) % 2)
    with pytest.raises(DataError, match="finite"):
        cd.train_table(gaps)


def test_a_table_too_small_or_of_images_is_refused() -> None:
    rows = [{"a": n, "y": n / 2} for n in range(9)]
    with pytest.raises(DataError, match="at least 10 rows"):
        cd.train_table(cd.data.table(rows, "y", test=0))
    with pytest.raises(DataError, match="rows of numbers"), warnings.catch_warnings():
        cd.train_table(cd.data.digits())
