"""Collectives between GPUs through NCCL, one rank per GPU.

NCCL has neither tags nor buffered messages, and does not access host memory. A host communicator
therefore carries messages, small values, groups and host buffers; NCCL carries collectives of GPU
buffers.

A collective is enqueued on the stream of the kernels being launched, if any: the host does not
wait, and later kernels see the result. Operations of `background` use a separate stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import cached_property, wraps
from importlib.util import find_spec
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.base.registry import optional_import
from caldera.comm.algorithms import segments
from caldera.comm.algorithms.segments import bounds, even_counts
from caldera.comm.communicator import Communicator
from caldera.comm.point_to_point import on_card
from caldera.comm.reduction import must_widen
from caldera.comm.requests import Request
from caldera.core.memory.cuda import launching_stream
from caldera.core.memory.gpus import Card, card_count, cupy, own_card
from caldera.core.memory.software import address_of
from caldera.errors import CommError

PACKAGE = "caldera[cuda]"
# NCCL's codes of dtypes and reductions.
_DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_OPS = {"sum": 0, "max": 2, "min": 3, "mean": 4}
_BYTES = _DTYPES["uint8"]


def nccl() -> Any:
    """CuPy's NCCL, imported when the first communicator between cards is used."""
    return optional_import("cupy.cuda.nccl", PACKAGE, "training on several GPUs")


