"""How long a sparse allreduce takes by each algorithm: what chooses between them.

A message costs the latency and its bytes over the bandwidth, and a core works on it. Places are
taken to be spread by chance, so that the sum of m vectors of density d has density 1 - (1 - d)**m.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2

from caldera.base.arguments import within
from caldera.comm.link import Link
from caldera.compress.messages import AT_ONCE, HEADER, packed_bits

NAMES = ("recursive_doubling", "split_allgather", "dense_switching")
_ENCODED, _DECODED, _MERGED = 15e-9, 7e-9, 3e-9
_ENCODED_DENSE, _DECODED_DENSE = 7e-9, 1e-9
_POSTED = 2e-5
"""Seconds that a core works on a value, with its place or without, and on any message. Measured on
a Neoverse N1; what counts is how they compare."""


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
    doubling = sum(link.seconds(size(1 << stage, 1.0)) for stage in range(stages))
    if ranks > 1 << stages:
        doubling += link.seconds(size(1, 1.0)) + link.seconds(2 * size(1 << stages >> 1, 1.0), 2)

    def gather(longest: float, each: float) -> float:
        """Everybody to everybody at once; or lengths first, in log2(ranks) rounds, then a ring."""
        rounds = 1 if longest <= AT_ONCE else stages + others
        return link.seconds(others * each, rounds)

    scatter = link.seconds(others * size(1, 1 / ranks))
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
