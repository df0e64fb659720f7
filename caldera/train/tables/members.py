"""Networks of a table's folds: dense layers with dropout, and an ensemble with embedded numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.tensor import normal
from caldera.data import Dataset
from caldera.nn import ColumnEmbedding, Dropout, EnsembleDense, NumberEmbedding, Sequential
from caldera.nn.layer import Layer
from caldera.train.tables.folds import Rows

MOST_ONE_HOT = 30
"""Categories of a column up to which each enters the network as a feature, without a vector."""
_MOST_EMBEDDED = 100
"""Numbers up to which each has an embedding."""
_EMBEDDED = 128
"""Approximate number of features of all embedded numbers; each has 2 to 8."""
_LEAST_VALUES = 6
"""Different values of a number that has an embedding."""
_MEMBERS, _MEMBERS_ALONE, _UNITS = 4, 16, 128
"""Members of the ensemble of each fold, and of a single one, and units of their layers."""
_NETWORK_UNITS = 256


@dataclass(frozen=True)
class Members:
    """Networks of all folds."""

    rows: Rows
    spans: list[tuple[int, int]]
    """Features of categories that have vectors."""
    numbers: NumberEmbedding | None
    """The edges of the numbers that have embeddings."""

    @classmethod
    def of(cls, found: Dataset, rows: Rows) -> Members:
        """Choose the columns with embeddings."""
        every = found.schema.category_spans if found.schema is not None else []
        spans = [(start, stop) for start, stop in every if stop - start > MOST_ONE_HOT]
        categories = {place for start, stop in every for place in range(start, stop)}
        numbers = [
            place
            for place in range(rows.x.shape[1])
            if place not in categories and len(np.unique(rows.x[:, place])) >= _LEAST_VALUES
        ]
        edges = None
        if 0 < len(numbers) <= _MOST_EMBEDDED:
            folds = rows.count if rows.count > 1 else None
            width = min(max(_EMBEDDED // len(numbers), 2), 8)
            edges = NumberEmbedding.fit(rows.x, width, columns=numbers, members=folds)
        return cls(rows, spans, edges)

    @property
    def ensemble_size(self) -> int:
        """Number of members of the ensembles of all folds."""
        folds = self.rows.count
        return folds * _MEMBERS if folds > 1 else _MEMBERS_ALONE

    def network(self, number: int = 0) -> Sequential:
        """Return dense layers with dropout, a network for each fold."""
        return self._layers("network", number, self.rows.count, _NETWORK_UNITS, 0.3)

    def ensemble(self, number: int = 0) -> Sequential:
        """Return members that share weights, with embeddings of numbers, for each fold."""
        return self._layers("ensemble", number, self.ensemble_size, _UNITS, 0.1)

    def _layers(
        self, name: str, number: int, members: int, units: int, dropout: float
    ) -> Sequential:
        folds, spans = self.rows.count, self.spans
        several = members > folds
        shared: Any = {"members": members, "groups": folds, "activation": "relu"}
        layers: list[Layer] = []
        if several and self.numbers is not None:
            given = self.numbers
            layers.append(
                NumberEmbedding(given.edges, given.width, given.columns, members=given.members)
            )
            gone = np.asarray(given.columns)
            spans = [(a - int((gone < a).sum()), b - int((gone < a).sum())) for a, b in spans]
        if spans:
            each = folds if folds > 1 else None
            layers.append(ColumnEmbedding(spans, None, members=each))
        first = normal(0.0, 1.0) if several else None
        return Sequential(
            [
                *layers,
                EnsembleDense(units, scales=first, **shared),
                Dropout(dropout),
                EnsembleDense(units, **shared),
                Dropout(dropout),
                EnsembleDense(self.rows.outputs, members, members),
            ],
            name=f"{name}{number + 1}" if number else name,
        )
