"""Workers that a place runs: copies of this process, tasks of Dask or actors of Ray.

A worker connects to the master's port and proves possession of the key. On Dask a task runs one
trial and ends, so that Dask distributes trials over the machines that are there; elsewhere a worker
runs trials until there are no more. Workers may join and leave at any time: the pool reads the size
of the place, and starts that number of workers.
"""

from __future__ import annotations

import os
import platform
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from caldera.base.children import END_S
from caldera.comm.listener import KEY_BYTES, Listener
from caldera.comm.places import Place
from caldera.comm.places.meeting import listening_address, offer, reach
from caldera.comm.places.shared_folder import FolderProof, unseen
from caldera.errors import ConfigError
from caldera.search.job import SearchJob
from caldera.search.trial import TrialTask
from caldera.search.workers.dispatcher import LOST, PoolMember, WorkerMessage, WorkerPool
from caldera.search.workers.worker import MessageStream, TrialWorker

CONNECTS_WITHIN_S = 30.0
QUEUED = 2
"""Tasks for each thread of Dask: the next one is there when a trial ends."""
_CHECKED_EVERY_S = 0.05
_LAST_TASKS_S = 1.0
"""For tasks that were started and are not needed at the end of a study."""
_NOTICE_S = 30.0
"""The user is warned of a cluster without workers after this time."""


@dataclass(eq=False)
class PlaceMember(PoolMember):
    """A worker that has connected under the number that its place gave it.

    With `once` it runs one trial.
    """

    number: int = 0
    once: bool = False

    def begin(self, task: TrialTask) -> None:
        super().begin(task)
        self.ready = not self.once


