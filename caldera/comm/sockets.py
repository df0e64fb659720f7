"""Ranks that are processes of one machine, without MPI: messages over sockets and shared memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.comm.communicator import Communicator
from caldera.comm.endpoint import Endpoint, channel_of
from caldera.comm.request import Done, Request
from caldera.comm.traffic import Traffic

SEGMENT_BYTES = 1 << 20
"""Of long buffers: a message costs more here than in MPI, and shared memory has room for many."""


class SocketCommunicator(Communicator):
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
        self._inbox.failure.check()
        if dest == self.rank:
            self._inbox.deliver(dest, tag, buffer.reshape(-1).view(np.uint8))
        else:
            self.endpoint.send(self.members[dest], self._channel, self.rank, tag, buffer)
        return Done()

    def _start_receive(
        self, buffer: np.ndarray, source: int, tag: int, shorter: bool = False
    ) -> Request:
        self._inbox.failure.check()
        return self._inbox.receive(buffer, source, tag, shorter)

    def _split(self, color: int | None, key: int) -> Communicator | None:
        self._splits += 1
        colors_and_keys = self.gather_objects([color, key])
        if color is None:
            return None
        mine = sorted((k, rank) for rank, (c, k) in enumerate(colors_and_keys) if c == color)
        members = [self.members[rank] for _, rank in mine]
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
