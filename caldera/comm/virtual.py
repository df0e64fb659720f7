"""Several ranks in one process, each in a thread: what distributed code is tested with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from caldera.base.arguments import refusal, within
from caldera.comm.communicator import Communicator
from caldera.comm.mailboxes import Inbox, JobFailure, MailboxRank
from caldera.comm.requests import Request
from caldera.comm.traffic import Traffic
from caldera.comm.watchdog import source_location
from caldera.errors import CommError

Result = TypeVar("Result")
TIMEOUT_S = 60.0
"""Seconds a rank waits before it reports the missing ranks."""


class _Group:
    """State shared by the ranks of a communicator."""

    def __init__(
        self,
        members: list[int],
        nodes: Sequence[int],
        failure: JobFailure,
        threads: dict[int, int],
        timeout_s: float,
    ) -> None:
        self.members = members
        self.nodes = nodes
        self.boxes = [Inbox(rank, failure, timeout_s) for rank in range(len(members))]
        for box in self.boxes:
            box.missing = self._missing
        self.failure = failure
        self._timeout_s = timeout_s
        self._threads = threads
        self._lock = threading.Lock()
        self._made: dict[object, _Group] = {}

    def derived(self, key: object, members: list[int]) -> _Group:
        """Return the group of a key, created by the first rank that requests it."""
        with self._lock:
            if key not in self._made:
                self._made[key] = _Group(
                    members, self.nodes, self.failure, self._threads, self._timeout_s
                )
            return self._made[key]

    def _missing(self, rank: int, wanted: str) -> CommError:
        others = [
            f"rank {member} is at {source_location(self._threads[member])}"
            for member in self.members
            if member != self.members[rank] and member in self._threads
        ]
        return CommError.build(
            f"rank {self.members[rank]}",
            expected=wanted,
            got=f"none after {self._timeout_s:g} s: " + "; ".join(others),
            hint="every rank must call the same collectives in the same order",
        )


class VirtualRank(MailboxRank):
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

    name = "threads"

    def __init__(self, rank: int, group: _Group, traffic: Traffic | None = None) -> None:
        super().__init__(rank, len(group.members), traffic)
        self.nodes = [group.nodes[member] for member in group.members]
        self._group, self._inbox = group, group.boxes[rank]
        self._splits = 0
        self._background: VirtualRank | None = None

    @property
    def in_one_process(self) -> bool:
        return True

    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        return self._group.boxes[dest].send(self.rank, tag, buffer)

    def _split(self, color: int | None, key: int) -> Communicator | None:
        self._splits += 1
        ranks = self._ranks_of_color(color, key)
        if not ranks:
            return None
        members = [self._group.members[rank] for rank in ranks]
        group = self._group.derived(("split", self._splits, color), members)
        return VirtualRank(ranks.index(self.rank), group)

    def _dup(self) -> Communicator:
        if self._background is None:
            group = self._group.derived("duplicate", self._group.members)
            self._background = VirtualRank(self.rank, group, self.traffic)
        return self._background

    def Revoke(self, reason: str) -> None:
        self._group.failure.fail(self.rank, CommError(reason))


def virtual_ranks(size: int) -> list[VirtualRank]:
    """Return ranks for threads that the caller starts, and that may wait for each other for ever.

    >>> import numpy as np
    >>> from caldera.comm.virtual import virtual_ranks
    >>> first, second = virtual_ranks(2)
    >>> first.Send(np.ones(2), 1)
    >>> here = np.empty(2)
    >>> second.Recv(here, 0)
    0
    """
    group = _Group(list(range(size)), [0] * size, JobFailure(), {}, threading.TIMEOUT_MAX)
    return [VirtualRank(rank, group) for rank in range(size)]


MOST_RANKS = 4096
"""Maximum number of virtual ranks in a process."""


def run_virtual_ranks(
    size: int, work: Callable[[Communicator], Result], nodes: Sequence[int] | None = None
) -> list[Result]:
    """Run `work(communicator)` on `size` threads as ranks; return their results by rank.

    If a rank raises an error, all waiting ranks are released and the error is raised here. `nodes`
    assigns ranks to simulated machines; by default all ranks share one.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, lambda comm: f"rank {comm.rank} of {comm.size}")
    ['rank 0 of 2', 'rank 1 of 2']
    """
    within("run_virtual_ranks", "size", size, 1, MOST_RANKS)
    if nodes is not None and len(nodes) != size:
        raise refusal("run_virtual_ranks", "nodes", f"a node for each of {size} ranks", nodes)
    failure = JobFailure()
    idents: dict[int, int] = {}
    machines = [0] * size if nodes is None else list(nodes)
    group = _Group(list(range(size)), machines, failure, idents, TIMEOUT_S)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        idents[rank] = threading.get_ident()
        try:
            results[rank] = work(VirtualRank(rank, group))
        except BaseException as error:
            failure.fail(rank, error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failure.first is not None:
        # The first failure is the cause; later ones are consequences.
        raise failure.first[1]
    return results
