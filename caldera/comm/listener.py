"""The single port that Caldera opens for its processes, and the handshake of each connection.

Both ends prove possession of a key that is never sent: each signs a random challenge from its peer
(HMAC-SHA256), so a recorded handshake cannot be replayed. The connecting end confirms last, so the
listener does not count a process that has given up in time. All messages of the handshake have a
fixed length, and data from strangers is never parsed: at most the length of an answer is read,
which is far below 4 KiB.
Strangers are served concurrently, each within a deadline for the whole handshake, so that they
cannot delay a process with the key. The port is open on the loopback interface only, unless the
caller names another. The key authenticates both ends; the messages that follow are not encrypted.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from caldera.errors import CommError

LOOPBACK = "127.0.0.1"
EVERYWHERE = "::" if socket.has_dualstack_ipv6() else ""
"""Address that stands for all interfaces of this machine."""
KEY_BYTES = 32
HANDSHAKE_S = 5.0
"""Maximum seconds of the whole handshake, from the connection to the proof."""
MOST_STRANGERS = 256
"""Handshakes at a time; of more, the oldest is ended."""
_HELLO = struct.Struct("<II")
"""Number of the connecting process, and the port at which it listens."""
_DIGEST = hashlib.sha256().digest_size
_ANSWER = _HELLO.size + KEY_BYTES + _DIGEST
"""Bytes that are read of a stranger."""
_CONFIRMED = b"\1"
_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Before each attempt to connect: among many strangers a handshake may be ended for its age."""
_POLL_S = 0.2
_BUFFER = 1 << 20
_KEEPALIVE = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 120_000,
}
"""A machine that is gone, and cannot close its sockets, is noticed after 120 s: on Linux the last
value replaces the number of probes. A process that was stopped for less time is not lost."""


class Peer(NamedTuple):
    """A process that has proved itself: its number, the port at which it listens, its socket."""

    number: int
    port: int
    link: socket.socket


@dataclass(eq=False)
class _Stranger:
    """A connection before its proof."""

    until: float
    challenge: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    answer: bytes = b""


class Listener:
    """A port that accepts processes with the key.

    With the `selector` of the caller its sockets are registered there, each with this listener as
    data, and the caller passes readable sockets to `serve`; otherwise `accept` waits. It takes the
    first of `ports` that is free; 0 is any.

    >>> import threading
    >>> key = secrets.token_bytes(KEY_BYTES)
    >>> listener = Listener(key)
    >>> thread = threading.Thread(target=connect, args=(key, listener.port, 3, 0, 10.0))
    >>> thread.start()
    >>> listener.accept(time.monotonic() + 10.0).number
    3
    >>> thread.join(); listener.close()
    """

    def __init__(
        self,
        key: bytes,
        host: str = LOOPBACK,
        selector: selectors.BaseSelector | None = None,
        ports: Sequence[int] = (0,),
    ) -> None:
        self.key = key
        self._strangers: dict[socket.socket, _Stranger] = {}
        # Not confirmed yet. They have the key: no crowd of strangers ends them.
        self._proven: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector() if selector is None else selector
        self._owns_selector = selector is None
        self._socket = _server(host, ports)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._selector.register(self._socket, selectors.EVENT_READ, self)

    def accept(self, until: float, waiting: Callable[[], object] = lambda: None) -> Peer:
        """Wait for the next process that proves itself.

        `waiting()` is called from time to time, and may raise.
        """
        while True:
            waiting()
            left = until - time.monotonic()
            if left <= 0:
                raise CommError.build(
                    "starting processes",
                    expected="all to connect",
                    got="no further connections",
                    hint="see whether the machine is overloaded, or a firewall blocks port "
                    f"{self.port}",
                )
            for key, _ in self._selector.select(min(left, _POLL_S)):
                assert isinstance(key.fileobj, socket.socket)
                if (peer := self.serve(key.fileobj)) is not None:
                    return peer
            self.end_late()

    def serve(self, link: socket.socket) -> Peer | None:
        """Continue the handshake of a readable socket; return an authenticated process."""
        if link is self._socket:
            self._accept_next()
            return None
        try:
            if (hello := self._proven.get(link)) is not None:
                if link.recv(1) == _CONFIRMED:
                    self._forget(link)
                    number, port = _HELLO.unpack(hello)
                    return Peer(number, port, _ready(link))
            elif (stranger := self._strangers.get(link)) is None:
                # Ended since it could be read.
                return None
            elif more := link.recv(_ANSWER - len(stranger.answer)):
                stranger.answer += more
                if len(stranger.answer) < _ANSWER or self._proves(link, stranger):
                    return None
        except BlockingIOError:
            return None
        except OSError:
            pass
        self._end(link)
        return None

    def end_late(self) -> None:
        """End handshakes that have taken too long."""
        now = time.monotonic()
        while self._strangers and next(iter(self._strangers.values())).until <= now:
            self._end(next(iter(self._strangers)))

    def close(self) -> None:
        """Stop accepting connections."""
        for link in [*self._strangers, *self._proven]:
            self._end(link)
        self._selector.unregister(self._socket)
        self._socket.close()
        if self._owns_selector:
            self._selector.close()

    def abandon(self) -> None:
        """Close this process's copy of the port; the parent of a fork keeps its copy open."""
        for link in (self._socket, *self._strangers, *self._proven):
            link.close()

    def _accept_next(self) -> None:
        try:
            link, _ = self._socket.accept()
        except OSError:
            # It has gone already, or there are too many open files: the oldest makes room.
            for oldest in list(self._strangers)[:1]:
                self._end(oldest)
            return
        if len(self._strangers) >= MOST_STRANGERS:
            self._end(next(iter(self._strangers)))
        link.setblocking(False)
        stranger = self._strangers[link] = _Stranger(time.monotonic() + HANDSHAKE_S)
        self._selector.register(link, selectors.EVENT_READ, self)
        with suppress(OSError):
            # It fits into the buffer of a new connection.
            link.send(stranger.challenge)

    def _proves(self, link: socket.socket, stranger: _Stranger) -> bool:
        """Return True if an answer was made with the key, and send the proof of this end."""
        hello, theirs = stranger.answer[: _HELLO.size], stranger.answer[_HELLO.size : -_DIGEST]
        expected = _signed(self.key, b"connects", stranger.challenge, theirs, hello)
        if not hmac.compare_digest(stranger.answer[-_DIGEST:], expected):
            return False
        link.send(_signed(self.key, b"accepts", theirs, stranger.challenge, hello))
        del self._strangers[link]
        self._proven[link] = hello
        return True

    def _end(self, link: socket.socket) -> None:
        self._forget(link)
        link.close()

    def _forget(self, link: socket.socket) -> None:
        self._strangers.pop(link, None)
        self._proven.pop(link, None)
        self._selector.unregister(link)


