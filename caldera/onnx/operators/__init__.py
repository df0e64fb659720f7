"""The operators of ONNX, by family. Importing this fills the table `OPERATORS`."""

from __future__ import annotations

from caldera.onnx.operators import (
    activation,
    arithmetic,
    functions,
    indexing,
    logic,
    movement,
    reduction,
    shape,
)
from caldera.onnx.operators.registry import OPERATORS

FAMILIES = (
    activation,
    arithmetic,
    functions,
    indexing,
    logic,
    movement,
    reduction,
    shape,
)

__all__ = ["FAMILIES", "OPERATORS"]
