"""The operators of ONNX, by family. Importing this fills the table `OPERATORS`."""

# ruff: noqa: F401 - families are imported for what they register

from __future__ import annotations

from caldera.onnx.operators import (
    activation,
    arithmetic,
    attention,
    casting,
    control,
    convolution,
    detection,
    indexing,
    logic,
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
    sequence,
    shape,
    signal,
    text,
    unary,
)
from caldera.onnx.operators.registry import OPERATORS

__all__ = ["OPERATORS"]
