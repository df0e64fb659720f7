"""Leaderboard of a table: results of a model and of simple models on the same held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.data import Dataset
from caldera.data.schema import Schema
from caldera.data.sources.base import Data
from caldera.nn.losses import REGRESSION
from caldera.train.tables.folds import FOLDS, Rows, fold_numbers, mean_loss
from caldera.train.tables.linear import linear_members
from caldera.train.tracking.evaluation import calibration, class_numbers, has_ends, probabilities
from caldera.train.tracking.history import shown_number
from caldera.train.tracking.run_record import LeaderRecord

if TYPE_CHECKING:
    from caldera.train.model import Model

Array = np.ndarray
OURS = "this model"
_MOST_CELLS = 100_000_000
"""Maximum number of features of all training rows for which simple models are fitted."""
_MOST_BOOSTED = 100_000
"""Maximum number of training rows for gradient boosting."""
_MOST_CATEGORIES = 255
"""Maximum number of categories of a column that scikit-learn treats as categories."""


def leaderboard(model: Model, data: Dataset) -> list[LeaderRecord]:
    """Return the results of the constant answer, simple models and the model on the test rows.

    Simple models are fitted to the training rows: a linear model and, if LightGBM or scikit-learn
    is installed, gradient boosting with its usual settings. The list is empty for data other than
    tables.
    """
    if not has_leaderboard(model, data):
        return []
    (x, y), (test, actual) = (rows_of(part, data.classes) for part in (data.train, data.test))
    found = {"constant answer": _constant(y, data.classes, len(test))}
    if len(y) >= 2 * FOLDS and x.size <= _MOST_CELLS:
        found["linear model"] = _linear(x, y, data.classes, test)
        assert data.schema is not None
        found |= _boosted(x[:_MOST_BOOSTED], y[:_MOST_BOOSTED], data.classes, test, data.schema)
    found[OURS] = meaning_of(model, test)
    return [leader(name, each, actual, data.classes) for name, each in found.items()]


def has_leaderboard(model: Model, data: Dataset) -> bool:
    """Return True for a model of the classes or of the single value of a table with test rows."""
    outputs = list(model.signature.outputs.values())
    is_table = data.schema is not None and bool(data.schema.columns) and len(data.shape) == 1
    is_usual = outputs in ([(data.classes or 1,)], [(1,)]) or has_ends(model)
    is_usual = is_usual and model.objective.task is not None
    return is_table and is_usual and data.classes != 1 and min(len(data.train), len(data.test)) > 1


def rows_of(samples: Data, classes: int) -> tuple[Array, Array]:
    """Return features and targets: class numbers, or values."""
    x, y = samples.batch(np.arange(len(samples)))[:2]
    return x, class_numbers(y, classes) if classes else y.reshape(len(y)).astype(np.float64)


def meaning_of(model: Model, x: Array) -> Array:
    """Return the probability of each class, or the values that a model predicts."""
    task, outputs = model.objective.task, model.predict(x)
    assert task is not None
    is_value = task.kind == REGRESSION
    return outputs[:, 0].astype(np.float64) if is_value else probabilities(outputs, task)


def leader(name: str, meaning: Array, actual: Array, classes: int) -> LeaderRecord:
    """Return the scores of predictions: probabilities of classes, or values.

    >>> leader("half", np.full((4, 2), 0.5), np.array([0, 0, 1, 1]), 2).score
    0.5
    >>> leader("mean", np.full(3, 2.0), np.array([1.0, 2.0, 3.0]), 0).score
    0.0
    """
    loss = mean_loss(actual, meaning, bool(classes))
    if classes:
        score = float((meaning.argmax(axis=1) == actual).mean())
        bins = calibration(meaning, actual)
        apart = sum(each.samples * abs(each.accuracy - each.confidence) for each in bins)
        return LeaderRecord(name, loss, score, apart / max(len(actual), 1))
    spread = float(np.square(actual - actual.mean()).mean())
    score = 1 - loss / spread if spread else float("nan")
    bias = abs(float((meaning - actual).mean()))
    return LeaderRecord(name, loss**0.5, score, bias / (spread**0.5 or 1.0))


def leader_rows(leaders: Sequence[LeaderRecord], classes: int) -> list[list[str]]:
    """Return the leaderboard as rows of texts, with the names of its measures first.

    >>> for row in leader_rows([LeaderRecord("linear model", 0.3251, 0.875, 0.021)], 2):
    ...     print(row)
    ['on the test data', 'log-loss', 'accuracy', 'calibration error']
    ['linear model', '0.3251', '87.5%', '2.1%']
    """
    measures = ["log-loss", "accuracy", "calibration error"]
    measures = measures if classes else ["error (RMSE)", "R\u00b2", "mean error / deviation"]
    rows = [
        [
            each.name,
            shown_number(each.loss),
            f"{each.score:.1%}" if classes else f"{each.score:.3f}",
            f"{each.calibration:.1%}",
        ]
        for each in leaders
    ]
    return [["on the test data", *measures], *rows]


def _constant(y: Array, classes: int, count: int) -> Array:
    """Return the shares of the classes, or the mean value, for each row."""
    if not classes:
        return np.full(count, y.mean())
    shares = np.bincount(y, minlength=classes) / len(y)
    return np.tile(shares, (count, 1))


def _linear(x: Array, y: Array, classes: int, test: Array) -> Array:
    """Return the predictions of a linear model whose penalty is chosen in five folds."""
    mean, scale = (0.0, 1.0) if classes else (float(y.mean()), float(y.std()) or 1.0)
    targets = y if classes else (y - mean) / scale
    rows = Rows(x, targets, fold_numbers(y, FOLDS), FOLDS, classes or 1, bool(classes))
    found = linear_members(rows)
    outputs = (test @ found.weight + found.bias).astype(np.float64)
    meaning = rows.meaning(outputs[:, None])
    return meaning if classes else mean + scale * meaning[:, 0]


def _boosted(x: Array, y: Array, classes: int, test: Array, schema: Schema) -> dict[str, Array]:
    """Return the predictions of gradient boosting by its name; none if no library has it."""
    columns, categories = plain_columns(x, schema)
    new, _ = plain_columns(test, schema)
    fitters: Mapping[str, tuple[str, Callable[..., Array]]] = {
        "lightgbm": ("gradient boosting (LightGBM)", _lightgbm),
        "sklearn": ("gradient boosting (scikit-learn)", _scikit_learn),
    }
    for package, (name, fitted) in fitters.items():
        if find_spec(package) is not None:
            return {name: fitted(columns, y, classes, categories, new)}
    return {}


def plain_columns(x: Array, schema: Schema) -> tuple[Array, list[int]]:
    """Return features as trees take them, and the places of categories among them.

    Numbers that were missing are NaN, and a category is a number.
    """
    parts, categories, place = [], [], 0
    for column, (_, start, stop) in zip(schema.columns, schema.spans, strict=True):
        part = x[:, start:stop].astype(np.float64)
        if column.category is not None:
            known = part.any(axis=1)
            part = np.where(known, part.argmax(axis=1), np.nan)[:, None]
            categories.append(place)
        elif column.number is not None and column.number.marks_missing:
            part = np.where(part[:, 1:] > 0, np.nan, part[:, :1])
        parts.append(part)
        place += part.shape[1]
    return np.concatenate(parts, axis=1), categories


def _lightgbm(x: Array, y: Array, classes: int, categories: list[int], test: Array) -> Array:
    library: Any = import_module("lightgbm")
    objective = "multiclass" if classes > 2 else "binary" if classes else "regression"
    # With several threads its barriers take most of the time where other processes run too.
    settings = {"objective": objective, "verbose": -1, "seed": 0, "num_threads": 1}
    settings |= {"num_class": classes} if classes > 2 else {}
    rows = library.Dataset(x, y, categorical_feature=categories)
    found = library.train(settings, rows).predict(test)
    return np.stack([1 - found, found], axis=1) if classes == 2 else found


def _scikit_learn(x: Array, y: Array, classes: int, categories: list[int], test: Array) -> Array:
    library: Any = import_module("sklearn.ensemble")
    with import_module("threadpoolctl").threadpool_limits(1):
        return _histogram_boosting(library, x, y, classes, categories, test)


def _histogram_boosting(
    library: Any, x: Array, y: Array, classes: int, categories: list[int], test: Array
) -> Array:
    few = [each for each in categories if not np.nanmax(x[:, each], initial=0) >= _MOST_CATEGORIES]
    settings = {"categorical_features": few or None, "random_state": 0}
    if not classes:
        return library.HistGradientBoostingRegressor(**settings).fit(x, y).predict(test)
    model = library.HistGradientBoostingClassifier(**settings).fit(x, y)
    found = np.zeros((len(test), classes))
    found[:, model.classes_] = model.predict_proba(test)
    return found