class _OnCard(Request):
    """Work enqueued on a GPU stream."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def wait(self) -> None:
        stream = launching_stream()
        if stream:
            # Later kernels wait for the event; the host does not.
            cupy().cuda.runtime.streamWaitEvent(stream, self._event.ptr)
        else:
            self._event.synchronize()

    def test(self) -> bool:
        return bool(self._event.done)


Collective = Callable[..., None]


def _between_cards(collective: Collective) -> Collective:
    """Return a collective that uses NCCL for GPU buffers, and `host` for host buffers."""

    @wraps(collective)
    def run(self: NcclCommunicator, *given: Any) -> None:
        if _all_on_card(*(each for each in given if isinstance(each, np.ndarray))):
            collective(self, *given)
        else:
            self.host.algorithm = self.algorithm
            getattr(self.host, collective.__name__)(*given)

    return run


class NcclCommunicator(Communicator):
    """Ranks with one GPU each. `host` is a communicator of the same ranks for all host data.

    >>> from caldera.comm import NcclCommunicator, world
    >>> comm = NcclCommunicator(world(), card=0)
    >>> comm.name, comm.size
    ('NCCL', 1)
    """

    name = "NCCL"
    gpu_aware = True

    def __init__(self, host: Communicator, card: int) -> None:
        super().__init__(host.rank, host.size, host.traffic)
        self.nodes = host.nodes
        self.host = host
        self.card = card
        self._made: Any = None
        self._deferred = False

    # --- through the host

    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        return self.host._start_send(buffer, dest, tag)

    def _start_receive(
        self, buffer: np.ndarray, source: int, tag: int, shorter: bool = False
    ) -> Request:
        return self.host._start_receive(buffer, source, tag, shorter)

    def _barrier(self) -> None:
        self.host._barrier()

    def shared_key(self) -> bytes:
        return self.host.shared_key()

    @property
    def on_host(self) -> Communicator:
        return self.host

    @property
    def many_threads(self) -> bool:
        return self.host.many_threads

    @property
    def shares_memory(self) -> bool:
        return self.host.shares_memory

    def _abort(self, status: int) -> None:
        self.host._abort(status)

    def _split(self, color: int | None, key: int) -> Communicator | None:
        made = self.host.Split(color, key)
        return None if made is None else NcclCommunicator(made, self.card)

    def Shrink(self) -> Communicator:
        return NcclCommunicator(self.host.Shrink(), self.card)

    def _dup(self) -> Communicator:
        return self

    def algorithms(self) -> Sequence[str]:
        return self.host.algorithms()

    def describe(self) -> str:
        return f"{self.name} {nccl().get_version()} with {self.host.describe()}"

    def route(self, device: str) -> str:
        return self.name if device.startswith("cuda") else self.host.route(device)

    def _reaches_message(self, buffer: np.ndarray) -> bool:
        return self.host._reaches_message(buffer)

    def _reaches(self, buffer: np.ndarray, op: str | None = None) -> bool:
        # Without a reduction the dtype does not matter: NCCL transfers bytes.
        return not on_card(buffer) or op is None or buffer.dtype.name in _DTYPES

    def background(self, work: Callable[[Communicator], object]) -> Request:
        """Run GPU work on a separate stream, concurrently with kernels; run host work directly."""
        with self._card():
            self._wait_for_kernels()
            self._deferred = True
            try:
                work(self)
            finally:
                self._deferred = False
            after = cupy().cuda.Event(disable_timing=True)
            after.record(self._stream)
        return _OnCard(after)

    # --- collectives

    @_between_cards
    def _allreduce(self, send: np.ndarray, receive: np.ndarray, op: str) -> None:
        self._count(segments.allreduce_volume(self.rank, self.size, send.size), send)
        with self._launching() as stream:
            if must_widen(send.dtype, op):
                counts = even_counts(send.size, self.size)
                part = self._sum_of_halves(send, counts, op, stream)
                self._gather(part.data.ptr, receive, counts, stream)
            else:
                self._handle().allReduce(
                    address_of(send), address_of(receive), send.size, _dtype(send), _OPS[op], stream
                )

    @_between_cards
    def _broadcast(self, buffer: np.ndarray, root: int) -> None:
        self._count(segments.broadcast_volume(self.rank, self.size, root, buffer.size), buffer)
        with self._launching() as stream:
            at = address_of(buffer)
            self._handle().broadcast(at, at, buffer.nbytes, _BYTES, root, stream)

    @_between_cards
    def _reduce(self, send: np.ndarray, receive: np.ndarray | None, root: int, op: str) -> None:
        self._count(segments.reduce_volume(self.rank, self.size, root, send.size), send)
        with self._launching() as stream:
            # Only the root writes; the remaining ranks pass any valid address.
            to = address_of(send if receive is None else receive)
            if must_widen(send.dtype, op):
                counts = even_counts(send.size, self.size)
                part = self._sum_of_halves(send, counts, op, stream)
                leaving = [counts[self.rank] * (rank == root) for rank in range(self.size)]
                arriving = counts if self.rank == root else [0] * self.size
                self._exchange(part.data.ptr, leaving, to, arriving, send.itemsize, stream)
            else:
                self._handle().reduce(
                    address_of(send), to, send.size, _dtype(send), _OPS[op], root, stream
                )

    @_between_cards
    def _reduce_scatter(
        self, send: np.ndarray, receive: np.ndarray, counts: list[int], op: str
    ) -> None:
        self._count(segments.reduce_scatter_volume(self.rank, counts), send)
        at, to = address_of(send), address_of(receive)
        with self._launching() as stream:
            if must_widen(send.dtype, op):
                part = self._sum_of_halves(send, counts, op, stream)
                runtime = cupy().cuda.runtime
                within = runtime.memcpyDeviceToDevice
                runtime.memcpyAsync(to, part.data.ptr, receive.nbytes, within, stream)
            elif len(set(counts)) == 1:
                self._handle().reduceScatter(at, to, counts[0], _dtype(send), _OPS[op], stream)
            else:
                with _group():
                    for rank, (begin, end) in enumerate(bounds(counts)):
                        self._handle().reduce(
                            at + begin * send.itemsize,
                            to,
                            end - begin,
                            _dtype(send),
                            _OPS[op],
                            rank,
                            stream,
                        )

    @_between_cards
    def _allgather(self, send: np.ndarray, receive: np.ndarray, counts: list[int]) -> None:
        self._count(segments.allgather_volume(self.rank, counts), receive)
        with self._launching() as stream:
            self._gather(address_of(send), receive, counts, stream)

    @_between_cards
    def _alltoall(
        self, send: np.ndarray, receive: np.ndarray, leaving: list[int], arriving: list[int]
    ) -> None:
        self._count(segments.alltoall_volume(self.rank, leaving, arriving), send)
        at, to = address_of(send), address_of(receive)
        with self._launching() as stream:
            self._exchange(at, leaving, to, arriving, send.itemsize, stream)

    # --- in a stream; addresses are those of the card

    def _exchange(
        self,
        at: int,
        leaving: Sequence[int],
        to: int,
        arriving: Sequence[int],
        itemsize: int,
        stream: int,
    ) -> None:
        """Exchange part r of the send buffer with part r of the receive buffer of rank r."""
        handle = self._handle()
        with _group():
            for move, start, counts in ((handle.send, at, leaving), (handle.recv, to, arriving)):
                for rank, (begin, end) in enumerate(bounds(counts)):
                    if end > begin:
                        nbytes = (end - begin) * itemsize
                        move(start + begin * itemsize, nbytes, _BYTES, rank, stream)

    def _gather(self, at: int, receive: np.ndarray, counts: Sequence[int], stream: int) -> None:
        """Gather the parts of all ranks; this rank's part is at address `at`."""
        handle, to, size = self._handle(), address_of(receive), receive.itemsize
        if len(set(counts)) == 1:
            handle.allGather(at, to, counts[0] * size, _BYTES, stream)
            return
        with _group():
            for rank, (begin, end) in enumerate(bounds(counts)):
                there = to + begin * size
                given = at if rank == self.rank else there
                handle.broadcast(given, there, (end - begin) * size, _BYTES, rank, stream)

    def _sum_of_halves(self, send: np.ndarray, counts: Sequence[int], op: str, stream: int) -> Any:
        """Return this rank's part of a sum of float16 or bfloat16 values.

        The parts of all ranks are received, added in float32 in the order of the ranks, and rounded
        once.
        """
        mine = counts[self.rank]
        parts = cupy().empty((self.size, mine), np.uint16)
        arriving = [mine] * self.size
        self._exchange(address_of(send), counts, parts.data.ptr, arriving, send.itemsize, stream)
        scale = 0.5 ** (self.size - 1).bit_length()
        total = cupy().zeros(mine, np.float32)
        for bits in parts:
            total += _upcast(bits, send.dtype.name) * np.float32(scale)
        total *= np.float32(1 / scale / (self.size if op == "mean" else 1))
        return _downcast(total, send.dtype.name)

    # --- helpers

    def _handle(self) -> Any:
        """NCCL's communicator, made at the first collective: all ranks come there together."""
        if self._made is None:
            name = nccl().get_unique_id() if self.rank == 0 else ()
            with self.traffic.apart("NCCL starts"):
                is_bytes, shared = self.host.bcast_object([isinstance(name, bytes), list(name)])
            # Bytes since CuPy 14, signed numbers before.
            identity = bytes(shared) if is_bytes else tuple(shared)
            self._made = nccl().NcclCommunicator(self.size, identity, self.rank)
        return self._made

    @cached_property
    def _stream(self) -> Any:
        return cupy().cuda.Stream(non_blocking=True)

    def _wait_for_kernels(self) -> None:
        """Make the separate stream wait for all kernels launched so far."""
        if not launching_stream():
            # The stream that wrote the buffers is unknown, so all streams are synchronised.
            Card.current().synchronize()
            return
        event = cupy().cuda.Event(disable_timing=True)
        event.record(cupy().cuda.ExternalStream(launching_stream()))
        self._stream.wait_event(event)

    def _card(self) -> Any:
        return cupy().cuda.Device(self.card)

    @contextmanager
    def _launching(self) -> Iterator[int]:
        """Yield the stream to use; wait for it on exit, unless kernels are launched on it."""
        with self._card():
            kernels = launching_stream()
            if kernels and not self._deferred:
                with cupy().cuda.ExternalStream(kernels):
                    yield kernels
                return
            if not self._deferred:
                self._wait_for_kernels()
            with self._stream:
                yield int(self._stream.ptr)
            if not self._deferred:
                self._stream.synchronize()


