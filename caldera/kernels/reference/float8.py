"""Reference functions of 8-bit floating-point numbers, by ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from caldera.core.graph.ops.float8 import LARGEST
from caldera.core.tensor.dtype import DType, float32
from caldera.kernels.reference.evaluation import reference

FORMATS = {"e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2)}
"""NumPy's dtype of each format."""
NAN = 0x7F
"""Byte of nan in both formats."""


@reference("to_float8")
def _to_float8(
    x: np.ndarray, factor: np.ndarray, *, form: str, transposed: tuple[bool, ...]
) -> tuple[np.ndarray, ...]:
    scaled = x.astype(float32) * factor
    within = np.clip(scaled, -LARGEST[form], LARGEST[form]).astype(FORMATS[form])
    found = np.where(np.isnan(scaled), np.uint8(NAN), within.view(np.uint8))
    return tuple(np.ascontiguousarray(found.T) if each else found for each in transposed)


@reference("float8_matmul")
def _float8_matmul(
    a: np.ndarray,
    b: np.ndarray,
    scale: np.ndarray,
    *,
    forms: tuple[str, str],
    dtype: DType,
    fast: bool,
) -> np.ndarray:
    left, right = (
        each.view(FORMATS[form]).astype(float32) for each, form in zip((a, b), forms, strict=True)
    )
    return (left @ right.T * scale).astype(dtype)
