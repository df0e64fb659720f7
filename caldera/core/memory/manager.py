"""`MemoryManager`: a run of numbers in one of the four kinds of memory, on one device."""

from __future__ import annotations

import operator
from typing import Any, Self, get_args

import ml_dtypes  # noqa: F401 - makes NumPy know the name "bfloat16"
import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import refusal
from caldera.core.memory.coherence import CoherentMemory, MemorySide, SideName, cheapest_path
from caldera.core.memory.devices import CUDA_MANAGED, DEVICE, HOST, MANAGED, Kind
from caldera.core.memory.devices import device as find_device
from caldera.core.memory.interface import Device, Stream
from caldera.errors import ConfigError, DeviceError, DtypeError, ShapeError


class MemoryManager(CoherentMemory):
    """Memory for `size` numbers of a dtype and memory kind, on a device.

    Memory is allocated on first use and not cleared. `copies` counts its transfers. The kind may
    directly follow the size: `MemoryManager(20, cd.MANAGED, 0)`.

    >>> import numpy as np
    >>> import caldera as cd
    >>> memory = cd.MemoryManager(20, dtype="float32", kind=cd.MANAGED, device="loopback")
    >>> memory.copy_from(np.arange(20, dtype="float32"))
    >>> numbers = memory.on_device(write=True)
    >>> memory.device.stream.launch(lambda: np.negative(numbers, out=numbers))
    >>> memory.get(3), memory.get(4), memory.copies
    (-3.0, -4.0, 2)
    """

    def __init__(
        self,
        size: int,
        dtype: Any = "float32",
        kind: Kind | Any = MANAGED,
        device: Device | str | int | None = None,
        owner: str = "",
    ) -> None:
        if type(dtype) is Kind:
            dtype, kind, device = "float32", dtype, device if type(kind) is Kind else kind
        if type(kind) is not Kind:
            raise ConfigError.build(
                "MemoryManager",
                expected="kind HOST, DEVICE, MANAGED or CUDA_MANAGED",
                got=repr(kind),
                hint="write kind=cd.MANAGED",
            )
        self.size = size if type(size) is int and size >= 0 else _checked_size(size)
        self.dtype = _storage_dtype(dtype)
        self.kind = kind
        self.device = found = find_device(device)
        self.owner = owner
        # Where the device's memory is the host's, every kind has only the host side.
        if not found.is_host:
            self._has_device_side = kind is not HOST
            self._has_host_side = kind is not DEVICE
            self._two_sides = kind is MANAGED

    @classmethod
    def adopt(
        cls,
        array: NDArray[Any],
        kind: Kind = MANAGED,
        device: Device | str | int | None = None,
        owner: str = "",
    ) -> Self:
        """Return memory whose host side is an existing array, without a copy.

        The array must be contiguous. Memory over a read-only array is read-only.

        >>> import numpy as np
        >>> import caldera as cd
        >>> numbers = np.zeros(3, "float32")
        >>> cd.MemoryManager.adopt(numbers).set(1, 5.0)
        >>> numbers
        array([0., 5., 0.], dtype=float32)
        """
        if not isinstance(array, np.ndarray):
            raise refusal("MemoryManager.adopt", "array", "an array", array)
        if not array.flags.c_contiguous:
            raise ShapeError.build(
                "MemoryManager.adopt",
                expected="a contiguous array",
                got=f"strides {array.strides} for shape {array.shape}",
                hint="use np.ascontiguousarray, which copies",
            )
        memory = cls(array.size, array.dtype, kind, device, owner)
        if not memory._has_host_side or (kind is CUDA_MANAGED and memory._has_device_side):
            raise DeviceError.build(
                "MemoryManager.adopt",
                expected="kind HOST or MANAGED",
                got=kind.name,
                hint="the array is in host memory; allocate and use copy_from instead",
            )
        memory._host = array.reshape(-1)
        memory._device_stale = memory._two_sides
        return memory

    def __repr__(self) -> str:
        return f"MemoryManager({self.size}, {self.dtype}, {self.kind.name}, {self.device.name})"

    def get(self, index: int) -> Any:
        """Return the number at `index`, as a Python number.

        >>> import caldera as cd
        >>> memory = cd.MemoryManager(4, "int32")
        >>> memory.set(-1, 7)
        >>> memory.get(3)
        7
        """
        position = self._position(index)
        if self._has_host_side:
            value = self._read_host().item(position)
        else:
            one = np.empty(1, self.dtype)
            self._copy_out(one, position * self.dtype.itemsize)
            value = one.item()
        # For ml_dtypes' types, NumPy's `item` returns a NumPy scalar.
        return float(value) if isinstance(value, np.generic) else value

    def set(self, index: int, value: Any) -> None:
        """Store one number at `index`, which may count from the end.

        >>> import caldera as cd
        >>> memory = cd.MemoryManager(2, "float64", cd.DEVICE, "loopback")
        >>> memory.set(-1, 2.5)
        >>> memory.get(1)
        2.5
        """
        position = self._position(index)
        try:
            one = np.asarray(value, self.dtype).reshape(1)
        except (TypeError, ValueError, OverflowError) as error:
            raise DtypeError.build(
                "MemoryManager.set", expected=f"one {self.dtype} number", got=repr(value)
            ) from error
        if self._has_host_side:
            self._write_host(discard=self.size == 1)[position] = one[0]
        else:
            stream = self._give_to(self._stream or self.device.stream)
            offset = position * self.dtype.itemsize
            self.device.copy_in(self._device_block(), offset, one, stream)
            self.copies += 1

    def host(self, write: bool = False, discard: bool = False) -> NDArray[Any]:
        """Return the current host side as a flat array, after pending work.

        With `write` the device side becomes stale. With `discard` as well, all contents will be
        overwritten, so the old ones are not copied.

        >>> import caldera as cd
        >>> memory = cd.MemoryManager(3)
        >>> memory.host(write=True, discard=True)[:] = [1, 2, 3]
        >>> memory.host()
        array([1., 2., 3.], dtype=float32)
        """
        if self.kind is DEVICE:
            raise DeviceError.build(
                "MemoryManager.host",
                expected="memory with a host side",
                got=f"DEVICE memory on {self.device.name}",
                hint="copy it with copy_from into HOST memory, read single numbers with get, or "
                "use MANAGED memory",
            )
        if write:
            return self._write_host(discard)
        _refuse_discard(discard, "MemoryManager.host")
        return self._read_host()

    def on_device(
        self, write: bool = False, discard: bool = False, stream: Stream | None = None
    ) -> Any:
        """Return the device side as a flat array for kernels on `stream`, current in stream order.

        Call it before each launch. With `write` the host side becomes stale; `discard` is as in
        `host`. The host does not wait: dependencies are enqueued on the stream.

        >>> import caldera as cd
        >>> memory = cd.MemoryManager(3, "int64", device="loopback")
        >>> numbers = memory.on_device(write=True, discard=True)
        >>> memory.device.stream.launch(lambda: numbers.fill(4))
        >>> memory.host()
        array([4, 4, 4])
        """
        if self.kind is HOST:
            raise DeviceError.build(
                "MemoryManager.on_device",
                expected="memory with a device side",
                got=f"HOST memory on {self.device.name}",
                hint="copy it with copy_from into DEVICE memory, or use MANAGED memory",
            )
        if not write:
            _refuse_discard(discard, "MemoryManager.on_device")
        if not self._has_device_side:
            return self._write_host(discard) if write else self._read_host()
        return self._use_device(stream or self.device.stream, write, discard)

    def prefetch(self, to: SideName = "device") -> None:
        """Start to update one side, concurrently with kernels, without waiting.

        >>> import numpy as np
        >>> import caldera as cd
        >>> memory = cd.MemoryManager(3, device="loopback")
        >>> memory.copy_from(np.ones(3, "float32"))
        >>> memory.prefetch("device")
        >>> memory.sync()
        >>> memory.copies
        1
        """
        if to not in get_args(SideName):
            raise ConfigError.build(
                "MemoryManager.prefetch", expected='"device" or "host"', got=repr(to)
            )
        if (self.kind is HOST and to == "device") or (self.kind is DEVICE and to == "host"):
            raise DeviceError.build(
                "MemoryManager.prefetch",
                expected=f"memory with a {to} side",
                got=f"{self.kind.name} memory",
                hint="use MANAGED memory",
            )
        with self.device.turn:
            if self._device_stale if to == "device" else self._host_stale:
                stream = self.device.copy_stream
                self._order_after_others(stream)
                self._move(to, stream)

    def copy_from(
        self,
        source: MemoryManager | NDArray[Any],
        count: int | None = None,
        offset: int = 0,
        source_offset: int = 0,
    ) -> None:
        """Copy `count` numbers (all that the source has) from other memory or a NumPy array.

        Any kind on any device will do, of the same dtype; the way that moves the fewest bytes is
        taken. The source may be changed as soon as this returns.

        >>> import numpy as np
        >>> import caldera as cd
        >>> there = cd.MemoryManager(4, "int32", cd.DEVICE, "loopback")
        >>> there.copy_from(np.array([1, 2, 3, 4], "int32"))
        >>> here = cd.MemoryManager(2, "int32", cd.HOST)
        >>> here.copy_from(there, count=2, source_offset=1)
        >>> here.host()
        array([2, 3], dtype=int32)
        """
        given = source if isinstance(source, MemoryManager) else _from_array(source)
        if given.dtype != self.dtype:
            raise DtypeError.build(
                "MemoryManager.copy_from",
                expected=f"{self.dtype} numbers",
                got=str(given.dtype),
                hint="convert them first; a copy keeps the bits",
            )
        count = given.size - source_offset if count is None else count
        _check_range("source_offset", source_offset, count, given.size)
        _check_range("offset", offset, count, self.size)
        if count == 0:
            return
        whole = count == self.size
        read, written = cheapest_path(
            given._bytes_to_fetch(whole=False),
            self._bytes_to_fetch(whole=whole),
            count * self.dtype.itemsize,
            same_device=self.device is given.device,
        )
        numbers = slice(source_offset, source_offset + count)
        if written is MemorySide.HOST:
            target = self._write_host(discard=whole)[offset : offset + count]
            if read is MemorySide.HOST:
                np.copyto(target, given._read_host()[numbers])
            else:
                given._copy_out(target, source_offset * self.dtype.itemsize)
                self.copies += 1
        elif read is MemorySide.HOST:
            self._copy_in(given._read_host()[numbers], offset, whole)
        else:
            self._copy_device(given, count, offset, source_offset, whole)

    def _position(self, index: int) -> int:
        position = operator.index(index)
        if not -self.size <= position < self.size:
            raise ShapeError.build(
                "MemoryManager",
                expected=f"an index from {-self.size} to {self.size - 1}",
                got=str(position),
            )
        return position % self.size


