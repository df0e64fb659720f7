"""Partition of buffers into parts and segments: pipelined exchange, and the bytes that move.

Long messages are sent in segments and combined as they arrive, so that link and processor work
concurrently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from caldera.comm.reduction import combine
from caldera.comm.requests import Request

if TYPE_CHECKING:
    from caldera.comm.point_to_point import PointToPoint


SEGMENT_BYTES = 61440
"""Bytes per message of a foreground transfer.

The size is below MPI's rendezvous limit, and large enough to make the cost per message negligible.
"""


def even_counts(elements: int, parts: int) -> list[int]:
    """Split `elements` into `parts` sizes as equal as possible, larger parts first.

    >>> even_counts(10, 4)
    [3, 3, 2, 2]
    """
    size, larger = divmod(elements, parts)
    return [size + (part < larger) for part in range(parts)]


def bounds(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the (start, end) pair of each part.

    >>> bounds([3, 0, 2])
    [(0, 3), (3, 3), (3, 5)]
    """
    return list(pairwise(accumulate(counts, initial=0)))


def segments(part: tuple[int, int], elements: int) -> list[tuple[int, int]]:
    """Return a part in pieces of at most `elements` elements.

    >>> segments((10, 15), 2)
    [(10, 12), (12, 14), (14, 15)]
    """
    begin, end = part
    return [(at, min(at + elements, end)) for at in range(begin, end, elements)]


TAG = 16384
"""One tag serves all collectives: messages between two ranks keep their order, and all ranks call
collectives in the same order."""
WINDOW = 32
"""Maximum number of segments in flight to one rank."""


def segment_elements(comm: PointToPoint, buffer: np.ndarray) -> int:
    """Return the number of elements per segment."""
    return max(1, comm.segment_bytes // buffer.itemsize)


def post_send(comm: PointToPoint, buffer: np.ndarray, dest: int) -> Request:
    """`Isend` without checks: there are many segments, and each check would cost time."""
    with comm.traffic.operation("Isend"):
        comm.traffic.sent(buffer.nbytes)
        return comm._start_send(buffer, dest, TAG)


def post_receive(comm: PointToPoint, buffer: np.ndarray, source: int) -> Request:
    """`Irecv` without checks."""
    with comm.traffic.operation("Irecv"):
        comm.traffic.received(buffer.nbytes)
        return comm._start_receive(buffer, source, TAG)


def start_send(comm: PointToPoint, buffer: np.ndarray, dest: int) -> list[Request]:
    """Begin to send a buffer in segments."""
    pieces = segments((0, buffer.size), segment_elements(comm, buffer))
    return [post_send(comm, buffer[begin:end], dest) for begin, end in pieces]


def start_receive(comm: PointToPoint, buffer: np.ndarray, source: int) -> list[Request]:
    """Begin to receive a buffer that is sent in segments."""
    pieces = segments((0, buffer.size), segment_elements(comm, buffer))
    return [post_receive(comm, buffer[begin:end], source) for begin, end in pieces]


def wait_all(requests: Iterable[Request]) -> None:
    """Wait for all requests."""
    for request in requests:
        request.wait()


def exchange(
    comm: PointToPoint, leaving: np.ndarray, dest: int, arriving: np.ndarray, source: int
) -> None:
    """Send one buffer and receive another, in segments."""
    requests = start_receive(comm, arriving, source)
    requests += start_send(comm, leaving, dest)
    wait_all(requests)


def combine_from(
    comm: PointToPoint, target: np.ndarray, source: int, op: str, *, theirs_first: bool = False
) -> None:
    """Receive another rank's values segment by segment and combine them into `target`.

    With `theirs_first` the received values are the left operand. Two ranks that combine their
    values mutually then compute the same bits, even for NaN.
    """
    pieces = segments((0, target.size), segment_elements(comm, target))
    scratch = np.empty((min(WINDOW, len(pieces)), segment_elements(comm, target)), target.dtype)

    def receive(index: int) -> tuple[Request, np.ndarray]:
        begin, end = pieces[index]
        part = scratch[index % WINDOW, : end - begin]
        return post_receive(comm, part, source), part

    underway = deque(map(receive, range(len(scratch))))
    for index, (begin, end) in enumerate(pieces):
        request, part = underway.popleft()
        request.wait()
        if theirs_first:
            combine(part, target[begin:end], op)
            target[begin:end] = part
        else:
            combine(target[begin:end], part, op)
        if index + WINDOW < len(pieces):
            underway.append(receive(index + WINDOW))


class MessageVolume(NamedTuple):
    """Messages and elements that a rank sends, and elements that it receives."""

    messages: int
    sent: int
    received: int


def reduce_scatter_volume(rank: int, counts: Sequence[int]) -> MessageVolume:
    """Everything but the own part leaves, everything but the left neighbour's arrives.

    >>> reduce_scatter_volume(0, [5, 5, 5, 5])
    MessageVolume(messages=3, sent=15, received=15)
    """
    whole = sum(counts)
    return MessageVolume(len(counts) - 1, whole - counts[rank], whole - counts[rank - 1])


def allgather_volume(rank: int, counts: Sequence[int]) -> MessageVolume:
    """Everything but the right neighbour's part leaves, everything but the own one arrives.

    >>> allgather_volume(1, [5, 5])
    MessageVolume(messages=1, sent=5, received=5)
    """
    whole, n = sum(counts), len(counts)
    return MessageVolume(n - 1, whole - counts[(rank + 1) % n], whole - counts[rank])


@lru_cache(maxsize=4096)
def allreduce_volume(rank: int, ranks: int, elements: int) -> MessageVolume:
    """2 (n - 1) / n of the buffer, both ways.

    >>> allreduce_volume(0, 4, 1000)
    MessageVolume(messages=6, sent=1500, received=1500)
    """
    counts = even_counts(elements, ranks)
    first, second = reduce_scatter_volume(rank, counts), allgather_volume(rank, counts)
    return MessageVolume(*(a + b for a, b in zip(first, second, strict=True)))


def reduce_volume(rank: int, ranks: int, root: int, elements: int) -> MessageVolume:
    """Return a reduce-scatter, and the parts to the root.

    >>> reduce_volume(0, 4, 0, 1000)
    MessageVolume(messages=3, sent=750, received=1500)
    """
    counts = even_counts(elements, ranks)
    messages, sent, received = reduce_scatter_volume(rank, counts)
    if rank == root:
        return MessageVolume(messages, sent, received + elements - counts[rank])
    return MessageVolume(messages + 1, sent + counts[rank], received)


def broadcast_volume(rank: int, ranks: int, root: int, elements: int) -> MessageVolume:
    """Along a chain: all but the last send it once, all but the root receive it once.

    >>> broadcast_volume(0, 4, 0, 1000)
    MessageVolume(messages=1, sent=1000, received=0)
    """
    sends = (rank + 1) % ranks != root
    return MessageVolume(int(sends), elements * sends, elements * (rank != root))


def alltoall_volume(rank: int, leaving: Sequence[int], arriving: Sequence[int]) -> MessageVolume:
    """Return the messages and elements of an all-to-all exchange, without the rank's own part.

    >>> alltoall_volume(0, [1, 2, 3], [1, 1, 1])
    MessageVolume(messages=2, sent=5, received=2)
    """
    others = len(leaving) - 1
    return MessageVolume(others, sum(leaving) - leaving[rank], sum(arriving) - arriving[rank])
