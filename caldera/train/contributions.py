"""Contributions of columns to predictions: the change if a column had its usual training value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from caldera.base.arguments import require
from caldera.base.formatting import html_table
from caldera.data.datasets.tables import table_rows
from caldera.data.tables.table import TableRows
from caldera.errors import ConfigError, DataError
from caldera.nn.losses import MULTICLASS, MULTILABEL, REGRESSION, PredictionKind

if TYPE_CHECKING:
    from caldera.train.model import Model


class Contribution(NamedTuple):
    """Contribution of a column to the prediction for a row."""

    column: str
    text: str
    """The value of the row, as the table has it."""
    amount: float

    def __str__(self) -> str:
        return f"{self.column}={self.text}: {self.amount:+.6g}"


@dataclass(frozen=True)
class Contributions:
    """Contributions of each column (second axis) to the prediction of each row (first axis).

    `amounts` are in the units of the target where values are predicted. Where classes are
    predicted they are changes of the log-odds of the predicted class; where one number decides
    between two classes, of the second class. Printing shows the three largest of each row.
    """

    columns: tuple[str, ...]
    amounts: np.ndarray
    rows: TableRows

    def largest(self, count: int = 3) -> list[list[Contribution]]:
        """Return the largest contributions of each row, in either direction, largest first."""
        texts = [self.rows.texts(place) for place in range(len(self.columns))]
        order = np.argsort(-np.abs(self.amounts), axis=1, kind="stable")[:, :count]
        return [
            [
                Contribution(self.columns[place], texts[place][row], float(amounts[place]))
                for place in places
            ]
            for row, (places, amounts) in enumerate(zip(order, self.amounts, strict=True))
        ]

    def __str__(self) -> str:
        lines = enumerate(self.largest())
        return "\n".join(f"{row}  {'; '.join(map(str, each))}" for row, each in lines)

    def _repr_html_(self) -> str:
        rows = [(f"{row}", "; ".join(map(str, each))) for row, each in enumerate(self.largest())]
        return html_table(("row", "largest contributions"), rows)


def explain_rows(model: Model, rows: TableRows, batch_size: int | None = None) -> Contributions:
    """Return the contributions of columns by occlusion: the prediction of a row minus that with
    the column at its training median, its most frequent category, or without words."""
    schema = model.schema
    if schema is None or not schema.columns:
        raise ConfigError.build(
            "explain",
            expected="a model that was trained on a table",
            got="one without columns",
            hint="read the training data with data.table, whose schema has a median of each column",
        )
    usual = schema.without_ends(model.predict(rows.x, batch_size=batch_size))
    task = model.objective.task
    chosen = _flat(usual).argmax(axis=1)
    score = _scores(usual, chosen, task)
    amounts = np.zeros((len(rows.x), len(schema.columns)))
    for place, (column, span) in enumerate(zip(schema.columns, schema.spans, strict=True)):
        changed = rows.x.copy()
        changed[:, span.start : span.stop] = column.typical()
        without = schema.without_ends(model.predict(changed, batch_size=batch_size))
        amounts[:, place] = score - _scores(without, chosen, task)
    return Contributions(tuple(span.name for span in schema.spans), amounts, rows)


def explain(model: Model, source: Any, batch_size: int | None = None) -> Contributions:
    """Read a table and explain its rows."""
    require(
        model.schema is None or not isinstance(source, np.ndarray),
        "explain",
        "a table: a path, a frame, a dict of columns or a list of rows",
        type(source).__name__,
        "arrays have no names of columns",
        error=DataError,
    )
    return explain_rows(model, table_rows(source, model.schema), batch_size)


def _flat(outputs: np.ndarray) -> np.ndarray:
    # An array of no rows has no axis of size -1.
    return outputs.reshape(len(outputs), math.prod(outputs.shape[1:]))


def _scores(outputs: np.ndarray, chosen: np.ndarray, task: PredictionKind | None) -> np.ndarray:
    """Return the predicted value, or the log-odds of the chosen class."""
    found = _flat(outputs).astype(np.float64)
    kind = REGRESSION if task is None else task.kind
    several = found.shape[1] > 1
    if kind not in (REGRESSION, MULTICLASS, MULTILABEL) or several != (kind == MULTICLASS):
        raise ConfigError.build(
            "explain",
            expected="a model that predicts one value or one of several classes",
            got=f"{found.shape[1]} outputs, {kind}",
        )
    if kind == REGRESSION:
        return found[:, 0]
    with np.errstate(divide="ignore"):
        if kind == MULTILABEL:
            yes = found[:, 0]
            return yes if task is not None and task.logits else np.log(yes) - np.log1p(-yes)
        logs = found if task is not None and task.logits else np.log(found)
    own = np.take_along_axis(logs, chosen[:, None], axis=1)[:, 0]
    np.put_along_axis(logs, chosen[:, None], -np.inf, axis=1)
    return own - np.logaddexp.reduce(logs, axis=1)
