"""How long a sparse allreduce takes by each algorithm: what chooses between them.

A message costs the latency and its bytes over the bandwidth. Places are taken to be spread by
chance, so that the sum of m vectors of density d has density 1 - (1 - d)**m.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import log2

import numpy as np

from caldera.comm import Communicator
from caldera.compress.places import HEADER, packed_bits
from caldera.errors import ConfigError

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
                "Link", expected="latency of 0 or more seconds, bandwidth above 0 bytes a second",
                got=f"{self.latency} and {self.bandwidth}",
            )  # fmt: skip

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
    """The time of each algorithm for `count` of `length` elements a rank, `bits` a value.

    >>> from caldera import compress
    >>> slow = compress.Link(latency=1e-4, bandwidth=12.5e6)
    >>> times = compress.predicted_seconds(1_000_000, 31_250, ranks=8, bits=4, link=slow)
    >>> min(times, key=times.get)
    'split_allgather'
    """
    link = link or Link()
    if ranks == 1 or not length:
        return dict.fromkeys(("recursive_doubling", "split_allgather", "dense_switching"), 0.0)
    density = min(count / length, 1.0)

    def size(vectors: int, part: float) -> float:
        """Bytes of the sum of so many vectors, of a part of all elements."""
        dense = 1 - (1 - density) ** vectors
        return HEADER + length * part * dense * (packed_bits(dense) + bits) / 8

    others = ranks - 1
    # Lengths travel before what they are the length of, as short messages do in log2(ranks) rounds.
    # Everybody to everybody is at once; a gathering goes around the ring.
    stages = int(log2(ranks))
    folded = ranks - (1 << stages)
    doubling = sum(link.seconds(2, size(1 << stage, 1.0)) for stage in range(stages))
    if folded:
        doubling += link.seconds(2, size(1, 1.0)) + link.seconds(4, 2 * size(1 << stages >> 1, 1.0))
    scatter = link.seconds(stages + 1, others * size(1, 1 / ranks))
    sparse = link.seconds(stages + others, others * size(ranks, 1 / ranks))
    whole = link.seconds(others, others * length / ranks * bits / 8)
    return {
        "recursive_doubling": doubling,
        "split_allgather": scatter + sparse,
        "dense_switching": scatter + whole,
    }