class PlaceWorkers(WorkerPool):
    """Worker pool whose size follows the capacity of its place."""

    def __init__(self, place: Place, job: SearchJob) -> None:
        super().__init__()
        self._place = place
        self._once = place.distributes
        self._proof, self._folder = None, job.folder
        if place.capacity() is not None and job.samples is not None and job.folder is not None:
            # Trained models are saved there by the workers.
            folder = job.folder.resolve()
            job, self._proof = replace(job, folder=folder), FolderProof(folder)
        host = place.host()
        key = secrets.token_bytes(KEY_BYTES)
        self._listener = Listener(key, listening_address(host, ""), self._selector)
        self._offer = offer(self._listener, host)
        self._offer |= {"once": self._once, "own_process": place.own_processes}
        self._offer |= {"folder": None if self._proof is None else self._proof.offered}
        self._job = place.share(job)
        self._members: dict[int, PlaceMember | None] = {}
        """Workers that were started, by number; None before they connect."""
        self._is_ending = False
        self._replaced: list[WorkerMessage] = []
        self._checked = self._seen = time.monotonic()

    @property
    def size(self) -> int:
        return max(self._place.capacity() or 1, 1)

    @property
    def is_expecting(self) -> bool:
        return None in self._members.values()

    def start(self) -> None:
        self._fill()

    def wait(self, seconds: float) -> bool:
        # The end of a worker that has not connected is only seen by asking.
        return super().wait(min(seconds, _CHECKED_EVERY_S) if self.is_expecting else seconds)

    def messages(self) -> list[WorkerMessage]:
        self._listener.end_late()
        found, self._replaced = [*self._replaced, *super().messages()], []
        if time.monotonic() - self._checked >= _CHECKED_EVERY_S:
            self._checked = time.monotonic()
            found += self._failed_starts()
            self._fill()
            self._notice()
        return found

    def drop(self, member: PoolMember, reason: str) -> str:
        assert isinstance(member, PlaceMember)
        number, has_run = member.number, bool(member.outcomes)
        if self._members.get(number) in (None, member):
            patience = 0.0 if reason or has_run or not self._place.own_processes else END_S
            if (how := self._place.how(number, patience)) and not has_run:
                reason = f"{member.name} {how}"
            if reason or has_run:
                self._members.pop(number, None)
            else:
                # Dask runs the task again, under the same number.
                self._members[number] = None
            if reason:
                self._place.stop(number)
        spoken = super().drop(member, reason)
        self._fill()
        return spoken

    def end(self, *, at_once: bool) -> None:
        self._is_ending = True
        until = time.monotonic() + (_LAST_TASKS_S if self._once and not at_once else 0.0)
        while self.is_expecting and time.monotonic() < until:
            # Dask warns if a task is cancelled while it starts, so wait and end it by message.
            super().wait(_CHECKED_EVERY_S)
            super().messages()
        for number, member in self._members.items():
            if member is None or at_once:
                self._place.stop(number)
        self._listener.close()
        super().end(at_once=at_once)
        self._place.stop(seconds=0.0 if at_once else END_S)
        if self._proof is not None:
            self._proof.close()

    def _fill(self) -> None:
        """Start workers until there are as many as the place has room for."""
        wanted = self.size * (QUEUED if self._once else 1) - len(self._members)
        if wanted > 0:
            self._start(wanted)

    def _start(self, count: int) -> None:
        numbers = self._place.start(count, serve_trials, [self._offer, self._job])
        self._members.update(dict.fromkeys(numbers))

    def _failed_starts(self) -> list[WorkerMessage]:
        """Return the loss of each worker that has ended before it connected."""
        found, lost = [], self._place.lost()
        for number, member in self._members.items():
            if member is None and number in lost:
                failed = PlaceMember(f"a worker of {self._place.name}", number=number)
                self.members.append(failed)
                found.append(WorkerMessage(failed, {"kind": LOST, "reason": lost[number]}))
        return found

    def _notice(self) -> None:
        if self.members:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > _NOTICE_S:
            self._seen = float("inf")
            there = self._place.capacity()
            print(
                f"caldera search: waiting for workers of {self._place.name}, which has capacity "
                f"for {there}",
                file=sys.stderr,
            )

    def _accept(self, link: Any) -> None:
        peer = self._listener.serve(link)
        if peer is None:
            return
        channel = MessageStream(peer.link)
        if self._is_ending or peer.number not in self._members:
            # There are no more trials, or this worker was given up.
            for message in self._end_messages():
                channel.send(message)
            channel.close()
            self._members.pop(peer.number, None)
            return
        before = self._members[peer.number]
        if before is not None:
            # Its connection has broken without an end.
            reason = {"kind": LOST, "reason": "it has connected again"}
            self._replaced.append(WorkerMessage(before, reason))
        name = self._name(peer.number, str(peer.link.getpeername()[0]))
        member = PlaceMember(name, [channel], number=peer.number, once=self._once)
        self._members[peer.number] = member
        self._add(member)

    def _name(self, number: int, host: str) -> str:
        return f"worker {number} at {host}"

    def _receive(self, channel: MessageStream) -> list[WorkerMessage]:
        found = super()._receive(channel)
        for each in found:
            if each.message["kind"] == "unfit":
                raise ConfigError.build(
                    "search",
                    expected=f"a folder that workers on other machines see: {self._folder}",
                    got=f"{each.message['reason']} on {each.message['machine']}",
                    hint="name a folder= on a file system that all machines share, or none",
                )
        return found


def serve_trials(number: int, offered: Mapping[str, Any], job: SearchJob) -> None:
    """Run trials for the master of an offer, one or all that it sends."""
    channel = MessageStream(reach(offered, number, CONNECTS_WITHIN_S))
    reason = "" if offered["folder"] is None else unseen(offered["folder"])
    if reason:
        channel.send({"kind": "unfit", "reason": reason, "machine": platform.node()})
        channel.close()
        return
    worker = TrialWorker(
        channel,
        job,
        name=f"process {os.getpid()}",
        once=offered["once"],
        on_lost_master=(lambda: os._exit(1)) if offered["own_process"] else lambda: None,
    )
    worker.serve()
