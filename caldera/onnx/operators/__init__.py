"""The operators of ONNX, by family. Importing this fills the table `OPERATORS`."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.onnx.operators import (
    attention,
    control,
    dtype_shape,
    elementwise,
    images,
    ml_and_training,
    movement,
    normalisation,
    pooling,
    products,
    recurrent,
    reduction,
    sampling,
    signal,
)
from caldera.onnx.operators.registry import OPERATORS

__all__ = ["OPERATORS"]
