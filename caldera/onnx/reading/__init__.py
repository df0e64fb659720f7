"""Parsing of ONNX files into plain values: calls of operators, and arrays, without execution."""

from __future__ import annotations

from caldera.onnx.reading.parser import Declared, Reference, parse, read_model
from caldera.onnx.reading.parser import ModelFunction as Function
from caldera.onnx.reading.parser import ModelGraph as Graph
from caldera.onnx.reading.parser import NodeCall as Call
from caldera.onnx.reading.parser import OnnxModel as Program

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
