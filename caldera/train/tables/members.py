"""Networks of a table's folds: dense layers with dropout, and an ensemble with embedded numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import optim
from caldera.core.tensor import normal
from caldera.data import Schema
from caldera.nn import (
    Branches,
    ColumnEmbedding,
    Dropout,
    EnsembleDense,
    Input,
    NumberEmbedding,
    Sequential,
)
from caldera.nn.layer import Layer
from caldera.train.neural_network import NeuralNetwork
from caldera.train.tables.folds import BestOfFolds, FoldLoss, Rows

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
_DECAY = 0.1
INTERRUPTED = "interrupted"
BRANCHES = "members"
"""Name of the layer of all networks."""


@dataclass(frozen=True)
class Members:
    """Networks of all folds."""

    rows: Rows
    spans: list[tuple[int, int]]
    """Features of categories that have vectors."""
    numbers: NumberEmbedding | None
    """The edges of the numbers that have embeddings."""

    @classmethod
    def of(cls, schema: Schema | None, rows: Rows) -> Members:
        """Choose the columns with embeddings."""
        every = schema.category_spans if schema is not None else []
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

    def network(self, number: int = 0, name: str = "network") -> Sequential:
        """Return dense layers with dropout, a network for each fold."""
        return self._layers(name, number, self.rows.count, _NETWORK_UNITS, 0.3)

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


def _plan(rows: int) -> tuple[int, int, float]:
    """Return batch size, number of epochs and learning rate for a number of rows."""
    batch = 32 if rows < 500 else 64 if rows < 6000 else 256
    steps = 1200 if rows < 20_000 else 3000
    return batch, int(np.clip(steps * batch / rows, 10, 80)), 1e-3 if rows < 1000 else 3e-3


def fit_members(
    rows: Rows,
    made: Sequence[Sequential],
    seed: int,
    seconds: float | None = None,
    device: Any = None,
    verbose: int | None = 0,
    *,
    from_start: bool = False,
) -> tuple[dict[str, Sequential], BestOfFolds]:
    """Train networks of all folds in one plan; return them by name, with their best weights.

    Each ends in an `EnsembleDense` layer, with the members ordered by fold.
    """
    layers = {each.name: each for each in made}
    branches, folds, start = {}, [], 0
    for name, each in layers.items():
        last: Any = each.layers[-1]
        count = last.members
        folds += [number // (count // rows.count) for number in range(count)]
        branches[name] = (start, start + count)
        start += count
    learnt = rows.learnt
    batch, epochs, rate = _plan(len(learnt))
    model = NeuralNetwork(
        [Input(rows.x.shape[1:]), Branches(list(made), name=BRANCHES)],
        loss=FoldLoss(tuple(folds), rows.member_loss),
        optimizer=optim.AdamW(rate / 10, weight_decay=_DECAY),
        batch_size=batch,
        epochs=epochs,
        metrics=[],
        seed=seed,
        device=device,
    )
    keeper = BestOfFolds(rows, branches, rate, epochs, seconds, from_start)
    kind = np.int64 if rows.classes else np.float32
    targets = np.stack([rows.targets, rows.folds], axis=1).astype(kind)
    history = model.fit(
        (rows.x[learnt], targets[learnt]),
        verbose=verbose,
        callbacks=[keeper],
        sample_weights=rows.row_weights(learnt),
    )
    keeper.history.stopped = history.stopped if history.stopped == INTERRUPTED else ""
    return layers, keeper
