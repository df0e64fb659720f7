"""Cost model of collectives, and of their overlap with computation.

A message costs the latency and its bytes over the bandwidth. The messages of one rank leave
sequentially, while it receives the same number. Communicators count the same bytes (see
`comm.algorithms`). A rank computes layer by layer, and one thread carries its messages
sequentially.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from caldera.comm.algorithms import ALLREDUCE
from caldera.comm.algorithms.allreduce import WITHIN_A_MACHINE, core_ranks
from caldera.comm.algorithms.rings import sides
from caldera.errors import ConfigError
from caldera.parallel.data.data_parallel import BUCKET_BYTES, gather_buckets
from caldera.parallel.data.sums import bucket_indices
from caldera.parallel.planner.cluster import Cluster, Wire
from caldera.parallel.planner.model_network import StageGradient
from caldera.parallel.planner.workload import ModelWorkload

ALGORITHMS = tuple(name for name in ALLREDUCE if name not in WITHIN_A_MACHINE)
"""Algorithms between machines. Faster ones within a machine are part of its measured rates."""
_QUICK = ("ring", "doubling", "halving", "torus", "hierarchical")
"""Candidates for the fastest; the last needs several ranks on a machine."""


@dataclass(frozen=True)
class CollectiveCost:
    """Seconds of a collective, and the bytes sent by the busiest rank."""

    seconds: float = 0.0
    sent: float = 0.0

    def __add__(self, other: CollectiveCost) -> CollectiveCost:
        return CollectiveCost(self.seconds + other.seconds, self.sent + other.sent)

    def times(self, factor: float) -> CollectiveCost:
        """Return the cost multiplied by `factor`."""
        return CollectiveCost(self.seconds * factor, self.sent * factor)


def reduce_scatter(nbytes: float, ranks: int, wire: Wire) -> CollectiveCost:
    """Return the cost around a ring; each rank keeps its part of the sum.

    >>> reduce_scatter(1e6, 4, Wire(0.0, 1e6)).seconds
    0.75
    """
    sent = (ranks - 1) / ranks * nbytes
    return CollectiveCost(wire.summed(sent, ranks - 1), sent)


def allgather(nbytes: float, ranks: int, wire: Wire) -> CollectiveCost:
    """Return the cost around a ring; `nbytes` is the size of the result on each rank.

    >>> allgather(1e6, 4, Wire(0.0, 1e6)).seconds
    0.75
    """
    sent = (ranks - 1) / ranks * nbytes
    return CollectiveCost(wire.seconds(sent, ranks - 1), sent)


@lru_cache(maxsize=1 << 16)
def allreduce(
    name: str, nbytes: float, ranks: int, cluster: Cluster, stride: int = 1
) -> CollectiveCost:
    """Return the cost of a sum over ranks at distance `stride`, with the named algorithm.

    "auto" selects the fastest.

    >>> allreduce("ring", 1e6, 4, Cluster(4, Wire(0.0, 1e6))).seconds
    1.5
    """
    if name == "auto":
        names = _QUICK if cluster.per_node > stride else _QUICK[:-1]
        costs = [allreduce(each, nbytes, ranks, cluster, stride) for each in names]
        return min(costs, key=lambda cost: cost.seconds)
    if name not in ALGORITHMS:
        raise ConfigError.build(
            "allreduce", expected="one of " + ", ".join(["auto", *ALGORITHMS]), got=repr(name)
        )
    if ranks == 1 or not nbytes:
        return CollectiveCost()
    near = cluster.between(ranks, stride)
    far = cluster.between(ranks, stride, neighbours=False)
    # Around a ring a link carries one message at a time.
    met = far.met() if ranks > 2 else far
    if name == "hierarchical":
        return _hierarchical(nbytes, ranks, cluster, stride)
    if name == "torus":
        return _torus(nbytes, ranks, near, far)
    if name in ("doubling", "halving"):
        return _doubling(nbytes, ranks, met) if name == "doubling" else _halving(nbytes, ranks, met)
    if name == "master":
        sent = (ranks - 1) * nbytes
        return CollectiveCost(met.summed(sent, ranks - 1) + met.seconds(sent, ranks - 1), sent)
    scatter = reduce_scatter(nbytes, ranks, met if name == "direct" else near)
    return scatter + allgather(nbytes, ranks, near)


def _torus(nbytes: float, ranks: int, near: Wire, far: Wire) -> CollectiveCost:
    rows, columns = sides(ranks)
    part = nbytes / columns
    row = reduce_scatter(nbytes, columns, near) + allgather(nbytes, columns, near)
    # All column rings cross between machines simultaneously.
    return row + reduce_scatter(part, rows, far) + allgather(part, rows, far)


def _doubling(nbytes: float, ranks: int, wire: Wire) -> CollectiveCost:
    core, extra = core_ranks(ranks)
    steps = core.bit_length() - 1
    folded = _folded(nbytes, extra, wire)
    return CollectiveCost(steps * wire.summed(nbytes), steps * nbytes) + folded


def _halving(nbytes: float, ranks: int, wire: Wire) -> CollectiveCost:
    core, extra = core_ranks(ranks)
    steps, part = core.bit_length() - 1, (core - 1) / core * nbytes
    both = wire.summed(part, steps) + wire.seconds(part, steps)
    return CollectiveCost(both, 2 * part) + _folded(nbytes, extra, wire)


def _folded(nbytes: float, extra: int, wire: Wire) -> CollectiveCost:
    """Return the additional cost of ranks beyond a power of two: one transfer before and one
    after.
    """
    return (
        CollectiveCost(wire.summed(nbytes) + wire.seconds(nbytes), nbytes)
        if extra
        else CollectiveCost()
    )


def _hierarchical(nbytes: float, ranks: int, cluster: Cluster, stride: int) -> CollectiveCost:
    """Return the cost of a sum on each machine, a ring over machines, and a broadcast."""
    together = min(ranks, max(1, cluster.per_node // stride))
    inside = cluster.between(together, stride)
    others = (together - 1) * nbytes
    gathered = CollectiveCost(
        inside.summed(others, together - 1) + inside.seconds(others, together - 1), others
    )
    machines = -(-ranks // together)
    wire = cluster.between(ranks, stride)
    ring = reduce_scatter(nbytes, machines, wire) + allgather(nbytes, machines, wire)
    return gathered + ring


@dataclass(frozen=True)
class BucketCost:
    """Gradients of one message: computing time, size in bytes and indices.

    The computing time is measured from the previous message, or to the next one.
    """

    seconds: float
    nbytes: float
    gradients: tuple[StageGradient, ...] = ()


CostOf = Callable[[BucketCost], CollectiveCost]


def gradient_buckets(
    workload: ModelWorkload,
    seconds: float,
    order: Sequence[int] | None = None,
    sizes: Sequence[float] | None = None,
    layers: range | None = None,
    *,
    bucket_bytes: int = BUCKET_BYTES,
) -> list[BucketCost]:
    """Return the messages of a backward pass as strategies fill them, and the computation after the
    last.

    `seconds` is the time of all layers of the model. `order` has the indices of the exchanged
    gradients, by default all; `sizes` the bytes of each, where ranks have parts; `layers` the
    layers that a rank computes.
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


