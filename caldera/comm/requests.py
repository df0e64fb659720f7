"""Requests of nonblocking operations, and the thread that advances them.

A nonblocking call of MPI makes no progress until MPI is called again. Background operations are
therefore ordinary blocking calls on a separate thread, which needs no polling by the caller.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Request(ABC):
    """Handle of a nonblocking call, which owns its buffers until it is complete.

    After completion, `source` is the rank that sent a received message, and `received` its bytes.

    >>> import numpy as np
    >>> from caldera.comm import SingleProcess
    >>> comm, here = SingleProcess(), np.empty(3)
    >>> request = comm.Irecv(here, source=0)
    >>> request.test()
    False
    >>> comm.Send(np.ones(3), dest=0)
    >>> request.test(), here.sum().item()
    (True, 3.0)
    """

    source: int = -1
    received: int = 0

    @abstractmethod
    def wait(self) -> None:
        """Wait until it is done; raises what went wrong."""

    @abstractmethod
    def test(self) -> bool:
        """Return True if the call is complete; raise its error, if it failed."""


class Done(Request):
    """Request that is complete from the start."""

    def wait(self) -> None:
        return

    def test(self) -> bool:
        return True


IDLE_S = 5.0
"""Idle time in seconds after which the thread exits; the next call starts another."""


class PollBackoff:
    """Sleep between polls of background work, interrupted when a thread waits for it.

    Background polls leave the cores to computing threads; a waiting thread does not compute.

    >>> backoff = PollBackoff()
    >>> backoff.sleep(1e-3)
    >>> with backoff.interrupted():
    ...     backoff.sleep(1e3)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._waiting = 0

    @property
    def is_interrupted(self) -> bool:
        """True while a thread waits."""
        return self._waiting > 0

    def sleep(self, seconds: float) -> None:
        """Sleep until the time has passed or a thread starts to wait."""
        if not self._waiting:
            self._bell.acquire(timeout=seconds)

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Context manager around a wait."""
        with self._lock:
            self._waiting += 1
            if self._bell.locked():
                self._bell.release()
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1


@dataclass(eq=False)
class _Work(Request):
    _call: Callable[[], object]
    _backoff: PollBackoff
    _ended: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error
        finally:
            # Objects referenced by the call are freed as soon as it has run.
            del self._call
            self._ended.set()

    def wait(self) -> None:
        if not self._ended.is_set():
            with self._backoff.interrupted():
                self._ended.wait()
        if self._error is not None:
            raise self._error

    def test(self) -> bool:
        if is_there := self._ended.is_set():
            self.wait()
        return is_there


class ProgressThread:
    """Thread that runs functions in the order in which they were started.

    >>> thread, seen = ProgressThread("example"), []
    >>> requests = [thread.start(lambda i=i: seen.append(i)) for i in range(3)]
    >>> for request in requests:
    ...     request.wait()
    >>> seen
    [0, 1, 2]
    """

    def __init__(self, name: str) -> None:
        self.backoff = PollBackoff()
        self._name = name
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._running = False

    def start(self, call: Callable[[], object]) -> Request:
        """Run `call` after everything that was started before it."""
        work = _Work(call, self.backoff)
        with self._lock:
            self._waiting.put(work)
            if not self._running:
                self._running = True
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        return work

    def _serve(self) -> None:
        while True:
            try:
                work = self._waiting.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._running = False
                        return
                continue
            work.run()
            # The buffers of the last work are not kept until the next one comes.
            del work
