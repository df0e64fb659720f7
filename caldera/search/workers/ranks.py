"""Workers that are ranks: `caldera run -n 9 search.py` is one master and eight workers.

Every rank runs the same program, so each has the user's functions and data. Rank 0 is the master.
Trials and results travel through sockets, not through MPI: a rank that waits in MPI takes a core to
itself, and one that has died can be waited for for ever. MPI says where the master listens, and
carries what the ranks of one trial exchange.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from caldera.comm import Communicator, MpiCommunicator
from caldera.errors import CommError, ConfigError
from caldera.parallel import DataParallel
from caldera.search.job import Job
from caldera.search.scheduler import Scheduler
from caldera.search.workers.channel import Channel
from caldera.search.workers.dispatcher import Dispatcher
from caldera.search.workers.rank_pool import RankWorkers
from caldera.search.workers.resources import share_card
from caldera.search.workers.worker import Worker
from caldera.train.strategy import SingleProcessStrategy

MASTER = 0
CONNECTS_WITHIN_S = 30.0


def run_on_ranks(
    communicator: Communicator,
    scheduler: Scheduler | None,
    job: Job,
    at_end: Callable[[], None],
    last_words: Callable[[], list[dict[str, Any]]],
    *,
    ranks_per_trial: int = 1,
    retries: int = 2,
    hung_after: float | None = None,
) -> list[dict[str, Any]]:
    """Run the trials of a scheduler, which rank 0 has, on all other ranks. Every rank calls this,
    and comes back when there are no more, with the last words of the master."""
    groups = groups_of(communicator.size, ranks_per_trial)
    if communicator.rank == MASTER:
        assert scheduler is not None
        pool = RankWorkers(groups, several_machines=len(set(communicator.nodes)) > 1)
        communicator.bcast_object(pool.address, MASTER)
        communicator.Split(None)
        _say_who_is_left_over(communicator.size, groups)

        def speak() -> None:
            at_end()
            pool.last_words = last_words()

        Dispatcher(scheduler, pool, retries=retries, hung_after=hung_after).run(speak)
        pool.end_the_hung(with_mpi=isinstance(communicator, MpiCommunicator))
        return pool.last_words
    address = communicator.bcast_object(None, MASTER)
    number = next((n for n, group in enumerate(groups) if communicator.rank in group), None)
    own = communicator.Split(number, communicator.rank)
    machine = communicator.nodes[communicator.rank]
    share_card(sum(each == machine for each in communicator.nodes[1:]))
    return serve_rank(address, communicator.rank, job, own)


def groups_of(ranks: int, ranks_per_trial: int) -> list[range]:
    """Which ranks train together; rank 0 is the master, and those that are too few are left over.

    >>> groups_of(6, 2)
    [range(1, 3), range(3, 5)]
    """
    if not 1 <= ranks_per_trial < ranks:
        raise ConfigError.build(
            "search",
            expected=f"ranks_per_trial from 1 to {ranks - 1}, since one rank is master",
            got=f"{ranks_per_trial} with {ranks} ranks",
            hint=f"start more: caldera run -n {1 + 2 * ranks_per_trial} for two trials at once",
        )
    last = ranks - ranks_per_trial
    return [range(first, first + ranks_per_trial) for first in range(1, last + 1, ranks_per_trial)]


def _say_who_is_left_over(ranks: int, groups: Sequence[range]) -> None:
    left = ranks - 1 - sum(map(len, groups))
    if left:
        print(
            f"caldera search: {left} of {ranks} ranks have nothing to do: one is the master, and "
            f"the others make {len(groups)} groups of {len(groups[0])}",
            file=sys.stderr,
        )


def serve_rank(
    address: Mapping[str, Any], rank: int, job: Job, own: Communicator | None
) -> list[dict[str, Any]]:
    """Run trials with the other ranks of `own` until the master says that there are no more.

    A rank that was given up, because its trial took too long, joins again when it is free.
    """
    together = own is not None and own.size > 1
    strategy = DataParallel(communicator=own) if together else SingleProcessStrategy()
    while True:
        worker = Worker(_connected(address), job, strategy=strategy, name=f"rank {rank}")
        last_words = worker.serve(rank=rank, secret=address["secret"])
        if last_words is not None:
            return last_words


def _connected(address: Mapping[str, Any]) -> Channel:
    until = time.monotonic() + CONNECTS_WITHIN_S
    for host in address["hosts"]:
        with suppress(OSError):
            seconds = max(1.0, until - time.monotonic())
            connection = socket.create_connection((host, address["port"]), timeout=seconds)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return Channel(connection)
    raise CommError.build(
        "search",
        expected=f"the master at port {address['port']} of {address['hosts']}",
        got="no answer",
        hint="it has ended, or a firewall is between these machines",
    )
