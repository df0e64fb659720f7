"""Signature of a served model, and predictions encoded as JSON or CSV."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from caldera.base.arguments import require
from caldera.core.tensor.dtype import canonical, is_complex
from caldera.data import Column, Schema
from caldera.data.schema import names_of_classes
from caldera.io.csv_files import TableWriter
from caldera.train.model import Model

Kind = Literal["table", "text", "image", "array"]


@dataclass(frozen=True)
class Contract:
    """Inputs and outputs of a model.

    - `kind`: rows of a table, texts, images, or arrays of numbers.
    - `shape`, `dtype`: shape and dtype of a single sample.
    - `schema`: the columns of a table, the words of texts.
    - `classes`: the name of each class; empty if values are predicted.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    schema: Schema | None
    classes: tuple[str, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, model: Model, name: str, class_names: Sequence[str] = ()) -> Contract:
        """Return the contract of a model that has been built."""
        inputs = model.signature.inputs
        require(
            len(inputs) == 1,
            "serve",
            "a model with one input",
            f"one with {len(inputs)}",
            hint="join them in one array, and split it in the model's forward",
        )
        (shape, dtype) = inputs[0]
        require(not is_complex(canonical(dtype)), "serve", "a model of real numbers", dtype)
        outputs = next(iter(model.signature.outputs.values()))
        schema = model.schema
        kind: Kind = "array"
        if schema is not None and schema.columns:
            kind = "table"
        elif schema is not None and schema.text is not None:
            kind = "text"
        elif len(shape) == 3 and shape[0] in (1, 3):
            kind = "image"
        names: tuple[str, ...] = ()
        if is_classifier(model) and len(outputs) == 1:
            known = schema.classes if schema is not None else ()
            names = names_of_classes(known or class_names, outputs[0], "serve")
        return cls(name, kind, tuple(shape), dtype, schema, names, tuple(outputs))

    @property
    def target(self) -> str:
        """Name of the predicted column; empty if unknown."""
        return self.schema.target.name if self.schema is not None and self.schema.target else ""

    @property
    def interval(self) -> float | None:
        """Share of values in the predicted intervals; None without intervals."""
        return self.schema.interval if self.schema is not None else None

    @property
    def content_types(self) -> tuple[str, ...]:
        """Accepted content types of requests."""
        more = {"image": ("image/*",), "text": ("text/plain",)}.get(self.kind, ())
        return ("application/json", "text/csv", *more)

    @property
    def text_column(self) -> str:
        """Name of the column of texts, for a model of texts."""
        text = self.schema.text if self.schema is not None else None
        return (text.column if text is not None else "") or "text"

    def example(self) -> Any:
        """Return an example of a sample in a request."""
        if self.kind == "table" and self.schema is not None:
            values = [each.encoder.example() if each.encoder else 0 for each in self.schema.columns]
            names = self.schema.names
            return dict(zip(names, values, strict=True)) if names else values
        if self.kind == "text":
            return "a text"
        return np.zeros(self.shape, np.int64).tolist()

    def to_plain(self) -> dict[str, Any]:
        """Return a JSON-serialisable value."""
        found: dict[str, Any] = {
            "model": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "content_types": list(self.content_types),
        }
        if self.kind == "table" and self.schema is not None:
            found["columns"] = [_column(each) for each in self.schema.columns]
            found["target"] = self.target
        if self.kind == "text":
            found["columns"] = [{"name": self.text_column, "kind": "text"}]
        if self.classes:
            found["classes"] = list(self.classes)
        else:
            found["outputs"] = list(self.outputs)
        if self.interval is not None:
            found["interval"] = self.interval
        return found


def _column(column: Column) -> dict[str, Any]:
    """Return the description of a column for clients."""
    found: dict[str, Any] = {"name": column.name, "kind": column.kind}
    if column.category is not None:
        found["categories"] = list(column.category.categories)
    if column.date is not None:
        found["format"] = column.date.format
    return found


def is_classifier(model: Model) -> bool:
    """Return True if the outputs of a model are the logits of classes."""
    first = next(iter(model.objective.losses.values()))
    return type(first).__name__ == "CrossEntropy"


MOST_CLASSES = 20
"""Number of classes whose probability is reported, the most probable first."""


def json_answer(outputs: np.ndarray, contract: Contract, notes: Sequence[str] = ()) -> bytes:
    """Return predictions as JSON; `notes` report filled values."""
    found: dict[str, Any] = {
        "predictions": _classes(outputs, contract)
        if contract.classes
        else _values(outputs, contract.interval)
    }
    if contract.target:
        found["target"] = contract.target
    if contract.interval is not None:
        found["interval"] = contract.interval
    if notes:
        found["notes"] = list(notes)
    return json.dumps(found, allow_nan=False, separators=(",", ":")).encode()


def csv_answer(outputs: np.ndarray, contract: Contract, *, keep_formulas: bool = False) -> bytes:
    """Return a line of names and one for each sample, as `caldera predict` writes them."""
    text = io.StringIO(newline="")
    writer = TableWriter(text, keep_formulas=keep_formulas)
    schema = replace(contract.schema or Schema(), classes=contract.classes)
    flat = outputs.reshape(len(outputs), -1)
    columns = {"sample": list(map(str, range(len(flat))))} | prediction_columns(flat, schema)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def prediction_columns(
    outputs: np.ndarray, schema: Schema, *, probabilities: bool = False
) -> dict[str, list[str]]:
    """Return predictions as columns of texts, numbers with six significant digits.

    >>> prediction_columns(np.array([[0.0, 2.0]]), Schema(classes=("iris", "rose")))
    {'class': ['rose'], 'probability': ['0.880797']}
    """
    found = schema.decode(outputs, probabilities=probabilities)
    return {
        name: [each if isinstance(each, str) else f"{each:.6g}" for each in values.tolist()]
        for name, values in found.items()
    }


def _classes(outputs: np.ndarray, contract: Contract) -> list[dict[str, Any]]:
    shifted = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    chosen = (contract.schema or Schema()).chosen(probabilities)
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :MOST_CLASSES]
    sorted_ones = np.take_along_axis(probabilities, order, axis=1).round(6)
    found = []
    for own, numbers, row in zip(chosen, order.tolist(), sorted_ones.tolist(), strict=True):
        parts = [_finite(each) for each in row]
        names = [contract.classes[number] for number in numbers]
        said = contract.classes[own]
        found.append(
            {
                "class": said,
                "probability": parts[names.index(said)],
                "probabilities": dict(zip(names, parts, strict=True)),
            }
        )
    return found


def _values(outputs: np.ndarray, interval: float | None) -> list[dict[str, Any]]:
    if interval is not None:
        names = ("value", "low", "high")
        return [dict(zip(names, _finite(each), strict=True)) for each in outputs.tolist()]
    if outputs.shape[1:] == (1,):
        return [{"value": _finite(each)} for each in outputs[:, 0].tolist()]
    return [{"values": _finite(each)} for each in outputs.tolist()]


def _finite(value: Any) -> Any:
    """Return a JSON-serialisable value, with null for numbers that are not finite."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value if -np.inf < value < np.inf else None
