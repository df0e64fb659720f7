"""Fillers: initial values of tensors and variables. `fills.py` has the user-facing functions.

A filler describes values, which are generated once the shape is known. Random fillers are
identified by (seed, stream) and generated on the host by the counter-based generator of
`philox.py`, so they are the same for every device.

Fans of Glorot and He: a matrix is (in, out), as in `x @ W`. A weight with more axes belongs to a
convolution, (out, in / groups, kernel...), as in `op.conv2d(x, w)`, and its fans are multiplied by
the size of the kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import ceil, prod, sqrt
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.core.tensor import philox
from caldera.core.tensor.dtype import (
    FLOAT8,
    DType,
    array_of,
    bool_,
    exactly,
    float32,
    float64,
    is_complex,
    is_float,
)
from caldera.core.tensor.random import streams
from caldera.core.tensor.shape import Shape, size
from caldera.errors import DtypeError, ShapeError

Array = NDArray[Any]


class Filler(ABC):
    """Base of all fillers.

    >>> import caldera as cd
    >>> isinstance(cd.uniform(-1, 1), cd.Filler)
    True
    """

    is_random: ClassVar[bool] = False

    @abstractmethod
    def generate(self, shape: Shape, dtype: DType, seed: int, stream: int) -> Array:
        """Return the values for a tensor of this shape; the same arguments give the same numbers.

        >>> import numpy as np
        >>> import caldera as cd
        >>> cd.identity().generate((2, 2), np.dtype("int8"), seed=0, stream=0).tolist()
        [[1, 0], [0, 1]]
        """


def filled(fill: Filler, shape: Shape, dtype: DType) -> Array:
    """Return the values under the program's seed; a random filler takes the next stream.

    >>> filled(Constant(2), (3,), float32).tolist()
    [2.0, 2.0, 2.0]
    """
    now = streams()
    wide = float32 if dtype in FLOAT8 else dtype
    found = fill.generate(shape, wide, now.seed, now.take() if fill.is_random else 0)
    return found.astype(dtype, copy=False)


def as_filler(fill: object, where: str) -> Filler:
    """Return the filler for a value of `fill=`: a filler, a number, or an array.

    >>> as_filler(0.5, "op.var").generate((2,), float32, 0, 0).tolist()
    [0.5, 0.5]
    """
    if isinstance(fill, Filler):
        return fill
    if isinstance(fill, bool | int | float | complex | np.generic):
        return Constant(array_of(fill, where).item())
    if callable(fill):
        raise DtypeError.build(
            where,
            expected="a filler, a number or an array",
            got=repr(fill),
            hint="call it: a filler is made by cd.uniform(), cd.zero(), ...",
        )
    return FromArray(array_of(fill, where))


@dataclass(frozen=True)
class Constant(Filler):
    """Filler with the same value in every element."""

    value: bool | int | float | complex

    def generate(self, shape: Shape, dtype: DType, seed: int, stream: int) -> Array:
        """Return the value, `shape` times."""
        return np.full(shape, exactly(self.value, dtype, f"constant({self.value!r})"), dtype)


@dataclass(frozen=True)
class UniformFiller(Filler):
    """Uniform numbers in [low, high); whole numbers if the dtype is an integer one."""

    low: float
    high: float
    is_random: ClassVar[bool] = True

    def generate(self, shape: Shape, dtype: DType, seed: int, stream: int) -> Array:
        """Element i in row-major order is number i of the stream."""
        if is_float(dtype):
            values = self._scaled(size(shape), _working_dtype(dtype), seed, stream)
            result = values.astype(dtype, copy=False)
            # The last rounding can reach `high`, which is excluded.
            limit = np.nextafter(dtype.type(self.high), dtype.type(self.low))
            return np.minimum(result, limit, out=result).reshape(shape)
        self._require_range(dtype)
        values = self._scaled(size(shape), float64, seed, stream)
        np.floor(values, out=values)
        np.minimum(values, max(ceil(self.high) - 1, self.low), out=values)
        return values.astype(dtype).reshape(shape)

    def _scaled(self, count: int, dtype: DType, seed: int, stream: int) -> Array:
        values = philox.uniform01(seed, 0, stream, 0, count, dtype)
        values *= dtype.type(self.high - self.low)
        values += dtype.type(self.low)
        return values

    def _require_range(self, dtype: DType) -> None:
        require(
            dtype != bool_ and not is_complex(dtype),
            "uniform",
            "a float or integer dtype",
            dtype,
            error=DtypeError,
        )
        limits = np.iinfo(dtype)
        if self.low < limits.min or self.high - 1 > limits.max:
            raise DtypeError.build(
                "uniform",
                expected=f"bounds in the range of {dtype}",
                got=f"{self.low} and {self.high}",
            )


@dataclass(frozen=True)
class Normal(Filler):
    """Normal numbers."""

    mean: float
    std: float
    is_random: ClassVar[bool] = True

    def generate(self, shape: Shape, dtype: DType, seed: int, stream: int) -> Array:
        """Element i in row-major order is number i of the stream."""
        philox.require_float(dtype, "normal")
        working = _working_dtype(dtype)
        values = philox.normal(seed, 0, stream, 0, size(shape), working)
        values *= working.type(self.std)
        values += working.type(self.mean)
        return values.astype(dtype, copy=False).reshape(shape)


@dataclass(frozen=True)
class Scaled(Filler):
    """Random numbers of mean 0 whose variance follows from the fans: Glorot's and He's rules."""

    rule: Literal["glorot", "he"]
    distribution: Literal["uniform", "normal"]
    is_random: ClassVar[bool] = True

    def generate(self, shape: Shape, dtype: DType, seed: int, stream: int) -> Array:
        """Return variance 2 / (fan_in + fan_out) after Glorot, 2 / fan_in after He."""
        where = f"{self.rule}_{self.distribution}"
        fan_in, fan_out = fans(shape, where)
        philox.require_float(dtype, where)
        variance = 2.0 / max(fan_in + fan_out if self.rule == "glorot" else fan_in, 1)
        limit = sqrt(3.0 * variance)
        filler = (
            UniformFiller(-limit, limit)
            if self.distribution == "uniform"
            else Normal(0.0, sqrt(variance))
        )
        return filler.generate(shape, dtype, seed, stream)


@dataclass(frozen=True)
class Orthogonal(Filler):
    """A random matrix with orthonormal rows or columns, whichever are fewer, times `gain`."""

    gain: float
    is_random: ClassVar[bool] = True

    def generate(self, shape: Shape, dtype: DType, seed: int, stream: int) -> Array:
        """Return the matrix; all axes after the first count as columns."""
        require(len(shape) >= 2, "orthogonal", "at least two axes", shape, error=ShapeError)
        philox.require_float(dtype, "orthogonal")
        rows, columns = shape[0], prod(shape[1:])
        tall = (max(rows, columns), min(rows, columns))
        directions, triangle = np.linalg.qr(Normal(0.0, 1.0).generate(tall, float64, seed, stream))
        # With the signs of the diagonal taken out, all orthogonal matrices are equally likely.
        directions *= np.where(np.diagonal(triangle) < 0, -self.gain, self.gain)
        if rows < columns:
            directions = directions.T
        return np.ascontiguousarray(directions.reshape(shape), dtype=dtype)


@dataclass(frozen=True)
class IdentityMatrix(Filler):
    """Filler with ones on the diagonal and zeros elsewhere."""

    def generate(self, shape: Shape, dtype: DType, seed: int, stream: int) -> Array:
        """Return the matrix, which may be rectangular."""
        _require_matrix(shape, "identity")
        return np.eye(shape[0], shape[1], dtype=dtype)


@dataclass(frozen=True, eq=False)
class Diagonal(Filler):
    """The given values on the diagonal, zeros elsewhere."""

    values: Array = field(repr=False)

    def generate(self, shape: Shape, dtype: DType, seed: int, stream: int) -> Array:
        """Return the matrix; the length of its shorter side is the number of values."""
        _require_matrix(shape, "diagonal")
        if self.values.shape not in ((), (min(shape),)):
            raise ShapeError.build(
                "diagonal",
                expected=f"{min(shape)} values for a matrix of shape {shape}",
                got=f"values of shape {self.values.shape}",
            )
        matrix = np.zeros(shape, dtype)
        np.fill_diagonal(matrix, exactly(self.values, dtype, "diagonal"))
        return matrix


@dataclass(frozen=True, eq=False)
class FromArray(Filler):
    """Filler that copies an array of the same shape."""

    values: Array = field(repr=False)

    def generate(self, shape: Shape, dtype: DType, seed: int, stream: int) -> Array:
        """Return the array in the requested dtype."""
        require(
            self.values.shape == shape,
            "from_array",
            f"an array of shape {shape}",
            self.values.shape,
            hint="reshape the array, or use cd.constant for a number",
            error=ShapeError,
        )
        return np.array(exactly(self.values, dtype, "from_array"), dtype=dtype, order="C")


def fans(shape: Shape, where: str) -> tuple[int, int]:
    """Return the number of inputs per output, and of outputs per input.

    >>> fans((784, 528), "glorot_uniform"), fans((32, 16, 3, 3), "glorot_uniform")
    ((784, 528), (144, 288))
    """
    require(
        len(shape) >= 2,
        where,
        "a weight of at least two axes",
        shape,
        hint="fill vectors with cd.zero(), cd.uniform(...) or cd.normal(...)",
        error=ShapeError,
    )
    if len(shape) == 2:
        return shape
    kernel = prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def _working_dtype(dtype: DType) -> DType:
    return float64 if dtype == float64 else float32


def _require_matrix(shape: Shape, where: str) -> None:
    require(len(shape) == 2, where, "a matrix, of two axes", shape, error=ShapeError)
