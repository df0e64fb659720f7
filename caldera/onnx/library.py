"""The optional onnx package, and the dtypes of ONNX element types.

Only this module imports onnx.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from caldera.base.arguments import require
from caldera.base.registry import optional_import
from caldera.core.tensor.dtype import ALL, DType
from caldera.errors import DtypeError

PACKAGE = "'caldera[onnx]'"
WHERE = "caldera.onnx"

onnx: Any = optional_import("onnx", PACKAGE, WHERE)
helper: Any = optional_import("onnx.helper", PACKAGE, WHERE)
numpy_helper: Any = optional_import("onnx.numpy_helper", PACKAGE, WHERE)
backend_base: Any = optional_import("onnx.backend.base", PACKAGE, WHERE)


STRING = np.dtype(object)
"""Strings: NumPy has no dtype for strings of any length."""

_NAMES: dict[int, object] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    8: STRING,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
    12: np.uint32,
    13: np.uint64,
    14: np.complex64,
    15: np.complex128,
    16: ml_dtypes.bfloat16,
    17: ml_dtypes.float8_e4m3fn,
    18: ml_dtypes.float8_e4m3fnuz,
    19: ml_dtypes.float8_e5m2,
    20: ml_dtypes.float8_e5m2fnuz,
    21: ml_dtypes.uint4,
    22: ml_dtypes.int4,
    23: ml_dtypes.float4_e2m1fn,
    24: ml_dtypes.float8_e8m0fnu,
    25: ml_dtypes.uint2,
    26: ml_dtypes.int2,
    27: ml_dtypes.float6_e2m3fn,
    28: ml_dtypes.float6_e3m2fn,
}
BY_NUMBER: dict[int, DType] = {number: np.dtype(kind) for number, kind in _NAMES.items()}  # type: ignore[call-overload]
NUMBERS: dict[DType, int] = {dtype: number for number, dtype in BY_NUMBER.items()}
_OURS = frozenset(ALL)


def dtype_of(number: int) -> DType:
    """Return the dtype with this number in ONNX.

    >>> dtype_of(1).name, dtype_of(7).name
    ('float32', 'int64')
    """
    require(number in BY_NUMBER, "onnx", "an element type that is known", number, error=DtypeError)
    return BY_NUMBER[number]


def is_ours(dtype: DType) -> bool:
    """Return True if Caldera computes with this dtype; values of other dtypes stay NumPy arrays."""
    return dtype in _OURS
