"""Evaluation of a model on test data: mistakes, curves, residuals, importance of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from caldera.base.arguments import require
from caldera.data import Data, Dataset, Loader, Pipeline, Schema
from caldera.data.decisions import ClassThreshold
from caldera.data.schema import FeatureSpan
from caldera.data.tables.table import MISSING, carried_columns
from caldera.draw.charts import thumbnail
from caldera.errors import DataError
from caldera.nn.losses import MULTICLASS, MULTILABEL, PredictionKind
from caldera.train.tracking.run_record import (
    CalibrationRecord,
    ClassesRecord,
    ColumnRecord,
    MistakeRecord,
    RocRecord,
    ValuesRecord,
)

if TYPE_CHECKING:
    from caldera.train.model import Model

Score = Callable[[np.ndarray, np.ndarray], float]
"""Score of predictions and targets; larger is better."""
MOST_CLASSES = 200
"""Maximum number of classes for a confusion matrix; larger ones are unreadable."""
MOST_PAIRS = 1000
"""Pairs of true and predicted values that are kept."""
MOST_MISTAKES = 18
MOST_POINTS = 80
"""Maximum number of points of a curve; more would not be visible."""
CALIBRATION_BINS = 10
_MOST_SCORED = 100_000
"""Maximum number of samples used for curves."""
_MOST_COLUMNS = 100
_MOST_IDENTIFIERS, _MOST_VALUES = 3, 6
"""Columns of a table that are shown of a mistake."""
_ROWS, _REPEATS = 2000, 5
"""Number of samples and of repetitions when columns are shuffled."""


def tested_classes(
    model: Model, data: Dataset
) -> tuple[list[list[int]] | None, ClassesRecord | None]:
    """Return the confusion matrix of the test data, and mistakes, curves and calibration."""
    outputs = next(iter(model.signature.outputs.values()))
    task = model.objective.task
    single = data.classes == 2 and outputs == (1,) and task is not None and task.kind == MULTILABEL
    if not single and (outputs != (data.classes,) or data.classes > MOST_CLASSES):
        return None, None
    counts = np.zeros((data.classes, data.classes), np.int64)
    kept: list[MistakeRecord] = []
    scores: list[np.ndarray] = []
    truth: list[np.ndarray] = []
    first = 0
    for inputs, targets, predictions in _batches(model, data.test):
        actual = class_numbers(targets, data.classes)
        likely = probabilities(predictions, task)
        said = decisions(model, likely)
        np.add.at(counts, (actual, said), 1)
        kept += _mistakes(first, inputs[0], actual, likely, said)
        kept = sorted(kept, key=lambda each: -each.confidence)[:MOST_MISTAKES]
        if first < _MOST_SCORED:
            scores.append(likely)
            truth.append(actual)
        first += len(actual)
    likely, actual = np.concatenate(scores), np.concatenate(truth)
    columns = _columns(model, data, lambda found, y: _accuracy(found, y, data.classes))
    return counts.tolist(), ClassesRecord(
        train=_counts(data),
        mistakes=_with_rows(kept, data, [each.name for each in columns]),
        # With two classes, the curve of class 0 is the reflection of the curve of class 1.
        roc=[
            roc(likely[:, each], actual == each)
            for each in range(1 if data.classes == 2 else 0, data.classes)
        ],
        calibration=calibration(likely, actual),
        columns=columns,
    )


def has_ends(model: Model) -> bool:
    """Return True if a model predicts the ends of an interval after each value."""
    return model.schema is not None and model.schema.interval is not None


def tested_values(
    model: Model, data: Dataset
) -> tuple[list[list[float]] | None, ValuesRecord | None]:
    """Return pairs of true and predicted values, and their error measures."""
    if next(iter(model.signature.outputs.values())) != (1,) and not has_ends(model):
        return None, None
    both = [
        np.stack([targets.reshape(-1), predictions[:, 0]], axis=1).astype(np.float64)
        for _, targets, predictions in _batches(model, data.test)
    ]
    pairs = np.concatenate(both)
    target = data.schema.target if data.schema is not None else None
    return pairs[:MOST_PAIRS].tolist(), ValuesRecord(
        name=target.name if target else "",
        r2=_r2(pairs[:, 1:], pairs[:, 0]),
        mean_absolute=float(np.abs(pairs[:, 1] - pairs[:, 0]).mean()),
        root_mean_square=float(np.sqrt(np.square(pairs[:, 1] - pairs[:, 0]).mean())),
        columns=_columns(model, data, _r2),
    )


def _batches(
    model: Model, samples: Data
) -> Iterator[tuple[Sequence[np.ndarray], np.ndarray, np.ndarray]]:
    for batch in Loader(samples, model.batch_size, shuffle=False):
        *inputs, targets = batch.arrays
        yield inputs, targets, model.predict(*inputs)


def class_numbers(targets: np.ndarray, classes: int) -> np.ndarray:
    if targets.ndim == 2 and targets.shape[1] == classes > 1:
        return targets.argmax(axis=1)
    return targets.reshape(-1).astype(np.int64)


def probabilities(predictions: np.ndarray, task: PredictionKind | None) -> np.ndarray:
    """Convert predictions to a probability of each class."""
    found = predictions.astype(np.float64)
    if found.shape[1] == 1:
        yes = 0.5 + 0.5 * np.tanh(found / 2) if task is not None and task.logits else found
        return np.concatenate([1 - yes, yes], axis=1)
    are_distributions = (found >= 0).all() and np.allclose(found.sum(axis=1), 1, atol=1e-3)
    if (task is not None and task.kind == MULTICLASS and not task.logits) or are_distributions:
        return found
    powers = np.exp(found - found.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def decisions(model: Model, likely: np.ndarray) -> np.ndarray:
    """Return the classes that a model predicts for rows of probabilities, by its threshold."""
    return likely.argmax(axis=1) if model.schema is None else model.schema.chosen(likely)


class BestThreshold(NamedTuple):
    """Threshold with the largest F1, and this F1."""

    probability: float
    f1: float


def best_threshold(likely: np.ndarray, positive: np.ndarray) -> BestThreshold:
    """Return the probability from which to predict a class for the largest F1.

    >>> best_threshold(np.array([0.9, 0.3, 0.2, 0.1]), np.array([True, True, False, False]))
    BestThreshold(probability=0.25, f1=1.0)
    """
    order = np.argsort(-likely, kind="stable")
    levels, right = likely[order], np.cumsum(positive[order])
    f1 = 2 * right / (np.arange(1, len(likely) + 1) + positive.sum())
    # Rows of equal probability are on one side.
    ends = np.append(np.flatnonzero(np.diff(levels)), len(levels) - 1)
    best = int(ends[f1[ends].argmax()])
    below = levels[best + 1] if best + 1 < len(levels) else 0.0
    return BestThreshold(float((levels[best] + below) / 2), float(f1[best]))


def choose_threshold(model: Model, samples: Data, probability: float | None) -> ClassThreshold:
    """Set the threshold of the rarer of two classes; see `Model.choose_threshold`."""
    known, outputs = model.schema or Schema(), list(model.signature.outputs.values())
    task = model.objective.task
    require(
        outputs in ([(2,)], [(1,)]) and task is not None and task.kind in (MULTICLASS, MULTILABEL),
        "choose_threshold",
        "a model of two classes",
        f"one with outputs of shape {outputs}",
    )
    parts = [(class_numbers(y, 2), probabilities(p, task)) for _, y, p in _batches(model, samples)]
    require(bool(parts), "choose_threshold", "samples", "none", error=DataError)
    actual, likely = (np.concatenate(each) for each in zip(*parts, strict=True))
    rarer = int(np.bincount(actual, minlength=2).argmin())
    if probability is None:
        probability = best_threshold(likely[:, rarer], actual == rarer).probability
    classes = known.classes or ("0", "1")
    found = ClassThreshold(classes[rarer], probability)
    model.schema = replace(known, classes=classes, threshold=found)
    return found


# --- mistakes


def _mistakes(
    first: int, inputs: np.ndarray, actual: np.ndarray, likely: np.ndarray, said: np.ndarray
) -> list[MistakeRecord]:
    """Return the most confident of the mistakes in a batch."""
    sure = np.take_along_axis(likely, said[:, None], axis=1)[:, 0]
    wrong = np.flatnonzero((said != actual) & np.isfinite(sure))
    chosen = wrong[np.argsort(-sure[wrong], kind="stable")][:MOST_MISTAKES]
    return [
        MistakeRecord(
            sample=first + int(each),
            true=int(actual[each]),
            predicted=int(said[each]),
            confidence=float(sure[each]),
            probability=float(likely[each, actual[each]]),
            picture=thumbnail(inputs[each]),
        )
        for each in chosen
    ]


def _with_rows(
    mistakes: Sequence[MistakeRecord], data: Dataset, important: Sequence[str]
) -> list[MistakeRecord]:
    """The mistakes with line, identifiers and values of their rows, important columns first."""
    table, schema = data.test.table, data.schema
    if table is None or schema is None:
        return list(mistakes)
    found = {} if table.row_word == "row" else {table.row_word: list(map(str, table.rows))}
    carried = carried_columns(table, schema.ignored)
    found |= dict(list(carried.items())[:_MOST_IDENTIFIERS])
    columns = sorted(
        schema.columns, key=lambda column: [*important, column.title].index(column.title)
    )
    for each in columns[:_MOST_VALUES]:
        place = table.names.index(each.name) if each.name in table.names else each.position
        found[each.title] = [MISSING if text is None else text for text in table.texts(place)]
    return [
        replace(mistake, row={name: texts[mistake.sample] for name, texts in found.items()})
        for mistake in mistakes
    ]


# --- curves


def roc(scores: np.ndarray, positive: np.ndarray) -> RocRecord:
    """Return the ROC curve of scores: true-positive rate by false-positive rate.

    >>> roc(np.array([0.9, 0.8, 0.3, 0.1]), np.array([True, False, True, False])).area
    0.75
    """
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    found, others = int(positive.sum()), int((~positive).sum())
    if not found or not others:
        return RocRecord(float("nan"), [], [])
    # Samples of equal score cannot be separated: the curve passes them in one step.
    ends = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    right = np.concatenate([[0.0], np.cumsum(positive)[ends] / found])
    wrong = np.concatenate([[0.0], np.cumsum(~positive)[ends] / others])
    area = float(np.trapezoid(right, wrong))
    keep = np.unique(np.round(np.linspace(0, len(right) - 1, MOST_POINTS)).astype(int))
    return RocRecord(area, wrong[keep].tolist(), right[keep].tolist())


def calibration(likely: np.ndarray, actual: np.ndarray) -> list[CalibrationRecord]:
    """Return the accuracy of predictions by confidence of the model."""
    sure = likely.max(axis=1)
    right = likely.argmax(axis=1) == actual
    known = np.isfinite(sure)
    bins = np.clip((sure[known] * CALIBRATION_BINS).astype(int), 0, CALIBRATION_BINS - 1)
    found = []
    for each in np.unique(bins):
        inside = bins == each
        found.append(
            CalibrationRecord(
                float(sure[known][inside].mean()),
                float(right[known][inside].mean()),
                int(inside.sum()),
            )
        )
    return found


def _counts(data: Dataset) -> list[int]:
    """Return the number of training samples of each class; empty if not known."""
    if isinstance(data.train, Pipeline) and data.train.changes_targets:
        return []
    targets = data.train.y
    if targets is None or not len(targets):
        return []
    numbers = class_numbers(targets, data.classes)
    return np.bincount(numbers, minlength=data.classes)[: data.classes].tolist()


# --- which columns matter


def _columns(model: Model, data: Dataset, score: Score) -> list[ColumnRecord]:
    """Return the loss of score when the values of each column are shuffled.

    That is permutation importance (Breiman 2001; Fisher, Rudin and Dominici 2019). It uses samples
    that the model was not trained with, and the model's results rather than its weights.
    """
    spans = _spans(data)
    if not 1 < len(spans) <= _MOST_COLUMNS or len(model.signature.inputs) != 1:
        return []
    x, y = data.test.batch(np.arange(min(len(data.test), _ROWS)))[:2]
    whole = score(model.predict(x), y)
    random = np.random.default_rng(0)
    found = []
    for name, start, stop in spans:
        losses = []
        for _ in range(_REPEATS):
            mixed = x.copy()
            mixed[:, start:stop] = random.permutation(x[:, start:stop])
            losses.append(whole - score(model.predict(mixed), y))
        found.append(ColumnRecord(name, float(np.mean(losses)), float(np.std(losses))))
    return sorted(found, key=lambda each: -each.loss)


def _spans(data: Dataset) -> list[FeatureSpan]:
    """Return the columns of a table, each with its features; none if the samples are no rows."""
    if len(data.shape) != 1:
        return []
    known = data.schema.spans if data.schema is not None else ()
    if known and known[-1].stop == data.shape[0]:
        return list(known)
    return [FeatureSpan(f"column {place + 1}", place, place + 1) for place in range(data.shape[0])]


def _accuracy(predictions: np.ndarray, targets: np.ndarray, classes: int) -> float:
    single = predictions.shape[1] == 1
    said = predictions[:, 0] > 0 if single else predictions.argmax(axis=1)
    return float((said == class_numbers(targets, classes)).mean())


def _r2(predictions: np.ndarray, targets: np.ndarray) -> float:
    true = targets.reshape(-1).astype(np.float64)
    spread = np.square(true - true.mean()).sum()
    apart = np.square(predictions[:, 0] - true).sum()
    return float(1 - apart / spread) if spread else float("nan")
