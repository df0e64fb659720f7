"""Weights of members, temperature and scale, fitted to predictions out of fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caldera.train.tables.folds import Array, Rows, each_loss, softmax

PRIOR = 20.0
"""Number of rows that the prior weights count as much as."""
_STEPS = 400


def blend_weights(
    rows: Rows, predictions: Sequence[Array], prior: Sequence[float] | None = None
) -> Array:
    """Return the weights of members that minimise the loss out of fold, shrunk to `prior`.

    The prior, by default equal weights, counts as much as a few rows. Weights are at least 0, and
    their sum is 1.

    >>> y = np.arange(200) / 100.0
    >>> rows = Rows(y[:, None], y, np.arange(200) % 2, 2, 1, False)
    >>> blend_weights(rows, [y[:, None], -y[:, None]]).round(1).tolist()
    [1.0, 0.0]
    """
    chosen = rows.held_out
    given = np.ones(len(chosen)) if rows.weights is None else rows.weights[chosen]
    targets, count = rows.targets[chosen], len(predictions)
    usual = np.full(count, 1 / count) if prior is None else np.asarray(prior, float)
    weights = usual
    if rows.classes:
        own = np.stack([p[chosen, targets] for p in predictions], axis=1)
        for _ in range(_STEPS):
            # Expectation-maximisation of a mixture, with a Dirichlet prior.
            parts = weights * np.maximum(own, 1e-9)
            counts = given @ (parts / parts.sum(axis=1, keepdims=True))
            weights = (counts + PRIOR * usual) / (given.sum() + PRIOR)
        return weights
    values = np.stack([p[chosen, 0] for p in predictions], axis=1).astype(np.float64)
    errors = values - targets[:, None]
    products = (errors * given[:, None]).T @ errors / given.sum()
    pull = np.diag(products).min() * PRIOR / (given.sum() + PRIOR)
    for _ in range(_STEPS):
        # Exponentiated gradient.
        slope = products @ weights
        step = 0.5 / max(float(weights @ slope), 1e-30)
        weights = weights * np.exp(-step * (slope + pull * (weights - usual)))
        weights /= weights.sum()
    return weights


def best_temperature(rows: Rows, meaning: Array) -> float:
    """Return the temperature of probabilities that minimises the log-loss out of fold.

    A standard error of the improvement is subtracted from it, and without an improvement it is 1.
    """
    chosen = rows.held_out
    logits, targets = np.log(np.maximum(meaning[chosen], 1e-9)), rows.targets[chosen]
    given = np.ones(len(chosen)) if rows.weights is None else rows.weights[chosen]
    usual, best, temperature = each_loss(targets, softmax(logits), True), 0.0, 1.0
    for each in np.exp(np.linspace(-1.0, 1.0, 41)):
        better = given * (usual - each_loss(targets, softmax(logits / each), True))
        certain = float(better.mean() - better.std() / len(better) ** 0.5)
        if certain > best:
            best, temperature = certain, float(each)
    return temperature


@dataclass(frozen=True)
class TargetCurve:
    """Scale on which members learn a target: linear, or logarithmic, with mean 0 and deviation 1.

    A target is mean + scale * value, or exp(mean + scale * value) - shift.
    """

    mean: float
    scale: float
    is_log: bool = False
    shift: float = 0.0

    @classmethod
    def of(cls, targets: Array, is_log: bool = False) -> TargetCurve:
        """Return the scale for targets."""
        shift = 0.0
        if is_log and targets.min() <= 0:
            shift = float(targets[targets > 0].min())
        values = np.log(targets + shift) if is_log else targets
        deviation = float(values.std())
        return cls(float(values.mean()), deviation if deviation > 0 else 1.0, is_log, shift)

    def applied(self, targets: Array) -> Array:
        """Convert targets to the scale of the members."""
        values = np.log(targets + self.shift) if self.is_log else targets
        return (values - self.mean) / self.scale

    def within(self, scale: TargetCurve, targets: Array) -> tuple[float, ...]:
        """Return the curve of `nn.Blend` from values of this scale to values of `scale`."""
        values = self.applied(targets)
        factor = float(np.exp(self.mean)) / scale.scale
        start = (-self.shift - scale.mean) / scale.scale
        return self.scale, factor, start, float(values.min()) - 0.5, float(values.max()) + 0.5

    def undone(self, values: Array) -> Array:
        """Convert predictions to the unit of the targets."""
        raw = self.mean + self.scale * values
        return np.exp(raw) - self.shift if self.is_log else raw
