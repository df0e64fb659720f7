"""The operators of ONNX, by family. Importing this fills the table `OPERATORS`."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.onnx.operators import (
    attention,
    control,
    convolution,
    detection,
    dtype_shape,
    elementwise,
    indexing,
    loss,
    ml_and_training,
    movement,
    normalisation,
    pooling,
    product,
    quantise,
    recurrent,
    reduction,
    resizing,
    sampling,
    sequences,
    signal,
)
from caldera.onnx.operators.registry import OPERATORS

__all__ = ["OPERATORS"]
