"""`caldera predict`: predictions of a trained model for new samples, with their rows."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np

from caldera import audio, io
from caldera.base.arguments import require
from caldera.base.file_cache import write_file
from caldera.cli.command import Command, UsageError, flag, flags, tell
from caldera.cli.datasets import table_input_arguments
from caldera.cli.model_argument import class_names_of
from caldera.cli.options import OPTIONS, given_options, option_flag
from caldera.cli.prediction_inputs import STRICT, PredictionInputs, read_inputs
from caldera.data import Schema
from caldera.data.tables.table import TableRows, carried_columns
from caldera.errors import ShapeError
from caldera.io.csv_files import TableWriter
from caldera.serve.signature import is_classifier, prediction_columns
from caldera.train.contributions import explain_rows
from caldera.train.model import Model
from caldera.train.neural_network import load_model

_TABLE_OPTIONS = (
    "target_column",
    "ignore_columns",
    "delimiter",
    "header",
    "decimal",
    "encoding",
    "sheet",
    "query",
    "missing_values",
)
_EXPLAINED = 3
"""Contributions of each row that --explain writes."""

add_flags = flags(
    flag("model", metavar="FILE.caldera", help="a model that `caldera train` wrote"),
    flag(
        "input",
        metavar="INPUT",
        help="a table with one sample a row, an .npy file, an image or a folder of images, a sound",
    ),
    flag(
        "--out",
        metavar="FILE",
        help="a .csv file, or an .npy file for the plain outputs (default: print CSV)",
    ),
    flag(
        "--keep-formulas",
        action="store_true",
        help="write texts that a spreadsheet takes for formulas as they are, without apostrophes",
    ),
    flag("--strict", action="store_true", help=STRICT),
    flag(
        "--probabilities",
        action="store_true",
        help="write the probability of each class in a separate column",
    ),
    flag(
        "--explain",
        action="store_true",
        help="write the three columns that contribute most to each prediction, with their "
        "contributions: the change if the column had its usual training value",
    ),
    *(option_flag(OPTIONS[name]) for name in _TABLE_OPTIONS),
)
"""The flags of `predict`."""


def run(arguments: argparse.Namespace) -> int:
    """Predict, and write a line for each sample."""
    plain = arguments.out is not None and Path(arguments.out).suffix.lower() == ".npy"
    require(
        not plain or not (arguments.probabilities or arguments.explain),
        "--out with --probabilities or --explain",
        "a .csv file",
        arguments.out,
        "an .npy file has the outputs of the network only",
        error=UsageError,
    )
    model = load_model(arguments.model)
    path = Path(arguments.input)
    found = _inputs(arguments, model, path)
    outputs = model.predict(found.x)
    if plain:
        return _wrote(arguments.out, lambda out: io.save_npy(out, outputs))
    columns: dict[str, list[str]] = {"sample": found.names}
    if found.rows is not None and found.rows.table.row_word != "row":
        columns[found.rows.table.row_word] = list(map(str, found.rows.table.rows))
    if found.rows is not None and model.schema is not None:
        columns |= carried_columns(
            found.rows.table,
            model.schema.ignored,
            found.rows.left_out,
        )
    named = _named(model, arguments.model)
    made = _predicted(outputs, named, arguments.probabilities)
    made |= _explained(model, found.rows) if arguments.explain else {}
    for name, each in made.items():
        columns[f"predicted {name}" if name in columns else name] = each
    text = StringIO(newline="")
    writer = TableWriter(text, keep_formulas=arguments.keep_formulas)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    if arguments.out is None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.getvalue())
        if len(text.getvalue().encode(encoding, "ignore").decode(encoding)) < text.tell():
            tell(
                "note    this terminal cannot show some characters of the table; --out FILE "
                "writes them"
            )
        return 0
    return _wrote(arguments.out, lambda out: write_file(out, text.getvalue()))


def _wrote(name: str, write: Callable[[Path], object]) -> int:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path)
    print(f"wrote   {path}")
    return 0


def _inputs(arguments: argparse.Namespace, model: Model, path: Path) -> PredictionInputs:
    """Return the samples of a file or folder, with a line on stderr for each note."""
    (shape, dtype), *_ = model.signature.inputs
    table = table_input_arguments(given_options(arguments, _TABLE_OPTIONS))
    table |= {"strict": True} if arguments.strict else {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if path.suffix.lower() in audio.SUFFIXES and not table:
            found = PredictionInputs([path.name], audio.model_input(path, model))
        else:
            found = read_inputs(path, shape, dtype, model.schema, table)
    for each in said:
        print(f"note    {each.message}", file=sys.stderr)
    return found


def _predicted(outputs: np.ndarray, schema: Schema, probabilities: bool) -> dict[str, list[str]]:
    """Return the columns of predictions."""
    if outputs.ndim != 2:
        raise ShapeError.build(
            "predict",
            expected="one row of outputs for each sample",
            got=f"{outputs.shape[1:]}",
            hint="write them to an .npy file with --out",
        )
    if probabilities and not schema.classes:
        raise UsageError.build(
            "--probabilities", expected="a model of classes", got="one that predicts values"
        )
    return prediction_columns(outputs, schema, probabilities=probabilities)


def _explained(model: Model, rows: TableRows | None) -> dict[str, list[str]]:
    """Return a column for each of the largest contributions."""
    if rows is None or model.schema is None or not model.schema.columns:
        raise UsageError.build(
            "--explain", expected="a table, and a model that was trained on one", got="another"
        )
    count = min(_EXPLAINED, len(model.schema.columns))
    found = explain_rows(model, rows).largest(count)
    return {f"reason {n + 1}": [str(each[n]) for each in found] for n in range(count)}


def _named(model: Model, path: str) -> Schema:
    """Return the model's schema with names for its classes."""
    schema = model.schema or Schema()
    if not is_classifier(model):
        return replace(schema, classes=())
    outputs = next(iter(model.signature.outputs.values()))
    return replace(schema, classes=class_names_of(model, path) or tuple(map(str, range(*outputs))))


COMMAND = Command(
    name="predict",
    takes="FILE.caldera INPUT",
    summary="Predict new samples with a trained model.",
    examples="""
        caldera predict out/flowers.caldera new.csv
        caldera predict out/flowers.caldera new.csv --probabilities --explain
        caldera predict out/digits.caldera samples.npy --out predictions.csv
        caldera predict out/animals.caldera photographs/ --out predictions.csv
        caldera predict out/words.caldera hello.wav
    """,
    add_flags=add_flags,
    run=run,
    order=30,
)
