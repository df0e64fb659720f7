"""Several ranks in one process, each in a thread: what distributed code is tested with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from caldera.comm.interface import Communicator
from caldera.errors import CommError

Result = TypeVar("Result")
PATIENCE_S = 60.0
"""How long a rank waits for the others before it says that they are missing."""


class _Meeting:
    """What the ranks of one group share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.buffers: list[Any] = [None] * size


class VirtualRank(Communicator):
    """One of several ranks that are threads of this process; made by `run_virtual_ranks`.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     total = np.zeros(1)
    ...     comm.Allreduce(np.array([comm.rank + 1.0]), total)
    ...     return total.item()
    >>> run_virtual_ranks(3, work)
    [6.0, 6.0, 6.0]
    """

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.size = size
        self._meeting = meeting

    def Allreduce(self, send: np.ndarray, receive: np.ndarray) -> None:
        self._meeting.buffers[self.rank] = send
        self.Barrier()
        # Always in the order of the ranks, so that every rank gets the same bits.
        total = np.array(self._meeting.buffers[0])
        for other in self._meeting.buffers[1:]:
            total += other
        self.Barrier()
        np.copyto(receive, total)

    def Barrier(self) -> None:
        try:
            self._meeting.barrier.wait(PATIENCE_S)
        except threading.BrokenBarrierError:
            raise CommError.build(
                f"rank {self.rank}", expected=f"all {self.size} ranks to take part",
                got=f"fewer after {PATIENCE_S:g} s, or one that failed",
                hint="every rank must call the same collectives in the same order",
            ) from None  # fmt: skip


def run_virtual_ranks(size: int, work: Callable[[Communicator], Result]) -> list[Result]:
    """Run `work(communicator)` as `size` ranks at once; their results in the order of the ranks.

    If one rank raises, the others are released and its error is raised here.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, lambda comm: f"rank {comm.rank} of {comm.size}")
    ['rank 0 of 2', 'rank 1 of 2']
    """
    meeting = _Meeting(size)
    results: list[Any] = [None] * size
    failures: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(VirtualRank(rank, size, meeting))
        except BaseException as error:
            failures.append((rank, error))
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        # The first to fail is the cause; the others only noticed.
        raise failures[0][1]
    return results
