"""From one dtype to another, also those that only files have: float8, 4 bits, texts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from caldera import op
from caldera.core.tensor.dtype import DType, bool_
from caldera.errors import DtypeError
from caldera.onnx.dtypes import STRING, dtype_of, is_ours
from caldera.onnx.operators.registry import evaluated, operator
from caldera.onnx.operators.values import Value, known

_POWERS_OF_TWO = np.dtype(ml_dtypes.float8_e8m0fnu)
_LOWEST_POWER, _HIGHEST_POWER = -127, 127


@operator("Cast", foreign=True)
def cast(x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    """The same values in another dtype."""
    return converted(x, dtype_of(to), bool(saturate), round_mode)


@operator("CastLike", foreign=True)
def cast_like(x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    """The same values in the dtype of another tensor."""
    return converted(x, like.dtype, bool(saturate), round_mode)


def converted(x: Value, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Value:
    """An expression where both dtypes are Caldera's, an array where not."""
    if is_ours(x.dtype) and is_ours(dtype):
        return op.cast(x, dtype)
    array = known(x, "elements of such a dtype")
    with np.errstate(all="ignore"):
        if dtype == STRING:
            return _texts(array)
        if array.dtype == STRING:
            return _from_texts(array, dtype)
        if dtype == _POWERS_OF_TWO:
            return _power_of_two(array.astype(np.float64), saturate, round_mode)
        if dtype == bool_:
            return array != 0
        if saturate and dtype.name.startswith("float8"):
            largest = float(ml_dtypes.finfo(dtype).max)
            array = np.clip(array.astype(np.float32), -largest, largest)
        return array.astype(dtype)


def _texts(array: np.ndarray) -> np.ndarray:
    return np.array([str(each) for each in array.reshape(-1)], STRING).reshape(array.shape)


def _from_texts(array: np.ndarray, dtype: DType) -> np.ndarray:
    try:
        numbers = [float(each) for each in array.reshape(-1)]
    except ValueError as problem:
        raise DtypeError.build("onnx Cast", expected="numbers as texts", got=str(problem)) from None
    return np.array(numbers).reshape(array.shape).astype(dtype)


def _power_of_two(array: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    """Powers of two alone: the exponent is rounded."""
    mantissa, exponent = np.frexp(np.abs(array))
    # frexp gives a mantissa from 1/2 up to 1: the power below is one less.
    below = exponent - 1
    fraction = mantissa * 2
    rises = {"up": fraction > 1, "down": fraction < 0, "nearest": fraction >= 1.5}[round_mode]
    power = below + rises
    is_out = (power < _LOWEST_POWER) | (power > _HIGHEST_POWER) | (array == 0) | np.isinf(array)
    power = np.where(array == 0, _LOWEST_POWER, np.where(np.isinf(array), _HIGHEST_POWER, power))
    power = np.clip(power, _LOWEST_POWER, _HIGHEST_POWER)
    bits = (power - _LOWEST_POWER).astype(np.uint8)
    is_nan = np.isnan(array) if saturate else np.isnan(array) | is_out
    return np.where(is_nan, np.uint8(255), bits).view(_POWERS_OF_TWO)


@evaluated("BitCast")
def bit_cast(x: np.ndarray, *, to: int) -> np.ndarray:
    """The same bits read as another dtype of the same width."""
    dtype = dtype_of(to)
    if dtype.itemsize != x.dtype.itemsize:
        raise DtypeError.build(
            "onnx BitCast", expected=f"a dtype as wide as {x.dtype.name}", got=dtype.name
        )
    return np.ascontiguousarray(x).view(dtype).reshape(x.shape)
