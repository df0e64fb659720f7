"""The workers as their master sees them, whatever they are: who is there, and what they say."""

from __future__ import annotations

import selectors
import socket
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from caldera.errors import CommError
from caldera.search.trial import TrialResult, TrialTask
from caldera.search.workers.worker import MessageStream

LOST = "lost"
"""The kind of what a pool says itself of a worker that is gone."""


@dataclass(eq=False)
class PoolMember:
    """A worker: a thread, a process, or the ranks of one trial, each with a channel of its own.

    - `task`: what it runs; `outcomes`: what its channels have said of that; `is_stopping`: whether
      it was told to stop.
    - `last_heard`: time of its last message; `last_report`: time at which its trial began or last
      reported.
    """

    name: str
    channels: list[MessageStream] = field(default_factory=list)
    task: TrialTask | None = None
    outcomes: dict[MessageStream, TrialResult] = field(default_factory=dict)
    is_stopping: bool = False
    last_heard: float = field(default_factory=time.monotonic)
    last_report: float = field(default_factory=time.monotonic)
    ready: bool = False

    def send(self, message: dict[str, Any]) -> None:
        """To all its ranks."""
        for channel in self.channels:
            channel.send(message)

    def begin(self, task: TrialTask) -> None:
        """Give it a trial."""
        self.task, self.outcomes, self.is_stopping = task, {}, False
        self.last_heard = self.last_report = time.monotonic()
        self.send({"kind": "trial", "task": task.to_plain()})


@dataclass(frozen=True)
class WorkerMessage:
    """A message of a worker, and the channel it came through; `LOST` comes through none."""

    member: PoolMember
    message: dict[str, Any]
    channel: MessageStream | None = None


class WorkerPool(ABC):
    """Starts workers, hears them, gives them up, ends them. Use it in a `with` block."""

    def __init__(self) -> None:
        self.members: list[PoolMember] = []
        self._selector = selectors.DefaultSelector()
        self._of_channel: dict[MessageStream, PoolMember] = {}

    @abstractmethod
    def start(self) -> None:
        """Start the workers; those that are ready say hello."""

    def drop(self, member: PoolMember, reason: str) -> str:
        """Give a worker up, and start another in its place where that can be. The reason, which is
        nothing if its connection has ended, or a better one."""
        self._forget(member)
        return reason or "its connection has ended"

    def end(self, *, at_once: bool) -> None:
        """End all workers, which have nothing to do, or `at_once` whatever they do."""
        for member in list(self.members):
            if not at_once:
                for message in self._end_messages():
                    member.send(message)
            self._forget(member)
        self._selector.close()

    def _end_messages(self) -> list[dict[str, Any]]:
        """What tells a worker that there are no more trials."""
        return [{"kind": "end"}]

    def wait(self, seconds: float) -> bool:
        """Wait until a worker says something, at most so long. Takes nothing: what comes is there
        afterwards, also if this is interrupted."""
        return bool(self._selector.select(seconds))

    def messages(self) -> list[WorkerMessage]:
        """Return the messages that have come from workers."""
        found: list[WorkerMessage] = []
        for key, _ in self._selector.select(0):
            if isinstance(key.fileobj, MessageStream):
                found += self._receive(key.fileobj)
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._accept(key.fileobj)
        return found

    @property
    def idle(self) -> list[PoolMember]:
        """Who can take a trial."""
        return [member for member in self.members if member.ready and member.task is None]

    @property
    def busy(self) -> list[PoolMember]:
        """Who runs one."""
        return [member for member in self.members if member.task is not None]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(at_once=error is not None)

    # --- for those who start workers

    def _add(self, member: PoolMember) -> None:
        self.members.append(member)
        for channel in member.channels:
            self._attach(member, channel)

    def _attach(self, member: PoolMember, channel: MessageStream) -> None:
        self._of_channel[channel] = member
        self._selector.register(channel, selectors.EVENT_READ)

    def _forget(self, member: PoolMember) -> None:
        if member in self.members:
            self.members.remove(member)
        member.ready = False
        for channel in member.channels:
            if self._of_channel.pop(channel, None) is not None:
                self._selector.unregister(channel)
            channel.close()

    def _register(self, channel: MessageStream, hello: dict[str, Any]) -> None:
        """A worker is ready."""
        self._of_channel[channel].ready = True

    def _accept(self, listening: socket.socket) -> None:
        """Somebody wants to join."""
        raise NotImplementedError

    def _receive(self, channel: MessageStream) -> list[WorkerMessage]:
        try:
            messages = channel.read()
        except CommError as error:
            messages = []
            channel.closed = True
            reason = str(error)
        else:
            reason = ""
        found: list[WorkerMessage] = []
        for message in messages:
            if message["kind"] == "hello":
                self._register(channel, message)
            elif (member := self._of_channel.get(channel)) is not None:
                member.last_heard = time.monotonic()
                found.append(WorkerMessage(member, message, channel))
        member = self._of_channel.get(channel)
        if channel.closed and member is not None:
            found.append(WorkerMessage(member, {"kind": LOST, "reason": reason}))
        return found
