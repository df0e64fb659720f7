"""Buffers on a card, for communicators that reach host memory alone.

What such a communicator reads is first copied to pinned host memory, once the card has finished
writing it; what it wrote there is copied to the card before anybody else can use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.comm.buffer_checks import same_memory
from caldera.comm.request import Request
from caldera.core.memory.cuda_stream import launching_stream
from caldera.core.memory.device_array import DeviceArray, address_of
from caldera.core.memory.gpus import Card, cupy


def on_card(buffer: np.ndarray) -> bool:
    """Whether a buffer lies in memory that the host cannot reach."""
    return isinstance(buffer, DeviceArray)


def pinned_like(there: np.ndarray) -> np.ndarray:
    """Host memory of the same shape that the card copies from and to at full speed."""
    memory = cupy().cuda.alloc_pinned_memory(max(1, there.nbytes))
    return np.frombuffer(memory, np.uint8, there.nbytes).view(there.dtype).reshape(there.shape)


def copy_to_host(there: np.ndarray) -> np.ndarray:
    """What a buffer on a card holds when everything launched before has run."""
    here = pinned_like(there)
    _copy(here, there, there, cupy().cuda.runtime.memcpyDeviceToHost)
    return here


def copy_to_device(there: np.ndarray, here: np.ndarray) -> None:
    """Put host memory into a buffer on a card; it is there when this returns."""
    _copy(there, here, there, cupy().cuda.runtime.memcpyHostToDevice)


def wait_for_kernels(there: np.ndarray) -> None:
    """Wait until everything launched before has run, so that others may read the buffer."""
    with _its_card(there):
        _wait(launching_stream())


def _copy(target: np.ndarray, source: np.ndarray, there: np.ndarray, kind: Any) -> None:
    stream = launching_stream()
    with _its_card(there):
        if not stream:
            # Nobody says on which stream the buffer was written: it may be any of them.
            _wait(0)
        cupy().cuda.runtime.memcpyAsync(
            address_of(target), address_of(source), there.nbytes, kind, stream
        )
        cupy().cuda.runtime.streamSynchronize(stream)


def _wait(stream: int) -> None:
    if stream:
        cupy().cuda.runtime.streamSynchronize(stream)
    else:
        Card.current().synchronize()


def _its_card(there: np.ndarray) -> Any:
    attributes = cupy().cuda.runtime.pointerGetAttributes(address_of(there))
    return cupy().cuda.Device(attributes.device)


class Staging:
    """Around one operation: `read` and `write` give buffers that the communicator reaches, and
    what was written goes to its place when the operation has ended well."""

    def __init__(self, reaches: Callable[[np.ndarray], bool]) -> None:
        self._reaches = reaches
        self._moved: list[tuple[np.ndarray, np.ndarray]] = []
        self._written: list[tuple[np.ndarray, np.ndarray]] = []

    def read(self, buffer: np.ndarray) -> np.ndarray:
        """A buffer with the same content."""
        if self._reaches(buffer):
            return buffer
        here = copy_to_host(buffer)
        self._moved.append((buffer, here))
        return here

    def write(self, buffer: np.ndarray) -> np.ndarray:
        """A buffer whose content will be that of the given one; the same as was read, if it is."""
        if self._reaches(buffer):
            return buffer
        for there, here in self._moved:
            if same_memory(there, buffer):
                found = here.reshape(buffer.shape)
                break
        else:
            found = pinned_like(buffer)
        self._written.append((buffer, found))
        return found

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            for there, here in self._written:
                copy_to_device(there, here)


class StagedReceive(Request):
    """A message for a card: received on the host, then copied."""

    def __init__(self, request: Request, there: np.ndarray, here: np.ndarray) -> None:
        self._request = request
        self._there = there
        self._here = here
        self._stored = False

    def wait(self) -> None:
        self._request.wait()
        self._store()

    def test(self) -> bool:
        if self._request.test():
            self._store()
            return True
        return False

    def _store(self) -> None:
        self.source = self._request.source
        if not self._stored:
            copy_to_device(self._there, self._here)
            self._stored = True
