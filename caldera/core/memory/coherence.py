"""Host and device side of a memory: locations, staleness, and pending work.

Rules that keep both sides consistent:

- At most one side is stale. Writing a side makes its counterpart stale; reading or partly writing a
  stale side copies first. Memory that was never written has no stale side, so it is never copied.
- Kernels may still use the device side when it is requested. `_stream` is the stream that received
  it last: another stream first waits for that work.
- `_copy` marks the last copy between the sides that may be pending. It uses both sides, so each
  waits for it before its next use.
- A copy between two memories uses the pair of sides that transfers the fewest bytes.
- Changes of this state notify the device (`touch`): a replayed plan requests the device side once,
  and again after a notification.
- A plan declares its writes and then launches. A thread that copies a side checks staleness,
  launches, and marks the side as current. Both hold the device's `turn`; otherwise a reading thread
  could mark a side as current that a plan is about to write.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from caldera.core.memory.devices import CUDA_MANAGED, Kind
from caldera.core.memory.interface import Device, Event, Stream
from caldera.core.memory.pool import Block, host_view
from caldera.errors import DeviceError

SideName = Literal["device", "host"]


class PendingRead:
    """A copy of a memory's numbers that may still be on its way; see `MemoryManager.begin_read`.

    >>> import caldera as cd
    >>> memory = cd.MemoryManager(1)
    >>> memory.set(0, 3.0)
    >>> memory.begin_read().done()
    True
    """

    def __init__(self, numbers: NDArray[Any], arrival: Event | None = None) -> None:
        self._numbers = numbers
        self._arrival = arrival

    def done(self) -> bool:
        """Return True if the copy has arrived."""
        return self._arrival is None or self._arrival.done()

    def numbers(self) -> NDArray[Any]:
        """Return the numbers, as a flat array; waits if they have not arrived."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.settle()
        return self._numbers


