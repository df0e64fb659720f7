"""Communicator interface: ranks that exchange buffers, with MPI's names for the operations.

This module contains argument checks, counters and ordering. Implementations move the data in
methods that begin with an underscore. Point-to-point messages are sufficient: collectives without
an implementation are built from messages in `caldera.comm.algorithms`.
"""

from __future__ import annotations

import json
import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from caldera.base.arguments import refusal
from caldera.comm import algorithms
from caldera.comm.algorithms.allreduce import WITHIN_A_MACHINE, default_algorithm
from caldera.comm.point_to_point import PointToPoint, Staging
from caldera.comm.reduction import (
    check_alike,
    check_buffer,
    check_reduction,
    check_result,
    check_size,
    checked_counts,
    same_memory,
)
from caldera.comm.requests import PollBackoff, ProgressThread, Request
from caldera.comm.traffic import Traffic
from caldera.errors import CommError

_SHORT_TEXT = np.dtype([("length", np.int64), ("text", "S120")])
"""Message of `gather_objects`; most values are as short as a digest to compare."""


class Communicator(PointToPoint):
    """A group of ranks; each process holds an object with its `rank`.

    - `rank`, `size`: index and number of ranks; `name`: the transport.
    - `traffic`: calls, messages, bytes and seconds by operation.
    - `nodes`: for each rank the number of the machine it runs on.
    - `collectives`: number of started collectives; `operation`: the one in progress, or empty.
    - `segment_bytes`: long buffers travel in messages of that size.
    - `axes`: where the ranks are a mesh, the communicators along its axes, by name.
    - `algorithm`: how `Allreduce` works, "auto" or a name of `caldera.comm.algorithms.ALLREDUCE`.

    Buffers are contiguous NumPy arrays or `DeviceArray`s on a GPU. A receive buffer must have the
    size of the message in bytes. All ranks call the same collectives of a communicator in the same
    order, and one thread at a time uses it: threads that communicate concurrently need separate
    communicators, from `Dup`. `Iallreduce` and `background` run in order on another thread.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     total = np.empty(2)
    ...     comm.Allreduce(np.array([1.0, comm.rank]), total)
    ...     return total.tolist()
    >>> run_virtual_ranks(3, work)
    [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """

    def __init__(self, rank: int, size: int, traffic: Traffic | None = None) -> None:
        super().__init__(rank, size, traffic)
        self.axes: Mapping[str, Communicator] = {}
        self.collectives = 0
        self.operation = ""
        self._algorithm = "auto"
        self.backoff: PollBackoff | None = None
        self._thread: ProgressThread | None = None
        self.made_together: dict[str, Any] = {}
        """What `shared_memory.made_once` keeps."""

    def __reduce__(self) -> Any:
        raise CommError.build(
            f"copying or pickling {self!r}",
            expected="something that is not open",
            got="a communicator, which belongs to this process",
            hint="call caldera.comm.world() in each process",
        )

    # --- collectives

    def Bcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Copy the root's buffer to every rank."""
        self._check_rank("Bcast", root)
        check_buffer("Bcast", buffer, written=self.rank != root)
        with self._collective("Bcast") as here:
            if buffer.size:
                given = here.read(buffer) if self.rank == root else here.write(buffer)
                self._broadcast(given, root)

    def Reduce(
        self, send: np.ndarray, receive: np.ndarray | None, root: int = 0, op: str = "sum"
    ) -> None:
        """Reduce `send` over all ranks into `receive` of the root.

        The remaining ranks may pass None or any array, which stays unchanged.
        """
        self._check_rank("Reduce", root)
        check_reduction("Reduce", op, send)
        if self.rank == root:
            if receive is None:
                raise CommError.build("Reduce", expected="a receive buffer at the root", got="None")
            check_result("Reduce", send, receive, send.size)
        with self._collective("Reduce", op) as here:
            if send.size:
                given = here.read(send)
                result = here.write(receive) if receive is not None and self.rank == root else None
                self._reduce(given, result, root, op)

    def Allreduce(self, send: np.ndarray, receive: np.ndarray, op: str = "sum") -> None:
        """Reduce `send` over all ranks into `receive`, with the same bits on every rank.

        `op` is "sum", "mean", "max" or "min". Both buffers may be the same array.
        """
        check_reduction("Allreduce", op, send)
        check_result("Allreduce", send, receive, send.size)
        with self._collective("Allreduce", op) as here:
            if send.size:
                self._allreduce(here.read(send), here.write(receive), op)

    def Iallreduce(self, send: np.ndarray, receive: np.ndarray, op: str = "sum") -> Request:
        """Start an `Allreduce` in the background; it progresses without calls to the request."""
        return self.background(lambda comm: comm.Allreduce(send, receive, op))

    def ReduceScatter(
        self,
        send: np.ndarray,
        receive: np.ndarray,
        counts: Sequence[int] | None = None,
        op: str = "sum",
    ) -> None:
        """Rank r receives the r-th part of the reduction of `send`, of `counts[r]` elements."""
        check_reduction("ReduceScatter", op, send)
        parts = checked_counts("ReduceScatter", counts, send, self.size)
        check_result("ReduceScatter", send, receive, parts[self.rank])
        with self._collective("ReduceScatter", op) as here:
            if send.size:
                self._reduce_scatter(here.read(send), here.write(receive), parts, op)

    def Allgather(
        self, send: np.ndarray, receive: np.ndarray, counts: Sequence[int] | None = None
    ) -> None:
        """Concatenate the ranks' buffers into `receive`; rank r sends `counts[r]` elements."""
        check_buffer("Allgather", send)
        check_buffer("Allgather", receive, written=True)
        parts = checked_counts("Allgather", counts, receive, self.size)
        check_size("Allgather", "send", send, parts[self.rank])
        own = receive.reshape(-1)[sum(parts[: self.rank]) :][: parts[self.rank]]
        if send.dtype != receive.dtype or not same_memory(send, own):
            check_alike("Allgather", send, receive)
        with self._collective("Allgather") as here:
            if receive.size:
                self._allgather(here.read(send), here.write(receive), parts)

    def Alltoall(
        self,
        send: np.ndarray,
        receive: np.ndarray,
        send_counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
    ) -> None:
        """Send part r of `send` to rank r, and receive part r of `receive` from it."""
        check_buffer("Alltoall", send)
        check_buffer("Alltoall", receive, written=True)
        check_alike("Alltoall", send, receive)
        if same_memory(send, receive) and send.size:
            raise CommError.build("Alltoall", expected="two buffers", got="the same one twice")
        leaving = checked_counts("Alltoall", send_counts, send, self.size)
        arriving = checked_counts("Alltoall", receive_counts, receive, self.size)
        if leaving[self.rank] != arriving[self.rank]:
            raise CommError.build(
                "Alltoall",
                expected=f"{leaving[self.rank]} elements from this rank to itself",
                got=str(arriving[self.rank]),
            )
        with self._collective("Alltoall") as here:
            self._alltoall(here.read(send), here.write(receive), leaving, arriving)

    def Barrier(self) -> None:
        """Wait until all ranks are here."""
        with self._collective("Barrier"):
            self._barrier()

    def Split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Return a communicator of the ranks with the same colour, ordered by key.

        Ranks with colour None receive None. Every rank must call this method.

        >>> from caldera.comm import run_virtual_ranks
        >>> def work(comm):
        ...     odd_or_even = comm.Split(comm.rank % 2, key=-comm.rank)
        ...     return odd_or_even.rank, odd_or_even.size
        >>> run_virtual_ranks(3, work)
        [(1, 2), (0, 1), (0, 2)]
        """
        with self._collective("Split"):
            made = self._split(color, key)
        if made is not None:
            made._algorithm, made.staging_reason = self._algorithm, self.staging_reason
        return made

    def Dup(self) -> Communicator:
        """Return a communicator of the same ranks, for use in another thread.

        Messages of different communicators never mix. Every rank must call this method.
        """
        return self._own_group(0, self.rank)

    def _own_group(self, color: int, key: int) -> Communicator:
        """Return the ranks of this rank's colour, see `Split`."""
        made = self.Split(color, key)
        assert made is not None
        return made

    def Shrink(self) -> Communicator:
        """Return a communicator of the survivors of a `RankLostError`; each survivor calls it."""
        raise CommError.build(
            f"Shrink of {self.name}",
            expected="an MPI that survives the death of a rank",
            got=self.describe().splitlines()[0],
            hint="Open MPI 5, started by caldera run --survive",
        )

    def Revoke(self, reason: str) -> None:
        """Raise an error in all ranks that wait in this communicator or one derived from it.

        One rank calls it when it cannot continue. The communicator is unusable afterwards.

        >>> import numpy as np
        >>> from caldera.comm import run_virtual_ranks
        >>> def work(comm):
        ...     if comm.rank == 0:
        ...         comm.Revoke("the disk is full")
        ...     comm.Recv(np.empty(1), 0)
        >>> run_virtual_ranks(2, work)
        Traceback (most recent call last):
        caldera.errors.CommError: the disk is full
        """
        raise CommError.build(
            f"Revoke of {self.name}",
            expected="a communicator that can be revoked",
            got=self.describe().splitlines()[0],
            hint=reason,
        )

    def along(self, axis: str) -> Communicator:
        """Return the communicator along an axis of the mesh, or this one if there is no such axis.

        >>> from caldera.comm import Mesh, run_virtual_ranks
        >>> def work(comm):
        ...     comm.axes = Mesh(comm, {"data": 2, "model": 2}).axes
        ...     return comm.along("model").size, comm.along("all").size
        >>> run_virtual_ranks(4, work)[0]
        (2, 4)
        """
        if not isinstance(axis, str):
            raise refusal("along", "axis", "text", axis)
        return self.axes.get(axis, self)

    # --- small values

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on every rank; anything that JSON can say.

        >>> from caldera.comm import run_virtual_ranks
        >>> run_virtual_ranks(2, lambda comm: comm.gather_objects({"rank": comm.rank}))[0]
        [{'rank': 0}, {'rank': 1}]
        """
        # JSON cannot carry code. Short texts are sent together with their length.
        text = _as_json("gather_objects", value)
        mine = np.array([(len(text), text)], _SHORT_TEXT)
        everyone = np.empty(self.size, _SHORT_TEXT)
        with self.traffic.operation("gather_objects"):
            self.Allgather(mine.view(np.uint8), everyone.view(np.uint8))
            lengths, texts = everyone["length"].tolist(), everyone["text"].tolist()
            if max(lengths) > _SHORT_TEXT["text"].itemsize:
                whole = np.empty(sum(lengths), np.uint8)
                self.Allgather(np.frombuffer(text, np.uint8), whole, lengths)
                texts = [part.tobytes() for part in np.split(whole, np.cumsum(lengths)[:-1])]
        return [json.loads(each) for each in texts]

    def bcast_object(self, value: Any = None, root: int = 0) -> Any:
        """Return the root's value, on every rank; anything that JSON can say."""
        self._check_rank("bcast_object", root)
        text = _as_json("bcast_object", value) if self.rank == root else b""
        length = np.array([len(text)], np.int64)
        with self.traffic.operation("bcast_object"):
            self.Bcast(length, root)
            buffer = np.frombuffer(bytearray(text or int(length[0])), np.uint8)
            self.Bcast(buffer, root)
        return json.loads(buffer.tobytes())

    def shared_key(self) -> bytes:
        """Return 32 secret bytes, the same on all ranks and new in each call; all ranks call this.

        >>> from caldera.comm import run_virtual_ranks
        >>> keys = run_virtual_ranks(2, lambda comm: comm.shared_key())
        >>> keys[0] == keys[1], len(keys[0])
        (True, 32)
        """
        return bytes.fromhex(self.bcast_object(secrets.token_hex(32) if self.rank == 0 else None))

    # --- in the background

    def background(self, work: Callable[[Communicator], object]) -> Request:
        """Run `work(communicator)` on the background thread, after all earlier work.

        The communicator passed to `work` has the same ranks and counters.

        >>> import numpy as np
        >>> from caldera.comm import run_virtual_ranks
        >>> def work(comm):
        ...     whole = np.empty(4)
        ...     mine = np.full(2, float(comm.rank))
        ...     comm.background(lambda own: own.Allgather(mine, whole)).wait()
        ...     return whole.tolist()
        >>> run_virtual_ranks(2, work)[1]
        [0.0, 0.0, 1.0, 1.0]
        """
        if self._thread is None:
            self._thread = ProgressThread(f"communication of rank {self.rank}")
        duplicate = self._dup()
        duplicate.algorithm = self.algorithm
        duplicate.backoff = self._thread.backoff
        return self._thread.start(lambda: work(duplicate))

    def hurried(self) -> AbstractContextManager[None]:
        """Context manager for callers without work: background operations use the cores freely."""
        return nullcontext() if self._thread is None else self._thread.backoff.interrupted()

    @property
    def algorithm(self) -> str:
        """Algorithm of `Allreduce`; the same on all ranks."""
        return self._algorithm

    @algorithm.setter
    def algorithm(self, name: str) -> None:
        known = ("auto", *self.algorithms())
        if name not in known:
            raise CommError.build(
                f"algorithm of {self!r}", expected="one of " + ", ".join(known), got=repr(name)
            )
        self._algorithm = name

    # --- what an implementation says

    @abstractmethod
    def _split(self, color: int | None, key: int) -> Communicator | None:
        """Return the communicator of a colour."""

    def _ranks_of_color(self, color: int | None, key: int) -> list[int]:
        """Return the ranks of this rank's colour by their keys; none if its colour is None."""
        colors_and_keys = self.gather_objects([color, key])
        if color is None:
            return []
        mine = sorted((k, rank) for rank, (c, k) in enumerate(colors_and_keys) if c == color)
        return [rank for _, rank in mine]

    @abstractmethod
    def _dup(self) -> Communicator:
        """Return a communicator of the same ranks for the background thread, without messages."""

    # --- what an implementation may do better

    @property
    def many_threads(self) -> bool:
        """True if several threads may communicate, each through its own communicator."""
        return True

    @property
    def in_one_process(self) -> bool:
        """True if the ranks are threads of this process and share their state."""
        return False

    @property
    def shares_memory(self) -> bool:
        """True if ranks should prefer shared memory to messages for exchanges with all ranks."""
        return False

    def _abort(self, status: int) -> None:
        """End every rank of the job, this process included."""
        os._exit(status)

    def describe(self) -> str:
        """Transport and its version: measurements with one transport are not valid for another."""
        return self.name

    def algorithms(self) -> Sequence[str]:
        """Return values of `algorithm` other than "auto"."""
        several = len(set(self.nodes)) > 1
        return tuple(n for n in algorithms.ALLREDUCE if n not in WITHIN_A_MACHINE or not several)

    def _broadcast(self, buffer: np.ndarray, root: int) -> None:
        algorithms.broadcast(self, buffer.reshape(-1), root)

    def _reduce(self, send: np.ndarray, receive: np.ndarray | None, root: int, op: str) -> None:
        algorithms.reduce(self, send, receive, root, op)

    def _allreduce(self, send: np.ndarray, receive: np.ndarray, op: str) -> None:
        if not same_memory(send, receive):
            np.copyto(receive.reshape(-1), send.reshape(-1))
        name = self._algorithm_for(receive, op)
        algorithms.allreduce(self, receive.reshape(-1), op, name)

    def _algorithm_for(self, buffer: np.ndarray, op: str) -> str:
        return default_algorithm(buffer, op) if self._algorithm == "auto" else self._algorithm

    def _reduce_scatter(
        self, send: np.ndarray, receive: np.ndarray, counts: list[int], op: str
    ) -> None:
        algorithms.reduce_scatter(self, send.reshape(-1), receive.reshape(-1), counts, op)

    def _allgather(self, send: np.ndarray, receive: np.ndarray, counts: list[int]) -> None:
        algorithms.allgather(self, send.reshape(-1), receive.reshape(-1), counts)

    def _alltoall(
        self, send: np.ndarray, receive: np.ndarray, leaving: list[int], arriving: list[int]
    ) -> None:
        algorithms.alltoall(self, send.reshape(-1), receive.reshape(-1), leaving, arriving)

    def _barrier(self) -> None:
        algorithms.barrier(self)

    @contextmanager
    def _collective(self, name: str, op: str | None = None) -> Iterator[Staging]:
        outer = self.operation
        if not outer:
            self.operation = name
            self.collectives += 1
        try:
            with (
                self.traffic.operation(name),
                Staging(lambda buffer: self._reaches(buffer, op)) as staging,
            ):
                yield staging
        finally:
            self.operation = outer


def _as_json(where: str, value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise refusal(where, "value", "a JSON-serialisable value", value) from error
