"""Messages between two ranks, with host staging of GPU buffers.

This base class contains the checks and counters of a communicator. All collectives can be built
from its messages; subclasses implement the transfers, in methods that start with an underscore.

A communicator without GPU access sends from a copy in pinned host memory, made after the GPU has
finished writing. Received data is copied to the GPU before any other work can use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caldera.comm.algorithms.collectives import exchange_messages
from caldera.comm.algorithms.segments import SEGMENT_BYTES, TAG, MessageVolume
from caldera.comm.reduction import check_buffer, same_memory
from caldera.comm.requests import Request
from caldera.comm.traffic import Traffic
from caldera.core.memory.cuda import launching_stream
from caldera.core.memory.gpus import Card, cupy
from caldera.core.memory.software import DeviceArray, address_of
from caldera.errors import CommError


def on_card(buffer: np.ndarray) -> bool:
    """Return True if a buffer is in memory that the host cannot access."""
    return isinstance(buffer, DeviceArray)


def pinned_like(there: np.ndarray) -> np.ndarray:
    """Return pinned host memory of the same shape, for transfers at full speed."""
    memory = cupy().cuda.alloc_pinned_memory(max(1, there.nbytes))
    return np.frombuffer(memory, np.uint8, there.nbytes).view(there.dtype).reshape(there.shape)


def copy_to_host(there: np.ndarray) -> np.ndarray:
    """Return a host copy of a GPU buffer, after all work launched before has finished."""
    here = pinned_like(there)
    _copy(here, there, there, cupy().cuda.runtime.memcpyDeviceToHost)
    return here


def copy_to_device(there: np.ndarray, here: np.ndarray) -> None:
    """Copy host memory into a GPU buffer; return when the copy has finished."""
    _copy(there, here, there, cupy().cuda.runtime.memcpyHostToDevice)


def wait_for_kernels(there: np.ndarray) -> None:
    """Wait until everything launched before has run, so that others may read the buffer."""
    with _its_card(there):
        _wait(launching_stream())


def _copy(target: np.ndarray, source: np.ndarray, there: np.ndarray, kind: Any) -> None:
    stream = launching_stream()
    with _its_card(there):
        if not stream:
            # The stream that wrote the buffer is unknown, so all streams are synchronised.
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


@dataclass(eq=False)
class Staging:
    """Context manager of an operation on buffers that may need staging.

    `read` and `write` return buffers that the communicator can access. Written buffers are copied
    to their destination if the operation succeeds.
    """

    _reaches: Callable[[np.ndarray], bool]
    _moved: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    _written: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def read(self, buffer: np.ndarray) -> np.ndarray:
        """Return a buffer with the same content."""
        if self._reaches(buffer):
            return buffer
        here = copy_to_host(buffer)
        self._moved.append((buffer, here))
        return here

    def write(self, buffer: np.ndarray) -> np.ndarray:
        """Return a buffer to write, which is copied to `buffer` later.

        A buffer that was read is used again.
        """
        if self._reaches(buffer):
            return buffer
        known = (here for there, here in self._moved if same_memory(there, buffer))
        here = next(known, None)
        found = pinned_like(buffer) if here is None else here.reshape(buffer.shape)
        self._written.append((buffer, found))
        return found

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            for there, here in self._written:
                copy_to_device(there, here)


@dataclass(eq=False)
class StagedReceive(Request):
    """Receive of a GPU buffer: received on the host, then copied."""

    _request: Request
    _there: np.ndarray
    _here: np.ndarray
    _stored: bool = False

    def wait(self) -> None:
        self._request.wait()
        self._store()

    def test(self) -> bool:
        if is_there := self._request.test():
            self._store()
        return is_there

    def _store(self) -> None:
        self.source = self._request.source
        if not self._stored:
            copy_to_device(self._there, self._here)
            self._stored = True


ANY_SOURCE = -1
"""Source of a `Recv` that accepts messages from any rank."""
LAST_TAG = TAG - 1
"""Largest tag for messages; the next one is reserved for collectives."""


class PointToPoint(ABC):
    """Point-to-point messages of a rank; see `Communicator` for its attributes."""

    name: str
    segment_bytes = SEGMENT_BYTES
    waits_busily = False
    """True if a rank that waits for a message occupies a core."""
    gpu_aware = False
    """True if the library reads and writes GPU memory itself, on every rank."""
    staging_reason = ""
    """Reason why messages between GPUs do not use NCCL, once the ranks have compared their GPUs."""

    def __init__(self, rank: int, size: int, traffic: Traffic | None = None) -> None:
        self.rank = rank
        self.size = size
        self.traffic = Traffic() if traffic is None else traffic
        self.nodes: Sequence[int] = [0] * size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}>"

    def Send(self, buffer: np.ndarray, dest: int, tag: int = 0) -> None:
        """Send a buffer to a rank; it may be changed once this returns."""
        with self.traffic.operation("Send"):
            self.Isend(buffer, dest, tag).wait()

    def Recv(self, buffer: np.ndarray, source: int, tag: int = 0) -> int:
        """Wait for a message and put it into `buffer`; the rank that sent it.

        >>> import numpy as np
        >>> from caldera.comm import ANY_SOURCE, SingleProcess
        >>> comm, here = SingleProcess(), np.empty(2)
        >>> comm.Send(np.array([1.0, 2.0]), dest=0, tag=7)
        >>> comm.Recv(here, ANY_SOURCE, tag=7)
        0
        >>> here
        array([1., 2.])
        """
        with self.traffic.operation("Recv"):
            request = self.Irecv(buffer, source, tag)
            request.wait()
            return request.source

    def Isend(self, buffer: np.ndarray, dest: int, tag: int = 0) -> Request:
        """Begin to send; the buffer must stay as it is until the request is done."""
        check_buffer("Isend", buffer)
        self._check_message("Isend", dest, tag)
        with self.traffic.operation("Isend"):
            self.traffic.sent(buffer.nbytes)
            here = buffer if self._reaches_message(buffer) else copy_to_host(buffer)
            return self._start_send(here, dest, tag)

    def Irecv(self, buffer: np.ndarray, source: int, tag: int = 0) -> Request:
        """Begin to receive; the buffer has the message once the request is done."""
        check_buffer("Irecv", buffer, written=True)
        if source != ANY_SOURCE:
            self._check_message("Irecv", source, tag)
        with self.traffic.operation("Irecv"):
            self.traffic.received(buffer.nbytes)
            if self._reaches_message(buffer):
                return self._start_receive(buffer, source, tag)
            here = pinned_like(buffer)
            return StagedReceive(self._start_receive(here, source, tag), buffer, here)

    def Sendrecv(
        self, send: np.ndarray, dest: int, receive: np.ndarray, source: int, tag: int = 0
    ) -> None:
        """Send to one rank and receive from one, such that no order of ranks can deadlock."""
        with self.traffic.operation("Sendrecv"):
            arriving = self.Irecv(receive, source, tag)
            leaving = self.Isend(send, dest, tag)
            arriving.wait()
            leaving.wait()

    def exchange_messages(
        self, leaving: Mapping[int, np.ndarray], longest: Mapping[int, int]
    ) -> dict[int, np.ndarray]:
        """Send bytes to some ranks, and receive a message from each of other ranks, concurrently.

        `longest` maps each sender to the maximum number of bytes. Only the sender needs the actual
        number.

        >>> import numpy as np
        >>> from caldera.comm import run_virtual_ranks
        >>> def work(comm):
        ...     other = 1 - comm.rank
        ...     message = np.arange(2 + comm.rank, dtype=np.uint8)
        ...     return comm.exchange_messages({other: message}, {other: 100})[other].tolist()
        >>> run_virtual_ranks(2, work)
        [[0, 1, 2], [0, 1]]
        """
        with self.traffic.operation("exchange_messages"):
            return exchange_messages(self, leaving, longest)

    # --- what an implementation says

    @abstractmethod
    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        """Begin to send."""

    @abstractmethod
    def _start_receive(
        self, buffer: np.ndarray, source: int, tag: int, shorter: bool = False
    ) -> Request:
        """Start to receive a message of exactly the buffer's size.

        If it may be `shorter`, the request reports the number of received bytes.
        """

    def _reaches(self, buffer: np.ndarray, op: str | None = None) -> bool:
        """Return True if a buffer can be reduced, or moved without `op`, without staging."""
        return not on_card(buffer)

    def route(self, device: str) -> str:
        """Return how values on a device travel between ranks.

        >>> from caldera.comm import SingleProcess
        >>> SingleProcess().route("cuda:0")
        'one process, through the host'
        """
        if device == "cpu":
            return self.name
        reason = f" ({self.staging_reason})" if self.staging_reason else ""
        return f"{self.name}, {'from GPU memory' if self.gpu_aware else 'through the host'}{reason}"

    @property
    def on_host(self) -> Any:
        """The communicator of the same ranks for host memory; this one, if it is not for GPUs."""
        return self

    def _reaches_message(self, buffer: np.ndarray) -> bool:
        """Return True if a buffer can be sent or received without staging."""
        return self._reaches(buffer)

    # --- checks and counters

    def _check_rank(self, where: str, rank: int) -> None:
        if not isinstance(rank, int | np.integer) or not 0 <= rank < self.size:
            raise CommError.build(where, expected=f"a rank below {self.size}", got=str(rank))

    def _check_message(self, where: str, rank: int, tag: int) -> None:
        self._check_rank(where, rank)
        if not isinstance(tag, int | np.integer) or not 0 <= tag <= LAST_TAG:
            raise CommError.build(where, expected=f"a tag from 0 to {LAST_TAG}", got=str(tag))

    def _count(self, moved: MessageVolume, buffer: np.ndarray) -> None:
        """Count data moved by a library that does not report its messages."""
        self.traffic.sent(moved.sent * buffer.itemsize, moved.messages)
        self.traffic.received(moved.received * buffer.itemsize)
