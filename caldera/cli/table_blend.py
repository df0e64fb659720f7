"""`caldera train` on tables without options of a network: a blend of members, cross-validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.formatting import bytes_text
from caldera.cli.build import INTERVAL_PART, make_class_weights, make_model
from caldera.cli.options import names_of
from caldera.comm import world
from caldera.data import Dataset
from caldera.data.sources.split_keys import SplitKeys, SplitParts
from caldera.train.model import Model
from caldera.train.tables.folds import FOLDS, fold_numbers
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
    numbers = None
    if "folds" in options and not _is_timed(found):
        numbers = np.empty(len(found.train), np.int64)
        for fold, part in enumerate(_parts(found, options)):
            numbers[part.test] = fold
    seconds = options.get("time")
    if seconds is not None and "interval" in options:
        seconds *= 1 - INTERVAL_PART
    return train_table(
        found,
        seconds=seconds,
        folds=numbers,
        seed=options["seed"],
        class_weights=make_class_weights(options),
        device=options.get("device"),
        verbose=verbose,
    )


def _is_timed(found: Dataset) -> bool:
    return found.train.keys is not None and found.train.keys.is_time


def _parts(found: Dataset, options: Mapping[str, Any]) -> list[SplitParts]:
    """Return training and test samples of each fold: by group or time, or of similar targets."""
    count, seed = options["folds"], options["seed"]
    if found.train.keys is not None:
        return found.train.keys.parts(count, seed)
    y = found.train.batch(np.arange(len(found.train)))[-1]
    require(len(y) >= 2 * count, "--folds", f"at most {len(y) // 2}", count)
    return SplitKeys(fold_numbers(y, count, seed)).parts(count, seed)


def fold_line(options: Mapping[str, Any], found: Dataset, is_blend: bool) -> str:
    """Train a model for each fold, and return a line with the mean results out of fold.

    It is empty for a blend whose folds are trained in one plan.
    """
    if "folds" not in options or (is_blend and not _is_timed(found)):
        return ""
    parts = _parts(found, options)
    if "time" in options:
        options = {**options, "time": options["time"] / (len(parts) + 1)}
    least, first = 2 * FOLDS, min(len(each.train) for each in parts)
    require(
        not is_blend or first >= least,
        "--folds",
        f"at least {least} training rows in each fold",
        str(first),
        "request fewer folds",
    )
    results = []
    for each in parts:
        part = replace(found, train=found.train.subset(each.train))
        model = _trained(options, part, is_blend)
        results.append(model.evaluate(found.train.subset(each.test)))
    singles = [name for name, value in results[0].items() if np.ndim(value) == 0]
    said = []
    for name in singles:
        values = [float(result[name]) for result in results]
        spread = f" \u00b1 {shown_number(float(np.std(values)))}" if len(values) > 1 else ""
        said.append(f"{name} {shown_number(float(np.mean(values)))}{spread}")
    how = "on earlier rows only" if _is_timed(found) else "without a part of the training data"
    return f"folds   {'  '.join(said)}  ({len(results)} trained {how})"


def _trained(options: Mapping[str, Any], found: Dataset, is_blend: bool) -> Model:
    """Return the model of a fold."""
    if is_blend:
        return train_blend(options, found, verbose=0).model
    model = make_model(options, found)
    model.fit(found.train, verbose=0, class_weights=make_class_weights(options))
    return model


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
