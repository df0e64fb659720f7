"""Model files: one safetensors file with the weights, and in its metadata what the model is.

    {"format": "caldera-1", "kind": "NeuralNetwork", "layers": [...], "settings": {...},
     "inputs": [...], "tensors": {name: {"dtype": ..., "shape": ..., "digest": ...}},
     "schema": {"columns": [...], "classes": [...], ...}}

The schema says which columns of a table the model takes, and what its classes are called; see
`caldera.data.Schema`. Files that were written before there was one have none.

Layers, losses and optimizers are registered names with plain arguments, never import paths, so a
file can make nothing else. A model with a `forward` of its own is saved with its weights and the
name of its class; those who have the class load the weights into it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.data import Schema
from caldera.errors import CheckpointError, ConfigError, DataError
from caldera.file_cache import atomic_write
from caldera.io import load_safetensors, load_safetensors_metadata, save_safetensors
from caldera.nn.config import to_config
from caldera.tensor.dtype import canonical
from caldera.train.saving.checkpoint_file import described, differences, nbytes
from caldera.train.saving.snapshot import assign_all, model_variables

if TYPE_CHECKING:
    from caldera.train.model import Model

FORMAT = "caldera-1"
KEY = "caldera"
"""The name of our text in the metadata."""
SETTINGS = (
    "loss", "loss_weights", "optimizer", "metrics", "batch_size", "epochs", "dtype", "precision",
    "seed", "name",
)  # fmt: skip
_KEYS = {"format", "kind", "class", "layers", "settings", "inputs", "tensors"}
_LATER_KEYS = {"schema"}
"""What older files do not have."""


def save_model(model: Model, path: str | os.PathLike[str], schema: Schema | None = None) -> Path:
    """Write a model to one file; its path. A file that is there is replaced at once or not at all.

    `schema` is that of the data, for a model that does not know it from `fit`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.saving.model_file import save_model
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save_model(model, Path(folder) / "small.caldera")
    ...     sorted(cd.io.load_safetensors(path))
    ['1-Dense/bias', '1-Dense/weight']
    """
    target = Path(path)
    # Asked for first: a model that was never built has no weights to save.
    inputs = [[list(shape), dtype] for shape, dtype in model.signature.inputs]
    tensors = {name: each.numpy() for name, each in model_variables(model).items()}
    layers = _layers_of(model)
    schema = model.schema or schema
    content = {
        "format": FORMAT,
        "kind": "Model" if layers is None else "NeuralNetwork",
        "class": type(model).__name__,
        "layers": layers,
        "settings": None if layers is None else settings_of(model),
        "inputs": inputs,
        "tensors": {name: described(array) for name, array in tensors.items()},
        "schema": None if schema is None else schema.to_plain(),
    }
    if target.is_dir() or not target.parent.is_dir():
        raise ConfigError.build(
            "save", expected="a file in a folder that exists", got=repr(str(target))
        )
    text = json.dumps(content, allow_nan=False)
    with atomic_write(target, durable=True) as unfinished:
        save_safetensors(unfinished, tensors, {KEY: text})
    return target


def load_weights(model: Model, path: str | os.PathLike[str]) -> None:
    """Give a model the weights of a file, by name; any that does not fit is an error that names it.

    The file may also be one that another program wrote.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.saving.model_file import load_weights, save_model
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    >>> other = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_weights(other, save_model(model, Path(folder) / "small.caldera"))
    Traceback (most recent call last):
    caldera.errors.CheckpointError: small.caldera: expected values for every variable and no others,
    got 1-Dense/weight of shape (4, 3) for (4, 2); 1-Dense/bias of shape (3,) for (2,);
    was it made for another model?
    """
    # Asked for first: a model that was never built has nothing to load into.
    _ = model.signature
    if KEY in load_safetensors_metadata(path):
        content = read_content(path)
        tensors = read_tensors(path, content)
        model.schema = read_schema(content, Path(path).name) or model.schema
    else:
        tensors = {name: each.numpy() for name, each in load_safetensors(path).items()}
    assign_all(model_variables(model), tensors, Path(path).name)


def read_content(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says about its model; nothing is made, and no tensor is read."""
    where = Path(path).name
    text = load_safetensors_metadata(path).get(KEY)
    if text is None:
        raise DataError.build(
            where, expected="a model file of Caldera", got="a safetensors file without a model",
            hint="load its tensors into a model you have with model.load_weights(path)",
        )  # fmt: skip
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError.build(where, expected="JSON", got=str(problem)) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError.build(
            where, expected=f"the format {FORMAT}",
            got=repr(content.get("format") if isinstance(content, dict) else content)[:100],
            hint="a newer Caldera may have written it",
        )  # fmt: skip
    if not _KEYS <= set(content) <= _KEYS | _LATER_KEYS or not isinstance(content["tensors"], dict):
        raise DataError.build(
            where, expected=", ".join(sorted(_KEYS)), got=", ".join(sorted(content))
        )
    wanted = sum(nbytes(each, f"{where}, {name!r}") for name, each in content["tensors"].items())
    there = Path(path).stat().st_size
    if wanted > there:
        raise DataError.build(
            where, expected=f"{wanted} bytes of tensors", got=f"a file of {there} bytes",
            hint="the file is damaged",
        )  # fmt: skip
    return content


def read_schema(content: Mapping[str, Any], where: str) -> Schema | None:
    """The schema of the data that the model was trained on; None if nobody knows it."""
    given = content.get("schema")
    if given is None:
        return None
    schema = Schema.from_plain(given, f"{where} schema")
    shape = content["inputs"][0][0]
    if schema.columns and list(shape) != [len(schema.columns)]:
        raise DataError.build(
            where, expected=f"a schema of {shape} columns", got=f"{len(schema.columns)}",
            hint="the file is damaged",
        )  # fmt: skip
    return schema


def read_tensors(path: str | os.PathLike[str], content: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of a file, compared with what `content` says about them."""
    tensors = {name: each.numpy() for name, each in load_safetensors(path).items()}
    problems = differences(content["tensors"], tensors)
    if problems:
        raise CheckpointError.build(
            Path(path).name, expected="the tensors that were saved", got="; ".join(problems[:8]),
            hint="the file is damaged",
        )  # fmt: skip
    return tensors


def settings_of(model: Model) -> dict[str, Any]:
    """What a model was made with besides its layers, as plain data, by the names of `SETTINGS`."""
    return {
        "loss": {name: loss.config() for name, loss in model.objective.losses.items()},
        "loss_weights": dict(model.objective.weights),
        "optimizer": model.optimizer.config(),
        "metrics": [metric.config() for metric in model.metrics],
        "batch_size": model.batch_size,
        "epochs": model.epochs,
        "dtype": canonical(model.dtype).name,
        "precision": model.precision,
        "seed": model.seed,
        "name": model.name,
    }


def _layers_of(model: Model) -> list[Any] | None:
    """The layers of a `NeuralNetwork`; None for a model that only its own class can make."""
    network = model.sequence()
    if network is None:
        return None
    # As one layer, so that layers that occur twice stay shared.
    found: list[Any] = to_config(network)["layers"]
    return found
