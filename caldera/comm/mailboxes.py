"""Received messages and pending receives, matched by MPI's rules."""

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
    """Failure state shared by a group of ranks: the first failure fails the whole group."""

    first: tuple[int, BaseException] | None = None
    _conditions: list[threading.Condition] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def watch(self, condition: threading.Condition) -> None:
        """Notify a condition when a rank fails."""
        with self._lock:
            self._conditions.append(condition)

    def fail(self, rank: int, error: BaseException) -> None:
        """Record a failure and wake all waiting threads; only the first failure is kept."""
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
    """Pending receive."""

    _owner: Inbox
    buffer: np.ndarray
    wanted: int
    tag: int
    _shorter: bool
    done: bool = False
    error: CommError | None = None

    def matches(self, source: int, tag: int) -> bool:
        """Return True if a message with this source and tag completes the receive."""
        return tag == self.tag and self.wanted in (source, _ANY)

    def place(self, source: int, nbytes: int) -> np.ndarray | None:
        """Return the destination of a message of `nbytes`; a wrong length fails the receive."""
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
    """Unclaimed messages and pending receives of one rank.

    `timeout_s` limits each wait; `missing(rank, what)` builds the error raised afterwards.
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
        """Store a copy of a message, so that its sender does not wait."""
        self.failure.check()
        self.deliver(source, tag, bytes_of(buffer))
        return Done()

    def claim(self, source: int, tag: int) -> Receive | None:
        """Return the first matching receive; the caller fills it and then calls `finished`."""
        with self._condition:
            return self._claimed(source, tag)

    def _claimed(self, source: int, tag: int) -> Receive | None:
        found = next((each for each in self._expected if each.matches(source, tag)), None)
        if found is not None:
            self._expected.remove(found)
        return found

    def finished(self, receive: Receive) -> None:
        """Mark a claimed receive as complete."""
        with self._condition:
            receive.done = True
            self._condition.notify_all()

    def deliver(
        self, source: int, tag: int, payload: np.ndarray, taken: Callable[[], None] | None = None
    ) -> None:
        """Pass a message to a matching receive, or store it.

        Without `taken` a stored message is copied; otherwise it stays in place until `taken()` is
        called.
        """
        with self._condition:
            receive = self._claimed(source, tag)
            if receive is None:
                kept = payload.copy() if taken is None else payload
                self._unread.append((source, tag, kept, taken or _nothing))
                return
        # Copied outside the lock: long copies would delay other messages.
        receive.take(source, payload)
        self.finished(receive)
        if taken is not None:
            taken()

    def receive(self, buffer: np.ndarray, source: int, tag: int, shorter: bool) -> Request:
        """Return a stored message, or queue a receive."""
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
        """Fail the receives that only this rank could have completed."""
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
    """A rank whose messages arrive in an `Inbox`."""

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
    """Return the bytes of a contiguous array, without a copy."""
    return buffer.reshape(-1).view(np.uint8)
