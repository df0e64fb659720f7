"""Workers on ranks: `caldera run -n 9 search.py` is one master and eight workers.

Every rank runs the same program, so each has the user's functions and data. Rank 0 is the master.
The remaining ranks connect to it in groups, each of which trains one trial. Trials and results
travel through sockets, not through MPI: a rank that waits in MPI occupies a core, and a wait for a
dead rank never ends. MPI distributes the master's address, and carries the messages between the
ranks of a trial.

After a search the master sends the whole study to all ranks, as plain data. So every rank continues
with the same study, as after `fit` every rank has the same model, and no rank has to read a file
that only the master's machine may have.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from caldera.base.arguments import require
from caldera.base.plain_data import decoded, encoded
from caldera.comm import Communicator
from caldera.comm.hosts import host_names
from caldera.comm.listener import LOOPBACK, Listener
from caldera.comm.places.meeting import listening_address, offer, reach
from caldera.comm.places.shared_folder import FolderProof, unseen
from caldera.comm.supervision import end_all
from caldera.errors import ConfigError
from caldera.parallel import DataParallel
from caldera.search.job import SearchJob
from caldera.search.scheduler import Scheduler
from caldera.search.study import Study
from caldera.search.trial import Trial
from caldera.search.workers.dispatcher import Dispatcher, PoolMember, WorkerMessage, WorkerPool
from caldera.search.workers.local import share_card
from caldera.search.workers.worker import MessageStream, TrialWorker
from caldera.train.strategy import SingleProcessStrategy


@dataclass(eq=False)
class RankGroup(PoolMember):
    """Ranks that train a trial together; the first rank leads."""

    ranks: Sequence[int] = ()
    greeted: set[MessageStream] = field(default_factory=set)

    def greet(self, channel: MessageStream) -> None:
        self.greeted.add(channel)
        self.ready = 0 < len(self.ranks) == len(self.greeted)


class RankWorkers(WorkerPool):
    """Groups of ranks; one that was given up may come again.

    Ranks connect by its `offer`.
    """

    def __init__(
        self, groups: Sequence[range], key: bytes, *, several_machines: bool = False
    ) -> None:
        super().__init__()
        self._groups = groups
        host = host_names()[0] if several_machines else LOOPBACK
        self._listener = Listener(key, listening_address(host, ""), self._selector)
        self.offer = offer(self._listener, host)
        self._rank_of: dict[MessageStream, int] = {}
        self._left_over: list[RankGroup] = []
        self._hung: set[int] = set()
        self.final_messages: list[dict[str, Any]] = []
        """What all ranks hear at the end: they go on with the program, and with its study."""

    def start(self) -> None:
        for group in self._groups:
            self._expect(group)

    def drop(self, member: PoolMember, reason: str) -> str:
        assert isinstance(member, RankGroup)
        if reason:
            # Without a reason the connection has ended: MPI detects the dead rank without help.
            self._hung.update(member.ranks)
        return super().drop(member, reason)

    def end(self, *, at_once: bool) -> None:
        for member in self.members:
            assert isinstance(member, RankGroup)
            if not member.ready:
                self._hung.update(member.ranks)
        for group in self._left_over:
            for message in self._end_messages():
                group.send(message)
            self._forget(group)
        self._listener.close()
        super().end(at_once=at_once)

    def _end_messages(self) -> list[dict[str, Any]]:
        words = [{"kind": "word", "word": each} for each in self.final_messages]
        return [*words, *super()._end_messages()]

    def end_hung(self, communicator: Communicator) -> None:
        """End the job with this program if ranks hang, since launchers wait for every rank."""
        if not self._hung:
            return
        names = ", ".join(f"rank {rank}" for rank in sorted(self._hung))
        sys.stderr.write(
            f"caldera search: {names} hangs; the study is complete without it, and all ranks are "
            "ended with the program of the master\n"
        )
        if not communicator.in_one_process:
            atexit.register(end_all, communicator)

    def _expect(self, ranks: range) -> RankGroup:
        several = f"ranks {ranks[0]} to {ranks[-1]}"
        group = RankGroup(f"rank {ranks[0]}" if len(ranks) == 1 else several, ranks=ranks)
        self.members.append(group)
        return group

    def messages(self) -> list[WorkerMessage]:
        self._listener.end_late()
        return super().messages()

    def _accept(self, link: Any) -> None:
        peer = self._listener.serve(link)
        if peer is None:
            return
        channel = MessageStream(peer.link)
        self._rank_of[channel] = peer.number
        group = self._group_of(peer.number)
        self._hung.difference_update(group.ranks)
        group.channels = sorted([*group.channels, channel], key=self._rank_of.__getitem__)
        self._attach(group, channel)

    def _group_of(self, rank: int) -> RankGroup:
        for member in self.members:
            if isinstance(member, RankGroup) and rank in member.ranks:
                return member
        ranks = next((group for group in self._groups if rank in group), None)
        if ranks is not None:
            return self._expect(ranks)
        self._left_over.append(RankGroup(f"rank {rank}"))
        return self._left_over[-1]


MASTER = 0
CONNECTS_WITHIN_S = 30.0


def run_on_ranks(
    communicator: Communicator,
    scheduler: Scheduler | None,
    job: SearchJob,
    at_end: Callable[[], None],
    final_messages: Callable[[], list[dict[str, Any]]],
    *,
    ranks_per_trial: int = 1,
    retries: int = 2,
    hung_after: float | None = None,
) -> list[dict[str, Any]]:
    """Run the trials of rank 0's scheduler on all remaining ranks.

    Every rank calls this function. It returns the final messages of the master when all trials have
    finished.
    """
    groups = groups_of(communicator.size, ranks_per_trial)
    key = communicator.shared_key()
    if communicator.rank == MASTER:
        assert scheduler is not None
        several = len(set(communicator.nodes)) > 1
        pool = RankWorkers(groups, key, several_machines=several)
        with _proof_of(job.folder if several and job.samples is not None else None) as folder:
            # Without the key, which every rank has, and which no message carries.
            communicator.bcast_object({**pool.offer, "key": "", "folder": folder}, MASTER)
            communicator.Split(None)
            _warn_of_idle_ranks(communicator.size, groups)

            def finish() -> None:
                at_end()
                pool.final_messages = final_messages()

            Dispatcher(scheduler, pool, retries=retries, hung_after=hung_after).run(finish)
        pool.end_hung(communicator)
        return pool.final_messages
    offered = {**communicator.bcast_object(None, MASTER), "key": key.hex()}
    if offered["folder"] is not None and (reason := unseen(offered["folder"])):
        raise ConfigError.build(
            "search",
            expected=f"a folder that all ranks see: {job.folder}",
            got=f"{reason}, for rank {communicator.rank}",
            hint="name a folder= on a file system that all machines share, or none",
        )
    number = next((n for n, group in enumerate(groups) if communicator.rank in group), None)
    own = communicator.Split(number, communicator.rank)
    machine = communicator.nodes[communicator.rank]
    share_card(sum(each == machine for each in communicator.nodes[1:]))
    return serve_rank(offered, communicator.rank, job, own)


@contextmanager
def _proof_of(folder: Path | None) -> Iterator[dict[str, str] | None]:
    """Offer a proof that a folder is the same on all machines, if workers write to it."""
    if folder is None:
        yield None
        return
    with FolderProof(folder) as proof:
        yield proof.offered


def groups_of(ranks: int, ranks_per_trial: int) -> list[range]:
    """Return the groups of ranks that train together, without the master, rank 0.

    Ranks that do not fill a group are left out.

    >>> groups_of(6, 2)
    [range(1, 3), range(3, 5)]
    """
    require(
        1 <= ranks_per_trial < ranks,
        "search",
        f"ranks_per_trial from 1 to {ranks - 1}, since one rank is master",
        f"{ranks_per_trial} with {ranks} ranks",
        hint=f"start more: caldera run -n {1 + 2 * ranks_per_trial} for two parallel trials",
    )
    last = ranks - ranks_per_trial
    return [range(first, first + ranks_per_trial) for first in range(1, last + 1, ranks_per_trial)]


def _warn_of_idle_ranks(ranks: int, groups: Sequence[range]) -> None:
    left = ranks - 1 - sum(map(len, groups))
    if left:
        print(
            f"caldera search: {left} of {ranks} ranks are idle: one is the master, and the "
            f"remaining ranks form {len(groups)} groups of {len(groups[0])}",
            file=sys.stderr,
        )


def serve_rank(
    offered: Mapping[str, Any], rank: int, job: SearchJob, own: Communicator | None
) -> list[dict[str, Any]]:
    """Run trials with the ranks of `own` until the master reports that no more are left.

    A rank that was dropped, because its trial took too long, joins again when it is free.
    """
    together = own is not None and own.size > 1
    strategy = DataParallel(communicator=own) if together else SingleProcessStrategy()
    while True:
        channel = MessageStream(reach(offered, rank, CONNECTS_WITHIN_S))
        worker = TrialWorker(channel, job, strategy=strategy, name=f"rank {rank}")
        final_messages = worker.serve()
        if final_messages is not None:
            return final_messages


_MADE_HERE = ("parameters", "make")
"""Fields that may have any type, and are derived from the remaining fields."""
_TRIALS = 500
"""Number of trials per message: a whole study may exceed the maximum message length."""


def study_messages(study: Study) -> list[dict[str, Any]]:
    """Return a study as JSON-serialisable messages."""
    names = [each.name for each in fields(Trial) if each.name not in _MADE_HERE]
    trials = [{name: getattr(trial, name) for name in names} for trial in study.trials]
    words = [{"notes": encoded(study.record.notes())}]
    kept = study.record.conditions()
    for begin in range(0, len(trials), _TRIALS):
        piece = trials[begin : begin + _TRIALS]
        named = {trial["conditions"] for trial in piece} & kept.keys()
        conditions = {name: kept[name] for name in named}
        words.append({"trials": encoded(piece), "conditions": conditions})
    return words


def load_study(study: Study, messages: Sequence[dict[str, Any]]) -> None:
    """Fill an empty study with the master's messages."""
    space = study.space
    assert space is not None
    for given in decoded([trial for piece in messages for trial in piece.get("trials", ())]):
        values = given.pop("values")
        trial = Trial(
            parameters=space.decoded(given["point"]),
            values=None if values is None else tuple(values),
            **given,
        )
        study.adopt(trial)
    for piece in messages:
        for key, value in decoded(piece.get("notes", {})).items():
            study.record.note(key, value)
        for name, text in piece.get("conditions", {}).items():
            study.record.keep_conditions(name, text)
