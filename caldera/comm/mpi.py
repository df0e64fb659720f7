"""Process ranks over MPI, through mpi4py and the MPI library that it finds.

Short buffers use MPI's collectives, long ones ours, which keep a slow link busier. Allreduce is
selected by measurement, and an allgather within a machine always uses MPI: memory is no slow link,
and segments cost more there than they save. A buffer on a GPU is passed to MPI directly if MPI is
GPU-aware, otherwise through pinned host memory.

Threads: each communicator is used by one thread at a time, but two threads may use two
communicators concurrently, which requires MPI_THREAD_MULTIPLE. Without it, background operations
run immediately, on the calling thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caldera.comm.algorithms import segments
from caldera.comm.algorithms.allreduce import default_algorithm
from caldera.comm.algorithms.segments import SEGMENT_BYTES, bounds
from caldera.comm.autotune import AllreduceTuner
from caldera.comm.communicator import Communicator
from caldera.comm.mpi_library import (
    MpiRequest,
    finalize_asynchronously,
    is_gpu_aware,
    loaded,
    many_threads,
    mpi,
    shares_cores,
    sleep_until,
)
from caldera.comm.point_to_point import ANY_SOURCE, on_card, wait_for_kernels
from caldera.comm.reduction import finish, same_memory
from caldera.comm.requests import Done, Request
from caldera.comm.shared_memory import machines_of
from caldera.comm.traffic import Traffic
from caldera.errors import CommError, RankLostError

LIBRARY = "library"
"""The name of MPI's own allreduce among the algorithms."""
LONG_SEGMENT_BYTES = 8 * SEGMENT_BYTES
"""Segment size of background transfers, where each message takes time from computing threads."""
_KNOWN_TO_MPI = frozenset("bBhHiIlLqQfdFD")
_OPS = {"sum": "SUM", "mean": "SUM", "max": "MAX", "min": "MIN"}


_made: list[MpiCommunicator] = []
"""All communicators of this process. They are kept, because statistics are read until the end."""
_lost = threading.Event()


