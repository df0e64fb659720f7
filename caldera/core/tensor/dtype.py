"""Element types, their promotion, and conversion of user values to arrays.

A dtype is a plain `numpy.dtype` (bfloat16 is defined by ml_dtypes), so arrays pass in and out of
the package without conversion. Conversion of numbers, nested lists and arrays is never silently
lossy: floats become integers only through `astype`, and integers must be in the range of their new
dtype (0 and 1 for bool).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.errors import DataError, DtypeError, ShapeError

DType = np.dtype[Any]

ALL: tuple[DType, ...] = tuple(
    map(
        np.dtype,
        (
            np.bool_,
            np.uint8,
            np.uint16,
            np.uint32,
            np.uint64,
            np.int8,
            np.int16,
            np.int32,
            np.int64,
            np.float16,
            ml_dtypes.bfloat16,
            np.float32,
            np.float64,
            np.complex64,
            np.complex128,
        ),
    )
)
bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64, *_inexact = ALL
float16, bfloat16, float32, float64, complex64, complex128 = _inexact
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL}
FLOATS: frozenset[DType] = frozenset({float16, bfloat16, float32, float64})
HALVES = frozenset({float16, bfloat16})
SIGNED: frozenset[DType] = frozenset({int8, int16, int32, int64})
UNSIGNED: frozenset[DType] = frozenset({uint8, uint16, uint32, uint64})
INTEGERS = SIGNED | UNSIGNED
COMPLEX: frozenset[DType] = frozenset({complex64, complex128})
FLOAT8: frozenset[DType] = frozenset(
    map(np.dtype, (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
)
"""Dtypes of tensors and files that no operation computes in."""

# NumPy has several equal dtype objects per type; this table returns a unique one.
_OURS = {dtype: dtype for dtype in ALL}
_STORED = {**_OURS, **{dtype: dtype for dtype in FLOAT8}}
_STORED_BY_NAME = {dtype.name: dtype for dtype in _STORED}
# Order inside one family; across families bool < integers < floats < complex numbers.
_RANK = {dtype: rank for rank, dtype in enumerate(ALL)}


def canonical(dtype: object, *, stored: bool = False) -> DType:
    """Return the dtype denoted by a name, NumPy dtype or Python type.

    Python's `float`, `int` and `complex` mean float32, int64 and complex64. With `stored`, dtypes
    that can only be stored are accepted too.

    >>> canonical("float8_e5m2", stored=True).itemsize
    1
    """
    known, by_name = (_STORED, _STORED_BY_NAME) if stored else (_OURS, BY_NAME)
    if dtype is float:
        return float32
    if dtype is complex:
        return complex64
    if isinstance(dtype, str):
        found = by_name.get(dtype)
    elif isinstance(dtype, np.dtype):
        found = known.get(dtype) or known.get(dtype.newbyteorder("="))
    else:
        found = _of_type(dtype, known)
    if found is None:
        is_storage = _of_type(dtype, _STORED) is not None
        raise DtypeError.build(
            "dtype",
            expected="one of " + ", ".join(by_name),
            got=f"{dtype!r}",
            hint="float8 only stores numbers: convert the tensor with astype('float32') first"
            if is_storage
            else "convert the data to one of these first",
        )
    return found


class _Names(dict[DType, str]):
    def __missing__(self, dtype: DType) -> str:
        return self.setdefault(dtype, dtype.name)


NAMES: Mapping[DType, str] = _Names()
"""Name of each dtype, cached because NumPy recreates it on every access."""


def _of_type(dtype: object, known: Mapping[DType, DType]) -> DType | None:
    try:
        # NumPy reads None as float64; here it is no dtype.
        return None if dtype is None else known.get(np.dtype(dtype))  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return None


def is_float(dtype: DType) -> bool:
    """Return True for real floating-point dtypes."""
    return dtype in FLOATS


def is_complex(dtype: DType) -> bool:
    """Return True for complex dtypes."""
    return dtype.kind == "c"


def is_inexact(dtype: DType) -> bool:
    """Return True for dtypes that carry gradients: floats and complex numbers."""
    return dtype in FLOATS or dtype.kind == "c"


def part_of(dtype: DType) -> DType:
    """Return the dtype of the parts of a complex dtype; a real dtype is returned unchanged."""
    if dtype.kind != "c":
        return dtype
    return float32 if dtype == complex64 else float64


def complex_of(dtype: DType) -> DType:
    """Return the complex dtype whose parts hold what this dtype holds.

    Of integers it is complex64.
    """
    return complex128 if dtype in (float64, complex128) else complex64


def is_integer(dtype: DType) -> bool:
    """Return True for dtypes usable as indices."""
    return dtype in INTEGERS


def promote(first: DType, second: DType) -> DType:
    """Return the dtype in which two operands are computed.

    Floats take precedence over integers and integers over bool, without widening: int64 with
    float16 is float16, since an index must not turn a network into float64. float16 with bfloat16
    is float32. Two integers are promoted to the smallest dtype that contains both, as in NumPy:
    uint8 with int8 is int16. uint64 with a signed integer, for which there is none, is float64.
    Complex numbers take precedence over all, with parts that contain both operands: complex64 with
    float64 is complex128.

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
    """Return -1 for an integer below the range of a dtype, 1 for one above it, else 0.

    >>> side_of_range(-1, uint8), side_of_range(255, uint8), side_of_range(256, uint8)
    (-1, 0, 1)
    """
    if isinstance(value, float | complex) or dtype not in INTEGERS:
        return 0
    limits = np.iinfo(dtype)
    return int(value > limits.max) - int(value < limits.min)


