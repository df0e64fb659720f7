"""Messages that have arrived, matched as MPI matches them with those who wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caldera.comm.communicator import Communicator
from caldera.comm.requests import Done, Request
from caldera.errors import CommError, RankLostError

_ANY = -1


@dataclass(eq=False)
class JobFailure:
    """What ranks that live and die together share: whether one of them has failed."""

    first: tuple[int, BaseException] | None = None
    _conditions: list[threading.Condition] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def watch(self, condition: threading.Condition) -> None:
        """Those who wait at this door are woken when a rank fails."""
        with self._lock:
            self._conditions.append(condition)

    def fail(self, rank: int, error: BaseException) -> None:
        """Release everybody who waits; the first failure is the one that counts."""
        with self._lock:
            if self.first is None:
                self.first = (rank, error)
            conditions = list(self._conditions)
        for condition in conditions:
            with condition:
                condition.notify_all()

    def check(self) -> None:
        """Raise if a rank has failed."""
        if self.first is not None:
            rank, error = self.first
            raise CommError.build(
                "this rank",
                got=f"the news that rank {rank} failed: {error!r}",
                hint="its error is the cause",
            ) from error


@dataclass(eq=False)
class Receive(Request):
    """A message that somebody is waiting for."""

    _owner: Inbox
    buffer: np.ndarray
    wanted: int
    tag: int
    _shorter: bool
    done: bool = False
    error: CommError | None = None

    def matches(self, source: int, tag: int) -> bool:
        """Whether a message is what this one waits for."""
        return tag == self.tag and self.wanted in (source, _ANY)

    def place(self, source: int, nbytes: int) -> np.ndarray | None:
        """Where a message of so many bytes goes; a wrong length is the receiver's error."""
        self.source, self.received = source, nbytes
        capacity = self.buffer.nbytes
        if nbytes == capacity or (self._shorter and nbytes < capacity):
            return bytes_of(self.buffer)[:nbytes]
        self.error = CommError.build(
            f"rank {self._owner.rank} receiving from rank {source} with tag {self.tag}",
            expected=f"{self.buffer.nbytes} bytes",
            got=str(nbytes),
        )
        return None

    def take(self, source: int, payload: np.ndarray) -> None:
        """Put a message into the buffer."""
        place = self.place(source, payload.nbytes)
        if place is not None:
            np.copyto(place, payload)

    def wait(self) -> None:
        if not self.done:
            self._owner.wait_for(self)
        if self.error is not None:
            raise self.error

    def test(self) -> bool:
        self._owner.check(self)
        if self.done:
            self.wait()
        return self.done

    def __str__(self) -> str:
        sender = "any rank" if self.wanted == _ANY else f"rank {self.wanted}"
        return f"a message from {sender} with tag {self.tag}"


class Inbox:
    """What has arrived for one rank and nobody has taken yet, and who waits for what.

    `timeout_s` says how long anybody waits; then `missing(rank, what)` is the error.
    """

    def __init__(self, rank: int, failure: JobFailure, timeout_s: float = 60.0) -> None:
        self.rank, self.failure, self.timeout_s = rank, failure, timeout_s
        self.missing: Callable[[int, str], CommError] = _missing_message
        self._condition = threading.Condition()
        self._unread: list[tuple[int, int, np.ndarray, Callable[[], None]]] = []
        self._expected: list[Receive] = []
        self._gone: dict[int, CommError] = {}
        self._senders = 0
        failure.watch(self._condition)

    def send(self, source: int, tag: int, buffer: np.ndarray) -> Request:
        """Leave a copy of a message here, so that its sender need not wait."""
        self.failure.check()
        self.deliver(source, tag, bytes_of(buffer))
        return Done()

    def claim(self, source: int, tag: int) -> Receive | None:
        """The first who waits for such a message: who claims it fills it, then says `finished`."""
        with self._condition:
            return self._claimed(source, tag)

    def _claimed(self, source: int, tag: int) -> Receive | None:
        found = next((each for each in self._expected if each.matches(source, tag)), None)
        if found is not None:
            self._expected.remove(found)
        return found

    def finished(self, receive: Receive) -> None:
        """A message that was claimed is where it belongs."""
        with self._condition:
            receive.done = True
            self._condition.notify_all()

    def deliver(
        self, source: int, tag: int, payload: np.ndarray, taken: Callable[[], None] | None = None
    ) -> None:
        """Hand a message to whoever waits for it, or leave it here.

        Without `taken` it is copied if it stays; with it, it stays as it is until that is called.
        """
        with self._condition:
            receive = self._claimed(source, tag)
            if receive is None:
                kept = payload.copy() if taken is None else payload
                self._unread.append((source, tag, kept, taken or _nothing))
                return
        # Long messages take time to copy, and others may arrive meanwhile.
        receive.take(source, payload)
        self.finished(receive)
        if taken is not None:
            taken()

    def receive(self, buffer: np.ndarray, source: int, tag: int, shorter: bool) -> Request:
        """A message from the box, or a place in the queue of those who wait."""
        request = Receive(self, buffer, source, tag, shorter)
        with self._condition:
            found = (i for i, each in enumerate(self._unread) if request.matches(each[0], each[1]))
            index = next(found, None)
            if index is None:
                self._expected.append(request)
                return request
            sender, _, payload, taken = self._unread.pop(index)
        request.take(sender, payload)
        request.done = True
        taken()
        return request

    def assign(self, rank: int, size: int, failure: JobFailure, timeout_s: float) -> None:
        """Set the owner, one of `size` ranks, of a box that messages may have come to before."""
        self.rank, self.failure, self.timeout_s = rank, failure, timeout_s
        self._senders = size - 1
        failure.watch(self._condition)

    def lose(self, rank: int, error: CommError) -> None:
        """Fail the receives that no sender is left for: nothing more comes from this rank."""
        with self._condition:
            self._gone[rank] = error
            self._condition.notify_all()

    def check(self, request: Receive) -> None:
        """Raise if a rank has failed, or if the message cannot come any more."""
        self.failure.check()
        error = self._gone.get(request.wanted)
        if request.wanted == _ANY and len(self._gone) == self._senders:
            error = next(iter(self._gone.values()), None)
        # In this order: a rank's last message is there before its end is known.
        if error is not None and not request.done:
            raise RankLostError(f"rank {self.rank} waits for {request}; {error}") from error

    def wait_for(self, request: Receive) -> None:
        """Wait for a message, but not for ever and not for the dead."""
        until = time.monotonic() + self.timeout_s
        with self._condition:
            while not request.done:
                self.check(request)
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._condition.wait(left)
        if not request.done:
            raise self.missing(self.rank, str(request))


class MailboxRank(Communicator):
    """A rank whose messages arrive in an `Inbox` of its own."""

    _inbox: Inbox

    def _start_receive(
        self, buffer: np.ndarray, source: int, tag: int, shorter: bool = False
    ) -> Request:
        self._inbox.failure.check()
        return self._inbox.receive(buffer, source, tag, shorter)


def _missing_message(rank: int, wanted: str) -> CommError:
    return CommError.build(
        f"rank {rank}",
        expected=wanted,
        got="none",
        hint="every receive needs a send, and every rank the same collectives in the same order",
    )


def _nothing() -> None:
    return


def bytes_of(buffer: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, without a copy."""
    return buffer.reshape(-1).view(np.uint8)
