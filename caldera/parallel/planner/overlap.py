"""Computing and exchanging side by side: when each message can leave, and who waits for it.

A rank computes layer by layer, and has one thread that carries its messages one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from caldera.parallel.data.buckets import bucket_indices
from caldera.parallel.data.data_parallel import BUCKET_BYTES
from caldera.parallel.data.sharded import gather_buckets
from caldera.parallel.planner.collective_cost import Cost
from caldera.parallel.planner.layer_cost import Gradient
from caldera.parallel.planner.workload import Workload


@dataclass(frozen=True)
class BucketCost:
    """Gradients that share a message: how long is computed for it, since the one before or until
    the next, the bytes, and which they are."""

    seconds: float
    nbytes: float
    gradients: tuple[Gradient, ...] = ()


CostOf = Callable[[BucketCost], Cost]


def gradient_buckets(
    workload: Workload,
    seconds: float,
    order: Sequence[int] | None = None,
    sizes: Sequence[float] | None = None,
    layers: range | None = None,
    *,
    bucket_bytes: int = BUCKET_BYTES,
) -> list[BucketCost]:
    """The messages of a backward pass, as strategies fill them, and what is computed after the
    last of them.

    `seconds` is what all layers of the model take together. `order` has the numbers of the
    gradients that are exchanged, all of them if nothing is said; `sizes` the bytes of each, where
    ranks have parts of it; `layers` are the numbers of those that a rank computes.
    """
    given = workload.gradients
    chosen = workload.backward if order is None else order
    nbytes = [each.nbytes for each in given] if sizes is None else sizes
    done: dict[int, float] = {}
    whole = 0.0
    for number in reversed(range(len(workload.layers)) if layers is None else layers):
        whole += seconds * workload.layers[number].weight
        # When the backward pass has done with the layer.
        done[number] = whole
    found, now = [], 0.0
    dtypes = tuple(each.dtype for each in given)
    for bucket in _filled(tuple(map(round, nbytes)), dtypes, tuple(chosen), bucket_bytes):
        ready = max(now, *(done.get(given[index].layer, whole) for index in bucket))
        gradients = tuple(given[index] for index in bucket)
        found.append(BucketCost(ready - now, sum(nbytes[index] for index in bucket), gradients))
        now = ready
    rest = whole - now
    return [*found, BucketCost(rest, 0.0)] if rest > 0 else found


@lru_cache(maxsize=1 << 12)
def _filled(
    nbytes: tuple[int, ...], dtypes: tuple[str, ...], order: tuple[int, ...], bucket_bytes: int
) -> list[list[int]]:
    return bucket_indices(nbytes, dtypes, order, bucket_bytes)


def parameter_buckets(workload: Workload, seconds: float) -> list[BucketCost]:
    """The messages by which a forward pass of sharded parameters gets these, and what is computed
    before the first: each has the layers that are computed from there on to the next."""
    given = workload.gradients
    groups = gather_buckets(
        [round(each.nbytes) for each in given], [each.dtype for each in given], BUCKET_BYTES
    )
    begun = [0.0]
    for layer in workload.layers:
        begun.append(begun[-1] + seconds * layer.weight)
    starts, now = [], 0.0
    for bucket in groups:
        now = max(now, min(begun[given[index].layer] for index in bucket))
        starts.append(now)
    found = [BucketCost(starts[0], 0.0)] if starts and starts[0] else []
    for bucket, (start, end) in zip(groups, pairwise([*starts, begun[-1]]), strict=True):
        gradients = tuple(given[index] for index in bucket)
        found.append(BucketCost(end - start, sum(each.nbytes for each in gradients), gradients))
    return found or [BucketCost(begun[-1], 0.0)]


def overlapped_sends(work: Sequence[BucketCost], cost: CostOf) -> float:
    """When everything is computed and exchanged, if messages leave while the next is computed.

    >>> from caldera.parallel.planner.collective_cost import Cost
    >>> work = [BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)]
    >>> [overlapped_sends(work, lambda bucket: Cost(each)) for each in (0.5, 3.0)]
    [2.5, 7.0]
    """
    now = free = 0.0
    for bucket in work:
        now += bucket.seconds
        if bucket.nbytes:
            free = max(free, now) + cost(bucket).seconds
    return max(now, free)


def waited_for(work: Sequence[BucketCost], cost: CostOf) -> float:
    """When everything is computed, if each bucket needs a message, and all of them leave at once.

    >>> from caldera.parallel.planner.collective_cost import Cost
    >>> waited_for([BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)], lambda bucket: Cost(0.5))
    2.5
    """
    now = free = 0.0
    for bucket in work:
        if bucket.nbytes:
            free += cost(bucket).seconds
            now = max(now, free)
        now += bucket.seconds
    return now


def prefetched_and_sent(work: Sequence[BucketCost], fetch: CostOf, send: CostOf) -> float:
    """When all is done, if each bucket needs a message and sends one.

    One message is fetched ahead: while a bucket computes, that of the next is on its way.

    >>> from caldera.parallel.planner.collective_cost import Cost
    >>> work = [BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)]
    >>> prefetched_and_sent(work, lambda bucket: Cost(0.5), lambda bucket: Cost(0.25))
    2.75
    """
    now = 0.0
    free = there = fetch(work[0]).seconds if work and work[0].nbytes else 0.0
    for index, bucket in enumerate(work):
        now = max(now, there)
        if index + 1 < len(work) and work[index + 1].nbytes:
            free = there = max(free, now) + fetch(work[index + 1]).seconds
        now += bucket.seconds
        if bucket.nbytes:
            free = max(free, now) + send(bucket).seconds
    return max(now, free)


def without_overlap(work: Sequence[BucketCost], *costs: CostOf) -> float:
    """When all is done, if nothing is exchanged while anything is computed.

    >>> from caldera.parallel.planner.collective_cost import Cost
    >>> without_overlap([BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)], lambda bucket: Cost(0.5))
    3.0
    """
    return sum(bucket.seconds for bucket in work) + sum(total(work, cost).seconds for cost in costs)


def total(work: Iterable[BucketCost], cost: CostOf) -> Cost:
    """What all messages cost together."""
    return sum((cost(bucket) for bucket in work if bucket.nbytes), Cost())
