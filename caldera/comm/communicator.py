"""What a communicator is: ranks that exchange buffers, with MPI's names for what they do.

Here stand the checks, the counters and the order of things; how a buffer moves is said by those
who implement the methods that begin with an underscore. Point to point is enough: whatever a
communicator does not do better is built from messages, in `caldera.comm.algorithms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from caldera.comm import algorithms
from caldera.comm.algorithms.allreduce import WITHIN_A_MACHINE, default_algorithm
from caldera.comm.algorithms.partition import SEGMENT_BYTES
from caldera.comm.algorithms.point_to_point import TAG
from caldera.comm.buffer_checks import (
    check_alike,
    check_buffer,
    check_reduction,
    check_size,
    checked_counts,
    same_memory,
)
from caldera.comm.object_collectives import broadcast, gathered
from caldera.comm.progress_thread import PollBackoff, ProgressThread
from caldera.comm.request import Request
from caldera.comm.staging import StagedReceive, Staging, copy_to_host, on_card, pinned_like
from caldera.comm.traffic import Traffic
from caldera.errors import CommError

ANY_SOURCE = -1
"""As the source of a `Recv`: the next message with that tag, whoever sent it."""
LAST_TAG = TAG - 1
"""The tag after it belongs to collectives."""


class Communicator(ABC):
    """A group of ranks; each holds an object of its own with its `rank`.

    - `rank`, `size`: which of how many; `name`: what carries the data.
    - `traffic`: calls, messages, bytes and seconds by operation.
    - `nodes`: for each rank the number of the machine it runs on.
    - `collectives`: how many collectives this rank has begun, which shows who is behind;
      `operation`: the one it is in, or nothing.
    - `segment_bytes`: long buffers travel in messages of that size.
    - `axes`: where the ranks are a mesh, the communicators along its axes, by name.
    - `algorithm`: how `Allreduce` works, "auto" or a name of `caldera.comm.algorithms.ALLREDUCE`.

    Buffers are contiguous NumPy arrays, or `DeviceArray`s, which lie on a card; one that is
    received into must have as many bytes as what is sent. All ranks call the same collectives of a
    communicator in the same order, and one thread at a time uses it: a thread that communicates
    beside others needs a communicator of its own, from `Dup`. What `Iallreduce` and `background`
    start runs on a thread and a communicator that belong to this one, in the order in which it was
    started.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     total = np.empty(2)
    ...     comm.Allreduce(np.array([1.0, comm.rank]), total)
    ...     return total.tolist()
    >>> run_virtual_ranks(3, work)
    [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """

    name: str
    segment_bytes = SEGMENT_BYTES

    def __init__(self, rank: int, size: int, traffic: Traffic | None = None) -> None:
        self.rank = rank
        self.size = size
        self.traffic = Traffic() if traffic is None else traffic
        self.nodes: Sequence[int] = [0] * size
        self.axes: Mapping[str, Communicator] = {}
        self.collectives = 0
        self.operation = ""
        self._algorithm = "auto"
        self.patience: PollBackoff | None = None
        self._thread: ProgressThread | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}>"

    # --- point to point

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
        """Send to one rank and receive from one, at once: no order of the ranks can block it."""
        with self.traffic.operation("Sendrecv"):
            arriving = self.Irecv(receive, source, tag)
            leaving = self.Isend(send, dest, tag)
            arriving.wait()
            leaving.wait()

    def exchange_messages(
        self, leaving: Mapping[int, np.ndarray], longest: Mapping[int, int]
    ) -> dict[int, np.ndarray]:
        """Send bytes to some ranks, and take a message from each of others, all at once.

        `longest` says from whom, and how many bytes there are at most: how many there are, only
        the sender needs to know.

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
            return algorithms.exchange_messages(self, leaving, longest)

    # --- collectives

    def Bcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """Every rank's buffer becomes that of the root."""
        check_buffer("Bcast", buffer, written=self.rank != root)
        self._check_rank("Bcast", root)
        with self._collective("Bcast") as here:
            if buffer.size:
                given = here.read(buffer) if self.rank == root else here.write(buffer)
                self._broadcast(given, root)

    def Reduce(
        self, send: np.ndarray, receive: np.ndarray | None, root: int = 0, op: str = "sum"
    ) -> None:
        """`receive` of the root becomes the reduction of `send` over all ranks; others give None
        or anything, which is left alone."""
        check_buffer("Reduce", send)
        self._check_rank("Reduce", root)
        check_reduction("Reduce", op, send.dtype)
        if self.rank == root:
            if receive is None:
                raise CommError.build("Reduce", expected="a receive buffer at the root", got="None")
            self._check_result("Reduce", send, receive, send.size)
        with self._collective("Reduce", op) as here:
            if send.size:
                given = here.read(send)
                result = here.write(receive) if receive is not None and self.rank == root else None
                self._reduce(given, result, root, op)

    def Allreduce(self, send: np.ndarray, receive: np.ndarray, op: str = "sum") -> None:
        """`receive` becomes the reduction ("sum", "mean", "max", "min") of `send` over all ranks,
        the same bits on each of them. Both may be the same array."""
        check_buffer("Allreduce", send)
        check_reduction("Allreduce", op, send.dtype)
        self._check_result("Allreduce", send, receive, send.size)
        with self._collective("Allreduce", op) as here:
            if send.size:
                self._allreduce(here.read(send), here.write(receive), op)

    def Iallreduce(self, send: np.ndarray, receive: np.ndarray, op: str = "sum") -> Request:
        """An `Allreduce` in the background, which goes on whether anybody asks for it or not."""
        return self.background(lambda comm: comm.Allreduce(send, receive, op))

    def ReduceScatter(
        self,
        send: np.ndarray,
        receive: np.ndarray,
        counts: Sequence[int] | None = None,
        op: str = "sum",
    ) -> None:
        """Rank r receives the r-th part of the reduction of `send`, of `counts[r]` elements."""
        check_buffer("ReduceScatter", send)
        check_reduction("ReduceScatter", op, send.dtype)
        parts = checked_counts("ReduceScatter", counts, send, self.size)
        self._check_result("ReduceScatter", send, receive, parts[self.rank])
        with self._collective("ReduceScatter", op) as here:
            if send.size:
                self._reduce_scatter(here.read(send), here.write(receive), parts, op)

    def Allgather(
        self, send: np.ndarray, receive: np.ndarray, counts: Sequence[int] | None = None
    ) -> None:
        """`receive` becomes the buffers of all ranks one after the other; rank r gives `counts[r]`
        elements."""
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
        """Part r of `send` goes to rank r; part r of `receive` comes from it."""
        check_buffer("Alltoall", send)
        check_buffer("Alltoall", receive, written=True)
        check_alike("Alltoall", send, receive)
        if same_memory(send, receive) and send.size:
            raise CommError.build("Alltoall", expected="two buffers", got="the same one twice")
        leaving = checked_counts("Alltoall", send_counts, send, self.size)
        arriving = checked_counts("Alltoall", receive_counts, receive, self.size)
        if leaving[self.rank] != arriving[self.rank]:
            raise CommError.build(
                "Alltoall", expected=f"{leaving[self.rank]} elements from this rank to itself",
                got=str(arriving[self.rank]),
            )  # fmt: skip
        with self._collective("Alltoall") as here:
            self._alltoall(here.read(send), here.write(receive), leaving, arriving)

    def Barrier(self) -> None:
        """Wait until all ranks are here."""
        with self._collective("Barrier"):
            self._barrier()

    def Split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The ranks of one colour as a communicator of their own, in the order of their keys;
        None for those whose colour is None. Every rank takes part.

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
            made._algorithm = self._algorithm
        return made

    def Dup(self) -> Communicator:
        """The same ranks again, for a thread of its own: nothing sent through one communicator
        is ever received through another. Every rank takes part."""
        made = self.Split(0, self.rank)
        assert made is not None
        return made

    def Shrink(self) -> Communicator:
        """The ranks that are left after a `RankLostError`, in order; each of them calls it."""
        raise CommError.build(
            f"Shrink of {self.name}", expected="an MPI that goes on when a rank dies",
            got=self.describe(), hint="Open MPI 5, started by caldera run --survive",
        )  # fmt: skip

    def along(self, axis: str) -> Communicator:
        """Who carries what goes along an axis of the mesh: all ranks, where there is none so named.

        >>> from caldera.comm import Mesh, run_virtual_ranks
        >>> def work(comm):
        ...     comm.axes = Mesh(comm, {"data": 2, "model": 2}).axes
        ...     return comm.along("model").size, comm.along("all").size
        >>> run_virtual_ranks(4, work)[0]
        (2, 4)
        """
        return self.axes.get(axis, self)

    # --- small values

    def gather_objects(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank; anything that JSON can say.

        >>> from caldera.comm import run_virtual_ranks
        >>> run_virtual_ranks(2, lambda comm: comm.gather_objects({"rank": comm.rank}))[0]
        [{'rank': 0}, {'rank': 1}]
        """
        with self.traffic.operation("gather_objects"):
            return gathered(self, value)

    def bcast_object(self, value: Any = None, root: int = 0) -> Any:
        """The root's value, on every rank; anything that JSON can say."""
        with self.traffic.operation("bcast_object"):
            return broadcast(self, value, root)

    # --- in the background

    def background(self, work: Callable[[Communicator], object]) -> Request:
        """Run `work(communicator)` on this communicator's own thread; what was started before it
        runs before it. The communicator it is given has the same ranks and counters.

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
        twin = self._twin()
        twin.algorithm = self.algorithm
        twin.patience = self._thread.patience
        return self._thread.start(lambda: work(twin))

    def hurried(self) -> AbstractContextManager[None]:
        """While the caller has nothing to compute: what is under way in the background does not
        spare the cores then."""
        return nullcontext() if self._thread is None else self._thread.patience.tried()

    @property
    def algorithm(self) -> str:
        """How `Allreduce` works; the same on all ranks."""
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
    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        """Begin to send."""

    @abstractmethod
    def _start_receive(
        self, buffer: np.ndarray, source: int, tag: int, shorter: bool = False
    ) -> Request:
        """Begin to receive a message of exactly the buffer's bytes; if it may be `shorter`, the
        request says how many came."""

    @abstractmethod
    def _split(self, color: int | None, key: int) -> Communicator | None:
        """The communicator of a colour."""

    @abstractmethod
    def _twin(self) -> Communicator:
        """The same ranks for the background thread, made without asking the others."""

    # --- what an implementation may do better

    @property
    def many_threads(self) -> bool:
        """Whether several threads of this process may communicate at once, each through a
        communicator of its own."""
        return True

    def describe(self) -> str:
        """What carries the data, with its version: what was measured with one is not true of
        another."""
        return self.name

    def algorithms(self) -> Sequence[str]:
        """The names that `algorithm` may have beside "auto"."""
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

    def _reaches(self, buffer: np.ndarray, op: str | None = None) -> bool:
        """Whether a buffer can be used where it lies, for a reduction or else for moving it."""
        return not on_card(buffer)

    def _reaches_message(self, buffer: np.ndarray) -> bool:
        """Whether a buffer can be sent from, or received into, where it lies."""
        return self._reaches(buffer)

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

    # --- checks

    def _check_rank(self, where: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise CommError.build(where, expected=f"a rank below {self.size}", got=str(rank))

    def _check_message(self, where: str, rank: int, tag: int) -> None:
        self._check_rank(where, rank)
        if not 0 <= tag <= LAST_TAG:
            raise CommError.build(where, expected=f"a tag from 0 to {LAST_TAG}", got=str(tag))

    def _check_result(
        self, where: str, send: np.ndarray, receive: np.ndarray, elements: int
    ) -> None:
        check_buffer(where, receive, written=True)
        check_size(where, "receive", receive, elements)
        check_alike(where, send, receive)
