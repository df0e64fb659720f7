"""What an algorithm costs a rank: bytes and messages it sends, and what it computes."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.sharding.volume import Links


@dataclass(frozen=True)
class Cost:
    """Of the rank that has most to do: bytes and messages that it sends, operations, the bytes it
    needs beside what it is given and what it makes, and seconds for what is none of these.

    >>> Cost(bytes=8, messages=1) + Cost(bytes=4, flops=10)
    Cost(bytes=12, messages=1, flops=10, workspace=0, overhead=0.0)
    """

    bytes: int = 0
    messages: int = 0
    flops: int = 0
    workspace: int = 0
    overhead: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes + other.bytes,
            self.messages + other.messages,
            self.flops + other.flops,
            max(self.workspace, other.workspace),
            self.overhead + other.overhead,
        )

    def seconds(self, links: Links) -> float:
        """How long that takes where nothing overlaps."""
        sending = self.bytes / links.collective + self.messages * links.latency
        return sending + self.flops / links.flops + self.overhead
