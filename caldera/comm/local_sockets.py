"""Socket communicator for the processes of one machine.

Works without MPI: messages travel over sockets and through shared memory. To connect, every
process listens on the loopback interface only; each sends its port to process 0 and receives the
ports of all.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from caldera.comm.communicator import Communicator
from caldera.comm.endpoint import Endpoint, channel_of
from caldera.comm.listener import Listener, connect, receive_exactly
from caldera.comm.mailboxes import MailboxRank
from caldera.comm.requests import Done, Request
from caldera.comm.traffic import Traffic


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
    with closing(Listener(key)) as listener:
        links = {0: connect(key, port, rank, listener.port, seconds)}
        ports = struct.unpack(f"<{size}I", receive_exactly(links[0], 4 * size, until))
        links[0].settimeout(None)
        for other in range(1, rank):
            left = until - time.monotonic()
            links[other] = connect(key, ports[other], rank, listener.port, left)
        while len(links) < size - 1:
            other, _, link = listener.accept(until)
            links[other] = link
    return links


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
