"""Messages between a master and its workers, and the services of a worker by name.

A message is a frame of `FRAME_BYTES`, and a second message with the rest if it is longer. The
messages of every step fit into one frame: numbers are written in as few bytes as they need, and
consecutive numbers as one range.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from caldera.comm import ANY_SOURCE, Communicator, Request
from caldera.compiler.sharding.algorithms.process_grid import grids_of
from caldera.compiler.sharding.calibration import measured_links
from caldera.dmath.rank import Rank, View

FRAME_BYTES = 64
_LENGTH = struct.Struct("<I")
ROOM = FRAME_BYTES - _LENGTH.size
"""Bytes of a message that fit into one frame."""
DEFINE, UNDEFINE, RUN, PUT, GET, CALL, RENEW, END = b"d", b"u", b"r", b"p", b"g", b"c", b"n", b"e"
REPLY, REFUSAL, FAILURE = b"a", b"x", b"f"
ORDER_TAG, REPORT_TAG, DATA_TAG = 1, 3, 5
"""Tags; the rest of a long message has the tag after its frame's."""
SHORTEST_NAP_S, LONGEST_NAP_S = 2e-5, 1e-3


def varint(number: int) -> bytes:
    """Encode a number >= 0 with seven bits per byte.

    >>> varint(5), varint(300)
    (b'\\x05', b'\\xac\\x02')
    """
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def varints(content: bytes) -> Iterator[int]:
    """Yield the numbers of concatenated `varint` encodings.

    >>> list(varints(varint(300) + varint(0)))
    [300, 0]
    """
    number = shift = 0
    for byte in content:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0


def pack_numbers(numbers: Sequence[int], base: int) -> bytes:
    """Pack numbers in order as ranges, each relative to its expected position after `base`.

    >>> len(pack_numbers(range(1000, 1032), base=1032))
    3
    >>> list(unpack_numbers(varints(pack_numbers([7, 8, 3, 9], 5)), 5))
    [7, 8, 3, 9]
    """
    return pack_changes(numbers, range(base, base + len(numbers)))


def unpack_numbers(stream: Iterator[int], base: int) -> list[int]:
    """Return the numbers that `pack_numbers` wrote."""
    return unpack_changes(stream, itertools.count(base))


def pack_changes(numbers: Sequence[int], before: Sequence[int]) -> bytes:
    """Pack the differences to an equally long earlier list.

    From step to step most numbers grow by the same amount: an array of the last step replaces one
    of the step before, or stays the same.

    >>> len(pack_changes([29, 21, 5, 24], [19, 11, 5, 14]))
    7
    >>> unpack_changes(varints(pack_changes([29, 3, 5], [19, 11, 5])), [19, 11, 5])
    [29, 3, 5]
    """
    changes = (_zigzag(now - last) for now, last in zip(numbers, before, strict=True))
    runs = [(change, len(list(each))) for change, each in itertools.groupby(changes)]
    return varint(len(runs)) + b"".join(varint(each) for run in runs for each in run)


def unpack_changes(stream: Iterator[int], before: Iterable[int]) -> list[int]:
    """Return the arguments of `pack_changes`."""
    changes: list[int] = []
    for _ in range(next(stream)):
        changes += [_unzigzag(next(stream))] * next(stream)
    return [change + last for change, last in zip(changes, before, strict=False)]


def _zigzag(number: int) -> int:
    """Return a number from 0 for any number, small for one near 0."""
    return 2 * number if number >= 0 else -2 * number - 1


def _unzigzag(number: int) -> int:
    return number >> 1 if number % 2 == 0 else -(number + 1 >> 1)


