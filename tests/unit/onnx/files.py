"""Small models of ONNX for the tests, and onnxruntime's opinion of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def declared(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    """An input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def made(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    arrays: dict[str, np.ndarray] | None = None,
    opset: int = 18,
    functions: list[Any] | None = None,
) -> Any:
    """A model of these nodes."""
    held = [numpy_helper.from_array(array, name) for name, array in (arrays or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, held)
    versions = [helper.make_opsetid("", opset)]
    if functions:
        versions.append(helper.make_opsetid("own", 1))
    return helper.make_model(graph, opset_imports=versions, functions=functions or [], ir_version=8)


def written(model: Any, folder: Path, name: str = "model.onnx") -> Path:
    """The model as a file."""
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def by_onnxruntime(path: Path, *inputs: np.ndarray) -> list[np.ndarray]:
    """What onnxruntime computes."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))
