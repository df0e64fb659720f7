"""Which parameters the result depends on: permutation importance of a small forest.

A forest of random trees learns to tell from the parameters how a trial ranks; then the values of a
parameter are shuffled among trials that it has not seen, and its predictions become worse by as
much as it needs that parameter (Breiman 2001). Ranks, since one trial that diverged should not
decide. It is about the trials that were made: what a search soon fixed looks unimportant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from caldera.base.optional import optional_import

FEWEST = 10
"""Of fewer trials, nothing can be learned."""
_FOLDS, _TREES, _SHUFFLES = 5, 30, 4
_MOST = 400
"""Trials that are looked at: more take longer and say no more."""


@dataclass(frozen=True)
class Importance:
    """How much worse results are told apart without a parameter: a part of their variance.

    >>> Importance("learning_rate", 0.5, 0.4, 0.6).name
    'learning_rate'
    """

    name: str
    value: float
    low: float
    high: float
    """Two standard errors below and above."""


def importances(
    points: Sequence[Mapping[str, object]], values: Sequence[float]
) -> list[Importance]:
    """How important each parameter is for the values, the most important first.

    Trials whose value is not finite do not count; of fewer than ten there is no answer. Parameters
    that only some trials have are -1 in the others.

    >>> import numpy as np
    >>> rates = np.geomspace(1e-4, 1e-1, 40)
    >>> points = [{"rate": rate, "idle": i % 7} for i, rate in enumerate(rates)]
    >>> found = importances(points, np.log(rates))
    >>> [each.name for each in found], found[1].value < 0.1 < found[0].value
    (['rate', 'idle'], True)
    """
    kept = [i for i, value in enumerate(values) if math.isfinite(value)][-_MOST:]
    names = list(dict.fromkeys(name for i in kept for name in points[i]))
    if len(kept) < FEWEST or not names:
        return []
    columns = np.stack([codes([points[i].get(name) for i in kept]) for name in names], axis=1)
    ranks = _ranks(np.asarray([values[i] for i in kept], float))
    drops = _drops(columns, ranks)
    means, errors = drops.mean(axis=0), drops.std(axis=0) / math.sqrt(len(drops))
    found = [
        Importance(name, float(mean), float(mean - 2 * error), float(mean + 2 * error))
        for name, mean, error in zip(names, means, errors, strict=True)
    ]
    return sorted(found, key=lambda each: -each.value)


def codes(values: Sequence[object]) -> np.ndarray:
    """Values as numbers: their place among those that occur, -1 for none.

    >>> codes([0.1, None, 10.0]).tolist(), codes(["b", "a", "b"]).tolist()
    ([0.0, -1.0, 1.0], [1.0, 0.0, 1.0])
    """
    there = {value for value in values if value is not None}
    numeric = all(isinstance(value, int | float) for value in there)
    # Trees ask only for the order, so places do as well as logarithms.
    order = sorted(there) if numeric else sorted(there, key=str)  # type: ignore[type-var]
    place = {value: float(index) for index, value in enumerate(order)}
    return np.array([place.get(value, -1.0) for value in values])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Places from 0 to 1; equal values have equal ones."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[inverse] / max(len(values) - 1, 1)


def _drops(columns: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """By how much shuffling each column raises the error, in parts of the variance; by fold."""
    ensemble = optional_import("sklearn.ensemble", "scikit-learn", "importances")
    random = np.random.default_rng(0)
    folds = random.permutation(len(ranks)) % _FOLDS
    variance = float(ranks.var()) or 1.0
    found = []
    for fold in range(_FOLDS):
        train, apart = folds != fold, folds == fold
        forest = ensemble.ExtraTreesRegressor(_TREES, min_samples_leaf=2, random_state=fold)
        forest.fit(columns[train], ranks[train])
        rows, wanted = columns[apart], ranks[apart]
        # All that is asked of one forest in one batch: a call costs more than its rows.
        asked = [rows]
        for column in range(columns.shape[1]):
            for _ in range(_SHUFFLES):
                shuffled = rows.copy()
                shuffled[:, column] = random.permutation(shuffled[:, column])
                asked.append(shuffled)
        given = forest.predict(np.concatenate(asked)).reshape(len(asked), -1)
        errors = ((given - wanted) ** 2).mean(axis=1) / variance
        found.append(errors[1:].reshape(-1, _SHUFFLES).mean(axis=1) - errors[0])
    return np.array(found)
