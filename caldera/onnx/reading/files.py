"""Model files: read whole, within bounds, and never more than parsed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from caldera.errors import DataError
from caldera.onnx.library import onnx
from caldera.onnx.reading.parse import parse
from caldera.onnx.reading.structure import Program

LARGEST_FILE = (1 << 31) - 1
"""What protobuf can read; larger models keep their arrays in files beside them."""


def read_model(path: str | os.PathLike[str]) -> Program:
    """What a model file says.

    >>> read_model("no/such/model.onnx")
    Traceback (most recent call last):
    caldera.errors.DataError: onnx model.onnx: expected a model file, got no/such/model.onnx
    """
    file = Path(path)
    where = f"onnx {file.name}"
    if not file.is_file():
        raise DataError.build(where, expected="a model file", got=str(file))
    if file.stat().st_size > LARGEST_FILE:
        raise DataError.build(
            where,
            expected=f"at most {LARGEST_FILE} bytes",
            got=f"{file.stat().st_size}",
            hint="save it with its arrays in a file beside it",
        )
    model = message(file.read_bytes(), where)
    return parse(model, file.parent, where)


def message(raw: bytes, where: str) -> Any:
    """The ModelProto that these bytes are, if they are one."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(raw)
    # protobuf's own error is not public in all of its versions.
    except Exception as problem:
        raise DataError.build(where, expected="a model of ONNX", got=str(problem)) from None
    if not model.HasField("graph") or not model.opset_import:
        raise DataError.build(
            where, expected="a model of ONNX", got="a message without graph or operator versions"
        )
    return model
