"""`caldera eval`: how good a trained model is on data."""

from __future__ import annotations

import argparse
import json

import numpy as np

from caldera.cli.command import Command, flag, flags, tell
from caldera.cli.datasets import load_data
from caldera.cli.model_argument import class_names_of
from caldera.cli.option_types import CountOption
from caldera.cli.options import OPTIONS, given_options, names_of, option_flags
from caldera.cli.prediction_inputs import results_line, tables
from caldera.data import ArrayData, Data, Dataset
from caldera.errors import DataError
from caldera.train.neural_network import load_model

add_flags = flags(
    flag("model", metavar="FILE.caldera", help="a model that `caldera train` wrote"),
    flag(
        "--part",
        choices=["test", "train", "all"],
        default="test",
        help="which samples of the data (default: test)",
    ),
    flag("--batch-size", metavar="N", help="samples at a time"),
    flag("--json", action="store_true", help="for programs to read"),
    option_flags("data"),
)
"""The flags of `eval`."""


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print."""
    model = load_model(arguments.model)
    given = given_options(arguments, names_of(["data"]))
    options = {"data": OPTIONS["data"].default} | given
    size = CountOption(1).optional(arguments.batch_size, "--batch-size")
    found = load_data(options, model.schema)
    for each in found.notes if model.schema is not None else ():
        tell(f"note    {each}")
    model.ensure_built([found.train.batch(np.arange(0))[0]])
    samples = _samples(found, arguments.part, class_names_of(model, arguments.model))
    results = model.evaluate(samples, batch_size=size)
    if arguments.json:
        print(json.dumps({name: np.asarray(value).tolist() for name, value in results.items()}))
        return 0
    print(f"{found.name} ({arguments.part}, {len(samples)} samples)  {results_line(results)}")
    if tables(results):
        print(tables(results))
    return 0


def _samples(found: Dataset, part: str, class_names: tuple[str, ...]) -> Data:
    """Return the samples to evaluate, with classes numbered as in the model."""
    parts = {"test": [found.test], "train": [found.train], "all": [found.train, found.test]}[part]
    if class_names in ((), found.class_names) and len(parts) == 1:
        return parts[0]
    x = np.concatenate([each.x for each in parts])
    y = np.concatenate([each.y for each in parts if each.y is not None])
    if class_names and found.classes:
        unknown = [name for name in found.class_names if name not in class_names]
        if unknown:
            raise DataError.build(
                f"data {found.name}",
                expected="the classes " + ", ".join(class_names),
                got=", ".join(unknown),
            )
        y = np.array([class_names.index(name) for name in found.class_names])[y]
    samples = ArrayData(x, y)
    samples.schema = found.schema
    return samples


COMMAND = Command(
    name="eval",
    takes="FILE.caldera",
    summary="Evaluate a trained model on a data set.",
    examples="""
        caldera eval out/digits.caldera --data digits
        caldera eval out/flowers.caldera --data more-flowers.csv --part all
    """,
    add_flags=add_flags,
    run=run,
    order=20,
)
