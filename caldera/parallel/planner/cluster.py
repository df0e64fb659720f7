"""The ranks, and what is between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from caldera.errors import ConfigError


@dataclass(frozen=True)
class Wire:
    """What connects ranks: seconds that a message takes however short it is, bytes a second, and
    the bytes a second that a rank can add up as they come.

    `behind` is the latency of messages behind a rank that computes: their thread sleeps while it
    waits, and so sees later what has come. `meeting` is the bytes a second of a link on which
    messages of several ranks meet, where that is less than its bandwidth.

    >>> Wire(latency=1e-4, bandwidth=12.5e6).seconds(125)
    0.00011
    """

    latency: float
    bandwidth: float
    adding: float = math.inf
    behind: float = 0.0
    meeting: float = math.inf

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0 and self.adding > 0):
            raise ConfigError.build(
                "Wire",
                expected="latency of 0 or more seconds, speeds above 0 bytes a second",
                got=f"{self.latency}, {self.bandwidth} and {self.adding}",
            )

    def seconds(self, nbytes: float, messages: float = 1) -> float:
        """The time of messages that have so many bytes together."""
        return messages * self.latency + nbytes / self.bandwidth

    def summed(self, nbytes: float, messages: float = 1) -> float:
        """The time of messages whose numbers are added to others as they come."""
        return messages * self.latency + nbytes / min(self.bandwidth, self.adding)

    def met(self) -> Wire:
        """The same where messages of several ranks meet."""
        return replace(self, bandwidth=min(self.bandwidth, self.meeting))

    def shared(self, ways: float) -> Wire:
        """What is left to each when several use it at once."""
        if ways <= 1:
            return self
        return replace(self, bandwidth=self.bandwidth / ways, meeting=self.meeting / ways)

    def crowded(self, slowdown: float, turn: float) -> Wire:
        """The same between ranks whose cores have so many times as much to do, and of which each
        waits so long until another that shares its core lets it have it."""
        latency = self.latency + turn * (slowdown - 1)
        return replace(self, latency=latency, adding=self.adding / slowdown)

    def in_background(self) -> Wire:
        """The same for messages that nobody waits for at once."""
        return replace(self, latency=max(self.latency, self.behind))


@dataclass(frozen=True)
class Cluster:
    """So many ranks, `per_node` of them on each machine.

    - `wire`: between machines, shared by all ranks of a machine; `inside`: within one.
    - `at_full_speed`: how many ranks of a machine compute as fast as one that has it to itself;
      more of them share its cores. Messages within a machine are carried by these cores as well.
    - `turn`: seconds that a message waits until its rank is given a core, for each other rank that
      has to do with the same one.
    - `memory`: the bytes that a rank may use; None for any number.

    >>> Cluster(16, Wire(1e-6, 1e9), per_node=4).nodes
    4
    """

    ranks: int
    wire: Wire
    inside: Wire | None = None
    per_node: int = 1
    at_full_speed: float = math.inf
    memory: float | None = None
    turn: float = 0.0

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.per_node < 1 or not self.at_full_speed > 0:
            raise ConfigError.build(
                "Cluster",
                expected="at least one rank, and one rank a machine",
                got=f"{self.ranks}, {self.per_node} and {self.at_full_speed}",
            )

    @property
    def nodes(self) -> int:
        """How many machines there are."""
        return math.ceil(self.ranks / self.per_node)

    @property
    def slowdown(self) -> float:
        """How many times as long a rank computes as one that has a machine to itself.

        >>> Cluster(8, Wire(1e-6, 1e9), per_node=8, at_full_speed=2).slowdown
        4.0
        """
        return max(1.0, min(self.ranks, self.per_node) / self.at_full_speed)

    @property
    def is_full(self) -> bool:
        """Whether no core of a machine is left for anything but computing."""
        return min(self.ranks, self.per_node) >= self.at_full_speed

    def hides(self, ranks: int, stride: int = 1) -> bool:
        """Whether messages between these ranks move while the ranks compute: a network does that
        by itself, within a machine it takes a core."""
        return ranks * stride > self.per_node or not self.is_full

    def in_background(self) -> Cluster:
        """The same for messages behind the computing."""
        return _in_background(self)

    def of_size(self, ranks: int) -> Cluster:
        """The same with another number of ranks."""
        return replace(self, ranks=ranks)

    def between(self, ranks: int, stride: int = 1, *, neighbours: bool = True) -> Wire:
        """What ranks use that are `stride` apart, while those between them do the same.

        Of a machine's ranks only one sends to another machine where `neighbours` talk; else all of
        them do.
        """
        return _between(self, ranks, stride, neighbours)


# Every way to train asks for the same few, and there are thousands of ways.


@lru_cache(maxsize=1 << 10)
def _in_background(cluster: Cluster) -> Cluster:
    inside = cluster.inside and cluster.inside.in_background()
    return replace(cluster, wire=cluster.wire.in_background(), inside=inside)


@lru_cache(maxsize=1 << 14)
def _between(cluster: Cluster, ranks: int, stride: int, neighbours: bool) -> Wire:
    if ranks * stride <= cluster.per_node:
        wire = (cluster.inside or cluster.wire).crowded(cluster.slowdown, cluster.turn)
        return wire.shared(cluster.slowdown)
    groups = min(stride, cluster.per_node)
    members = 1 if neighbours else max(1, cluster.per_node // stride)
    return cluster.wire.crowded(cluster.slowdown, cluster.turn).shared(groups * members)