@dataclass(frozen=True)
class GpuEvidence:
    """A rank's GPU, by UUID ("" without one), and the presence of NCCL."""

    gpu: str = ""
    has_nccl: bool = False


def reason_against_nccl(everyone: Sequence[GpuEvidence]) -> str:
    """Return the reason why ranks with this evidence cannot use NCCL; "" if they can.

    NCCL supports one rank per GPU.

    >>> reason_against_nccl([GpuEvidence("a", True), GpuEvidence("b", True)])
    ''
    >>> reason_against_nccl([GpuEvidence("a", True), GpuEvidence("a", True)])
    'ranks 0 and 1 share a GPU'
    """
    gpus = [each.gpu for each in everyone]
    for rank, each in enumerate(everyone):
        if not each.gpu:
            return f"rank {rank} has no GPU"
        if not each.has_nccl:
            return f"rank {rank} lacks NCCL"
        if (other := gpus.index(each.gpu)) < rank:
            return f"ranks {other} and {rank} share a GPU"
    return ""


def with_nccl(host: Communicator, card: int | None = None) -> Communicator:
    """Return a communicator that uses NCCL if each rank has a separate GPU, otherwise `host`.

    Without NCCL, a GPU-aware MPI receives GPU buffers, and other communicators stage them through
    the host. `card` is this rank's GPU, by default its own among the ranks of its machine. All
    ranks call this function, and all decide by the same evidence.

    >>> from caldera.comm import run_virtual_ranks
    >>> from caldera.comm.nccl import with_nccl
    >>> run_virtual_ranks(2, lambda comm: with_nccl(comm) is comm)   # one card or none
    [True, True]
    """
    mine = GpuEvidence()
    if settings.accelerator != "cpu" and card_count() > 0:
        card = own_card() if card is None else card
        uuid = bytes(cupy().cuda.runtime.getDeviceProperties(card)["uuid"]).hex()
        mine = GpuEvidence(uuid, find_spec("cupy.cuda.nccl") is not None)
    everyone = [GpuEvidence(*each) for each in host.gather_objects(astuple(mine))]
    host.staging_reason = reason_against_nccl(everyone)
    if host.staging_reason or card is None:
        return host
    return NcclCommunicator(host, card)


@contextmanager
def _group() -> Iterator[None]:
    """Context manager that starts the enclosed NCCL calls together."""
    nccl().groupStart()
    try:
        yield
    finally:
        nccl().groupEnd()


def _dtype(buffer: np.ndarray) -> int:
    return _DTYPES[buffer.dtype.name]


def _all_on_card(*buffers: np.ndarray) -> bool:
    found = {on_card(buffer) for buffer in buffers}
    if len(found) > 1:
        raise CommError.build(
            "NCCL", expected="both buffers on the GPU, or both on the host", got="one on each"
        )
    return found.pop()


def _upcast(bits: Any, name: str) -> Any:
    """Convert bfloat16 or float16 bits to float32; CuPy has no bfloat16."""
    if name == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _downcast(total: Any, name: str) -> Any:
    """The 16 bits of float32 numbers, rounded to the nearest, between two to the even one."""
    if name == "float16":
        return total.astype(np.float16).view(np.uint16)
    bits = total.view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (even + np.uint32(0x7FFF))) >> np.uint32(16)
    return cupy().where(cupy().isnan(total), np.uint32(0x7FC0), rounded).astype(np.uint16)
