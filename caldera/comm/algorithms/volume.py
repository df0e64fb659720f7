"""How much each rank sends and receives in a collective that moves as little as any can.

This is what the algorithms of this room move, and what is counted for the collectives of a library,
which does not say what it does. Parts are those of `parts.even_counts`, or given as counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from caldera.comm.algorithms.segments import even_counts


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
    """A reduce-scatter, and the parts to the root.

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
    """Everything but what a rank has for itself, to all others and from them.

    >>> alltoall_volume(0, [1, 2, 3], [1, 1, 1])
    MessageVolume(messages=2, sent=5, received=2)
    """
    others = len(leaving) - 1
    return MessageVolume(others, sum(leaving) - leaving[rank], sum(arriving) - arriving[rank])