def parameter_buckets(workload: ModelWorkload, seconds: float) -> list[BucketCost]:
    """Return the messages that gather sharded parameters in a forward pass.

    Each message contains the layers computed until the next one; the computation before the first
    is returned as well.
    """
    given = workload.gradients
    groups = gather_buckets(
        [round(each.nbytes) for each in given], [each.dtype for each in given], BUCKET_BYTES
    )
    begun = list(accumulate((seconds * each.weight for each in workload.layers), initial=0.0))
    firsts = (min(begun[given[index].layer] for index in bucket) for bucket in groups)
    starts = list(accumulate(firsts, max))
    found = [BucketCost(starts[0], 0.0)] if starts and starts[0] else []
    for bucket, (start, end) in zip(groups, pairwise([*starts, begun[-1]]), strict=True):
        gradients = tuple(given[index] for index in bucket)
        found.append(BucketCost(end - start, sum(each.nbytes for each in gradients), gradients))
    return found or [BucketCost(begun[-1], 0.0)]


def overlapped_sends(work: Sequence[BucketCost], cost: CostOf) -> float:
    """Return the time of computing and exchanging all buckets, if both overlap.

    >>> from caldera.parallel.planner.communication_cost import CollectiveCost
    >>> work = [BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)]
    >>> [overlapped_sends(work, lambda bucket: CollectiveCost(each)) for each in (0.5, 3.0)]
    [2.5, 7.0]
    """
    now = free = 0.0
    for bucket in work:
        now += bucket.seconds
        if bucket.nbytes:
            free = max(free, now) + cost(bucket).seconds
    return max(now, free)


def waited_for(work: Sequence[BucketCost], cost: CostOf) -> float:
    """Return the finishing time if each bucket needs a message and all messages start immediately.

    >>> from caldera.parallel.planner.communication_cost import CollectiveCost
    >>> waited_for([BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)], lambda bucket: CollectiveCost(0.5))
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
    """Return the finishing time if each bucket receives a message and sends one.

    One message is prefetched: the next bucket's message is in flight while a bucket computes.

    >>> from caldera.parallel.planner.communication_cost import CollectiveCost
    >>> work = [BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)]
    >>> half, quarter = CollectiveCost(0.5), CollectiveCost(0.25)
    >>> prefetched_and_sent(work, lambda bucket: half, lambda bucket: quarter)
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
    """Return the finishing time if no message overlaps with computation.

    >>> from caldera.parallel.planner.communication_cost import CollectiveCost
    >>> half = CollectiveCost(0.5)
    >>> without_overlap([BucketCost(1.0, 8.0), BucketCost(1.0, 8.0)], lambda bucket: half)
    3.0
    """
    return sum(bucket.seconds for bucket in work) + sum(total(work, cost).seconds for cost in costs)


def total(work: Iterable[BucketCost], cost: CostOf) -> CollectiveCost:
    """Return the total cost of all messages."""
    return sum((cost(bucket) for bucket in work if bucket.nbytes), CollectiveCost())
