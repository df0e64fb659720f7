"""Computing and exchanging side by side: when each message can leave, and who waits for it.

A rank computes layer by layer, and has one thread that carries its messages one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from caldera.planner.collective_cost import Cost
from caldera.planner.workload import LayerCost


@dataclass(frozen=True)
class BucketCost:
    """Layers that share a message: how long they compute, and the bytes of their gradients."""

    seconds: float
    nbytes: float


def pieces(layers: Sequence[LayerCost], seconds: float, most_bytes: float) -> list[BucketCost]:
    """Layers in the given order, put together until their gradients fill a message.

    `seconds` is what all layers of a model take together.
    """
    found: list[BucketCost] = []
    time = nbytes = 0.0
    for layer in layers:
        time += seconds * layer.weight
        nbytes += layer.trained
        if nbytes >= most_bytes:
            found.append(BucketCost(time, nbytes))
            time = nbytes = 0.0
    return [*found, BucketCost(time, nbytes)] if time or nbytes else found


def overlapped_sends(work: Sequence[BucketCost], cost: Callable[[float], Cost]) -> float:
    """When everything is computed and exchanged, if messages leave while the next is computed.

    >>> from caldera.planner.collective_cost import Cost
    >>> work = [BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)]
    >>> [overlapped_sends(work, lambda nbytes: Cost(each)) for each in (0.5, 3.0)]
    [2.5, 7.0]
    """
    now = free = 0.0
    for piece in work:
        now += piece.seconds
        if piece.nbytes:
            free = max(free, now) + cost(piece.nbytes).seconds
    return max(now, free)


def waited_for(work: Sequence[BucketCost], cost: Callable[[float], Cost]) -> float:
    """When everything is computed, if each piece needs a message, and all of them leave at once.

    >>> from caldera.planner.collective_cost import Cost
    >>> waited_for([BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)], lambda nbytes: Cost(0.5))
    2.5
    """
    now = free = 0.0
    for piece in work:
        if piece.nbytes:
            free += cost(piece.nbytes).seconds
            now = max(now, free)
        now += piece.seconds
    return now


def prefetched_and_sent(
    work: Sequence[BucketCost], fetch: Callable[[float], Cost], send: Callable[[float], Cost]
) -> float:
    """When all is done, if each piece needs a message and sends one.

    One message is fetched ahead: while a piece computes, that of the next is on its way.

    >>> from caldera.planner.collective_cost import Cost
    >>> work = [BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)]
    >>> prefetched_and_sent(work, lambda nbytes: Cost(0.5), lambda nbytes: Cost(0.25))
    2.75
    """
    now = 0.0
    free = there = fetch(work[0].nbytes).seconds if work else 0.0
    for index, piece in enumerate(work):
        now = max(now, there)
        if index + 1 < len(work):
            free = there = max(free, now) + fetch(work[index + 1].nbytes).seconds
        now += piece.seconds
        if piece.nbytes:
            free = max(free, now) + send(piece.nbytes).seconds
    return max(now, free)


def without_overlap(work: Sequence[BucketCost], *costs: Callable[[float], Cost]) -> float:
    """When all is done, if nothing is exchanged while anything is computed.

    >>> from caldera.planner.collective_cost import Cost
    >>> without_overlap([BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)], lambda nbytes: Cost(0.5))
    3.0
    """
    return sum(piece.seconds for piece in work) + sum(total(work, cost).seconds for cost in costs)


def total(work: Iterable[BucketCost], cost: Callable[[float], Cost]) -> Cost:
    """What all messages cost together."""
    return sum((cost(piece.nbytes) for piece in work if piece.nbytes), Cost())
