"""Arrays over memory that the host cannot reach: addresses, shapes and strides, never elements.

NumPy already knows how to reshape, transpose, slice and broadcast without touching an element, so
kernels of a card are given NumPy arrays whose address is one of the card's. Only such views may be
made of them; whatever would read or write an element on the host is refused.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from caldera.core.memory.pool import Block, host_view
from caldera.errors import DeviceError

_TYPE_STRINGS = {"bfloat16": "<V2"}


class DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """A part of a card's memory; CuPy and PyTorch see it through `__cuda_array_interface__`.

    >>> import numpy as np
    >>> from caldera.core.memory.device_array import DeviceArray
    >>> there = np.zeros((2, 3), "float32").view(DeviceArray)
    >>> there.T
    <float32 (3, 2) on a device>
    >>> there + 1
    Traceback (most recent call last):
    caldera.errors.DeviceError: array on a device: expected a kernel of the device,
    got add on the host; use t.numpy(), which copies
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> NoReturn:
        raise _refused(ufunc.__name__)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        raise _refused(f"numpy.{func.__name__}")

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        raise _refused("numpy.asarray")

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        numbers = [isinstance(each, int | np.integer) for each in keys]
        if len(keys) == self.ndim and all(numbers):
            # NumPy would read it: at an address of the card.
            raise _refused("an element")
        for each, is_number in zip(keys, numbers, strict=True):
            if not is_number and not (each is None or each is ... or isinstance(each, slice)):
                raise _refused("a choice of elements")
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise _refused("an assignment")

    def __bool__(self) -> NoReturn:
        raise _refused("a decision")

    def item(self, *index: Any) -> NoReturn:
        """Refused: an element cannot be read from the host."""
        raise _refused("item")

    def tolist(self) -> NoReturn:
        """Refused: elements cannot be read from the host."""
        raise _refused("tolist")

    def fill(self, value: Any) -> NoReturn:
        """Refused: elements cannot be written from the host."""
        raise _refused("fill")

    def __repr__(self) -> str:
        return f"<{self.dtype.name} {self.shape} on a device>"

    __str__ = __repr__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": _TYPE_STRINGS.get(self.dtype.name, self.dtype.str),
            "data": (address_of(self), False),
            "strides": None if self.flags.c_contiguous else self.strides,
            "version": 3,
        }


def _refused(what: str) -> DeviceError:
    return DeviceError.build(
        "array on a device",
        expected="a kernel of the device",
        got=f"{what} on the host",
        hint="use t.numpy(), which copies",
    )


def device_view(
    block: Block, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> DeviceArray:
    """An array over a block of a card's memory; the array keeps the block leased."""
    return host_view(block, offset, shape, dtype).view(DeviceArray)


def address_of(array: np.ndarray[Any, np.dtype[Any]]) -> int:
    """Where the first element of an array lies, on whatever device.

    >>> import numpy as np
    >>> numbers = np.zeros(4)
    >>> address_of(numbers[1:]) - address_of(numbers)
    8
    """
    return array.__array_interface__["data"][0]
