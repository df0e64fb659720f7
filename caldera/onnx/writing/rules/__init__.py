"""How each op of Caldera is written in ONNX, by family. Importing this fills the table `RULES`."""

from __future__ import annotations

from caldera.onnx.writing.rules import (
    control,
    elementwise,
    indexing,
    leaf,
    movement,
    networks,
    product,
    reduction,
)
from caldera.onnx.writing.rules.registry import RULES

FAMILIES = (
    control,
    elementwise,
    indexing,
    leaf,
    movement,
    networks,
    product,
    reduction,
)

__all__ = ["FAMILIES", "RULES"]
