"""A process of a socket world: one socket to each peer, and the messages received from it.

A thread reads each socket while the process computes. Sending therefore never waits for the
receiver to call, and the end of a peer is noticed immediately. Messages belong to channels, one
per communicator. A frame is a header followed by its bytes or, for long messages, by the location
in the sender's `SharedOutbox`.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from caldera.comm.mailboxes import Inbox, JobFailure, bytes_of
from caldera.comm.shared_memory import (
    CAPACITY,
    PROOF,
    SharedOutbox,
    can_share,
    mark_read,
    open_outbox,
)
from caldera.errors import CommError, RankLostError

HEADER = struct.Struct("<BHHQQ")
"""Kind, sender's rank in the channel, tag, channel, bytes that follow or are shared."""
PLACE = struct.Struct("<HQ")
"""Slot and place of a message in an outbox."""
SHARED_FROM = 1 << 15
"""Minimum size in bytes of messages passed through shared memory."""
LONGEST_TEXT = 1 << 20
LEAVES_WITHIN_S = 1.0
_POLITE_S = 0.1
_INLINE, _SHARED, _OUTBOX, _OPENED, _REVOKED, _GOODBYE, _END = range(7)
ENDED_BY_ANOTHER = 1
"""Exit status of a process that another one has ended."""


class Endpoint:
    """This process, number `rank` of those connected pairwise by sockets.

    `lost(rank)` is called on a separate thread when a peer exits without a goodbye. A peer that
    sends a goodbye fails only the receives from itself. `key` is a secret shared by all processes;
    `nodes` contains the machine number of each process.
    """

    def __init__(
        self,
        rank: int,
        links: Mapping[int, socket.socket],
        lost: Callable[[int], None] | None = None,
        key: bytes = b"",
    ) -> None:
        self.rank = rank
        self.key = key
        self.nodes = [0] * (len(links) + 1)
        self.size = len(links) + 1
        self._links = dict(links)
        self._sending = {peer: threading.Lock() for peer in links}
        self._lock = threading.RLock()
        self._inboxes: dict[int, Inbox] = {}
        self._failures: dict[int, JobFailure] = {}
        self._members: dict[int, Sequence[int]] = {}
        self._left: dict[int, CommError] = {}
        self._lost: tuple[int, BaseException] | None = None
        self.lost_peer: int | None = None
        """The first process that has ended without a goodbye."""
        self._on_loss = lost
        self._closing = False
        self._outbox: SharedOutbox | None = None
        self._readers: dict[int, bool] = {}
        self._threads = [
            threading.Thread(target=self._read, args=(peer,), name=f"from {peer}", daemon=True)
            for peer in links
        ]
        for thread in self._threads:
            thread.start()

    # --- for communicators

    def failure(self, root: int) -> JobFailure:
        """Return the failure state shared by all communicators derived from a root."""
        with self._lock:
            if root not in self._failures:
                self._failures[root] = JobFailure()
                if self._lost is not None:
                    self._failures[root].fail(*self._lost)
            return self._failures[root]

    def inbox(self, channel: int, root: int, members: Sequence[int], timeout_s: float) -> Inbox:
        """Return the box for messages of a channel, which may have come before its communicator
        was made here."""
        with self._lock:
            found = self._inbox_of(channel)
            rank = members.index(self.rank)
            found.assign(rank, len(members), self.failure(root), timeout_s)
            self._members[channel] = members
            for peer, error in self._left.items():
                if peer in members:
                    found.lose(members.index(peer), error)
            return found

    def send(self, peer: int, channel: int, source: int, tag: int, buffer: np.ndarray) -> None:
        """Send bytes; they may change once this returns."""
        payload = bytes_of(buffer)
        place = self._shared(peer, payload) if payload.nbytes >= SHARED_FROM else None
        if place is not None:
            header = HEADER.pack(_SHARED, source, tag, channel, payload.nbytes)
            self._write(peer, header, PLACE.pack(*place))
            return
        header = HEADER.pack(_INLINE, source, tag, channel, payload.nbytes)
        self._write(peer, header, payload.data)

    def revoke(self, root: int, rank: int, reason: str) -> None:
        """Raise an error in all processes that wait in communicators derived from this one."""
        text = reason.encode()[:LONGEST_TEXT]
        for peer in self._links:
            with suppress(CommError):
                self._write(peer, HEADER.pack(_REVOKED, rank, 0, root, len(text)), text)
        self.failure(root).fail(rank, CommError(reason))

    def end_others(self) -> None:
        """Kill all other processes immediately, even while they compute."""
        for peer, link in self._links.items():
            # A process that was stopped may have left its socket full: no wait for it.
            if self._sending[peer].acquire(timeout=_POLITE_S):
                with suppress(OSError):
                    link.send(HEADER.pack(_END, 0, 0, 0, 0), socket.MSG_DONTWAIT)
                self._sending[peer].release()

    def close(self) -> None:
        """Leave the world with a goodbye to all peers."""
        if self._closing:
            return
        self._closing = True
        for peer, link in self._links.items():
            with suppress(CommError):
                self._write(peer, HEADER.pack(_GOODBYE, 0, 0, 0, 0), b"")
            with suppress(OSError):
                link.shutdown(socket.SHUT_WR)
        until = time.monotonic() + LEAVES_WITHIN_S
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))
        for link in self._links.values():
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            # A thread that still ran when the interpreter ends could crash the process.
            thread.join(timeout=_POLITE_S)
        for link in self._links.values():
            link.close()

    # --- sending

    def _write(self, peer: int, header: bytes, payload: bytes | memoryview) -> None:
        link = self._links[peer]
        try:
            with self._sending[peer]:
                sent = link.sendmsg([header, payload])
                if sent < len(header):
                    link.sendall(header[sent:])
                    sent = len(header)
                if sent < len(header) + len(payload):
                    link.sendall(memoryview(payload)[sent - len(header) :])
        except OSError as error:
            if self._lost is not None:
                raise self._lost[1] from error
            raise RankLostError.build(
                f"process {self.rank}", got=f"no way to process {peer}: {error}"
            ) from error

    def _shared(self, peer: int, payload: np.ndarray) -> tuple[int, int] | None:
        """Return the slot and position of a message in the outbox.

        None means that there is no room, or that the peer has not proven that it reads this memory.
        """
        with self._lock:
            if self._outbox is None and can_share():
                self._outbox = SharedOutbox(CAPACITY)
            outbox = self._outbox
            is_new = peer not in self._readers
            is_reader = self._readers.setdefault(peer, False)
        if outbox is None:
            return None
        if is_new:
            told = outbox.proof + outbox.address.encode()
            self._write(peer, HEADER.pack(_OUTBOX, 0, 0, 0, len(told)), told)
        return outbox.put(payload) if is_reader else None

    # --- receiving

    def _read(self, peer: int) -> None:
        """Read one socket until it closes."""
        link, memory = self._links[peer], np.empty(0, np.uint8)
        try:
            while True:
                header = _received(link, HEADER.size)
                kind, source, tag, channel, nbytes = HEADER.unpack(header)
                if kind == _INLINE:
                    self._take(link, source, tag, channel, nbytes)
                elif kind == _SHARED:
                    slot, place = PLACE.unpack(_received(link, PLACE.size))
                    payload = memory[place : place + nbytes]
                    taken = partial(mark_read, memory, slot)
                    self._inbox_of(channel).deliver(source, tag, payload, taken)
                elif kind == _OUTBOX:
                    proof, address = _received(link, PROOF), _text(link, nbytes - PROOF)
                    opened = open_outbox(address, proof)
                    memory = memory if opened is None else opened
                    # On another thread: two readers that write would wait for each other.
                    threading.Thread(
                        target=self._answer, args=(peer, opened is not None), daemon=True
                    ).start()
                elif kind == _OPENED:
                    with self._lock:
                        self._readers[peer] = bool(nbytes)
                elif kind == _REVOKED:
                    self.failure(channel).fail(source, CommError(_text(link, nbytes)))
                elif kind == _END:
                    os._exit(ENDED_BY_ANOTHER)
                elif kind == _GOODBYE:
                    self._part_from(peer)
                    return
        except OSError as error:
            self._lose(peer, str(error) or "its socket was closed", meant=self._closing)

    def _answer(self, peer: int, is_reader: bool) -> None:
        """Report whether this process reads a peer's outbox; a lost peer needs no answer."""
        with suppress(CommError):
            self._write(peer, HEADER.pack(_OPENED, 0, 0, 0, int(is_reader)), b"")

    def _take(self, link: socket.socket, source: int, tag: int, channel: int, nbytes: int) -> None:
        inbox = self._inbox_of(channel)
        receive = inbox.claim(source, tag)
        place = None if receive is None else receive.place(source, nbytes)
        if place is None:
            place = np.empty(nbytes, np.uint8)
        _fill(link, place.data)
        if receive is None:
            inbox.deliver(source, tag, place, _nothing)
        else:
            inbox.finished(receive)

    def _inbox_of(self, channel: int) -> Inbox:
        with self._lock:
            if channel not in self._inboxes:
                # Its owner is known once its communicator is made here.
                self._inboxes[channel] = Inbox(-1, JobFailure(), threading.TIMEOUT_MAX)
            return self._inboxes[channel]

    def _part_from(self, peer: int) -> None:
        """Fail the receives from a process that has left on purpose, and no others."""
        error = RankLostError.build(
            f"process {peer} of {self.size}",
            got="its goodbye: it has come to the end of the program",
            hint="every receive needs a send, and every rank the same collectives",
        )
        with self._lock:
            self._left[peer] = error
            for channel, members in self._members.items():
                if peer in members:
                    self._inboxes[channel].lose(members.index(peer), error)

    def _lose(self, peer: int, why: str, *, meant: bool) -> None:
        error = RankLostError.build(f"process {peer} of {self.size}", got=why)
        with self._lock:
            if self._lost is None:
                self._lost = (peer, error)
            if self.lost_peer is None and not meant:
                self.lost_peer = peer
            failures = list(self._failures.values())
        for failure in failures:
            failure.fail(peer, error)
        if not meant and not self._closing and self._on_loss is not None:
            self._on_loss(peer)


def channel_of(name: str) -> int:
    """Return the number of a channel, which all ranks find for themselves.

    >>> channel_of("data") == channel_of("data"), channel_of("data") < 1 << 64
    (True, True)
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _received(link: socket.socket, nbytes: int) -> bytearray:
    buffer = bytearray(nbytes)
    _fill(link, memoryview(buffer))
    return buffer


def _fill(link: socket.socket, place: memoryview) -> None:
    while len(place):
        got = link.recv_into(place, 0, socket.MSG_WAITALL)
        if not got:
            raise OSError("it has ended without a word")
        place = place[got:]


def _text(link: socket.socket, nbytes: int) -> str:
    return _received(link, min(nbytes, LONGEST_TEXT)).decode(errors="replace")


def _nothing() -> None:
    return
