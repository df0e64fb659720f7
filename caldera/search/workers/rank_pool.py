"""The ranks of a search as the master sees them: they connect to it, in groups of one trial."""

from __future__ import annotations

import atexit
import hmac
import secrets
import selectors
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from caldera.comm.abort import end_all
from caldera.search.workers.channel import Channel
from caldera.search.workers.pool import Member, Said, WorkerPool

_LOOPBACK = "127.0.0.1"


@dataclass(eq=False)
class Group(Member):
    """The ranks that train one trial together; the first of them leads."""

    ranks: range = range(0)


class RankWorkers(WorkerPool):
    """Groups of ranks; one that was given up may come again.

    `address` is what ranks need to connect: names of this machine, the port, and a secret, without
    which nobody is let in.
    """

    def __init__(self, groups: Sequence[range], *, several_machines: bool = False) -> None:
        super().__init__()
        self._groups = groups
        self._secret = secrets.token_hex(16)
        self._listening = socket.create_server(
            ("" if several_machines else _LOOPBACK, 0), backlog=1024
        )
        self.address = {
            "hosts": _names_of_this_machine() if several_machines else [_LOOPBACK],
            "port": self._listening.getsockname()[1],
            "secret": self._secret,
        }
        self._rank_of: dict[Channel, int] = {}
        self._left_over: list[Channel] = []
        self._hung: set[int] = set()
        self.last_words: list[dict[str, Any]] = []
        """What all ranks hear at the end: they go on with the program, and with its study."""

    def start(self) -> None:
        self._selector.register(self._listening, selectors.EVENT_READ)
        for group in self._groups:
            self._expect(group)

    def drop(self, member: Member, reason: str) -> str:
        assert isinstance(member, Group)
        if reason:
            # One whose connection has ended is dead, and MPI knows that by itself.
            self._hung.update(member.ranks)
        return super().drop(member, reason)

    def end(self, *, at_once: bool) -> None:
        for member in self.members:
            assert isinstance(member, Group)
            if not member.ready:
                self._hung.update(member.ranks)
        for channel in self._left_over:
            for message in self._farewell():
                channel.send(message)
            channel.close()
        self._listening.close()
        super().end(at_once=at_once)

    def _farewell(self) -> list[dict[str, Any]]:
        words = [{"kind": "word", "word": each} for each in self.last_words]
        return [*words, *super()._farewell()]

    def end_the_hung(self, *, with_mpi: bool) -> None:
        """Ranks that hang never come to the end of the program, where MPI waits for all."""
        if not self._hung:
            return
        names = ", ".join(f"rank {rank}" for rank in sorted(self._hung))
        sys.stderr.write(
            f"caldera search: {names} hangs; the study is complete without it, and all ranks are "
            "ended with the program of the master\n"
        )
        if with_mpi:
            atexit.register(end_all)

    def _expect(self, ranks: range) -> Group:
        several = f"ranks {ranks[0]} to {ranks[-1]}"
        group = Group(f"rank {ranks[0]}" if len(ranks) == 1 else several, ranks=ranks)
        self.members.append(group)
        return group

    def _accept(self, listening: socket.socket) -> None:
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A stranger until it has said the secret.
        self._selector.register(Channel(connection), selectors.EVENT_READ)

    def _heard_from(self, channel: Channel) -> list[Said]:
        found = super()._heard_from(channel)
        if channel.closed and channel not in self._of_channel:
            self._turn_away(channel)
        return found

    def _greeted(self, channel: Channel, hello: dict[str, Any]) -> None:
        rank = hello.get("rank")
        secret = str(hello.get("secret"))
        if not hmac.compare_digest(secret.encode(), self._secret.encode()):
            self._turn_away(channel)
            return
        ranks = next((group for group in self._groups if rank in group), None)
        if ranks is None:
            self._left_over.append(channel)
            return
        known = [each for each in self.members if isinstance(each, Group) and each.ranks == ranks]
        group = known[0] if known else self._expect(ranks)
        self._hung.difference_update(ranks)
        self._rank_of[channel] = int(hello["rank"])
        self._of_channel[channel] = group
        group.channels = sorted([*group.channels, channel], key=self._rank_of.__getitem__)
        group.ready = len(group.channels) == len(ranks)

    def _turn_away(self, channel: Channel) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(channel)
        channel.close()


def _names_of_this_machine() -> list[str]:
    """What other machines may call this one: its name, then its numbers."""
    name = socket.gethostname()
    found = [name]
    with suppress(OSError):
        found += [str(each[4][0]) for each in socket.getaddrinfo(name, None, socket.AF_INET)]
    return list(dict.fromkeys(found))
