"""Tensors from what a user has at hand: numbers, nested lists, arrays, other packages' tensors."""

from __future__ import annotations

from typing import Any

from caldera.core.memory import MANAGED, Kind
from caldera.core.tensor import dlpack
from caldera.core.tensor.convert import array_of, exactly
from caldera.core.tensor.dtype import canonical, is_inexact, of_scalar
from caldera.core.tensor.tensor import DeviceSpec, Tensor


def tensor(
    data: Any,
    dtype: object = None,
    kind: Kind = MANAGED,
    device: DeviceSpec = None,
    name: str = "",
) -> Tensor:
    """A tensor with a copy of the data: a number, nested lists, an array or another tensor.

    Python's floats become float32, its ints int64, its complex numbers complex64; arrays keep their
    dtype. A `dtype` of your own may not drop fractions; convert with `astype` for that.

    >>> import numpy as np
    >>> import caldera as cd
    >>> cd.tensor([[1.0, 2.0], [3.0, 4.0]])
    Tensor([[1., 2.],
            [3., 4.]], shape=(2, 2), dtype=float32, kind=MANAGED, device=cpu)
    >>> cd.tensor([1, 2]).dtype, cd.tensor(np.zeros(2)).dtype
    (dtype('int64'), dtype('float64'))
    """
    array = array_of(data, "tensor")
    if dtype is not None:
        array = exactly(array, canonical(dtype), "tensor")
    elif not _has_dtype(data) and is_inexact(array.dtype):
        array = array.astype(of_scalar(array.dtype.type(0).item()))
    return Tensor.from_numpy(array, kind, device, name)


def from_dlpack(
    lender: dlpack.SupportsDLPack, kind: Kind = MANAGED, device: DeviceSpec = None, name: str = ""
) -> Tensor:
    """A tensor over the memory of an array of another package, without a copy.

    Writing one changes the other. If the lender says that its memory is read-only, or speaks a
    DLPack from before 1.0, which cannot say, the tensor can only be read.

    >>> import numpy as np
    >>> import caldera as cd
    >>> a = np.zeros(3, np.float32)
    >>> t = cd.from_dlpack(a)
    >>> t[1] = 5.0
    >>> a.tolist()
    [0.0, 5.0, 0.0]
    """
    return Tensor.from_numpy(dlpack.array_from_dlpack(lender), kind, device, name, copy=False)


def _has_dtype(data: Any) -> bool:
    """Whether the numbers come with a dtype of their own, be it inside lists."""
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return hasattr(data, "dtype")
