"""Messages between the master of a search and a worker: JSON objects, one a line, over a socket.

Nothing that arrives can run: what cannot be said in JSON does not travel. The same lines go to a
thread, to a process and to a rank on another machine; a worker that has died is seen at once, as
the end of its stream, and nobody waits by polling, as ranks that wait in MPI do.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from caldera.errors import CommError

SEND_S = 30.0
"""A peer that takes nothing for so long is gone: its buffers hold hundreds of messages."""
LONGEST = 64 << 20
"""Bytes of one message; more than that is not ours."""
_PIECE = 1 << 16


class Channel:
    """One end of a stream of messages. Several threads may send; one reads.

    >>> import socket
    >>> left, right = map(Channel, socket.socketpair())
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
        """What a selector waits for."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; nothing happens if the other end is gone, which `read` finds out."""
        line = json.dumps(message, default=_plain).encode() + b"\n"
        with self._lock:
            try:
                self._socket.sendall(line)
            except OSError:
                # Half a message may be on its way: nothing can follow it.
                self._shut()

    def read(self) -> list[dict[str, Any]]:
        """The messages that have come, after waiting for some; `closed` if no more will come."""
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
        if len(self._unread) > LONGEST:
            raise CommError.build(
                "a search's worker", expected=f"messages of at most {LONGEST} bytes", got="a longer"
            )
        return [_message(line) for line in lines]

    def close(self) -> None:
        """End the stream in both directions; the other end reads what was sent before."""
        with self._lock:
            self._shut()
            self._socket.close()

    def abandon(self) -> None:
        """Close this copy of the end alone: in a process that was copied, the other goes on."""
        self._socket.close()

    def _shut(self) -> None:
        self.closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The other end was faster.
            return


def _message(line: bytes | bytearray) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
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
    raise TypeError(f"{type(value).__name__} {value!r} is nothing that JSON can say")
