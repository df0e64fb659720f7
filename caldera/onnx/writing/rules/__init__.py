"""Rules to write each op of Caldera in ONNX, by family. Importing this fills the table `RULES`."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.onnx.writing.rules import (
    elementwise,
    layers,
    quantised,
    registry,
)
from caldera.onnx.writing.rules.registry import RULES

__all__ = ["RULES"]
