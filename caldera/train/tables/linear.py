"""Linear members: ridge and logistic regression, with the best penalty out of fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from caldera.train.tables.folds import Array, Rows, softmax

PENALTIES = (0.3, 1.0, 3.0, 30.0, 300.0)
"""Factors of the squared weights in the sum of losses."""
_MOST_PRECISE = 4_000_000
_MOST_STEPS = 300
_TOLERANCE = 1e-4
"""Change of the logits of a step at which logistic regression ends."""


class LinearMembers(NamedTuple):
    """A linear model of all rows, and predictions out of fold of models with the same penalty."""

    weight: Array
    bias: Array
    predictions: Array
    penalty: float


def linear_members(rows: Rows) -> LinearMembers:
    """Choose the penalty by linear models of each fold, and fit all rows with it.

    >>> x = np.linspace(-1, 1, 40, dtype="float32")[:, None]
    >>> found = linear_members(Rows(x, 2 * x[:, 0] + 1, np.arange(40) % 2, 2, 1, False))
    >>> found.weight.round().ravel().tolist(), found.bias.round().ravel().tolist()
    ([2.0], [1.0])
    """
    outputs = np.zeros((len(PENALTIES), len(rows.targets), rows.outputs))
    for fold in range(rows.count):
        learnt, held_out = np.flatnonzero(rows.folds != fold), rows.of(fold)
        weight, bias = _fitted(rows, learnt, PENALTIES)
        outputs[:, held_out] = rows.x[held_out].astype(np.float64) @ weight + bias[:, None]
    held_out = rows.held_out
    meanings = [rows.meaning(each[held_out][:, None]) for each in outputs]
    losses = [rows.loss(held_out, each) for each in meanings]
    best = int(np.nanargmin(losses))
    predictions = np.zeros_like(outputs[0])
    predictions[held_out] = meanings[best]
    (weight,), (bias,) = _fitted(rows, np.arange(len(rows.targets)), PENALTIES[best : best + 1])
    return LinearMembers(
        weight.astype(np.float32), bias.astype(np.float32), predictions, PENALTIES[best]
    )


def _fitted(rows: Rows, learnt: Array, factors: Sequence[float]) -> tuple[Array, Array]:
    """Return weights (penalties, features, outputs) and biases of the rows that are learnt from."""
    # Float64 doubles the memory: only for small tables.
    x = rows.x[learnt].astype(np.float64 if rows.x.size < _MOST_PRECISE else np.float32)
    given = np.ones(len(x)) if rows.weights is None else rows.weights[learnt].astype(np.float64)
    total = given.sum()
    centre = given @ x / total
    x = x - centre.astype(x.dtype)
    # Along the eigenvectors of the features' covariance, each penalty is a division.
    values, vectors = np.linalg.eigh((x * given[:, None].astype(x.dtype)).T @ x)
    rotated = x @ vectors
    values = np.maximum(values, 0.0)
    penalties = np.asarray(factors)[:, None]
    if not rows.classes:
        y = rows.targets[learnt].astype(np.float64)
        mean = float(given @ y / total)
        slopes = (rotated.T @ (given * (y - mean))) / (values + penalties)
        weight = (slopes @ vectors.T)[:, :, None]
        return weight, mean - centre @ weight
    slopes, bias = _logistic(rotated, rows.targets[learnt], rows.outputs, given, values, penalties)
    weight = vectors @ slopes
    return weight, bias - centre @ weight


def _logistic(
    x: Array, targets: Array, classes: int, given: Array, values: Array, penalties: Array
) -> tuple[Array, Array]:
    """Return the weights and biases of logistic regression, for each penalty.

    A step divides the gradient by Böhning's bound of the curvature (1992), which needs no search;
    Nesterov's momentum accelerates it and restarts where the gradient turns.
    """
    penalties = penalties[:, None]
    hot = np.eye(classes)[targets] * given[:, None]
    shares = np.maximum(hot.sum(axis=0), 0.5) / given.sum()
    weight = np.zeros((len(penalties), x.shape[1], classes))
    bias = np.tile(np.log(shares), (len(penalties), 1, 1))
    ahead_weight, ahead_bias, momentum = weight, bias, 1.0
    curvature = 0.5 * values[:, None] + penalties
    for _ in range(_MOST_STEPS):
        wrong = softmax(x @ ahead_weight + ahead_bias) * given[:, None] - hot
        slope = (x.T @ wrong + penalties * ahead_weight) / curvature
        level = wrong.sum(axis=1, keepdims=True) / (0.5 * given.sum())
        new_weight, new_bias = ahead_weight - slope, ahead_bias - level
        moved = new_weight - weight
        if (slope * moved).sum() > 0:
            momentum = 1.0
        following = 0.5 + (0.25 + momentum**2) ** 0.5
        factor = (momentum - 1) / following
        ahead_weight = new_weight + factor * moved
        ahead_bias = new_bias + factor * (new_bias - bias)
        weight, bias, momentum = new_weight, new_bias, following
        scale = np.sqrt(values / given.sum())[:, None]
        if np.abs(moved * scale).max() < _TOLERANCE:
            break
    return weight, bias[:, 0]
