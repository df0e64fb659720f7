"""From what a user writes (numbers, nested lists, arrays) to arrays of a wanted dtype.

Nothing is lost in silence: floats become integers only where `astype` asks for it, and integers
must be in the range of their new dtype (0 and 1 for bool).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera.core.tensor.dtype import (
    DType,
    bool_,
    canonical,
    is_complex,
    is_float,
    is_inexact,
    is_integer,
)
from caldera.errors import DataError, DtypeError, ShapeError

Array = NDArray[Any]


def array_of(data: object, where: str) -> Array:
    """Data as an array, whose dtype is one that Caldera has.

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
    # Byte-swapped data becomes native here; for all else nothing changes.
    dtype = canonical(array.dtype)
    return array if array.dtype is dtype else array.astype(dtype, copy=False)


def real_array_of(data: object, where: str) -> Array:
    """The same for data that networks are given: complex numbers are refused.

    >>> real_array_of([1j], "data.ArrayData")
    Traceback (most recent call last):
    caldera.errors.DtypeError: data.ArrayData: expected real numbers, got complex128;
    give the parts, np.stack([z.real, z.imag], -1)
    """
    array = array_of(data, where)
    if is_complex(array.dtype):
        raise DtypeError.build(
            where,
            expected="real numbers",
            got=str(array.dtype),
            hint="give the parts, np.stack([z.real, z.imag], -1)",
        )
    return array


def little_endian(array: Array) -> Array:
    """An array whose bytes are those of a file, lowest first, whatever the machine; and back.

    >>> little_endian(np.array([1], np.int16)).tobytes()
    b'\\x01\\x00'
    """
    return array if sys.byteorder == "little" else array.byteswap()


def refuse_masked(data: object, where: str) -> None:
    """Raise if part of an array is masked: NumPy would go on with what is behind the mask.

    >>> refuse_masked(np.ma.array([1, 2], mask=[False, True]), "tensor")
    Traceback (most recent call last):
    caldera.errors.DataError: tensor: expected an array in which nothing is masked,
    got 1 masked of shape (2,); give a value with x.filled(0), or leave those samples out
    """
    # Who has one has imported their module, which takes as long as a small network's first plan.
    if "numpy.ma" not in sys.modules:
        return
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise DataError.build(
            where,
            expected="an array in which nothing is masked",
            got=f"{np.ma.count_masked(data)} masked of shape {data.shape}",
            hint="give a value with x.filled(0), or leave those samples out",
        )


def exactly(values: object, dtype: DType, where: str) -> Array:
    """Values as an array of `dtype`, or an error if it cannot hold them.

    >>> exactly([1, 2], np.dtype("float32"), "constant").tolist()
    [1.0, 2.0]
    """
    array = array_of(values, where)
    if array.dtype == dtype:
        return array
    drops_imaginary = is_complex(array.dtype) and not is_complex(dtype)
    if drops_imaginary or (is_float(array.dtype) and not is_inexact(dtype)):
        raise DtypeError.build(
            where,
            expected=f"values that {dtype} can hold",
            got=str(array.dtype),
            hint="take the real part first, or choose another dtype"
            if drops_imaginary
            else "convert them with astype first, or choose another dtype",
        )
    if is_integer(array.dtype) and not is_inexact(dtype) and array.size:
        _require_range(int(array.min()), int(array.max()), dtype, where)
    return array.astype(dtype)


def _require_range(smallest: int, largest: int, dtype: DType, where: str) -> None:
    lowest, highest = (0, 1) if dtype == bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if smallest < lowest or largest > highest:
        raise DtypeError.build(
            where,
            expected=f"integers from {lowest} to {highest} for {dtype}",
            got=str(smallest if smallest < lowest else largest),
        )
