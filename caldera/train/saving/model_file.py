"""Model files: one safetensors file with the weights, and the model's definition in its metadata.

    {"format": "caldera-2", "kind": "NeuralNetwork", "layers": [...], "settings": {...},
     "inputs": [...], "tensors": {name: {"dtype": ..., "shape": ..., "digest": ...}},
     "schema": {"columns": [...], "classes": [...], ...}}

The schema has the columns of a table that the model takes, and the names of its classes; see
`caldera.data.Schema`. Files written before schemas were added have none.

The metadata also contain the digest of this text, and the text contains the digest of each tensor,
so that no flipped bit is loaded. Files of the format caldera-1, without a digest of the text, are
still read.

Layers, losses and optimizers are registered names with plain arguments, never import paths, so a
file can create no other objects. A model with a custom `forward` is saved with its weights and the
name of its class; load the weights into an instance of that class.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.base.file_cache import atomic_write
from caldera.core.tensor.dtype import FLOAT8, canonical
from caldera.data import Schema
from caldera.errors import CalderaError, CheckpointError, DataError
from caldera.io import load_safetensors_metadata, save_safetensors
from caldera.io.files import Source, file_name_of, file_size, opened
from caldera.io.safetensors_files import safetensors_arrays
from caldera.nn.basic import Sequential
from caldera.nn.config import from_config, network, to_config
from caldera.nn.losses import losses
from caldera.nn.metrics import metrics
from caldera.nn.tracing import trace
from caldera.optim import optimizers
from caldera.train.saving.checkpoint import described, digest, nbytes, verify
from caldera.train.saving.snapshot import assign_all, model_variables
from caldera.train.training_data import schema_of_inputs

if TYPE_CHECKING:
    from caldera.train.model import Model

InputSpecs = list[tuple[tuple[int, ...], str]]
"""Shape and dtype of each input of a network."""
MOST_INPUTS = 64
FORMAT = "caldera-2"
WITHOUT_DIGEST = "caldera-1"
KEY, DIGEST = "caldera", "caldera-digest"
"""The names of our text in the metadata, and of its digest."""
SETTINGS = (
    "loss",
    "loss_weights",
    "optimizer",
    "metrics",
    "batch_size",
    "epochs",
    "dtype",
    "precision",
    "seed",
    "name",
)
_KEYS = {"format", "kind", "class", "layers", "settings", "inputs", "tensors"}
_LATER_KEYS = {"schema", "open_lengths"}
"""Keys that older files do not have."""


def save_model(model: Model, path: str | os.PathLike[str], schema: Schema | None = None) -> Path:
    """Write a model to a file and return its path; an existing file is replaced atomically.

    `schema` is the schema of the data, for a model that has none from `fit`.

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
    tensors, metadata = _described_model(model, schema)
    require(
        not target.is_dir() and target.parent.is_dir(),
        "save",
        "a file in a folder that exists",
        repr(str(target)),
    )
    with atomic_write(target, durable=True) as unfinished:
        save_safetensors(unfinished, tensors, metadata)
        if unfinished.is_file():
            _prove(unfinished, target)
    return target


def _prove(unfinished: Path, target: Path) -> None:
    """Refuse a file that could not be loaded, before it takes the place of another one."""
    try:
        content = read_content(unfinished)
        if content["kind"] == "NeuralNetwork":
            read_network(content, target.name)
        read_schema(content, target.name)
        read_tensors(unfinished, content)
    except CalderaError as problem:
        raise CheckpointError.build(
            f"save {target}",
            expected="a file that can be loaded",
            got=f"{problem}",
            hint="no file was written; check for a layer that changed after its parameters were "
            "created",
        ) from problem


def model_bytes(model: Model) -> bytes:
    """Return the bytes that `save_model` writes."""
    file = io.BytesIO()
    save_safetensors(file, *_described_model(model))
    return file.getvalue()


