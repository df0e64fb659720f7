"""Socket communicator for processes of one machine or several.

Works without MPI: messages travel over sockets, and within a machine through shared memory. To
connect, each process sends its port to process 0 and receives the addresses of all processes.
Processes listen on the loopback interface only, unless they are on several machines.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from ipaddress import ip_address

import numpy as np

from caldera.comm.communicator import Communicator
from caldera.comm.endpoint import Endpoint, channel_of
from caldera.comm.listener import LOOPBACK, Listener, connect, receive_exactly
from caldera.comm.mailboxes import MailboxRank
from caldera.comm.requests import Done, Request
from caldera.comm.traffic import Traffic


def gather_links(
    listener: Listener, size: int, seconds: float, waiting: Callable[[], object] = lambda: None
) -> dict[int, socket.socket]:
    """Process 0: return the sockets to processes 1 to `size` - 1, which receive all addresses.

    Of two processes with the same number the later one counts. A process that has exited does not
    count: it may belong to an earlier attempt. `waiting()` is called periodically and may raise.
    """
    until = time.monotonic() + seconds
    links: dict[int, socket.socket] = {}
    addresses = [(b"", 0)] * size
    while len(links) < size - 1 or _drop_ended(links):
        rank, port, link = listener.accept(until, waiting)
        if not 0 < rank < size:
            link.close()
            continue
        if rank in links:
            links[rank].close()
        addresses[rank] = (_host_of(link), port)
        links[rank] = link
    table = b"".join(_ADDRESS.pack(*address) for address in addresses)
    for link in links.values():
        link.sendall(table)
    return links


def join_links(
    key: bytes, port: int, rank: int, size: int, seconds: float
) -> dict[int, socket.socket]:
    """Process `rank`: return its sockets to all processes; process 0 listens at `port`."""
    with closing(Listener(key)) as listener:
        master = connect(key, port, rank, listener.port, seconds)
        return meet_others(listener, master, LOOPBACK, rank, size, seconds)


def meet_others(
    listener: Listener, master: socket.socket, host: str, rank: int, size: int, seconds: float
) -> dict[int, socket.socket]:
    """Return the sockets to all other processes, given that to process 0, which is at `host`."""
    until = time.monotonic() + seconds
    links = {0: master}
    table = receive_exactly(master, _ADDRESS.size * size, until)
    master.settimeout(None)
    addresses = list(_ADDRESS.iter_unpack(table))
    for other in range(1, rank):
        theirs, port = addresses[other]
        # An empty address means the machine of process 0.
        place = theirs.rstrip(b"\0").decode() or host
        left = until - time.monotonic()
        links[other] = connect(listener.key, port, rank, listener.port, left, place)
    while len(links) < size - 1:
        other, _, link = listener.accept(until)
        links[other] = link
    return links


def _drop_ended(links: dict[int, socket.socket]) -> bool:
    """Remove the sockets of processes that have ended; return True if there are any."""
    # A process sends no data before it has received the addresses.
    readable, _, _ = select.select(links.values(), [], [], 0)
    for rank in [rank for rank, link in links.items() if link in readable]:
        links.pop(rank).close()
    return bool(readable)


def _host_of(link: socket.socket) -> bytes:
    """Return the address of a process; it is empty for one on this machine."""
    address = ip_address(link.getpeername()[0].partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return b"" if address.is_loopback else str(address).encode()


_ADDRESS = struct.Struct("<46sI")
"""Host and port of a process."""


SEGMENT_BYTES = 1 << 20
"""Of long buffers: a message costs more here than in MPI, and shared memory has room for many."""


class SocketCommunicator(MailboxRank):
    """A rank among processes that have sockets to each other; `members` are their numbers at
    its `endpoint`.

    - `label`: a name that all its ranks have for it, and no other communicator has.
    - `timeout_s`: seconds that it waits for a message before that is an error.
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
        timeout_s: float = threading.TIMEOUT_MAX,
    ) -> None:
        self.members = list(members)
        super().__init__(self.members.index(endpoint.rank), len(self.members), traffic)
        self.label = label
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.nodes = [endpoint.nodes[member] for member in self.members]
        self._root = label if root is None else root
        self._channel = channel_of(label)
        self._inbox = endpoint.inbox(self._channel, channel_of(self._root), self.members, timeout_s)
        self._made = 0
        self._background: SocketCommunicator | None = None

    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        if dest == self.rank:
            return self._inbox.send(dest, tag, buffer)
        self._inbox.failure.check()
        self.endpoint.send(self.members[dest], self._channel, self.rank, tag, buffer)
        return Done()

    def _split(self, color: int | None, key: int) -> Communicator | None:
        self._made += 1
        members = [self.members[rank] for rank in self._ranks_of_color(color, key)]
        if not members:
            return None
        label = f"{self.label} / {self._made}: {color}"
        return SocketCommunicator(
            self.endpoint, members, label, self._root, timeout_s=self.timeout_s
        )

    def _dup(self) -> Communicator:
        if self._background is None:
            self._background = SocketCommunicator(
                self.endpoint,
                self.members,
                f"{self.label} in the background",
                self._root,
                self.traffic,
                self.timeout_s,
            )
        return self._background

    def shared_key(self) -> bytes:
        self._made += 1
        name = f"{self.label} / key {self._made}".encode()
        return hmac.new(self.endpoint.key, name, hashlib.sha256).digest()

    def _abort(self, status: int) -> None:
        self.endpoint.end_others()
        os._exit(status)

    def Revoke(self, reason: str) -> None:
        self.endpoint.revoke(channel_of(self._root), self.rank, reason)
