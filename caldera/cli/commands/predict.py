"""`caldera predict`: what a trained model says about new samples."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import IO

import numpy as np

from caldera import audio, io
from caldera.base.file_cache import write_file
from caldera.cli.command import Command, flag, flags
from caldera.cli.datasets import table_input_arguments
from caldera.cli.model_argument import class_names_of
from caldera.cli.options import OPTIONS, given_options, option_flag
from caldera.cli.prediction_inputs import STRICT, read_inputs
from caldera.data import Schema
from caldera.errors import ShapeError
from caldera.io.csv_files import TableWriter
from caldera.serve.signature import is_classifier
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
    *(option_flag(OPTIONS[name]) for name in _TABLE_OPTIONS),
)
"""The flags of `predict`."""


def run(arguments: argparse.Namespace) -> int:
    """Predict, and write a line for each sample."""
    model = load_model(arguments.model)
    (shape, dtype), *_ = model.signature.inputs
    table = table_input_arguments(given_options(arguments, _TABLE_OPTIONS))
    table |= {"strict": True} if arguments.strict else {}
    path = Path(arguments.input)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if path.suffix.lower() in audio.SUFFIXES and not table:
            names, x = [path.name], audio.model_input(path, model)
        else:
            names, x = read_inputs(path, shape, dtype, model.schema, table)
    for each in said:
        print(f"note    {each.message}", file=sys.stderr)
    outputs = model.predict(x)
    schema = _named(model, arguments.model)
    if arguments.out is None:
        _write(sys.stdout, names, outputs, schema, arguments.keep_formulas)
        return 0
    path = Path(arguments.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".npy":
        io.save_npy(path, outputs)
    else:
        text = StringIO(newline="")
        _write(text, names, outputs, schema, arguments.keep_formulas)
        write_file(path, text.getvalue())
    print(f"wrote   {path}")
    return 0


def _named(model: Model, path: str) -> Schema:
    """What the outputs of a model are called."""
    schema = model.schema or Schema()
    if not is_classifier(model):
        return replace(schema, classes=())
    outputs = next(iter(model.signature.outputs.values()))
    return replace(schema, classes=class_names_of(model, path) or tuple(map(str, range(*outputs))))


def _write(
    file: IO[str], names: Sequence[str], outputs: np.ndarray, schema: Schema, keep_formulas: bool
) -> None:
    """A line of names and one for each sample."""
    if outputs.ndim != 2:
        raise ShapeError.build(
            "predict",
            expected="one row of outputs for each sample",
            got=f"{outputs.shape[1:]}",
            hint="write them to an .npy file with --out",
        )
    found = schema.decode(outputs)
    if schema.classes:
        found["probability"] = np.array([f"{each:.4f}" for each in found["probability"]], object)
    writer = TableWriter(file, keep_formulas=keep_formulas)
    writer.writerow(["sample", *found])
    writer.writerows(zip(names, *(each.tolist() for each in found.values()), strict=True))


COMMAND = Command(
    name="predict",
    takes="FILE.caldera INPUT",
    summary="What a trained model says about new samples.",
    examples="""
        caldera predict out/flowers.caldera new.csv
        caldera predict out/digits.caldera samples.npy --out predictions.csv
        caldera predict out/animals.caldera photographs/ --out predictions.csv
        caldera predict out/words.caldera hello.wav
    """,
    add_flags=add_flags,
    run=run,
    order=30,
)