def _described_model(
    model: Model, schema: Schema | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors of a model file, and its metadata."""
    inputs = [[list(shape), dtype] for shape, dtype in model.signature.inputs]
    tensors = {name: each.numpy() for name, each in model_variables(model).items()}
    layers = _layers_of(model)
    schema = model.schema or schema_of_inputs(model, schema)
    content = {
        "format": FORMAT,
        "kind": "Model" if layers is None else "NeuralNetwork",
        "class": type(model).__name__,
        "layers": layers,
        "settings": None if layers is None else settings_of(model),
        "inputs": inputs,
        "tensors": {name: described(array) for name, array in tensors.items()},
        "schema": None if schema is None else schema.to_plain(),
        "open_lengths": model.open_lengths,
    }
    text = json.dumps(content, allow_nan=False)
    return tensors, {KEY: text, DIGEST: digest(text)}


def load_weights(model: Model, path: Source) -> None:
    """Give a model the weights of a file, by name; any that does not fit is an error that names it.

    The file may also be one that another program wrote, with weights in float8 too.

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
    # Read first: a model that was never built has no variables to load into.
    _ = model.signature
    # Either name is enough to know our files by: one may be damaged.
    if {KEY, DIGEST} & load_safetensors_metadata(path).keys():
        content = read_content(path)
        tensors = read_tensors(path, content)
        model.schema = read_schema(content, file_name_of(path)) or model.schema
    else:
        tensors = {
            name: array.astype(np.float32) if array.dtype in FLOAT8 else array
            for name, array in safetensors_arrays(path).items()
        }
    assign_all(model_variables(model), tensors, file_name_of(path))


def read_content(path: Source) -> dict[str, Any]:
    """Return a file's description of its model, without building it or reading tensors."""
    where = file_name_of(path)
    metadata = load_safetensors_metadata(path)
    text = metadata.get(KEY)
    if text is None and DIGEST not in metadata:
        raise DataError.build(
            where,
            expected="a model file of Caldera",
            got="a safetensors file without a model",
            hint="load its tensors into a model you have with model.load_weights(path)",
        )
    if text is None or (DIGEST in metadata and metadata[DIGEST] != digest(text)):
        raise _damaged(where)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError.build(where, expected="JSON", got=str(problem)) from None
    said = content.get("format") if isinstance(content, dict) else None
    if said == FORMAT and DIGEST not in metadata:
        raise _damaged(where)
    require(
        isinstance(content, dict) and said in (FORMAT, WITHOUT_DIGEST),
        where,
        f"the format {FORMAT}",
        repr(content.get("format") if isinstance(content, dict) else content)[:100],
        "a newer Caldera may have written it",
        error=DataError,
    )
    require(
        _KEYS <= set(content) <= _KEYS | _LATER_KEYS and isinstance(content["tensors"], dict),
        where,
        ", ".join(sorted(_KEYS)),
        ", ".join(sorted(content)),
        error=DataError,
    )
    wanted = sum(nbytes(each, f"{where}, {name!r}") for name, each in content["tensors"].items())
    with opened(path, "rb", where) as file:
        there = file_size(file)
    require(
        wanted <= there,
        where,
        f"{wanted} bytes of tensors",
        f"a file of {there} bytes",
        "the file is damaged",
        error=DataError,
    )
    return content


def _damaged(where: str) -> DataError:
    return DataError.build(
        where,
        expected="a text with its digest",
        got="a text that does not fit its digest",
        hint="the file is damaged",
    )


def read_schema(content: Mapping[str, Any], where: str) -> Schema | None:
    """Return the schema of the model's training data; None if the file has none."""
    given = content.get("schema")
    if given is None:
        return None
    schema = Schema.from_plain(given, f"{where} schema")
    shape = content["inputs"][0][0]
    require(
        not schema.columns or list(shape) == [len(schema.features)],
        where,
        f"a schema of {shape} features",
        len(schema.features),
        "the file is damaged",
        error=DataError,
    )
    return schema


def read_tensors(path: Source, content: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read the tensors of a file and verify them against `content`."""
    tensors = safetensors_arrays(path)
    verify(file_name_of(path), content["tensors"], tensors)
    return tensors


def settings_of(model: Model) -> dict[str, Any]:
    """Return the settings of a model besides its layers, by the names of `SETTINGS`."""
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
    """Return the layers of a `NeuralNetwork`; None for a model that only its own class can make."""
    network = model.sequence()
    if network is None:
        return None
    # As one layer, so that layers that occur twice stay shared.
    return to_config(network)["layers"]


# --- the network that a file describes


def read_network(content: Mapping[str, Any], where: str) -> tuple[InputSpecs, dict[str, Any]]:
    """The inputs and the settings of a network, whose layers need the weights of the file."""
    inputs = _inputs(content["inputs"], where)
    settings = settings_from_config(content["settings"], where)
    _check_sizes(content, inputs, settings["dtype"], where)
    return inputs, settings


def layers_from_config(config: Any, where: str) -> list[Any]:
    """Return the layers that a file describes."""
    if not isinstance(config, list):
        raise DataError.build(where, expected="a list of layers", got=repr(config)[:100])
    whole = from_config({"layer": "Sequential", "layers": config})
    assert isinstance(whole, Sequential)
    return list(whole.layers)


def _inputs(given: Any, where: str) -> InputSpecs:
    try:
        if not 0 < len(given) <= MOST_INPUTS:
            raise ValueError(f"{len(given)} inputs")
        return [(tuple(int(n) for n in shape), str(dtype)) for shape, dtype in given]
    except (TypeError, ValueError) as problem:
        raise DataError.build(
            where, expected="shape and dtype of each input", got=str(problem)
        ) from None


def settings_from_config(given: Any, where: str) -> dict[str, Any]:
    """Return a network's settings from the description by `settings_of`."""
    if not isinstance(given, Mapping) or set(given) != set(SETTINGS):
        got = ", ".join(given) if isinstance(given, Mapping) else repr(given)
        raise DataError.build(where, expected="settings " + ", ".join(SETTINGS), got=got[:200])
    require(
        isinstance(given["loss"], Mapping) and isinstance(given["metrics"], list),
        where,
        "losses by name and a list of metrics",
        "others",
        error=DataError,
    )
    return {
        **given,
        "loss": {name: losses.from_config(each) for name, each in given["loss"].items()},
        "optimizer": optimizers.from_config(given["optimizer"]),
        "metrics": [metrics.from_config(each) for each in given["metrics"]],
    }


def _check_sizes(
    content: Mapping[str, Any],
    inputs: InputSpecs,
    dtype: str,
    where: str,
) -> None:
    """Compare the variables of the layers with the tensors of the file, without allocating them."""
    outline = network(layers_from_config(content["layers"], where))
    with trace(allocate=False, dtype=dtype):
        outline(*[op.input(f"x{i}", (2, *s), dtype=kind) for i, (s, kind) in enumerate(inputs)])
    needed = {name: list(each.shape) for name, each in model_variables(outline).items()}
    held = {name: each["shape"] for name, each in content["tensors"].items()}
    if needed != held:
        differing = sorted(name for name in needed | held if needed.get(name) != held.get(name))
        raise DataError.build(
            where,
            expected="the weights that its layers need",
            got="; ".join(f"{n}: {held.get(n)} for {needed.get(n)}" for n in differing[:8]),
            hint="the file is damaged",
        )