class CoherentMemory:
    """Implementation of `MemoryManager`, which checks its arguments."""

    size: int
    dtype: np.dtype[Any]
    kind: Kind
    device: Device
    owner: str
    copies = 0
    writes = 0
    """Number of write requests; a plan makes one request for consecutive runs."""

    # What memory starts as. It stands here and not in `__init__`, which every tensor pays for.
    _has_device_side = False
    _has_host_side = True
    _two_sides = False
    _host: NDArray[Any] | None = None
    _block: Block | None = None
    _array: Any = None
    _host_stale = False
    _device_stale = False
    _stream: Stream | None = None
    _copy: Event | None = None
    _copy_to: SideName = "host"

    @property
    def nbytes(self) -> int:
        """Bytes of each side.

        >>> import caldera as cd
        >>> cd.MemoryManager(3, "int16").nbytes
        6
        """
        return self.size * self.dtype.itemsize

    @property
    def address(self) -> int:
        """Address of the side that kernels use; it never changes.

        >>> import caldera as cd
        >>> memory = cd.MemoryManager(3)
        >>> memory.address == memory.host().ctypes.data
        True
        """
        if self._has_device_side:
            return self._device_block().address
        host = self._host_array()
        if self._block is not None:
            return self._block.address
        return host.__array_interface__["data"][0]

    @property
    def has_block(self) -> bool:
        """True if the side that kernels use is allocated; the first use allocates it."""
        return self._block is not None

    def sync(self) -> None:
        """Wait for every copy and kernel that may still use this memory, and raise what failed.

        >>> import caldera as cd
        >>> memory = cd.MemoryManager(3, device="loopback")
        >>> numbers = memory.on_device(write=True)
        >>> memory.device.stream.launch(lambda: numbers.fill(1 // 0))
        >>> memory.sync()
        Traceback (most recent call last):
        ZeroDivisionError: integer division or modulo by zero
        """
        stream = self._stream
        if stream is not None:
            stream.record().synchronize()
            self._stream = None
            self.device.touch()
        self._finish_copy()

    # -- sides ---------------------------------------------------------------------------------

    def _host_array(self) -> NDArray[Any]:
        """Return the host side, allocated when first needed."""
        if self._host is None:
            if not self._has_device_side:
                self._block = self.device.allocate_host(self.nbytes, self.owner)
                self._host = host_view(self._block, 0, (self.size,), self.dtype)
                return self._host
            with self.device.turn:
                # Concurrent threads must receive the same object.
                if self._host is None:
                    block = (
                        self.device.allocate_host(self.nbytes, self.owner)
                        if self._two_sides
                        else self._device_block()
                    )
                    self._host = host_view(block, 0, (self.size,), self.dtype)
        return self._host

    def _device_block(self) -> Block:
        """Return the device side, allocated when first needed."""
        if self._block is None:
            with self.device.turn:
                if self._block is None:
                    shared = self.kind is CUDA_MANAGED
                    allocate = self.device.allocate_shared if shared else self.device.allocate
                    self._block = allocate(self.nbytes, self.owner)
        return self._block

    def _read_host(self) -> NDArray[Any]:
        """Return the host side, up to date."""
        array = self._host_array()
        if self._has_device_side:
            if self._host_stale:
                self._fetch()
            self._wait_for_host()
        return array

    def _fetch(self) -> None:
        """Launch the copy that updates the host side, unless it has been launched."""
        with self.device.turn:
            if self._host_stale:
                self._move("host", self._stream or self.device.stream)

    def _write_host(self, discard: bool) -> NDArray[Any]:
        """Return the host side for writing, updated unless `discard`; the device side becomes
        stale.
        """
        array = self._host_array()
        self.writes += 1
        if not array.flags.writeable:
            raise DeviceError.build(
                "MemoryManager",
                expected="memory that can be written",
                got="an adopted array that is read-only",
                hint="copy it into newly allocated memory with copy_from",
            )
        if self._has_device_side:
            if self._host_stale and not discard:
                self._fetch()
            self._wait_for_host()
            with self.device.turn:
                self._host_stale = False
                self._device_stale = self._two_sides
                self.device.touch()
        return array

    def _wait_for_host(self) -> None:
        """Wait for all pending work on the host side."""
        if self._two_sides:
            self._finish_copy()
        else:
            self.sync()

    def _finish_copy(self) -> None:
        """Wait for the copy under way; if it failed, the side it was for is still stale."""
        copy = self._copy
        if copy is None:
            return
        try:
            copy.settle()
        except BaseException:
            # Not so if the wait itself was interrupted: then the copy is still under way.
            if copy.done() and self._copy is copy:
                self._copy = None
                if self._copy_to == "host":
                    self._host_stale = not self._device_stale
                else:
                    self._device_stale = not self._host_stale
            raise
        with self.device.turn:
            # Another thread may have begun the next one.
            if self._copy is copy:
                self._copy = None

    def _use_device(self, stream: Stream, write: bool, discard: bool) -> Any:
        """Return the device side for use on `stream`."""
        block = self._device_block()
        self._give_to(stream)
        if self._device_stale and not discard:
            self._move("device", stream)
        self._device_stale = False
        if write:
            self.writes += 1
            self._host_stale = self._two_sides
        if self._array is None:
            self._array = self.device.array(block, 0, (self.size,), self.dtype)
        return self._array

    def _order_after_others(self, stream: Stream) -> None:
        """Make `stream` wait for the pending copy and for kernels on other streams."""
        copy, other = self._copy, self._stream
        if copy is not None:
            if copy.done():
                self._finish_copy()
            else:
                stream.wait(copy)
        if other is not None and other is not stream:
            stream.wait(other.record())

    def _give_to(self, stream: Stream) -> Stream:
        """Make `stream` the one whose kernels use the device side from now on."""
        self._order_after_others(stream)
        if self._stream is not stream:
            if self._stream is not None:
                # What no stream had, no plan has made ready: results are such memory.
                self.device.touch()
            self._stream = stream
        return stream

    # -- moving bytes --------------------------------------------------------------------------

    def _move(self, to: SideName, stream: Stream) -> None:
        """Launch the copy that updates the side `to`."""
        _refuse_capture(stream)
        block = self._device_block()
        host = self._host_array()
        if to == "host":
            self.device.copy_out(host, block, 0, self.nbytes, stream)
            self._host_stale = False
        else:
            self.device.copy_in(block, 0, host, stream)
            self._device_stale = False
        self._copy = stream.record()
        self._copy_to = to
        self.copies += 1
        self.device.touch()

    def begin_read(self) -> PendingRead:
        """Copy the current numbers, in stream order, without waiting.

        Work launched later does not change the copy.

        >>> import caldera as cd
        >>> memory = cd.MemoryManager(2, device="loopback")
        >>> numbers = memory.on_device(write=True, discard=True)
        >>> memory.device.stream.launch(lambda: numbers.fill(7))
        >>> reading = memory.begin_read()
        >>> memory.device.stream.launch(lambda: numbers.fill(8))
        >>> reading.numbers()
        array([7., 7.], dtype=float32)
        """
        if not self._has_device_side or (self._two_sides and not self._host_stale):
            return PendingRead(self._read_host().copy())
        stream = self._give_to(self._stream or self.device.stream)
        _refuse_capture(stream)
        block = self.device.allocate_host(self.nbytes, self.owner)
        target = host_view(block, 0, (self.size,), self.dtype)
        self.device.copy_out(target, self._device_block(), 0, self.nbytes, stream)
        return PendingRead(target, stream.record())

    def _copy_out(self, target: NDArray[Any], offset_bytes: int) -> None:
        """Copy a part of the device side into a host array, and wait for it."""
        stream = self._give_to(self._stream or self.device.stream)
        _refuse_capture(stream)
        self.device.copy_out(target, self._device_block(), offset_bytes, target.nbytes, stream)
        stream.record().synchronize()
        self.copies += 1

    def _copy_in(self, source: NDArray[Any], offset: int, whole: bool) -> None:
        """Copy a host array into the device side, and wait: its owner may change it after."""
        stream = self._stream or self.device.stream
        _refuse_capture(stream)
        self._use_device(stream, write=True, discard=whole)
        offset_bytes = offset * self.dtype.itemsize
        self.device.copy_in(self._device_block(), offset_bytes, source, stream)
        stream.record().synchronize()
        self.copies += 1

    def _copy_device(
        self, source: CoherentMemory, count: int, offset: int, source_offset: int, whole: bool
    ) -> None:
        """Copy between two device sides: in stream order on one device, else through the host."""
        itemsize = self.dtype.itemsize
        if self.device is not source.device:
            staging = self.device.allocate_host(count * itemsize, self.owner)
            passing = host_view(staging, 0, (count,), self.dtype)
            source._copy_out(passing, source_offset * itemsize)
            self._copy_in(passing, offset, whole)
            return
        stream = self._stream or self.device.stream
        source._use_device(stream, write=False, discard=False)
        self._use_device(stream, write=True, discard=whole)
        self.device.copy_within(
            self._device_block(),
            offset * itemsize,
            source._device_block(),
            source_offset * itemsize,
            count * itemsize,
            stream,
        )
        self.copies += 1

    def _bytes_to_fetch(self, whole: bool) -> dict[MemorySide, int]:
        """Each side there is, with the bytes to move before it can be used (none if discarded)."""
        sides = {}
        if self._has_device_side:
            sides[MemorySide.DEVICE] = self.nbytes if self._device_stale and not whole else 0
        if self._has_host_side:
            sides[MemorySide.HOST] = self.nbytes if self._host_stale and not whole else 0
        return sides


