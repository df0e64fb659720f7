"""Strided elements in memory: a layout over a `MemoryManager`, with access from host and device.

This is the base of `Tensor`; `tensor.py` adds creation and conversion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from caldera.base.arguments import require
from caldera.base.foreign_names import missing_attribute
from caldera.core.memory import DEVICE, HOST, MANAGED, Device, Kind, MemoryManager, Stream
from caldera.core.tensor import dlpack
from caldera.core.tensor.dtype import DType
from caldera.core.tensor.shape import Shape, StridedView, size
from caldera.errors import DeviceError

Array = NDArray[Any]
_STRETCH = 64
"""Number of columns per step when a transpose is copied."""
_LARGE = 1 << 20
"""Bytes that caches next to a core do not keep."""


class ScalarConversions:
    """Python's conversions of a value with a single element, which `item` returns."""

    __slots__ = ()

    if not TYPE_CHECKING:  # else any attribute would pass
        __getattr__ = missing_attribute

    def __float__(self: Any) -> float:
        return float(self.item())

    def __int__(self: Any) -> int:
        return int(self.item())

    def __complex__(self: Any) -> complex:
        return complex(self.item())

    def __bool__(self: Any) -> bool:
        return bool(self.item())


class StridedArray:
    """A layout (shape, strides, offset) over memory."""

    __slots__ = ("__weakref__", "_dtype", "_layout", "_memory")

    _dtype: DType
    _layout: StridedView
    _memory: MemoryManager

    @property
    def shape(self) -> Shape:
        """Number of elements along each axis.

        >>> import caldera as cd
        >>> cd.Tensor((2, 3)).shape
        (2, 3)
        """
        return self._layout.shape

    @property
    def strides(self) -> Shape:
        """Distance in elements between neighbours along each axis.

        >>> import caldera as cd
        >>> cd.Tensor((2, 3)).T.strides
        (1, 3)
        """
        return self._layout.strides

    @property
    def offset(self) -> int:
        """Position of the first element in the memory, in elements.

        >>> import caldera as cd
        >>> cd.Tensor((2, 3))[1, 1:].offset
        4
        """
        return self._layout.offset

    @property
    def dtype(self) -> DType:
        """The element type.

        >>> import caldera as cd
        >>> cd.Tensor((2,), dtype="int8").dtype
        dtype('int8')
        """
        return self._dtype

    @property
    def memory(self) -> MemoryManager:
        """The memory, which views share.

        >>> import caldera as cd
        >>> t = cd.Tensor((4,))
        >>> t[1:].memory is t.memory
        True
        """
        return self._memory

    @property
    def kind(self) -> Kind:
        """The kind of memory.

        >>> import caldera as cd
        >>> cd.Tensor((2,)).kind is cd.MANAGED
        True
        """
        return self._memory.kind

    @property
    def device(self) -> Device:
        """The device whose memory it is.

        >>> import caldera as cd
        >>> cd.Tensor((2,), device="cpu").device
        <device cpu>
        """
        return self._memory.device

    @property
    def name(self) -> str:
        """The name under which memory reports list it.

        >>> import caldera as cd
        >>> cd.Tensor((2,), name="weights").name
        'weights'
        """
        return self._memory.owner

    @property
    def ndim(self) -> int:
        """The number of axes; `rank` is the same.

        >>> import caldera as cd
        >>> cd.Tensor((2, 3)).ndim
        2
        """
        return len(self._layout.shape)

    rank = ndim

    @property
    def size(self) -> int:
        """The number of elements.

        >>> import caldera as cd
        >>> cd.Tensor((2, 3)).size
        6
        """
        return size(self._layout.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that the elements take.

        >>> import caldera as cd
        >>> cd.Tensor((2, 3), dtype="float64").nbytes
        48
        """
        return self.size * self._dtype.itemsize

    def host_array(self, write: bool = False, discard: bool = False) -> Array:
        """Return the current host side as an array.

        `write` makes the device side stale. `discard` as well means that every element will be
        overwritten, so the old ones are not copied.

        >>> import caldera as cd
        >>> t = cd.Tensor((2,), device="loopback")
        >>> t.host_array(write=True)[0] = 3
        >>> t.tolist()
        [3.0, 0.0]
        """
        return self._arranged(self._memory.host(write, discard and self._covers_memory()))

    def device_array(
        self, write: bool = False, discard: bool = False, stream: Stream | None = None
    ) -> Any:
        """Return the device side as an array for kernels launched on `stream`; see `host_array`.

        >>> import caldera as cd
        >>> t = cd.Tensor((2,), fill=cd.one())
        >>> t.device_array()
        array([1., 1.], dtype=float32)
        """
        discard = discard and self._covers_memory()
        return self._arranged(self._memory.on_device(write, discard, stream))

    def numpy(self) -> Array:
        """Return the elements as an array that shares the tensor's memory.

        Where host and device share memory, the array is writable. Otherwise it is read-only, since
        a write would not reach the device, and has the current values; DEVICE memory is copied.
        Assignments `t[...] = values` work everywhere.

        >>> import caldera as cd
        >>> t = cd.Tensor((3,))
        >>> t.numpy()[1] = 2
        >>> t.tolist()
        [0.0, 2.0, 0.0]
        """
        array = self._reachable()
        if array is None:
            array = self._staged()[1]
        elif not (self.kind is MANAGED and not self.device.is_host):
            return array
        # A view, so that only the returned array becomes read-only.
        array = array.view()
        array.flags.writeable = False
        return array

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> object:
        require(
            self.kind is not DEVICE or self.device.is_host,
            "Tensor.__dlpack__",
            "memory that the host can reach",
            f"DEVICE memory on {self.device.name}",
            hint="use t.to(kind=cd.MANAGED)",
            error=DeviceError,
        )
        return dlpack.to_dlpack(self.numpy(), options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU_DEVICE

    def _reachable(self, write: bool = False, discard: bool = False) -> Array | None:
        """Return the elements where the host can reach them; None if only the device can."""
        if self._memory.kind is not DEVICE:
            return self.host_array(write, discard)
        return self.device_array(write, discard) if self._memory.device.is_host else None

    def _staged(self) -> tuple[Array, Array]:
        """A host copy of the part of the memory that this tensor spans, flat and arranged."""
        first, count = self._layout.span
        flat = np.empty(count, self._dtype)
        if count:
            passage = MemoryManager.adopt(flat, HOST, "cpu")
            passage.copy_from(self._memory, count, source_offset=first)
        return flat, self._arranged(flat, first)

    def _arranged(self, flat: Array, first: int = 0) -> Array:
        """Return flat memory, from element `first` on, seen through this tensor's layout."""
        layout = self._layout
        start = layout.offset - first
        if layout.is_dense:
            return flat[start : start + size(layout.shape)].reshape(layout.shape)
        itemsize = self._dtype.itemsize
        strides = tuple(stride * itemsize for stride in layout.strides)
        # The class is kept: an array on a GPU rejects operations of host arrays.
        return type(flat)(layout.shape, self._dtype, flat, start * itemsize, strides)

    def _covers_memory(self) -> bool:
        return self.size == self._memory.size

    def _store(self, values: Array, key: Any = ...) -> None:
        """Write an array that broadcasts to the selection of `key`."""
        whole = key is Ellipsis
        target = self._reachable(write=True, discard=whole)
        if target is not None:
            if whole and _is_large_transpose(values, target):
                # In steps that fit into the caches: three times as fast.
                for first in range(0, values.shape[1], _STRETCH):
                    stretch = slice(first, first + _STRETCH)
                    target[:, stretch] = values[:, stretch]
            else:
                target[key] = values
            return
        first, count = self._layout.span
        if whole and self._layout.is_dense:
            flat = np.ascontiguousarray(np.broadcast_to(values, self.shape)).reshape(-1)
        else:
            flat, target = self._staged()
            target[key] = values
        if count:
            self._memory.copy_from(flat, count, offset=first)


def _is_large_transpose(values: Array, target: Array) -> bool:
    """Return True if a large matrix is copied to its transpose, where NumPy's access is strided."""
    return (
        values.ndim == 2
        and values.shape == target.shape
        and values.nbytes >= _LARGE
        and values.flags.f_contiguous
        and not values.flags.c_contiguous
        and not target.flags.f_contiguous
    )
