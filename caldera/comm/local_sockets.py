"""Socket communicator for the processes of one machine, and its authenticated handshake.

Works without MPI: messages travel over sockets and through shared memory. To connect, every
process listens on the loopback interface only; each sends its port to process 0 and receives the
ports of all. Both ends of a connection prove possession of a key that is never sent: each signs a
random challenge of the other.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from caldera.comm.communicator import Communicator
from caldera.comm.endpoint import Endpoint, channel_of
from caldera.comm.mailboxes import MailboxRank
from caldera.comm.requests import Done, Request
from caldera.comm.traffic import Traffic
from caldera.errors import CommError

KEY_BYTES = 32
_HOST = "127.0.0.1"
_HELLO = struct.Struct("<II")
"""Which process connects, and the port at which it listens itself."""
_DIGEST = hashlib.sha256().digest_size
_BUFFER = 1 << 20
_POLL_S = 0.2


class Listener:
    """A port at which other processes with the key are let in."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._socket = socket.create_server((_HOST, 0), backlog=512)
        self.port: int = self._socket.getsockname()[1]

    def accept(
        self, until: float, waiting: Callable[[], object] = lambda: None
    ) -> tuple[int, int, socket.socket]:
        """The next process that proves itself: its number, its port, and the socket to it.

        `waiting()` is called from time to time, and may raise.
        """
        while True:
            waiting()
            left = until - time.monotonic()
            if left <= 0:
                raise CommError.build(
                    "starting processes",
                    expected="all of them to connect",
                    got="no more of them",
                    hint="is the machine overloaded, or does a firewall stand in the way of "
                    f"{_HOST}?",
                )
            self._socket.settimeout(min(left, _POLL_S))
            with suppress(TimeoutError):
                link, _ = self._socket.accept()
                # A stranger may connect and say nothing: it must not keep the others waiting long.
                link.settimeout(2.0)
                try:
                    return *self._check(link), _ready(link)
                except (OSError, CommError):
                    link.close()

    def _check(self, link: socket.socket) -> tuple[int, int]:
        mine = secrets.token_bytes(KEY_BYTES)
        link.sendall(mine)
        hello = _receive(link, _HELLO.size)
        theirs = _receive(link, KEY_BYTES)
        proof = _receive(link, _DIGEST)
        if not hmac.compare_digest(proof, _signed(self._key, b"connects", mine, theirs, hello)):
            raise CommError.build("a socket", expected="a process with the key", got="a stranger")
        link.sendall(_signed(self._key, b"accepts", theirs, mine, hello))
        rank, port = _HELLO.unpack(hello)
        return rank, port

    def close(self) -> None:
        """Let nobody in any more."""
        self._socket.close()


def connect(key: bytes, port: int, rank: int, own_port: int, seconds: float) -> socket.socket:
    """A socket to the process that listens at a port, which has proved that it knows the key."""
    link = socket.create_connection((_HOST, port), timeout=seconds)
    theirs = _receive(link, KEY_BYTES)
    mine, hello = secrets.token_bytes(KEY_BYTES), _HELLO.pack(rank, own_port)
    link.sendall(hello + mine + _signed(key, b"connects", theirs, mine, hello))
    proof = _receive(link, _DIGEST)
    if not hmac.compare_digest(proof, _signed(key, b"accepts", mine, theirs, hello)):
        link.close()
        raise CommError.build("a socket", expected="a process with the key", got="a stranger")
    return _ready(link)


def gather_links(
    listener: Listener, size: int, seconds: float, waiting: Callable[[], object] = lambda: None
) -> dict[int, socket.socket]:
    """Process 0: the sockets to processes 1 to `size` - 1, which are told each other's ports."""
    until = time.monotonic() + seconds
    links: dict[int, socket.socket] = {}
    ports = [0] * size
    while len(links) < size - 1:
        rank, port, link = listener.accept(until, waiting)
        if not 0 < rank < size or rank in links:
            link.close()
            continue
        links[rank], ports[rank] = link, port
    table = struct.pack(f"<{size}I", *ports)
    for link in links.values():
        link.sendall(table)
    return links


def join_links(
    key: bytes, port: int, rank: int, size: int, seconds: float
) -> dict[int, socket.socket]:
    """Process `rank`: its sockets to all others; process 0 listens at `port`."""
    until = time.monotonic() + seconds
    listener = Listener(key)
    links = {0: connect(key, port, rank, listener.port, seconds)}
    links[0].settimeout(seconds)
    ports = struct.unpack(f"<{size}I", _receive(links[0], 4 * size))
    links[0].settimeout(None)
    for other in range(1, rank):
        links[other] = connect(key, ports[other], rank, listener.port, seconds)
    while len(links) < size - 1:
        other, _, link = listener.accept(until)
        links[other] = link
    listener.close()
    return links


def _signed(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _receive(link: socket.socket, nbytes: int) -> bytes:
    got = b""
    while len(got) < nbytes:
        more = link.recv(nbytes - len(got))
        if not more:
            raise CommError.build("a socket", expected=f"{nbytes} bytes", got=f"{len(got)}")
        got += more
    return got


def _ready(link: socket.socket) -> socket.socket:
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        link.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return link


SEGMENT_BYTES = 1 << 20
"""Of long buffers: a message costs more here than in MPI, and shared memory has room for many."""


class SocketCommunicator(MailboxRank):
    """A rank among processes that have sockets to each other; `members` are their numbers at
    its `endpoint`.

    `label` is a name that all its ranks have for it, and no other communicator has.
    """

    name = "sockets"
    segment_bytes = SEGMENT_BYTES

    def __init__(
        self,
        endpoint: Endpoint,
        members: Sequence[int],
        label: str,
        root: str | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.members = list(members)
        super().__init__(self.members.index(endpoint.rank), len(self.members), traffic)
        self.label = label
        self.endpoint = endpoint
        self._root = label if root is None else root
        self._channel = channel_of(label)
        self._inbox = endpoint.inbox(self._channel, channel_of(self._root), self.rank)
        self._splits = 0
        self._background: SocketCommunicator | None = None

    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        if dest == self.rank:
            return self._inbox.send(dest, tag, buffer)
        self._inbox.failure.check()
        self.endpoint.send(self.members[dest], self._channel, self.rank, tag, buffer)
        return Done()

    def _split(self, color: int | None, key: int) -> Communicator | None:
        self._splits += 1
        members = [self.members[rank] for rank in self._ranks_of_color(color, key)]
        if not members:
            return None
        label = f"{self.label} / {self._splits}: {color}"
        return SocketCommunicator(self.endpoint, members, label, self._root)

    def _dup(self) -> Communicator:
        if self._background is None:
            label = f"{self.label} in the background"
            self._background = SocketCommunicator(
                self.endpoint, self.members, label, self._root, self.traffic
            )
        return self._background

    def Revoke(self, reason: str) -> None:
        self.endpoint.revoke(channel_of(self._root), self.rank, reason)