class Channel:
    """Messages of one kind between master and workers, over their communicator."""

    def __init__(self, communicator: Communicator, tag: int, source: int = ANY_SOURCE) -> None:
        self.communicator = communicator
        self._tag = tag
        self._source = source
        self._frame: np.ndarray | None = None
        self._next: Request | None = None

    def send(self, dest: int, content: bytes) -> None:
        """Send a message."""
        frame = np.zeros(FRAME_BYTES, np.uint8)
        head = _LENGTH.pack(len(content)) + content[:ROOM]
        frame[: len(head)] = np.frombuffer(head, np.uint8)
        with self.communicator.traffic.operation("control"):
            self.communicator.Send(frame, dest, self._tag)
            if len(content) > ROOM:
                rest = np.frombuffer(content, np.uint8)[ROOM:]
                self.communicator.Send(rest, dest, self._tag + 1)

    def receive(self, seconds: float | None = None) -> tuple[int, bytes] | None:
        """Return the next message and whose it is; None if none comes within that time."""
        request = self._expect()
        if seconds is None and not self.communicator.waits_busily:
            request.wait()
        else:
            until = None if seconds is None else time.monotonic() + seconds
            nap = SHORTEST_NAP_S
            while not request.test():
                if until is not None and time.monotonic() >= until:
                    return None
                time.sleep(nap)
                nap = min(2 * nap, LONGEST_NAP_S)
        assert self._frame is not None
        source, content = request.source, self._frame.tobytes()
        self._next = None
        (length,) = _LENGTH.unpack_from(content)
        content = content[_LENGTH.size :][:length]
        if length > ROOM:
            rest = np.empty(length - ROOM, np.uint8)
            with self.communicator.traffic.operation("control"):
                self.communicator.Recv(rest, source, self._tag + 1)
            content += rest.tobytes()
        return source, content

    def _expect(self) -> Request:
        if self._next is None:
            self._frame = np.empty(FRAME_BYTES, np.uint8)
            with self.communicator.traffic.operation("control"):
                self._next = self.communicator.Irecv(self._frame, self._source, self._tag)
        return self._next


SERVICES: dict[str, Callable[..., Any]] = {}
"""Functions of a rank and of plain data, which give plain data."""


def service(function: Callable[..., Any]) -> Callable[..., Any]:
    """Offer a function to the master, under its name."""
    SERVICES[function.__name__] = function
    return function


@service
def nbytes(rank: Rank) -> int:
    """Return bytes of all parts on a rank."""
    return rank.nbytes


@service
def moved(rank: Rank) -> tuple[int, int, int]:
    """Return the messages sent, bytes sent and bytes received by a rank, with those along grids."""
    every = {rank.communicator}
    for grid in grids_of(rank.communicator):
        every |= {grid.along_layers, grid.along_column, grid.along_row}
    counts = [each.traffic.total for each in every]
    return (
        sum(count.messages for count in counts),
        sum(count.bytes_sent for count in counts),
        sum(count.bytes_received for count in counts),
    )


@service
def cache(rank: Rank) -> tuple[int, int, int, int]:
    """Return hits, misses, bytes that did not move and bytes that are kept; see `CacheCounts`."""
    counts = rank.cache.counted()
    return counts.hits, counts.misses, counts.saved_bytes, counts.nbytes


@service
def limit_cache(rank: Rank, nbytes: int) -> None:
    """Limit the cached remote data to `nbytes`."""
    rank.limit_cache(nbytes)


@service
def use_device(rank: Rank, name: str) -> None:
    """Keep arrays on a device, and compute there."""
    rank.use_device(name)


@service
def compare_gpus(rank: Rank) -> None:
    """Use NCCL between the ranks from now on, if each has a separate GPU."""
    rank.compare_gpus()


@service
def links(rank: Rank) -> tuple[float, ...]:
    """Return the measured times of messages and products; see `Links`."""
    return astuple(measured_links(rank.communicator))


@service
def route(rank: Rank) -> str:
    """Return the route of a rank's values to other ranks."""
    return rank.communicator.route(rank.device.name)


@service
def fetch(rank: Rank, number: int, view: View, wait: bool) -> None:
    """Begin to bring an array to another layout, and perhaps wait for it."""
    rank.fetch(number, view, wait)
