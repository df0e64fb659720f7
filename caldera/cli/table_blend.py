"""`caldera train` on tables without options of a network: a blend of members, cross-validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caldera.base.formatting import bytes_text
from caldera.cli.build import make_class_weights
from caldera.cli.options import names_of
from caldera.comm import world
from caldera.data import Dataset
from caldera.train.model import Model
from caldera.train.tables.training import TableRun, train_table

BLEND = "model   a blend of a linear model, a network and an ensemble (--fast: one network)"
_BESIDE_DATA = ("seed", "device", "class_weights", "time", "threshold")
"""Options that a blend has too; any other option is for a single network."""
LEAST_ROWS = 40
"""Number of rows below which folds would be too small."""


def trains_blend(given: Mapping[str, Any], found: Dataset) -> bool:
    """Return True if the data are a table, and no option describes a single network."""
    of_data = {*names_of(["data"]), *_BESIDE_DATA}
    schema = found.schema
    if schema is None or not schema.columns or schema.series is not None or len(found.shape) != 1:
        return False
    enough = len(found.train) >= LEAST_ROWS
    return enough and of_data.issuperset(given) and world().size == 1


def blend_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a blend has."""
    kept = {*names_of(["data"]), *_BESIDE_DATA}
    return {name: value for name, value in options.items() if name in kept}


def train_blend(options: Mapping[str, Any], found: Dataset, verbose: int | None) -> TableRun:
    """Train as the options say."""
    return train_table(
        found,
        seconds=options.get("time"),
        seed=options["seed"],
        class_weights=make_class_weights(options),
        device=options.get("device"),
        verbose=verbose,
    )


def blend_lines(run: TableRun) -> list[str]:
    """Return lines about members and out-of-fold results."""
    shares = ", ".join(f"{name} {weight:.2f}" for name, weight in run.weights.items())
    results = "  ".join(f"{name} {value:.5g}" for name, value in run.results.items())
    return [
        f"model   {shares}: {parameters_text(run.model)}",
        *(f"note    {each}" for each in run.notes),
        f"folds   {results}  ({len(run.rows)} training rows out of fold)",
    ]


def parameters_text(model: Model) -> str:
    """Return the number of parameters and their bytes."""
    size = sum(parameter.size for parameter in model.parameters())
    memory = bytes_text(sum(parameter.tensor.nbytes for parameter in model.parameters()))
    return f"{size:,} parameters ({memory})"
