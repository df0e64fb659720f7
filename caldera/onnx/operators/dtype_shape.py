"""ONNX operators that change dtypes or shapes, constants, and values derived from shapes.

Casts include the dtypes that only files have: float8, 4 bits, texts.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import DType, bool_, float32
from caldera.errors import DtypeError
from caldera.onnx.library import STRING, dtype_of, is_ours
from caldera.onnx.operators.registry import (
    Value,
    axis_of,
    check_size,
    evaluated,
    integer,
    integers,
    known,
    operator,
)

_POWERS_OF_TWO = np.dtype(ml_dtypes.float8_e8m0fnu)
_LOWEST_POWER, _HIGHEST_POWER = -127, 127


@operator("Cast", foreign=True)
def cast(x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    """Convert the values to another dtype."""
    return converted(x, dtype_of(to), bool(saturate), round_mode)


@operator("CastLike", foreign=True)
def cast_like(x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    """Convert the values to the dtype of another tensor."""
    return converted(x, like.dtype, bool(saturate), round_mode)


def converted(x: Value, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Value:
    """Return an expression where both dtypes are Caldera's, an array where not."""
    if is_ours(x.dtype) and is_ours(dtype):
        return op.cast(x, dtype)
    array = known(x, "elements of such a dtype")
    with np.errstate(all="ignore"):
        if dtype == STRING:
            texts = [str(each) for each in array.reshape(-1)]
            return np.array(texts, STRING).reshape(array.shape)
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


def _from_texts(array: np.ndarray, dtype: DType) -> np.ndarray:
    try:
        numbers = [float(each) for each in array.reshape(-1)]
    except ValueError as problem:
        raise DtypeError.build("onnx Cast", expected="numbers as texts", got=str(problem)) from None
    return np.array(numbers).reshape(array.shape).astype(dtype)


def _power_of_two(array: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    """Round to powers of two: the exponent is rounded."""
    mantissa, exponent = np.frexp(np.abs(array))
    # The mantissa of frexp is in [1/2, 1): the power below is one less.
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
    """Return the same bits read as another dtype of the same width."""
    dtype = dtype_of(to)
    require(
        dtype.itemsize == x.dtype.itemsize,
        "onnx BitCast",
        f"a dtype as wide as {x.dtype.name}",
        dtype.name,
        error=DtypeError,
    )
    return np.ascontiguousarray(x).view(dtype).reshape(x.shape)


@operator("Shape", numpy=lambda x, **bounds: shape(x, **bounds))
def shape(x: Value, *, start: int = 0, end: int | None = None) -> np.ndarray:
    """Return the sizes of x, or of a range of its axes."""
    return np.array(x.shape[start:end], np.int64)


@operator("Size", numpy=lambda x: size(x))
def size(x: Value) -> np.ndarray:
    """Return the number of elements."""
    return np.array(np.prod(x.shape, dtype=np.int64))


@operator("Identity", moves=True)
def identity(x: Value) -> Value:
    """Return the input unchanged."""
    return x


@operator("Constant")
def constant(
    *,
    value: np.ndarray | None = None,
    sparse_value: np.ndarray | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> np.ndarray:
    """Return the value of the attribute."""
    for given, dtype in (
        (value, None),
        (sparse_value, None),
        (value_int, np.dtype(np.int64)),
        (value_ints, np.dtype(np.int64)),
        (value_float, float32),
        (value_floats, float32),
        (value_string, STRING),
        (value_strings, STRING),
    ):
        if given is not None:
            return np.array(given, dtype)
    raise ValueError("a constant without a value")


@operator("ConstantOfShape")
def constant_of_shape(sizes: Value, *, value: np.ndarray | None = None) -> np.ndarray:
    """Return an array with one value in every element, by default 0 in float32."""
    found = np.zeros(1, np.float32) if value is None else value
    wanted = integers(sizes, "a shape")
    check_size(wanted, found.dtype)
    return np.full(wanted, found.reshape(-1)[0], found.dtype)


@operator("Range", numpy=lambda start, limit, delta: range_(start, limit, delta))
def range_(start: Value, limit: Value, delta: Value) -> np.ndarray:
    """Return numbers from start to limit in steps of delta."""
    first, last, step = (known(each, "a bound").reshape(()) for each in (start, limit, delta))
    count = max(int(np.ceil((last.astype(np.float64) - first) / step)), 0)
    check_size((count,))
    return (first + np.arange(count).astype(first.dtype) * step).astype(first.dtype)


@operator("EyeLike")
def eye_like(x: Value, *, dtype: int | None = None, k: int = 0) -> np.ndarray:
    """Return a matrix with ones on a diagonal."""
    rows, columns = x.shape
    check_size(x.shape)
    return np.eye(rows, columns, k, x.dtype if dtype is None else dtype_of(dtype))


@operator("Expand", moves=True)
def expand(x: Value, shape: Value) -> Expr:
    """Broadcast x to a larger shape; sizes of 1 in the shape keep the sizes of x."""
    return op.broadcast(x, np.broadcast_shapes(x.shape, integers(shape, "a shape")))


@operator("Reshape", moves=True)
def reshape(x: Value, shape: Value, *, allowzero: int = 0) -> Expr:
    """Reshape x; 0 keeps a size and -1 is inferred."""
    wanted = list(integers(shape, "a shape"))
    if not allowzero:
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if -1 in wanted and 0 in wanted:
        wanted[wanted.index(-1)] = 0
    return op.reshape(x, wanted)


@operator("Flatten", moves=True)
def flatten(x: Value, *, axis: int = 1) -> Expr:
    """Merge the axes before `axis` into one, and the remaining axes into another."""
    before = x.shape[: axis_of(axis, len(x.shape))]
    rows = int(np.prod(before, dtype=np.int64))
    columns = int(np.prod(x.shape[len(before) :], dtype=np.int64))
    return op.reshape(x, (rows, columns))


@operator("Squeeze", moves=True)
def squeeze(x: Value, axes: Value = None) -> Expr:
    """Remove axes of size 1."""
    return op.squeeze(x, None if axes is None else integers(axes, "axes"))


@operator("Unsqueeze", moves=True)
def unsqueeze(x: Value, axes: Value) -> Expr:
    """Insert axes of size 1."""
    return op.unsqueeze(x, integers(axes, "axes"))


def _triangle(x: np.ndarray, k: Any = None, *, upper: int = 1) -> np.ndarray:
    offset = 0 if k is None else int(k)
    return np.triu(x, offset) if upper else np.tril(x, offset)


@operator("Trilu", numpy=_triangle)
def trilu(x: Value, k: Value = None, *, upper: int = 1) -> Expr:
    """Return the upper or lower triangle."""
    offset = 0 if k is None else integer(k, "a diagonal")
    return op.triu(x, offset) if upper else op.tril(x, offset)
