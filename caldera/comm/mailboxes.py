"""Messages between threads of one process, matched as MPI matches them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from caldera.comm.request import Done, Request
from caldera.errors import CommError

_ANY = -1


class JobFailure:
    """What ranks that live and die together share: whether one of them has failed."""

    def __init__(self) -> None:
        self.first: tuple[int, BaseException] | None = None
        self._doors: list[threading.Condition] = []
        self._lock = threading.Lock()

    def watch(self, door: threading.Condition) -> None:
        """Those who wait at this door are woken when a rank fails."""
        with self._lock:
            self._doors.append(door)

    def fail(self, rank: int, error: BaseException) -> None:
        """Release everybody who waits; the first failure is the one that counts."""
        with self._lock:
            if self.first is None:
                self.first = (rank, error)
            doors = list(self._doors)
        for door in doors:
            with door:
                door.notify_all()


class _Receive(Request):
    """A message that somebody is waiting for."""

    def __init__(
        self, owner: Mailboxes, rank: int, buffer: np.ndarray, source: int, tag: int, shorter: bool
    ) -> None:
        self.buffer = buffer
        self.wanted = source
        self.tag = tag
        self.shorter = shorter
        self.done = False
        self.error: CommError | None = None
        self._owner = owner
        self._rank = rank

    def matches(self, source: int, tag: int) -> bool:
        """Whether a message is what this one waits for."""
        return tag == self.tag and self.wanted in (source, _ANY)

    def take(self, source: int, payload: np.ndarray) -> None:
        """Put a message into the buffer; a wrong length is the receiver's error."""
        self.source, self.received = source, payload.nbytes
        capacity = self.buffer.nbytes
        if payload.nbytes == capacity or (self.shorter and payload.nbytes < capacity):
            _bytes_of(self.buffer)[: payload.nbytes] = payload
        else:
            self.error = CommError.build(
                f"rank {self._rank} receiving from rank {source} with tag {self.tag}",
                expected=f"{self.buffer.nbytes} bytes", got=str(payload.nbytes),
            )  # fmt: skip
        self.done = True

    def wait(self) -> None:
        if not self.done:
            self._owner.wait_for(self._rank, self)
        if self.error is not None:
            raise self.error

    def test(self) -> bool:
        self._owner.check()
        if self.done:
            self.wait()
        return self.done

    def __str__(self) -> str:
        sender = "any rank" if self.wanted == _ANY else f"rank {self.wanted}"
        return f"a message from {sender} with tag {self.tag}"


class Mailboxes:
    """One box a rank. A message is copied when it is sent, so that sending never waits."""

    def __init__(self, size: int, failure: JobFailure) -> None:
        self._failure = failure
        self._doors = [threading.Condition() for _ in range(size)]
        self._unread: list[list[tuple[int, int, np.ndarray]]] = [[] for _ in range(size)]
        self._expected: list[list[_Receive]] = [[] for _ in range(size)]
        self.timeout_s = 60.0
        self.missing: Callable[[int, str], CommError] = _nobody
        for door in self._doors:
            failure.watch(door)

    def send(self, source: int, dest: int, tag: int, buffer: np.ndarray) -> Request:
        """Hand a message to whoever waits for it, or leave it in the box."""
        self.check()
        payload = _bytes_of(buffer)
        with self._doors[dest]:
            for receive in self._expected[dest]:
                if receive.matches(source, tag):
                    self._expected[dest].remove(receive)
                    receive.take(source, payload)
                    self._doors[dest].notify_all()
                    return Done()
            self._unread[dest].append((source, tag, payload.copy()))
        return Done()

    def receive(
        self, rank: int, buffer: np.ndarray, source: int, tag: int, shorter: bool
    ) -> Request:
        """A message from the box, or a place in the queue of those who wait."""
        self.check()
        request = _Receive(self, rank, buffer, source, tag, shorter)
        with self._doors[rank]:
            for index, (sender, its_tag, payload) in enumerate(self._unread[rank]):
                if request.matches(sender, its_tag):
                    del self._unread[rank][index]
                    request.take(sender, payload)
                    return request
            self._expected[rank].append(request)
        return request

    def wait_for(self, rank: int, request: _Receive) -> None:
        """Wait for a message, but not for ever and not for the dead."""
        until = time.monotonic() + self.timeout_s
        with self._doors[rank]:
            while not request.done:
                self.check()
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._doors[rank].wait(left)
        if not request.done:
            raise self.missing(rank, str(request))

    def check(self) -> None:
        """Raise if a rank has failed."""
        if self._failure.first is not None:
            rank, error = self._failure.first
            raise CommError.build(
                "this rank", got=f"the news that rank {rank} failed: {error!r}",
                hint="its error is the cause",
            ) from error  # fmt: skip


def _nobody(rank: int, wanted: str) -> CommError:
    return CommError.build(
        f"rank {rank}", expected=wanted, got="none",
        hint="every receive needs a send, and every rank the same collectives in the same order",
    )  # fmt: skip


def _bytes_of(buffer: np.ndarray) -> np.ndarray:
    return buffer.reshape(-1).view(np.uint8)