class MpiCommunicator(Communicator):
    """A rank of an MPI communicator, which then belongs to it: `MpiCommunicator(comm.Dup())`.

    - `label`: a name that is equal on all ranks and unique among communicators.
    - `generation`: number of times ranks had been lost before its creation.
    - `tuner`: the allreduce that "auto" selects for each size, with the measurements.
    - `pace`: seconds of sleep per byte of a background message.
    - `blocked`: start time of the current wait for a message or an MPI collective; `peer`: the
      sender, if it waits for a message.

    >>> from mpi4py import MPI                                      # doctest: +SKIP
    >>> comm = MpiCommunicator(MPI.COMM_WORLD.Dup())                # doctest: +SKIP
    """

    name = "MPI"
    waits_busily = True

    def __init__(
        self,
        handle: Any,
        label: str = "world",
        generation: int = 0,
        twin_of: MpiCommunicator | None = None,
    ) -> None:
        traffic = Traffic() if twin_of is None else twin_of.traffic
        super().__init__(handle.Get_rank(), handle.Get_size(), traffic)
        self.label = label
        self.generation = generation
        self.pace = 0.0
        self.handle = handle
        self.blocked: float | None = None
        self.peer = ANY_SOURCE
        self.tuner = AllreduceTuner()
        self._splits = 0
        if twin_of is not None:
            self.nodes, self.gpu_aware = twin_of.nodes, twin_of.gpu_aware
            self.segment_bytes = LONG_SEGMENT_BYTES
        else:
            self.nodes = machines_of(self)
            # A rank with another MPI library could not receive from GPU memory.
            self.gpu_aware = all(self.gather_objects(is_gpu_aware()))
            background_label = f"{label} in the background"
            self._background = MpiCommunicator(handle.Dup(), background_label, generation, self)
        _made.append(self)

    # --- messages

    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        request = self._begun(self.handle.Isend, buffer, dest, tag)
        return MpiRequest(self, request, buffer, -1, dest)

    def _start_receive(
        self, buffer: np.ndarray, source: int, tag: int, shorter: bool = False
    ) -> Request:
        sender = mpi().ANY_SOURCE if source < 0 else source
        request = self._begun(self.handle.Irecv, buffer, sender, tag)
        return MpiRequest(self, request, buffer, buffer.nbytes, source, shorter)

    def _begun(self, begin: Callable[..., Any], buffer: np.ndarray, peer: int, tag: int) -> Any:
        try:
            return begin(_bytes_of(buffer), peer, tag)
        except mpi().Exception as error:
            raise self.failure(error) from error

    def _reaches(self, buffer: np.ndarray, op: str | None = None) -> bool:
        if not on_card(buffer):
            return True
        if not self.gpu_aware or (op is not None and not _library_reduces(buffer, op)):
            return False
        wait_for_kernels(buffer)
        return True

    # --- groups

    def _split(self, color: int | None, key: int) -> Communicator | None:
        self._splits += 1
        made = self._call(self.handle.Split, mpi().UNDEFINED if color is None else color, key)
        if made == mpi().COMM_NULL:
            return None
        return MpiCommunicator(made, f"{self.label} / {self._splits}: {color}", self.generation)

    def _dup(self) -> Communicator:
        return self._background

    @property
    def many_threads(self) -> bool:
        return many_threads()

    def background(self, work: Callable[[Communicator], object]) -> Request:
        if many_threads():
            return super().background(work)
        duplicate = self._dup()
        duplicate.algorithm = self.algorithm
        work(duplicate)
        return Done()

    def Shrink(self) -> Communicator:
        if not loaded().survives:
            return super().Shrink()
        made = self._call(self.handle.Shrink, all_come=False)
        return MpiCommunicator(made, f"{self.label} shrunk", self.generation + 1)

    def failure(self, error: Any) -> CommError:
        """Translate an MPI error; if a rank has died, notify all ranks."""
        gone = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
        a_rank_died = error.Get_error_class() in [getattr(mpi(), name, None) for name in gone]
        if a_rank_died and loaded().survives:
            _lost.set()
            finalize_asynchronously()
            for communicator in list(_made):
                # A thread may wait in any of these communicators for a rank that has seen the
                # failure elsewhere.
                if communicator.generation <= self.generation:
                    communicator.handle.Revoke()
            return RankLostError.build(
                f"rank {self.rank} of {self.label}",
                got=error.Get_error_string(),
                hint="continue on the remaining ranks with Shrink, or from a checkpoint with "
                "caldera run --restarts",
            )
        return CommError.build(f"rank {self.rank} of {self.label}", got=error.Get_error_string())

    # --- collectives

    def algorithms(self) -> Sequence[str]:
        return (LIBRARY, *super().algorithms())

    def _allreduce(self, send: np.ndarray, receive: np.ndarray, op: str) -> None:
        if on_card(receive) or self._algorithm_for(receive, op) == LIBRARY:
            self._count(segments.allreduce_volume(self.rank, self.size, send.size), send)
            given = mpi().IN_PLACE if same_memory(send, receive) else send
            self._call(self.handle.Allreduce, given, receive, _mpi_op(op))
            finish(receive, op, self.size)
        else:
            super()._allreduce(send, receive, op)

    def _algorithm_for(self, buffer: np.ndarray, op: str) -> str:
        if self._algorithm in ("auto", LIBRARY) and not _library_reduces(buffer, op):
            return default_algorithm(buffer, op)
        if self._algorithm == "auto":
            return self.tuner.for_bytes(self, buffer.nbytes)
        return self._algorithm

    def describe(self) -> str:
        return f"{self.name}: {mpi().Get_library_version()}"

    def route(self, device: str) -> str:
        found = super().route(device)
        staged = not self.gpu_aware and device.startswith("cuda")
        return f"{found}; {loaded()} reports no support for GPU memory" if staged else found

    def _broadcast(self, buffer: np.ndarray, root: int) -> None:
        if on_card(buffer) or buffer.nbytes <= SEGMENT_BYTES:
            self._count(segments.broadcast_volume(self.rank, self.size, root, buffer.size), buffer)
            self._call(self.handle.Bcast, _bytes_of(buffer), root)
        else:
            super()._broadcast(buffer, root)

    def _reduce(self, send: np.ndarray, receive: np.ndarray | None, root: int, op: str) -> None:
        if on_card(send) or (send.nbytes <= SEGMENT_BYTES and _library_reduces(send, op)):
            self._count(segments.reduce_volume(self.rank, self.size, root, send.size), send)
            in_place = receive is not None and same_memory(send, receive)
            given = mpi().IN_PLACE if in_place else send
            self._call(self.handle.Reduce, given, receive, _mpi_op(op), root)
            if receive is not None:
                finish(receive, op, self.size)
        else:
            super()._reduce(send, receive, root, op)

    def _reduce_scatter(
        self, send: np.ndarray, receive: np.ndarray, counts: list[int], op: str
    ) -> None:
        if on_card(send) or (send.nbytes <= SEGMENT_BYTES and _library_reduces(send, op)):
            self._count(segments.reduce_scatter_volume(self.rank, counts), send)
            self._call(self.handle.Reduce_scatter, send, receive, counts, _mpi_op(op))
            finish(receive, op, self.size)
        else:
            super()._reduce_scatter(send, receive, counts, op)

    def _allgather(self, send: np.ndarray, receive: np.ndarray, counts: list[int]) -> None:
        if on_card(send) or receive.nbytes <= SEGMENT_BYTES or self.shares_memory:
            self._count(segments.allgather_volume(self.rank, counts), receive)
            part = receive.reshape(-1)[slice(*bounds(counts)[self.rank])]
            given = mpi().IN_PLACE if same_memory(part, send) else _bytes_of(send)
            sizes = [count * receive.itemsize for count in counts]
            self._call(self.handle.Allgatherv, given, [*_bytes_of(receive)[:1], sizes, mpi().BYTE])
        else:
            super()._allgather(send, receive, counts)

    @property
    def shares_memory(self) -> bool:
        """True if all ranks are on one machine and the caller waits.

        MPI waits busily, which would take time from threads that compute.
        """
        return self.backoff is None and len(set(self.nodes)) == 1

    def _alltoall(
        self, send: np.ndarray, receive: np.ndarray, leaving: list[int], arriving: list[int]
    ) -> None:
        if not on_card(send):
            super()._alltoall(send, receive, leaving, arriving)
            return
        self._count(segments.alltoall_volume(self.rank, leaving, arriving), send)
        sizes = [[count * send.itemsize for count in counts] for counts in (leaving, arriving)]
        self._call(
            self.handle.Alltoallv,
            [*_bytes_of(send)[:1], sizes[0], mpi().BYTE],
            [*_bytes_of(receive)[:1], sizes[1], mpi().BYTE],
        )

    def _barrier(self) -> None:
        if self.backoff is not None:
            super()._barrier()
        else:
            self._call(self.handle.Barrier)

    def _abort(self, status: int) -> None:
        mpi().COMM_WORLD.Abort(status)

    # --- for the watchdog

    @staticmethod
    def instances() -> list[MpiCommunicator]:
        """Return all communicators of this process."""
        return list(_made)

    @staticmethod
    def has_lost_rank() -> bool:
        """Return True if a rank has died while the remaining ranks continue."""
        return _lost.is_set()

    def world_ranks(self) -> list[int]:
        """Return the ranks of its members among all that were started."""
        everybody = mpi().COMM_WORLD.Get_group()
        return list(self.handle.Get_group().Translate_ranks(None, everybody))

    # --- helpers

    def _call(self, function: Callable[..., Any], *arguments: Any, all_come: bool = True) -> Any:
        self.blocked = time.monotonic()
        try:
            if all_come and shares_cores():
                # A blocking collective waits busily, and takes its core from a late rank. Open MPI
                # cannot reduce GPU memory in a nonblocking one.
                begin = getattr(self.handle, f"I{function.__name__.lower()}", None)
                if begin is not None and not self.gpu_aware:
                    sleep_until(begin(*arguments).Test)
                    return None
                sleep_until(self.handle.Ibarrier().Test)
            return function(*arguments)
        except mpi().Exception as error:
            raise self.failure(error) from error
        finally:
            self.blocked = None


def _bytes_of(buffer: np.ndarray) -> list[Any]:
    """Return a buffer in MPI's form: MPI supports neither bfloat16 nor arrays without an axis."""
    plain = buffer if buffer.dtype.char in _KNOWN_TO_MPI else buffer.reshape(-1).view(np.uint8)
    return [plain, buffer.nbytes, mpi().BYTE]


def _mpi_op(op: str) -> Any:
    return getattr(mpi(), _OPS[op])


def _library_reduces(buffer: np.ndarray, op: str) -> bool:
    return buffer.dtype.char in _KNOWN_TO_MPI and not (op == "mean" and on_card(buffer))
