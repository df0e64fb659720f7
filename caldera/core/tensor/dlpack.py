"""Sharing memory with other packages: strided arrays, and DLPack in both directions.

NumPy supports DLPack for every dtype except bfloat16. Arrays of bfloat16 are exchanged as 16-bit
integers, with the type field of the exchanged structure set to bfloat16. The structures follow
dlpack.h, https://dmlc.github.io/dlpack.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.core.tensor.dtype import DType, bfloat16, canonical
from caldera.core.tensor.shape import StridedView, row_major_strides
from caldera.errors import DeviceError, DtypeError, ShapeError

Array = NDArray[Any]

CPU_DEVICE = (1, 0)

_UNSIGNED_CODE = 1
_BFLOAT_CODE = 4
_UINT16 = np.dtype(np.uint16)
# Where the DLTensor starts in the structure behind a capsule of this name.
_TENSOR_OFFSETS = {b"dltensor": 0, b"dltensor_versioned": 32}

_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _TensorHead(ctypes.Structure):
    """First fields of a DLTensor, up to the element type."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
    )


class SupportsDLPack(Protocol):
    """Interface of arrays that lend their memory through DLPack."""

    def __dlpack__(self, **options: Any) -> object:
        """Return a capsule with the address, shape and type."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind of device and its number."""


class _Handed:
    """A capsule that was taken already, for NumPy to take over."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU_DEVICE


def to_dlpack(array: Array, options: dict[str, Any]) -> object:
    """Return a DLPack capsule over the memory of an array, of any dtype that Caldera has.

    >>> "dltensor" in repr(to_dlpack(np.zeros(3), {}))
    True
    """
    if array.dtype != bfloat16:
        return array.__dlpack__(**options)
    capsule = array.view(_UINT16).__dlpack__(**options)
    _head(capsule).type_code = _BFLOAT_CODE
    return capsule


def array_from_dlpack(lender: SupportsDLPack) -> Array:
    """Return an array over the memory of anything that speaks DLPack.

    >>> numbers = np.arange(3)
    >>> bool(np.shares_memory(array_from_dlpack(numbers), numbers))
    True
    """
    require(
        hasattr(lender, "__dlpack__"),
        "from_dlpack",
        "an object with __dlpack__",
        type(lender).__name__,
        hint="use cd.tensor for lists and numbers",
        error=DtypeError,
    )
    device = lender.__dlpack_device__()
    require(
        device[0] == CPU_DEVICE[0],
        "from_dlpack",
        "memory of the host",
        f"DLPack device {tuple(device)}",
        hint="bring the array to the CPU first",
        error=DeviceError,
    )
    try:
        capsule = lender.__dlpack__(max_version=(1, 0))
    except TypeError:
        # Lenders from before DLPack 1.0 do not know the argument.
        capsule = lender.__dlpack__()
    except BufferError as error:
        raise DtypeError.build(
            "from_dlpack", expected="numbers that DLPack can hold", got=str(error)
        ) from None
    head = _head(capsule)
    as_integers = (head.type_code, head.type_bits, head.type_lanes) == (_BFLOAT_CODE, 16, 1)
    if as_integers:
        head.type_code = _UNSIGNED_CODE
    try:
        array = np.from_dlpack(_Handed(capsule))
    except (BufferError, RuntimeError) as error:
        raise DtypeError.build(
            "from_dlpack", expected="numbers of a dtype that Caldera has", got=str(error)
        ) from None
    return array.view(bfloat16) if as_integers else array


def flattened(array: Array) -> tuple[Array, StridedView]:
    """Return the memory of an array as a flat array, and the layout of the elements; no copy.

    >>> flat, layout = flattened(np.arange(10)[8:2:-2])
    >>> flat.tolist(), layout
    ([4, 5, 6, 7, 8], StridedView(shape=(3,), strides=(-2,), offset=4))
    """
    _require_native(array.dtype)
    if array.flags.c_contiguous and array.flags.aligned:
        return array.reshape(-1), StridedView(array.shape, row_major_strides(array.shape), 0)
    itemsize = array.dtype.itemsize
    if not array.flags.aligned or any(stride % itemsize for stride in array.strides):
        raise _no_view(array, "aligned elements")
    strides = tuple(stride // itemsize for stride in array.strides)
    if _overlaps(array.shape, strides):
        raise _no_view(array, "each element at a distinct address")
    first, count = StridedView(array.shape, strides, 0).span
    # Where a stride is negative the last element comes first in memory.
    lowest = array[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in strides)]
    flat = as_strided(lowest, (count,), (itemsize,), writeable=array.flags.writeable)
    return flat, StridedView(array.shape, strides, -first)


def _head(capsule: object) -> _TensorHead:
    name = _capsule_name(capsule)
    address = _capsule_pointer(capsule, name) + _TENSOR_OFFSETS[name]
    return _TensorHead.from_address(address)


def _require_native(dtype: DType) -> None:
    require(
        canonical(dtype, stored=True) == dtype,
        "from_numpy",
        "this machine's byte order",
        dtype,
        hint="leave out copy=False",
        error=DtypeError,
    )


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return True if two elements may share an address, as in a broadcast array."""
    reach = 0
    for stride, length in sorted(zip(map(abs, strides), shape, strict=True)):
        if length > 1:
            if stride <= reach:
                return True
            reach += (length - 1) * stride
    return False


def _no_view(array: Array, expected: str) -> ShapeError:
    return ShapeError.build(
        "from_numpy",
        expected=expected,
        got=f"strides of {array.strides} bytes",
        hint="leave out copy=False",
    )