def _refuse_capture(stream: Stream) -> None:
    if stream.capturing:
        raise DeviceError.build(
            "MemoryManager",
            expected="memory that is where the captured work needs it",
            got="a copy between host and device during a capture",
            hint="prefetch and sync before begin_capture",
        )


class MemorySide(enum.Enum):
    """Side of a memory: its bytes on the host or on the device."""

    DEVICE = "device"
    HOST = "host"


def cheapest_path(
    source: Mapping[MemorySide, int],
    target: Mapping[MemorySide, int],
    nbytes: int,
    *,
    same_device: bool,
) -> tuple[MemorySide, MemorySide]:
    """Return the (source side, target side) of a copy that transfers the fewest bytes.

    `source` and `target` map each existing side to the bytes needed to update it: 0 if it is
    current or will be overwritten. Ties are resolved by the number of copies, then in favour of the
    device, where the copy does not block.

    >>> from caldera.core.memory.coherence import MemorySide, cheapest_path
    >>> managed = {MemorySide.DEVICE: 400, MemorySide.HOST: 0}     # the device side is stale
    >>> path = cheapest_path(managed, {MemorySide.DEVICE: 0}, 400, same_device=True)
    >>> [side.value for side in path]
    ['host', 'device']
    """

    def cost(path: tuple[MemorySide, MemorySide]) -> tuple[int, int]:
        read, written = path
        crossings = 1 if read is not written else 0
        if read is MemorySide.DEVICE and written is MemorySide.DEVICE and not same_device:
            crossings = 2
        moved = source[read] + target[written] + crossings * nbytes
        copies = bool(source[read]) + bool(target[written]) + max(crossings, 1)
        return moved, copies

    # `min` keeps the first of equals, and the sides are given with the device first.
    return min(product(_ordered(source), _ordered(target)), key=cost)


def _ordered(sides: Mapping[MemorySide, int]) -> list[MemorySide]:
    return [side for side in MemorySide if side in sides]