def _from_array(array: object) -> MemoryManager:
    if not isinstance(array, np.ndarray):
        raise DtypeError.build(
            "MemoryManager.copy_from",
            expected="a MemoryManager or a NumPy array",
            got=type(array).__name__,
            hint="convert it with np.asarray",
        )
    return MemoryManager.adopt(np.ascontiguousarray(array), HOST, "cpu")


def _checked_size(size: int) -> int:
    try:
        count = operator.index(size)
    except TypeError:
        count = -1
    if count < 0:
        raise ShapeError.build("MemoryManager", expected="a size >= 0", got=repr(size))
    return count


def _storage_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype denoted by a name or type; Python's float means float32."""
    try:
        found = np.dtype(np.float32 if dtype is float else dtype)
    except TypeError:
        found = np.dtype(object)
    if dtype is None or found.hasobject or found.itemsize == 0:
        raise DtypeError.build(
            "MemoryManager",
            expected="a dtype of numbers",
            got=repr(dtype),
            hint='such as "float32", "bfloat16" or "int64"',
        )
    return found


def _check_range(name: str, offset: int, count: int, size: int) -> None:
    if offset < 0 or count < 0 or offset + count > size:
        raise ShapeError.build(
            "MemoryManager.copy_from",
            expected=f"{name} + count within 0 and {size}",
            got=f"{name} {offset} and count {count}",
        )


def _refuse_discard(discard: bool, where: str) -> None:
    if discard:
        raise ConfigError.build(
            where,
            expected="write=True with discard=True",
            got="only discard",
            hint="only what will be overwritten can be discarded",
        )