def of_scalar(
    value: bool | int | float | complex | np.generic, other: DType | None = None
) -> DType:
    """Return the dtype of a scalar in an operation with dtype `other` (scalars are weak).

    Without `other`, a NumPy scalar keeps its dtype.
    """
    if isinstance(value, np.generic):
        if other is None:
            return canonical(value.dtype)
        value = value.item()
    if isinstance(value, bool):
        return other if other is not None else bool_
    if isinstance(value, int):
        return other if other is not None and other != bool_ else int64
    if isinstance(value, complex):
        return complex64 if other is None else complex_of(other)
    return other if other is not None and is_inexact(other) else float32


Array = NDArray[Any]


def has_dtype(data: object) -> bool:
    """Return True if the data, or the first element of nested lists, is a NumPy array or scalar."""
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return hasattr(data, "dtype")


def array_of(data: object, where: str, *, stored: bool = False) -> Array:
    """Return data as an array, whose dtype is one that Caldera has (or can store).

    >>> array_of([[1, 2], [3, 4]], "tensor").shape
    (2, 2)
    """
    refuse_masked(data, where)
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError.build(
            where, expected="nested lists of equal lengths", got=str(error).split(".")[0]
        ) from None
    # Byte-swapped data becomes native here; all other data is unchanged.
    dtype = canonical(array.dtype, stored=stored)
    return array if array.dtype is dtype else array.astype(dtype, copy=False)


def real_array_of(data: object, where: str) -> Array:
    """Return the same for data that networks are given: complex numbers are refused.

    >>> real_array_of([1j], "data.ArrayData")
    Traceback (most recent call last):
    caldera.errors.DtypeError: data.ArrayData: expected real numbers, got complex128;
    give the parts, np.stack([z.real, z.imag], -1)
    """
    array = array_of(data, where)
    require(
        not is_complex(array.dtype),
        where,
        "real numbers",
        array.dtype,
        hint="give the parts, np.stack([z.real, z.imag], -1)",
        error=DtypeError,
    )
    return array


def little_endian(array: Array) -> Array:
    r"""Convert an array between native and little-endian byte order, the order of files.

    >>> little_endian(np.array([1], np.int16)).tobytes()
    b'\x01\x00'
    """
    return array if sys.byteorder == "little" else array.byteswap()


def refuse_masked(data: object, where: str) -> None:
    """Raise if part of an array is masked: NumPy would use the values behind the mask.

    >>> refuse_masked(np.ma.array([1, 2], mask=[False, True]), "tensor")
    Traceback (most recent call last):
    caldera.errors.DataError: tensor: expected an array without masked elements,
    got 1 masked of shape (2,); give a value with x.filled(0), or leave those samples out
    """
    # Who has one has imported their module, which takes as long as a small network's first plan.
    if "numpy.ma" not in sys.modules:
        return
    # Rows of a list may be masked as well.
    parts = data if isinstance(data, list | tuple) else (data,)
    for each in parts:
        if isinstance(each, np.ma.MaskedArray) and np.ma.is_masked(each):
            raise DataError.build(
                where,
                expected="an array without masked elements",
                got=f"{np.ma.count_masked(each)} masked of shape {each.shape}",
                hint="give a value with x.filled(0), or leave those samples out",
            )


def exactly(values: object, dtype: DType, where: str) -> Array:
    """Return values as an array of `dtype`, or an error if it cannot hold them.

    >>> exactly([1, 2], np.dtype("float32"), "constant").tolist()
    [1.0, 2.0]
    """
    array = array_of(values, where, stored=True)
    if array.dtype == dtype:
        return array
    if not array.size:
        return array.astype(dtype)
    drops_imaginary = is_complex(array.dtype) and not is_complex(dtype)
    is_inexact_goal = is_inexact(dtype) or dtype in FLOAT8
    if drops_imaginary or (array.dtype in FLOATS | FLOAT8 and not is_inexact_goal):
        raise DtypeError.build(
            where,
            expected=f"values that {dtype} can hold",
            got=str(array.dtype),
            hint="take the real part first, or choose another dtype"
            if drops_imaginary
            else "convert them with astype first, or choose another dtype",
        )
    if is_integer(array.dtype) and not is_inexact_goal:
        _require_range(int(array.min()), int(array.max()), dtype, where)
    return array.astype(dtype)


def _require_range(smallest: int, largest: int, dtype: DType, where: str) -> None:
    lowest, highest = (0, 1) if dtype == bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    require(
        smallest >= lowest and largest <= highest,
        where,
        f"integers from {lowest} to {highest} for {dtype}",
        smallest if smallest < lowest else largest,
        error=DtypeError,
    )
