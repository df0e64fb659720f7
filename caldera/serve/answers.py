"""What a client gets: predictions as JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera.data import Schema
from caldera.serve.contract import Contract

MOST_CLASSES = 20
"""Classes whose probability is told, the most probable first."""


def json_answer(outputs: np.ndarray, contract: Contract, notes: Sequence[str] = ()) -> bytes:
    """Predictions as JSON; `notes` say what was made up for values that rows lack."""
    found: dict[str, Any] = {
        "predictions": _classes(outputs, contract) if contract.classes else _values(outputs)
    }
    if contract.target:
        found["target"] = contract.target
    if notes:
        found["notes"] = list(notes)
    return json.dumps(found, allow_nan=False, separators=(",", ":")).encode()


def csv_answer(outputs: np.ndarray, contract: Contract) -> bytes:
    """A line of names and one for each sample, as `caldera predict` writes them."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    if contract.classes:
        writer.writerow(["sample", contract.target or "class", "probability"])
        for number, each in enumerate(_classes(outputs, contract)):
            writer.writerow([number, each["class"], each["probability"]])
    else:
        flat = outputs.reshape(len(outputs), -1)
        named = (contract.schema or Schema()).decode(flat)
        writer.writerow(["sample", *named])
        for number, row in enumerate(flat.tolist()):
            writer.writerow([number, *row])
    return text.getvalue().encode()


def _classes(outputs: np.ndarray, contract: Contract) -> list[dict[str, Any]]:
    shifted = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :MOST_CLASSES]
    sorted_ones = np.take_along_axis(probabilities, order, axis=1).round(6)
    found = []
    for numbers, row in zip(order.tolist(), sorted_ones.tolist(), strict=True):
        parts = [_finite(each) for each in row]
        names = [contract.classes[number] for number in numbers]
        found.append(
            {
                "class": names[0],
                "probability": parts[0],
                "probabilities": dict(zip(names, parts, strict=True)),
            }
        )
    return found


def _values(outputs: np.ndarray) -> list[dict[str, Any]]:
    if outputs.shape[1:] == (1,):
        return [{"value": _finite(each)} for each in outputs[:, 0].tolist()]
    return [{"values": _finite(each)} for each in outputs.tolist()]


def _finite(value: Any) -> Any:
    """The value as JSON can hold it: what is no finite number is null."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value if -np.inf < value < np.inf else None
