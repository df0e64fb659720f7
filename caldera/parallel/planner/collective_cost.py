"""What collectives cost: seconds, and the bytes that the busiest rank sends.

A message costs the latency and its bytes over the bandwidth; those of one rank go out one after the
other, while it receives as many. The bytes are those that communicators count (see
`comm.algorithms`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from caldera.comm.algorithms import ALLREDUCE
from caldera.comm.algorithms.allreduce import WITHIN_A_MACHINE
from caldera.comm.algorithms.doubling import core_ranks
from caldera.comm.algorithms.torus import sides
from caldera.errors import ConfigError
from caldera.parallel.planner.cluster import Cluster, Wire

ALGORITHMS = tuple(name for name in ALLREDUCE if name not in WITHIN_A_MACHINE)
"""Those that work between machines. What is quicker within one shows in what was measured there."""
_QUICK = ("ring", "doubling", "halving", "torus", "hierarchical")
"""What may be the quickest; the last needs several ranks on a machine."""


@dataclass(frozen=True)
class Cost:
    """Seconds, and the bytes that the busiest rank sends meanwhile."""

    seconds: float = 0.0
    sent: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.sent + other.sent)

    def times(self, factor: float) -> Cost:
        """The same so many times."""
        return Cost(self.seconds * factor, self.sent * factor)


def reduce_scatter(nbytes: float, ranks: int, wire: Wire) -> Cost:
    """Around a ring; each rank keeps its part of the sum.

    >>> reduce_scatter(1e6, 4, Wire(0.0, 1e6)).seconds
    0.75
    """
    sent = (ranks - 1) / ranks * nbytes
    return Cost(wire.summed(sent, ranks - 1), sent)


def allgather(nbytes: float, ranks: int, wire: Wire) -> Cost:
    """Around a ring; `nbytes` is what each rank has in the end.

    >>> allgather(1e6, 4, Wire(0.0, 1e6)).seconds
    0.75
    """
    sent = (ranks - 1) / ranks * nbytes
    return Cost(wire.seconds(sent, ranks - 1), sent)


@lru_cache(maxsize=1 << 16)
def allreduce(name: str, nbytes: float, ranks: int, cluster: Cluster, stride: int = 1) -> Cost:
    """The sum over ranks that are `stride` apart, by the algorithm of that name.

    "auto" is the quickest.

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
        return Cost()
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
        return Cost(met.summed(sent, ranks - 1) + met.seconds(sent, ranks - 1), sent)
    scatter = reduce_scatter(nbytes, ranks, met if name == "direct" else near)
    return scatter + allgather(nbytes, ranks, near)


def _torus(nbytes: float, ranks: int, near: Wire, far: Wire) -> Cost:
    rows, columns = sides(ranks)
    part = nbytes / columns
    row = reduce_scatter(nbytes, columns, near) + allgather(nbytes, columns, near)
    # The rings along columns all cross from machine to machine at once.
    return row + reduce_scatter(part, rows, far) + allgather(part, rows, far)


def _doubling(nbytes: float, ranks: int, wire: Wire) -> Cost:
    core, extra = core_ranks(ranks)
    steps = core.bit_length() - 1
    folded = _folded(nbytes, extra, wire)
    return Cost(steps * wire.summed(nbytes), steps * nbytes) + folded


def _halving(nbytes: float, ranks: int, wire: Wire) -> Cost:
    core, extra = core_ranks(ranks)
    steps, part = core.bit_length() - 1, (core - 1) / core * nbytes
    both = wire.summed(part, steps) + wire.seconds(part, steps)
    return Cost(both, 2 * part) + _folded(nbytes, extra, wire)


def _folded(nbytes: float, extra: int, wire: Wire) -> Cost:
    """What ranks beyond a power of two add: they hand everything over before, and get it after."""
    return Cost(wire.summed(nbytes) + wire.seconds(nbytes), nbytes) if extra else Cost()


def _hierarchical(nbytes: float, ranks: int, cluster: Cluster, stride: int) -> Cost:
    """To the first rank of a machine, around the machines, and back."""
    together = min(ranks, max(1, cluster.per_node // stride))
    inside = cluster.between(together, stride)
    others = (together - 1) * nbytes
    gathered = Cost(
        inside.summed(others, together - 1) + inside.seconds(others, together - 1), others
    )
    machines = -(-ranks // together)
    wire = cluster.between(ranks, stride)
    ring = reduce_scatter(nbytes, machines, wire) + allgather(nbytes, machines, wire)
    return gathered + ring
