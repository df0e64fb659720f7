"""Base of devices without hardware, and arrays over memory that the host cannot reach.

The memory of a software device is bytes of this process, and a capture is a list of calls.

A device array has an address, a shape and strides, never elements. NumPy can reshape, transpose,
slice and broadcast without touching an element, so GPU kernels receive NumPy arrays with an
address on the GPU. Only such views are allowed; an operation that would read or write an element
on the host raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from caldera.core.memory.capture import CapturingStream
from caldera.core.memory.interface import CapturedGraph, Device, Direction, Stream, TimingEvent
from caldera.core.memory.pool import Block, host_view
from caldera.errors import DeviceError

_BYTE = np.dtype(np.uint8)


class WallClock(TimingEvent):
    """Time at which a stream reached a call."""

    def __init__(self, stream: Stream) -> None:
        self._seconds: float | None = None
        stream.launch(self._note)

    def _note(self) -> None:
        self._seconds = perf_counter()

    def done(self) -> bool:
        return self._seconds is not None

    def since(self, earlier: Self) -> float:
        assert self._seconds is not None
        assert earlier._seconds is not None
        return self._seconds - earlier._seconds


class RecordedGraph(CapturedGraph):
    """The calls that were launched during a capture, in order."""

    def __init__(self, stream: Stream, calls: tuple[Callable[[], object], ...]) -> None:
        self._stream = stream
        self._calls = calls

    def __len__(self) -> int:
        return len(self._calls)

    def replay(self) -> None:
        for call in self._calls:
            self._stream.launch(call)


class RecordingStream(CapturingStream):
    """A stream whose capture keeps the calls themselves; how they run is up to the child."""

    def record_timing(self) -> TimingEvent:
        self._before_waiting("moment")
        return WallClock(self)

    def end_capture(self) -> CapturedGraph:
        return RecordedGraph(self, tuple(self._end_recording()))


class SoftwareDevice(Device):
    """A device whose bytes are NumPy's; its kernels are the CPU's."""

    kernels = "cpu"

    def allocate_shared(self, nbytes: int, owner: str = "") -> Block:
        return self.pool.allocate(nbytes, owner)

    def array(
        self, block: Block, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        return host_view(block, offset, shape, dtype)

    def copy_in(self, target: Block, offset: int, source: NDArray[Any], stream: Stream) -> None:
        given = contiguous_bytes(source)
        self._copy("h2d", host_view(target, offset, given.shape, _BYTE), given, stream)

    def copy_out(
        self, target: NDArray[Any], source: Block, offset: int, nbytes: int, stream: Stream
    ) -> None:
        inside = host_view(source, offset, (nbytes,), _BYTE)
        self._copy("d2h", contiguous_bytes(target)[:nbytes], inside, stream)

    def copy_within(
        self,
        target: Block,
        offset: int,
        source: Block,
        source_offset: int,
        nbytes: int,
        stream: Stream,
    ) -> None:
        given = host_view(source, source_offset, (nbytes,), _BYTE)
        self._copy("d2d", host_view(target, offset, (nbytes,), _BYTE), given, stream)

    def _copy(
        self, direction: Direction, target: NDArray[Any], source: NDArray[Any], stream: Stream
    ) -> None:
        def copy() -> None:
            np.copyto(target, source)
            self.counters.add(direction, target.nbytes)

        with self.span(direction, stream):
            stream.launch(copy)


def contiguous_bytes(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array's bytes as a flat view; refused where that would need a copy."""
    if not array.flags.c_contiguous:
        raise DeviceError.build(
            "copy between host and device",
            expected="a contiguous array",
            got=f"strides {array.strides} for shape {array.shape}",
            hint="use np.ascontiguousarray",
        )
    return array.reshape(-1).view(_BYTE)


_TYPE_STRINGS = {"bfloat16": "<V2"}


class DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """Part of a GPU's memory; CuPy and PyTorch access it through `__cuda_array_interface__`.

    >>> import numpy as np
    >>> from caldera.core.memory.software import DeviceArray
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
            # NumPy would read the host's memory at an address of the GPU.
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
    """Return an array over a block of GPU memory; the array holds a reference to the block."""
    return host_view(block, offset, shape, dtype).view(DeviceArray)


def address_of(array: np.ndarray[Any, np.dtype[Any]]) -> int:
    """Return the address of an array's first element, on any device.

    >>> import numpy as np
    >>> numbers = np.zeros(4)
    >>> address_of(numbers[1:]) - address_of(numbers)
    8
    """
    return array.__array_interface__["data"][0]
