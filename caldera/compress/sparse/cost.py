"""How long a sparse allreduce takes by each algorithm: what chooses between them.

A message costs the latency and its bytes over the bandwidth, and a core works on it. Places are
taken to be spread by chance, so that the sum of m vectors of density d has density 1 - (1 - d)**m.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from math import log2

import numpy as np

from caldera.base.arguments import within
from caldera.comm import Communicator
from caldera.compress.messages import AT_ONCE, HEADER, packed_bits
from caldera.errors import ConfigError

NAMES = ("recursive_doubling", "split_allgather", "dense_switching")
_ENCODED, _DECODED, _MERGED = 15e-9, 7e-9, 3e-9
_ENCODED_DENSE, _DECODED_DENSE = 7e-9, 1e-9
_POSTED = 2e-5
"""Seconds that a core works on a value, with its place or without, and on any message. Measured on
a Neoverse N1; what counts is how they compare."""
_PROBES = 5
_PROBE_BYTES = 1 << 18


@dataclass(frozen=True)
class Link:
    """The wire between ranks: seconds a message takes however short it is, and bytes a second.

    >>> from caldera import compress
    >>> compress.Link(latency=1e-4, bandwidth=12.5e6).seconds(messages=1, size=125)
    0.00011
    """

    latency: float = 5e-5
    bandwidth: float = 125e6

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0):
            raise ConfigError.build(
                "Link",
                expected="latency of 0 or more seconds, bandwidth above 0 bytes a second",
                got=f"{self.latency} and {self.bandwidth}",
            )

    def seconds(self, messages: float, size: float) -> float:
        """The time of some messages that have so many bytes together."""
        return messages * self.latency + size / self.bandwidth

    @classmethod
    def measured(cls, communicator: Communicator) -> Link:
        """What messages around the ring of all ranks take; the same on every rank.

        >>> from caldera import comm, compress
        >>> comm.run_virtual_ranks(2, compress.Link.measured)[0].bandwidth > 0
        True
        """
        if communicator.size == 1:
            return cls()
        short, long = (_round(communicator, size) for size in (1, _PROBE_BYTES))
        times = np.array([short, max(long - short, 1e-9)])
        communicator.Allreduce(times.copy(), times, op="max")
        return cls(float(times[0]), _PROBE_BYTES / float(times[1]))


def _round(communicator: Communicator, size: int) -> float:
    """Seconds to send so many bytes to the next rank while as many come from the one before."""
    send, receive = np.zeros(size, np.uint8), np.empty(size, np.uint8)
    after = (communicator.rank + 1) % communicator.size
    before = (communicator.rank - 1) % communicator.size
    times = []
    for _ in range(_PROBES):
        communicator.Barrier()
        start = time.perf_counter()
        communicator.Sendrecv(send, after, receive, before)
        times.append(time.perf_counter() - start)
    return min(times)


def predicted_seconds(
    length: int, count: int, ranks: int, bits: float, link: Link | None = None
) -> dict[str, float]:
    """The time on the wire of each algorithm, for `count` of `length` elements a rank and `bits` a
    value.

    >>> from caldera import compress
    >>> slow = compress.Link(latency=1e-4, bandwidth=12.5e6)
    >>> times = compress.predicted_seconds(1_000_000, 31_250, ranks=8, bits=4, link=slow)
    >>> min(times, key=times.get)
    'split_allgather'
    """
    link = link or Link()
    within("predicted_seconds", "ranks", ranks, 1, 2**31)
    if ranks == 1 or not length:
        return dict.fromkeys(NAMES, 0.0)
    density = min(count / length, 1.0)

    def size(vectors: int, part: float) -> float:
        """Bytes of the sum of so many vectors, of a part of all elements."""
        dense = 1 - (1 - density) ** vectors
        return HEADER + length * part * dense * (packed_bits(dense) + bits) / 8

    others = ranks - 1
    stages = int(log2(ranks))
    doubling = sum(link.seconds(1, size(1 << stage, 1.0)) for stage in range(stages))
    if ranks > 1 << stages:
        doubling += link.seconds(1, size(1, 1.0)) + link.seconds(2, 2 * size(1 << stages >> 1, 1.0))

    def gather(longest: float, each: float) -> float:
        """Everybody to everybody at once; or lengths first, in log2(ranks) rounds, then a ring."""
        rounds = 1 if longest <= AT_ONCE else stages + others
        return link.seconds(rounds, others * each)

    scatter = link.seconds(1, others * size(1, 1 / ranks))
    sparse = gather(length * (1 + bits) / 8, size(ranks, 1 / ranks))
    dense = gather(length * bits / 8, length / ranks * bits / 8)
    return dict(zip(NAMES, (doubling, scatter + sparse, scatter + dense), strict=True))


def predicted_work(length: int, count: int, ranks: int) -> dict[str, float]:
    """The time that a core works for each algorithm, what all of them have in common left out."""
    if ranks == 1 or not length:
        return dict.fromkeys(NAMES, 0.0)
    density = min(count / length, 1.0)

    def values(vectors: int) -> float:
        """In the sum of so many vectors."""
        return length * (1 - (1 - density) ** vectors)

    stages = int(log2(ranks))
    doubling = sum(
        _POSTED + values(1 << stage) * (_ENCODED + 2 * (_DECODED + _MERGED))
        for stage in range(stages)
    )
    scatter = (ranks - 1) * _POSTED + values(1) * (_ENCODED + _DECODED)
    sparse = (ranks - 1) * _POSTED + values(ranks) * (_ENCODED / ranks + _DECODED)
    dense = (ranks - 1) * _POSTED + length * (_ENCODED_DENSE / ranks + _DECODED_DENSE)
    return dict(zip(NAMES, (doubling, scatter + sparse, scatter + dense), strict=True))


@lru_cache(maxsize=4096)
def fastest(length: int, count: int, ranks: int, bits: float, link: Link | None = None) -> str:
    """The algorithm that takes least time, on the wire and of a core.

    >>> from caldera.compress.sparse.cost import Link, fastest
    >>> fastest(1_000_000, 31_250, ranks=8, bits=4, link=Link(latency=1e-5, bandwidth=1e9))
    'split_allgather'
    """
    wire = predicted_seconds(length, count, ranks, bits, link)
    work = predicted_work(length, count, ranks)
    return min(NAMES, key=lambda name: wire[name] + work[name])