def _server(host: str, ports: Sequence[int]) -> socket.socket:
    dual = host == "::"
    family = socket.AF_INET6 if dual else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server(
                (host, port), family=family, backlog=1024, dualstack_ipv6=dual
            )
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise CommError.build(
        "listening", expected=f"a free port among {', '.join(map(str, ports))}", got="none"
    )


def connect(
    key: bytes,
    port: int,
    number: int,
    own_port: int,
    seconds: float,
    host: str = LOOPBACK,
    own_host: str = "",
) -> socket.socket:
    """Return an authenticated socket to the process that listens at a port.

    `seconds` limits the whole handshake. The connection starts from the local address `own_host`,
    if given, which the listener sees as the peer's address.
    """
    until = time.monotonic() + seconds
    for pause in _PAUSES_S:
        time.sleep(pause)
        left = max(until - time.monotonic(), 0.01)
        link = socket.create_connection((host, port), left, (own_host, 0) if own_host else None)
        try:
            return _shake_hands(link, key, _HELLO.pack(number, own_port), until)
        except ConnectionError as error:
            link.close()
            refused = error
            if time.monotonic() >= until:
                break
        except BaseException:
            link.close()
            raise
    raise CommError.build("a socket", expected="a process that accepts this key", got=str(refused))


def _shake_hands(link: socket.socket, key: bytes, hello: bytes, until: float) -> socket.socket:
    theirs = receive_exactly(link, KEY_BYTES, until)
    mine = secrets.token_bytes(KEY_BYTES)
    link.sendall(hello + mine + _signed(key, b"connects", theirs, mine, hello))
    proof = receive_exactly(link, _DIGEST, until)
    if not hmac.compare_digest(proof, _signed(key, b"accepts", mine, theirs, hello)):
        raise CommError.build("a socket", expected="a process with the key", got="a stranger")
    link.sendall(_CONFIRMED)
    return _ready(link)


def receive_exactly(link: socket.socket, nbytes: int, until: float) -> bytes:
    """Receive exactly `nbytes` bytes before the deadline `until`."""
    got = b""
    while len(got) < nbytes:
        link.settimeout(max(until - time.monotonic(), 0.001))
        more = link.recv(nbytes - len(got))
        if not more:
            raise ConnectionError(f"the end of the connection after {len(got)} of {nbytes} bytes")
        got += more
    return got


def _signed(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _ready(link: socket.socket) -> socket.socket:
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        link.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return link
