"""Recipes: the options of a training run by name, from a TOML file, from flags, or both.

    data = "digits"
    model = "mlp"
    hidden = [256, 256]
    epochs = 30
    learning_rate = 1e-3

A key is the name of a flag with underscores: everything that can be said on the command line can be
said in a recipe. Unknown keys are errors.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from caldera.base.file_cache import write_file
from caldera.base.registry import nearest
from caldera.cli.datasets import has_texts
from caldera.cli.option_types import toml_text
from caldera.cli.options import OPTIONS
from caldera.errors import ConfigError, DataError


def read_recipe(path: str | PathLike[str]) -> dict[str, Any]:
    """Read the options of a recipe file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "recipe.toml"
    >>> _ = path.write_text('model = "mlp"\\nhidden = [8, 8]\\n')
    >>> read_recipe(path)
    {'model': 'mlp', 'hidden': [8, 8]}
    >>> _ = path.write_text("epoch = 5")
    >>> read_recipe(path)
    Traceback (most recent call last):
    caldera.errors.ConfigError: recipe.toml: got unknown key 'epoch'; did you mean 'epochs'?
    """
    return checked_options(read_toml(path, "epochs = 5"), Path(path).name)


def read_toml(path: str | PathLike[str], example: str) -> dict[str, Any]:
    """Read a recipe file; `example` is a correct line, shown in the error for a wrong file."""
    name, hint = Path(path).name, "see caldera eval --help"
    if Path(path).suffix.lower() == ".caldera":
        raise ConfigError.build(name, expected="a recipe.toml", got="a model", hint=hint)
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError.build(name, expected=f"a recipe at {path}", got="no such file") from None
    except OSError as error:
        raise DataError.build(name, expected="a file to read", got=str(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError.build(name, expected=f"TOML, as in {example}", got=str(error)) from None


def checked_options(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values by key, each checked; an unknown key is an error."""
    found = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            raise ConfigError.build(
                where,
                expected="only keys and values",
                got=f"a table [{key}]",
                hint="write its keys at the top, without a table",
            )
        if key not in OPTIONS:
            raise ConfigError.build(where, got=f"unknown key {key!r}", hint=nearest(key, OPTIONS))
        found[key] = OPTIONS[key].kind.checked(value, f"{where} {key}")
    return found


# Default training: at least 97% of the test digits, in seconds.
_USUAL_MODEL = {"model": "mlp", "hidden": [256, 256], "dropout": 0.3}
_USUAL_TEXT_MODEL = {"model": "text_classifier"}
_USUAL_OPTIMIZER = {
    "optimizer": "adamw",
    "learning_rate": 4e-3,
    "weight_decay": 0.1,
    "schedule": "cosine",
}


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with defaults for missing ones, in the order of the help text.

    Without a model or an optimizer, the usual one is selected with its settings. A model or
    optimizer that is given has separate defaults.

    >>> complete({"hidden": [64]})["model"], complete({"model": "mlp"}).get("hidden")
    ('mlp', None)
    """
    defaults = {name: option.default for name, option in OPTIONS.items()}
    if "model" not in given:
        defaults |= _USUAL_TEXT_MODEL if has_texts(given) else _USUAL_MODEL
    if "optimizer" not in given:
        defaults |= _USUAL_OPTIMIZER
    merged = defaults | dict(given)
    return {name: value for name, value in merged.items() if value is not None}


def write_recipe(path: Path, values: Mapping[str, Any]) -> None:
    """Write options as a recipe, in the order of the help text."""
    ordered = {name: values[name] for name in OPTIONS if name in values}
    write_file(path, toml_text(ordered))
