"""`caldera predict`: what a trained model says about new samples."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import IO

import numpy as np

from caldera import audio, io
from caldera.cli.command import Command
from caldera.cli.datasets import csv_input_arguments
from caldera.cli.model_argument import class_names_of
from caldera.cli.options import OPTIONS, add_option, given_options
from caldera.cli.prediction_inputs import read_inputs
from caldera.errors import ShapeError
from caldera.file_cache import write_file
from caldera.train.model import Model
from caldera.train.neural_network import load_model

_TABLE_OPTIONS = ("target_column", "ignore_columns", "delimiter", "header")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `predict`."""
    parser.add_argument("model", metavar="FILE.caldera", help="a model that `caldera train` wrote")
    parser.add_argument(
        "input",
        metavar="INPUT",
        help="a .csv file with one sample a line, an .npy file, an image or a folder of images, a "
        "sound",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="a .csv file, or an .npy file for the plain outputs (default: print CSV)",
    )
    for name in _TABLE_OPTIONS:
        add_option(parser, OPTIONS[name])


def run(arguments: argparse.Namespace) -> int:
    """Predict, and write a line for each sample."""
    model = load_model(arguments.model)
    (shape, dtype), *_ = model.signature.inputs
    given = {name: each for name, each in vars(arguments).items() if name in _TABLE_OPTIONS}
    table = csv_input_arguments(given_options(argparse.Namespace(**given)))
    given_path = Path(arguments.input)
    if given_path.suffix.lower() in audio.SUFFIXES and not table:
        names, x = [given_path.name], audio.model_input(given_path, model)
    else:
        names, x = read_inputs(given_path, shape, dtype, model.schema, table)
    outputs = model.predict(x)
    class_names = class_names_of(model, arguments.model) if _is_classifier(model) else None
    if arguments.out is None:
        _write(sys.stdout, names, outputs, class_names)
        return 0
    path = Path(arguments.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".npy":
        io.save_npy(path, outputs)
    else:
        text = StringIO(newline="")
        _write(text, names, outputs, class_names)
        write_file(path, text.getvalue())
    print(f"wrote   {path}")
    return 0


def _write(
    file: IO[str], names: Sequence[str], outputs: np.ndarray, class_names: Sequence[str] | None
) -> None:
    if outputs.ndim != 2:
        raise ShapeError.build(
            "predict", expected="one row of outputs for each sample", got=f"{outputs.shape[1:]}",
            hint="write them to an .npy file with --out",
        )  # fmt: skip
    writer = csv.writer(file, lineterminator="\n")
    for row in _rows(names, outputs, class_names):
        writer.writerow(row)


def _rows(
    names: Sequence[str], outputs: np.ndarray, class_names: Sequence[str] | None
) -> Iterator[Sequence[object]]:
    """A line of names and one for each sample; `class_names` is None where outputs are values."""
    if class_names is None:
        yield ["sample", *(f"value{i}" for i in range(outputs.shape[1]))]
        for name, row in zip(names, outputs.tolist(), strict=True):
            yield [name, *row]
        return
    yield ["sample", "class", "probability"]
    chosen = outputs.argmax(axis=1)
    shifted = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    probability = shifted.max(axis=1) / shifted.sum(axis=1)
    for name, number, part in zip(names, chosen.tolist(), probability.tolist(), strict=True):
        shown = class_names[number] if number < len(class_names) else number
        yield [name, shown, f"{part:.4f}"]


def _is_classifier(model: Model) -> bool:
    first = next(iter(model.objective.losses.values()))
    return type(first).__name__ == "CrossEntropy"


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
