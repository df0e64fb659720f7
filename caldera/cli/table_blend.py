"""`caldera train` on tables without options of a network: a blend of members, cross-validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.formatting import bytes_text
from caldera.cli.build import make_class_weights, make_model
from caldera.cli.options import names_of
from caldera.comm import world
from caldera.data import Dataset
from caldera.train.model import Model
from caldera.train.tables.folds import Array, fold_numbers
from caldera.train.tables.training import TableRun, train_table
from caldera.train.tracking.history import shown_number

BLEND = "model   a blend of a linear model, a network and an ensemble (--fast: one network)"
_BESIDE_DATA = ("seed", "device", "class_weights", "time", "threshold", "folds", "interval")
"""Options that a blend has too; any other option is for a single network."""
LEAST_ROWS = 40
"""Number of rows below which folds would be too small."""


def trains_blend(given: Mapping[str, Any], found: Dataset) -> bool:
    """Return True if the data are a table, and no option describes a single network."""
    of_data = {*names_of(["data"]), *_BESIDE_DATA}
    schema = found.schema
    if schema is None or not schema.columns or schema.series is not None or len(found.shape) != 1:
        return False
    options = {name for name, value in given.items() if value is not False}
    return options <= of_data and len(found.train) >= LEAST_ROWS and world().size == 1


def blend_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a blend has."""
    kept = {*names_of(["data"]), *_BESIDE_DATA}
    return {name: value for name, value in options.items() if name in kept}


def train_blend(options: Mapping[str, Any], found: Dataset, verbose: int | None) -> TableRun:
    """Train as the options say."""
    return train_table(
        found,
        seconds=options.get("time"),
        folds=_folds(found, options) if "folds" in options else None,
        seed=options["seed"],
        class_weights=make_class_weights(options),
        device=options.get("device"),
        verbose=verbose,
    )


def _folds(found: Dataset, options: Mapping[str, Any]) -> Array:
    """Return the fold of each training sample: by group or time, or with similar targets."""
    count, seed = options["folds"], options["seed"]
    if found.train.keys is not None:
        return found.train.keys.folds(count, seed)
    y = found.train.batch(np.arange(len(found.train)))[-1]
    require(len(y) >= 2 * count, "--folds", f"at most {len(y) // 2}", count)
    return fold_numbers(y, count, seed)


def fold_line(options: Mapping[str, Any], found: Dataset) -> str:
    """Train a network for each fold, and return a line with the mean results out of fold."""
    numbers, results = _folds(found, options), []
    for fold in range(int(numbers.max()) + 1):
        learnt, held_out = (np.flatnonzero((numbers == fold) == own) for own in (False, True))
        part = replace(found, train=found.train.subset(learnt))
        model = make_model(options, part)
        model.fit(part.train, verbose=0, class_weights=make_class_weights(options))
        results.append(model.evaluate(found.train.subset(held_out)))
    singles = [name for name, value in results[0].items() if np.ndim(value) == 0]
    said = []
    for name in singles:
        each = [float(result[name]) for result in results]
        spread = f" \u00b1 {shown_number(float(np.std(each)))}" if len(each) > 1 else ""
        said.append(f"{name} {shown_number(float(np.mean(each)))}{spread}")
    return (
        f"folds   {'  '.join(said)}  ({len(results)} trained without a part of the training data)"
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
