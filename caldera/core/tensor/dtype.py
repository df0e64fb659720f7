"""Element types: the ones Caldera has, their names, and which type two operands share.

A dtype is a plain `numpy.dtype` (bfloat16 comes from ml_dtypes), so arrays pass in and out of the
package without conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from caldera.errors import DtypeError

DType = np.dtype[Any]

bool_ = np.dtype(np.bool_)
uint8 = np.dtype(np.uint8)
uint16 = np.dtype(np.uint16)
uint32 = np.dtype(np.uint32)
uint64 = np.dtype(np.uint64)
int8 = np.dtype(np.int8)
int16 = np.dtype(np.int16)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
float16 = np.dtype(np.float16)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
float32 = np.dtype(np.float32)
float64 = np.dtype(np.float64)
complex64 = np.dtype(np.complex64)
complex128 = np.dtype(np.complex128)

ALL: tuple[DType, ...] = (
    bool_,
    uint8,
    uint16,
    uint32,
    uint64,
    int8,
    int16,
    int32,
    int64,
    float16,
    bfloat16,
    float32,
    float64,
    complex64,
    complex128,
)
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL}
FLOATS: frozenset[DType] = frozenset({float16, bfloat16, float32, float64})
HALVES = frozenset({float16, bfloat16})
SIGNED: frozenset[DType] = frozenset({int8, int16, int32, int64})
UNSIGNED: frozenset[DType] = frozenset({uint8, uint16, uint32, uint64})
INTEGERS = SIGNED | UNSIGNED
COMPLEX: frozenset[DType] = frozenset({complex64, complex128})

# NumPy has several dtype objects for one type; they are equal, and this gives back ours.
_OURS = {dtype: dtype for dtype in ALL}
# Order inside one family; across families bool < integers < floats < complex numbers.
_RANK = {dtype: rank for rank, dtype in enumerate(ALL)}


def canonical(dtype: object) -> DType:
    """The dtype that a name, NumPy dtype or Python type stands for.

    Python's `float`, `int` and `complex` mean float32, int64 and complex64.
    """
    if dtype is float:
        return float32
    if dtype is complex:
        return complex64
    if isinstance(dtype, str):
        found = BY_NAME.get(dtype)
    elif isinstance(dtype, np.dtype):
        found = _OURS.get(dtype) or _OURS.get(dtype.newbyteorder("="))
    else:
        found = _of_type(dtype)
    if found is None:
        raise DtypeError.build(
            "dtype",
            expected="one of " + ", ".join(BY_NAME),
            got=f"{dtype!r}",
            hint="convert the data to one of these first",
        )
    return found


class _Names(dict[DType, str]):
    def __missing__(self, dtype: DType) -> str:
        return self.setdefault(dtype, dtype.name)


NAMES: Mapping[DType, str] = _Names()
"""The name of each dtype: NumPy makes it anew whenever it is asked, which takes some time."""


def _of_type(dtype: object) -> DType | None:
    try:
        # NumPy reads None as float64; here it is no dtype.
        return None if dtype is None else _OURS.get(np.dtype(dtype))  # type: ignore[call-overload]
    except TypeError:
        return None


def is_float(dtype: DType) -> bool:
    """Whether values of this dtype are real floating-point numbers."""
    return dtype in FLOATS


def is_complex(dtype: DType) -> bool:
    """Whether values of this dtype have a real and an imaginary part."""
    return dtype.kind == "c"


def is_inexact(dtype: DType) -> bool:
    """Whether a gradient can flow through values of this dtype: floats and complex numbers."""
    return dtype in FLOATS or dtype.kind == "c"


def part_of(dtype: DType) -> DType:
    """The dtype of the parts of complex numbers; that of a real dtype is the dtype itself."""
    if dtype.kind != "c":
        return dtype
    return float32 if dtype == complex64 else float64


def complex_of(dtype: DType) -> DType:
    """The complex dtype whose parts hold what this dtype holds; of integers it is complex64."""
    return complex128 if dtype in (float64, complex128) else complex64


def is_integer(dtype: DType) -> bool:
    """Whether values of this dtype can be used as indices."""
    return dtype in INTEGERS


def promote(first: DType, second: DType) -> DType:
    """The dtype two operands are computed in.

    Floats win over integers and integers over bool, without widening (int64 with float16 is
    float16: an index must not turn a network into float64). float16 with bfloat16 is float32. Two
    integers meet in the smallest dtype that holds both, as in NumPy: uint8 with int8 is int16, and
    uint64 with a signed one, for which there is none, is float64. Complex numbers win over all, and
    their parts hold those of both: complex64 with float64 is complex128.

    >>> promote(uint16, int16).name, promote(uint64, int8).name, promote(uint64, float16).name
    ('int32', 'float64', 'float16')
    """
    if first == second:
        return first
    if is_complex(first) or is_complex(second):
        return complex_of(promote(part_of(first), part_of(second)))
    if {first, second} == HALVES:
        return float32
    if first in INTEGERS and second in INTEGERS:
        return _OURS[np.promote_types(first, second)]
    return max(first, second, key=_RANK.__getitem__)


def side_of_range(value: bool | int | float | complex, dtype: DType) -> int:
    """-1 for a whole number below all that an integer dtype holds, 1 for one above, else 0.

    >>> side_of_range(-1, uint8), side_of_range(255, uint8), side_of_range(256, uint8)
    (-1, 0, 1)
    """
    if isinstance(value, float | complex) or dtype not in INTEGERS:
        return 0
    limits = np.iinfo(dtype)
    return int(value > limits.max) - int(value < limits.min)


def of_scalar(value: bool | int | float | complex, other: DType | None = None) -> DType:
    """The dtype of a Python scalar beside an operand of dtype `other` (scalars are weak)."""
    if isinstance(value, bool):
        return other if other is not None else bool_
    if isinstance(value, int):
        return other if other is not None and other != bool_ else int64
    if isinstance(value, complex):
        return complex64 if other is None else complex_of(other)
    return other if other is not None and is_inexact(other) else float32
