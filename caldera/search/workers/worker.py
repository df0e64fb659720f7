"""Worker loop of a search, and its message channel to the master.

The main thread runs trials. A second thread listens: it receives the request to stop a trial
while that still trains, reports every second that the worker is alive, and ends the process if
its master is gone.

Messages are JSON objects, one per line, over a socket. Received data cannot be executed: only
JSON-serialisable values are sent. Threads, processes and ranks on other machines receive the same
lines. A dead worker is detected immediately, as the end of its stream, without polling as ranks
do that wait in MPI.
"""

from __future__ import annotations

import json
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from caldera.base.arguments import require
from caldera.base.plain_data import encoded
from caldera.errors import CommError
from caldera.search.job import SearchJob
from caldera.search.trial import Row, TrialTask
from caldera.train.strategy import SingleProcessStrategy, Strategy

SEND_S = 30.0
"""Send timeout: a peer that reads no data for this time is lost, since buffers hold many messages.
"""
LONGEST = 64 << 20
"""Maximum bytes of a message; a longer one is not from this program."""
_PIECE = 1 << 16


class MessageStream:
    """One end of a stream of messages. Several threads may send; one reads.

    >>> import socket
    >>> left, right = map(MessageStream, socket.socketpair())
    >>> left.send({"kind": "beat"})
    >>> right.read()
    [{'kind': 'beat'}]
    >>> left.close(); right.read(), right.closed
    ([], True)
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SEND_S)
        self._socket = connection
        self._lock = threading.Lock()
        self._unread = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """Return the file descriptor of the socket, for a selector."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; a lost connection raises no error here, but ends `read`."""
        line = json.dumps(message, default=_plain).encode() + b"\n"
        with self._lock:
            try:
                self._socket.sendall(line)
            except OSError:
                # Part of the message may have been sent, so no other message can follow.
                self._shutdown()

    def read(self) -> list[dict[str, Any]]:
        """Return the messages that have come, after waiting for some.

        `closed` if no more will come.
        """
        try:
            piece = self._socket.recv(_PIECE)
        except (TimeoutError, InterruptedError):
            return []
        except OSError:
            piece = b""
        if not piece:
            self.closed = True
            return []
        self._unread += piece
        lines: list[bytearray] = []
        # Not for every piece of a message that is still coming: a long one has many.
        if b"\n" in piece:
            *lines, self._unread = self._unread.split(b"\n")
        require(
            len(self._unread) <= LONGEST,
            "a search's worker",
            f"messages of at most {LONGEST} bytes",
            "a longer",
            error=CommError,
        )
        return [_message(line) for line in lines]

    def close(self) -> None:
        """End the stream in both directions; the peer can still read earlier messages."""
        with self._lock:
            self._shutdown()
            self._socket.close()

    def abandon(self) -> None:
        """Close only this copy of the socket: after a fork the parent or child keeps using it."""
        self._socket.close()

    def _shutdown(self) -> None:
        self.closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The peer closed the connection first.
            return


def _message(line: bytes | bytearray) -> dict[str, Any]:
    found = None
    with suppress(ValueError, RecursionError):
        found = json.loads(line)
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise CommError.build(
            "a search's worker",
            expected="a JSON object with its kind in a line",
            got=repr(line[:80].decode(errors="replace")),
        )
    return found


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r} is not JSON-serialisable")


BEAT_S = 1.0
"""Interval of a worker's heartbeats."""


class TrialAbandoned(BaseException):
    """Raised within a trial whose master does not wait for it any more.

    No `Exception`, so that a trial which survives its errors does not survive this.
    """


class TrialWorker:
    """Serves one channel until the master ends it or is gone.

    - `once`: it ends after one trial.
    - `on_lost_master`: called when the master is gone while a trial runs; a process ends itself,
      since its result has no reader.
    """

    def __init__(
        self,
        channel: MessageStream,
        job: SearchJob,
        *,
        strategy: Strategy | None = None,
        name: str = "",
        once: bool = False,
        on_lost_master: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._job = job
        self._strategy = strategy or SingleProcessStrategy()
        self._name = name
        self._once = once
        self._on_lost_master = on_lost_master
        self._tasks: queue.SimpleQueue[TrialTask | None] = queue.SimpleQueue()
        self._reasons: dict[int, str] = {}
        self._final_messages: list[dict[str, Any]] = []
        self._has_ended = False
        """Whether the master has said that there are no more trials."""
        # Wakes the listener if the worker ends without the master.
        self._wake_writer, self._wake_reader = socket.socketpair()

    def serve(self) -> list[dict[str, Any]] | None:
        """Run trials until there are no more; the master's final messages, or None if it gave this
        worker up or is gone."""
        listener = threading.Thread(target=self._listen, name=f"{self._name} listens", daemon=True)
        listener.start()
        self._channel.send({"kind": "hello"})
        try:
            while (task := self._tasks.get()) is not None:
                self._run(task)
                if self._once:
                    break
        finally:
            self._wake_writer.close()
            listener.join()
            self._wake_reader.close()
            self._channel.close()
        return self._final_messages if self._has_ended else None

    def _run(self, task: TrialTask) -> None:
        try:
            outcome = self._job.run(task, self._report, self._strategy)
        except TrialAbandoned:
            return
        self._channel.send({"kind": "result", "number": task.number, "outcome": outcome.to_plain()})

    def _report(self, number: int, row: Row) -> str:
        """Report a step to the master; return the reason to stop, or an empty string.

        The call does not wait for a reply. A decision about a step takes effect at the next step or
        later.
        """
        if self._strategy.communicator.rank == 0:
            self._channel.send({"kind": "report", "number": number, "row": encoded(row)})
        if self._channel.closed:
            if not self._strategy.is_distributed:
                raise TrialAbandoned
            # Returned to all ranks of the trial, so that `fit` stops them together.
            return "given to another worker"
        return self._reasons.get(number, "")

    # --- the listener

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            beat = time.monotonic() + BEAT_S
            while not self._channel.closed:
                ready = [key.fileobj for key, _ in selector.select(beat - time.monotonic())]
                if self._wake_reader in ready:
                    return
                if ready:
                    for message in self._channel.read():
                        self._handle(message)
                # Not for every message: each beat wakes the master up.
                if time.monotonic() >= beat:
                    self._channel.send({"kind": "beat"})
                    beat = time.monotonic() + BEAT_S
        self._tasks.put(None)
        if not self._has_ended:
            self._on_lost_master()

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"kind": "trial", "task": given}:
                task = TrialTask.from_plain(given)
                # The same trial may come again, after another worker has died with it.
                self._reasons.pop(task.number, None)
                self._tasks.put(task)
            case {"kind": "stop", "number": number, "reason": reason}:
                self._reasons[int(number)] = str(reason)
            case {"kind": "word", "word": word}:
                self._final_messages.append(word)
            case {"kind": "end"}:
                self._has_ended = True
                self._tasks.put(None)
