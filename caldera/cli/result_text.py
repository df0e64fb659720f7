"""Results as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from caldera.train.tracking.history import shown_number


def results_line(results: Mapping[str, Any]) -> str:
    """Losses and metrics on one line; the accuracy, if there is one, first and in per cent.

    >>> results_line({"loss": 0.0712, "accuracy": 0.98333})
    'accuracy 98.33%  loss 0.0712'
    """
    singles = {name: float(value) for name, value in results.items() if np.ndim(value) == 0}
    parts = []
    if "accuracy" in singles:
        parts.append(f"accuracy {singles.pop('accuracy'):.2%}")
    parts += [f"{name} {shown_number(value)}" for name, value in singles.items()]
    return "  ".join(parts)


def tables(results: Mapping[str, Any]) -> str:
    """The results that are tables, such as a confusion matrix, each under its name."""
    found = {name: np.asarray(value) for name, value in results.items() if np.ndim(value) > 0}
    return "\n".join(f"{name}\n{value}" for name, value in found.items())
