"""From a file of ONNX to plain values: calls of operators, and arrays. Nothing is run."""

from __future__ import annotations

from caldera.onnx.reading.parser import parse, read_model
from caldera.onnx.reading.structure import Declared, Reference
from caldera.onnx.reading.structure import ModelFunction as Function
from caldera.onnx.reading.structure import ModelGraph as Graph
from caldera.onnx.reading.structure import NodeCall as Call
from caldera.onnx.reading.structure import OnnxModel as Program

__all__ = [
    "Call",
    "Declared",
    "Function",
    "Graph",
    "Program",
    "Reference",
    "parse",
    "read_model",
]
