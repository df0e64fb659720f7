"""Tensor creation from numbers, nested lists and arrays, and initialisers by name.

Initialisers are the fillers of the public interface: `cd.uniform(-1, 1)`, `cd.he_normal()`.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from caldera.core.memory import MANAGED, Kind
from caldera.core.tensor import dlpack
from caldera.core.tensor.dtype import array_of, canonical, exactly, has_dtype, is_inexact, of_scalar
from caldera.core.tensor.fillers import (
    Constant,
    Diagonal,
    Filler,
    FromArray,
    IdentityMatrix,
    Normal,
    Orthogonal,
    Scaled,
    UniformFiller,
)
from caldera.core.tensor.tensor import DeviceSpec, Tensor
from caldera.errors import ConfigError


def tensor(
    data: Any,
    dtype: object = None,
    kind: Kind = MANAGED,
    device: DeviceSpec = None,
    name: str = "",
) -> Tensor:
    """Return a tensor with a copy of the data: a number, nested lists, an array or a tensor.

    Python's floats become float32, its ints int64, its complex numbers complex64; arrays keep their
    dtype. An explicit `dtype` must not drop fractions; convert with `astype` for that.

    >>> import numpy as np
    >>> import caldera as cd
    >>> cd.tensor([[1.0, 2.0], [3.0, 4.0]])
    Tensor([[1., 2.],
            [3., 4.]], shape=(2, 2), dtype=float32, kind=MANAGED, device=cpu)
    >>> cd.tensor([1, 2]).dtype, cd.tensor(np.zeros(2)).dtype
    (dtype('int64'), dtype('float64'))
    """
    array = array_of(data, "tensor", stored=True)
    if dtype is not None:
        array = exactly(array, canonical(dtype, stored=True), "tensor")
    elif not has_dtype(data) and is_inexact(array.dtype):
        array = array.astype(of_scalar(array.dtype.type(0).item()))
    return Tensor.from_numpy(array, kind, device, name)


def from_dlpack(
    lender: dlpack.SupportsDLPack, kind: Kind = MANAGED, device: DeviceSpec = None, name: str = ""
) -> Tensor:
    """Return a tensor over the memory of another package's array, without a copy.

    Writes to either are visible in both. The tensor is read-only if the lender declares its memory
    read-only, or uses a DLPack version before 1.0, which has no such flag.

    >>> import numpy as np
    >>> import caldera as cd
    >>> a = np.zeros(3, np.float32)
    >>> t = cd.from_dlpack(a)
    >>> t[1] = 5.0
    >>> a.tolist()
    [0.0, 5.0, 0.0]
    """
    return Tensor.from_numpy(dlpack.array_from_dlpack(lender), kind, device, name, copy=False)


def zero() -> Filler:
    """Return zeros.

    >>> import caldera as cd
    >>> cd.Tensor((2,), fill=cd.zero()).tolist()
    [0.0, 0.0]
    """
    return Constant(0)


def one() -> Filler:
    """Return ones.

    >>> import caldera as cd
    >>> cd.Tensor((2,), fill=cd.one()).tolist()
    [1.0, 1.0]
    """
    return Constant(1)


def constant(value: bool | int | float) -> Filler:
    """Return a filler with the same value in every element.

    >>> import caldera as cd
    >>> cd.Tensor((2,), fill=cd.constant(0.5)).tolist()
    [0.5, 0.5]
    """
    return Constant(value)


def uniform(low: float = 0.0, high: float = 1.0) -> Filler:
    """Return uniform numbers in [low, high).

    For integer dtypes, the whole numbers from low to high - 1.

    >>> import caldera as cd
    >>> t = cd.Tensor((1000,), fill=cd.uniform(-1, 1)).numpy()
    >>> bool(t.min() >= -1 and t.max() < 1)
    True
    """
    if not low <= high:
        raise ConfigError.build("uniform", expected="low <= high", got=f"{low} and {high}")
    return UniformFiller(low, high)


def normal(mean: float = 0.0, std: float = 1.0) -> Filler:
    """Return normal numbers.

    >>> import caldera as cd
    >>> t = cd.Tensor((1000,), fill=cd.normal(5, 0.1)).numpy()
    >>> bool(4.9 < t.mean() < 5.1)
    True
    """
    return Normal(mean, std)


def glorot_uniform() -> Filler:
    """Return a uniform filler in +-sqrt(6 / (fan_in + fan_out)), for tanh and sigmoid (Glorot).

    >>> import caldera as cd
    >>> w = cd.Tensor((100, 50), fill=cd.glorot_uniform()).numpy()
    >>> bool(abs(w).max() <= 0.2)
    True
    """
    return Scaled("glorot", "uniform")


def glorot_normal() -> Filler:
    """Return a normal filler with variance 2 / (fan_in + fan_out).

    >>> import caldera as cd
    >>> w = cd.Tensor((100, 100), fill=cd.glorot_normal()).numpy()
    >>> bool(0.09 < w.std() < 0.11)
    True
    """
    return Scaled("glorot", "normal")


def he_uniform() -> Filler:
    """Return a uniform filler in +-sqrt(6 / fan_in), for relu (He and others).

    >>> import caldera as cd
    >>> w = cd.Tensor((150, 50), fill=cd.he_uniform()).numpy()
    >>> bool(abs(w).max() <= 0.2)
    True
    """
    return Scaled("he", "uniform")


def he_normal() -> Filler:
    """Return a normal filler with variance 2 / fan_in.

    >>> import caldera as cd
    >>> w = cd.Tensor((200, 50), fill=cd.he_normal()).numpy()
    >>> bool(0.09 < w.std() < 0.11)
    True
    """
    return Scaled("he", "normal")


def orthogonal(gain: float = 1.0) -> Filler:
    """Return a random matrix with orthonormal rows or columns, the fewer of both, times `gain`.

    >>> import numpy as np
    >>> import caldera as cd
    >>> w = cd.Tensor((4, 4), fill=cd.orthogonal()).numpy()
    >>> bool(np.allclose(w @ w.T, np.eye(4), atol=1e-6))
    True
    """
    return Orthogonal(gain)


def identity() -> Filler:
    """Return a filler with ones on the diagonal and zeros elsewhere.

    >>> import caldera as cd
    >>> cd.Tensor((2, 2), fill=cd.identity()).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return IdentityMatrix()


def diagonal(values: ArrayLike) -> Filler:
    """Return the given values (or one value) on the diagonal, zeros elsewhere.

    >>> import caldera as cd
    >>> cd.Tensor((2, 2), fill=cd.diagonal([3, 4])).tolist()
    [[3.0, 0.0], [0.0, 4.0]]
    """
    return Diagonal(array_of(values, "diagonal"))


def from_array(array: ArrayLike) -> Filler:
    """Copy an array, nested list or tensor of the same shape, read when the tensor is made.

    >>> import caldera as cd
    >>> cd.Tensor((2, 2), fill=cd.from_array([[1, 2], [3, 4]])).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return FromArray(array_of(array, "from_array"))
