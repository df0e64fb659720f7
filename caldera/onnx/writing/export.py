"""`export`: a model as a file of ONNX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from caldera.base.arguments import within
from caldera.base.file_cache import write_file
from caldera.errors import ConfigError
from caldera.onnx.library import helper
from caldera.onnx.reading.files import LARGEST_FILE
from caldera.onnx.writing.check import check
from caldera.onnx.writing.dynamic_batch import FIRST, SECOND, Pair
from caldera.onnx.writing.writer import OPSET, Writer, as_proto
from caldera.train.model import Model

_IR_VERSION = 8
"""The oldest form of the file that has all of these operators."""


def export(model: Model, path: str | os.PathLike[str], *, batch_size: int | None = None) -> Path:
    """Write a model, as it is in evaluation, to a file of ONNX; gives back the path.

    The number of samples stays open unless `batch_size` fixes it. Parameters and running statistics
    keep their names. The file says what the outputs are called; with auxiliary heads it holds the
    main output alone, as `predict` gives it. Before it is written it is run, by onnxruntime where
    that is installed, for two numbers of samples; where it gives anything else than the model, that
    is an error, and there is no file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3, activation="relu")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = cd.onnx.export(model, Path(folder) / "small.onnx")
    ...     again = cd.onnx.load(path)
    >>> [p.name for p in again.parameters()]
    ['1-Dense/weight', '1-Dense/bias']
    """
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise ConfigError.build(
            "onnx export", expected="a file in a folder that exists", got=repr(str(target))
        )
    if batch_size is not None:
        within("onnx.export", "batch_size", batch_size, 1, 2**16)  # it is tried with that many
    if model.open_lengths:
        raise ConfigError.build(
            "onnx export",
            expected="a network for sequences of one length",
            got="one for any length",
            hint="make it again with nn.Input((steps, ...)) and give it "
            "the weights: other.load_weights(model.save(path))",
        )
    raw = to_proto(model, batch_size).SerializeToString()
    check(raw, model, batch_size)
    write_file(target, raw, durable=True)
    return target


def to_proto(model: Model, batch_size: int | None = None) -> Any:
    """A model as a ModelProto."""
    counts = (FIRST, SECOND) if batch_size is None else (batch_size, batch_size)
    first, second = (model.open_expressions(count) for count in counts)
    if batch_size is not None and not any(batch_size in each.shape for each in first[0]):
        raise ConfigError.build(
            "onnx export",
            expected="batch_size= the number of samples that the model takes",
            got=f"{batch_size} for inputs of {', '.join(str(each.shape) for each in first[0])}",
        )
    write = Writer()
    for i, (a, b) in enumerate(zip(first[0], second[0], strict=True)):
        write.source("input" if len(first[0]) == 1 else f"input{i}", Pair(a.node, b.node))
    roots = {name: Pair(first[1][name].node, second[1][name].node) for name in first[1]}
    write.write(list(roots.values()))
    outputs = []
    for name, pair in roots.items():
        own = write.unique(name)
        write.nodes.append(helper.make_node("Identity", [write.name(pair)], [own], name=own))
        outputs.append(write.declared(own, pair))
    held = sum(array.nbytes for array in write.arrays.values())
    if held > LARGEST_FILE:
        raise ConfigError.build(
            "onnx export",
            expected=f"at most {LARGEST_FILE} bytes of arrays",
            got=f"{held}",
            hint="one file of ONNX cannot be larger",
        )
    graph = helper.make_graph(
        write.nodes,
        model.name or type(model).__name__,
        [write.declared(name, pair) for name, pair in write.sources.items()],
        outputs,
        [as_proto(name, array) for name, array in write.arrays.items()],
    )
    return helper.make_model(
        graph,
        producer_name="caldera",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
