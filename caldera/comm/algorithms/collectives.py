"""Collectives other than allreduce, built from messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.allreduce import direct_reduce_scatter
from caldera.comm.algorithms.rings import ring_allgather, ring_reduce_scatter
from caldera.comm.algorithms.segments import (
    TAG,
    bounds,
    even_counts,
    post_receive,
    post_send,
    segment_elements,
    segments,
    start_receive,
    start_send,
    wait_all,
)
from caldera.comm.reduction import must_widen
from caldera.comm.requests import Request

if TYPE_CHECKING:
    from caldera.comm.point_to_point import PointToPoint

_NOTHING = np.empty(0, np.uint8)


def broadcast(comm: PointToPoint, buffer: np.ndarray, root: int) -> None:
    """Along a tree if the buffer is one segment, else along a chain that passes segments on."""
    place = (comm.rank - root) % comm.size
    pieces = segments((0, buffer.size), segment_elements(comm, buffer))
    if len(pieces) == 1:
        _tree_broadcast(comm, buffer, root, place)
        return
    arriving: deque[Request] = deque()
    leaving: list[Request] = []
    if place:
        arriving.extend(start_receive(comm, buffer, (comm.rank - 1) % comm.size))
    for begin, end in pieces:
        if place:
            arriving.popleft().wait()
        if place + 1 < comm.size:
            leaving.append(post_send(comm, buffer[begin:end], (comm.rank + 1) % comm.size))
    wait_all(leaving)


def _tree_broadcast(comm: PointToPoint, buffer: np.ndarray, root: int, place: int) -> None:
    # The parent of a place is the place without its lowest bit.
    lowest = place & -place
    if place:
        post_receive(comm, buffer, (place - lowest + root) % comm.size).wait()
    else:
        lowest = 1 << comm.size.bit_length()
    distance = lowest // 2
    while distance:
        if place + distance < comm.size:
            post_send(comm, buffer, (place + distance + root) % comm.size).wait()
        distance //= 2


def reduce(
    comm: PointToPoint, send: np.ndarray, receive: np.ndarray | None, root: int, op: str
) -> None:
    """Each rank reduces a part, and the root collects the parts."""
    counts = even_counts(send.size, comm.size)
    parts = bounds(counts)
    own = np.empty(counts[comm.rank], send.dtype)
    reduce_scatter(comm, send.reshape(-1), own, counts, op)
    if receive is None:
        wait_all(start_send(comm, own, root))
        return
    result = receive.reshape(-1)
    result[slice(*parts[root])] = own
    others = [rank for rank in range(comm.size) if rank != root]
    wait_all(
        [
            request
            for rank in others
            for request in start_receive(comm, result[slice(*parts[rank])], rank)
        ]
    )


def reduce_scatter(
    comm: PointToPoint, send: np.ndarray, receive: np.ndarray, counts: list[int], op: str
) -> None:
    """A ring, or the sums in one place where passing partial sums on would round them."""
    if must_widen(send.dtype, op):
        receive[:] = direct_reduce_scatter(comm, send, counts, op)
        return
    begin, end = bounds(counts)[comm.rank]
    buffer = send.copy()
    ring_reduce_scatter(comm, buffer, counts, op)
    receive[:] = buffer[begin:end]


def allgather(comm: PointToPoint, send: np.ndarray, receive: np.ndarray, counts: list[int]) -> None:
    """A ring."""
    begin, end = bounds(counts)[comm.rank]
    receive[begin:end] = send
    ring_allgather(comm, receive, counts)


def alltoall(
    comm: PointToPoint,
    send: np.ndarray,
    receive: np.ndarray,
    leaving: list[int],
    arriving: list[int],
) -> None:
    """Exchange parts between all pairs of ranks simultaneously, nearest neighbours first."""
    to, of = bounds(leaving), bounds(arriving)
    receive[slice(*of[comm.rank])] = send[slice(*to[comm.rank])]
    others = [(comm.rank + distance) % comm.size for distance in range(1, comm.size)]
    requests = [
        request
        for rank in reversed(others)
        for request in start_receive(comm, receive[slice(*of[rank])], rank)
    ]
    requests += [
        request for rank in others for request in start_send(comm, send[slice(*to[rank])], rank)
    ]
    wait_all(requests)


def exchange_messages(
    comm: PointToPoint, leaving: Mapping[int, np.ndarray], longest: Mapping[int, int]
) -> dict[int, np.ndarray]:
    """Exchange all messages simultaneously, nearest neighbours first.

    Each message is stored in a buffer of its maximum length.
    """
    buffers = {rank: np.empty(longest[rank], np.uint8) for rank in longest}
    arriving = {
        rank: comm._start_receive(buffer, rank, TAG, shorter=True)
        for rank, buffer in buffers.items()
    }
    nearest = sorted(leaving, key=lambda rank: (rank - comm.rank) % comm.size)
    wait_all([*arriving.values(), *[post_send(comm, leaving[rank], rank) for rank in nearest]])
    comm.traffic.received(sum(request.received for request in arriving.values()))
    return {rank: buffers[rank][: request.received] for rank, request in arriving.items()}


def barrier(comm: PointToPoint) -> None:
    """Dissemination barrier: in round k a rank hears from the rank 2**k before it."""
    distance = 1
    while distance < comm.size:
        after, before = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        arriving = post_receive(comm, _NOTHING.copy(), before)
        wait_all([post_send(comm, _NOTHING, after), arriving])
        distance *= 2
