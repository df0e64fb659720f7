"""Argument of `summary`, `graph` and `plan`: a network of the zoo, a recipe, or a model file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from caldera.base.registry import nearest
from caldera.cli.build import make_model, make_network
from caldera.cli.command import flag, flags
from caldera.cli.datasets import load_data
from caldera.cli.option_types import CountOption, CountsOption
from caldera.cli.options import given_options, names_of, option_flags
from caldera.cli.recipe import complete, read_recipe
from caldera.cli.zoo import ZOO
from caldera.errors import ConfigError
from caldera.train.model import Model
from caldera.train.neural_network import load_model
from caldera.train.tracking.run_folder import read_class_names

_GROUPS = ("data", "model", "training", "optimizer", "schedule")


add_model_argument = flags(
    flag(
        "subject",
        metavar="MODEL",
        nargs="?",
        default="mlp",
        help="a network of the zoo, a recipe.toml or a .caldera file (default: mlp)",
    ),
    flag(
        "--input-shape",
        metavar="N,N,...",
        help="shape of a sample (default: from --data, or the published shape)",
    ),
    flag("--classes", metavar="N", help="number of outputs"),
    option_flags(*_GROUPS),
)
"""The argument that names the model, and the flags that shape it."""


def find_model(arguments: argparse.Namespace) -> Model:
    """Return the model that a command line selects."""
    text = arguments.subject
    given = given_options(arguments)
    if text in ZOO:
        return _made(arguments, {"model": text} | given)
    path = Path(text).expanduser()
    if path.suffix.lower() == ".toml":
        return _made(arguments, {"data": "digits"} | read_recipe(path) | given)
    if path.is_file():
        shaping = [name for name in given if name in names_of(_GROUPS)]
        if shaping or arguments.input_shape or arguments.classes:
            raise ConfigError.build(
                text,
                expected="no options together with a model file, which has its own",
                got=", ".join(shaping) or "a shape",
            )
        return load_model(path)
    raise ConfigError.build(
        "MODEL",
        expected="a network of the zoo, a recipe.toml or a .caldera file",
        got=repr(text),
        hint=nearest(text, ZOO),
    )


def class_names_of(model: Model, path: str) -> tuple[str, ...]:
    """Return the class names of a model from a file; empty if they are unknown."""
    if model.schema is not None:
        return model.schema.classes
    return tuple(read_class_names(Path(path)))


def _made(arguments: argparse.Namespace, given: dict[str, Any]) -> Model:
    options = complete(given)
    shape = CountsOption().optional(arguments.input_shape, "--input-shape")
    outputs = CountOption(1).optional(arguments.classes, "--classes")
    if "data" in given and shape is None and outputs is None:
        return make_model(options, load_data(options))
    return make_network(options, shape, outputs, steps=1000 * options["epochs"])
