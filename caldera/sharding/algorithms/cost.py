"""What an algorithm costs a rank: bytes and messages it sends, and what it computes."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.sharding.volume import Links


@dataclass(frozen=True)
class Cost:
    """Of the rank that has most to do: bytes and messages that it sends, operations, and the bytes
    it needs beside what it is given and what it makes.

    >>> Cost(bytes=8, messages=1) + Cost(bytes=4, flops=10)
    Cost(bytes=12, messages=1, flops=10, workspace=0)
    """

    bytes: int = 0
    messages: int = 0
    flops: int = 0
    workspace: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes + other.bytes,
            self.messages + other.messages,
            self.flops + other.flops,
            max(self.workspace, other.workspace),
        )

    def seconds(self, links: Links) -> float:
        """How long that takes where nothing overlaps."""
        return (
            self.bytes / links.collective + self.messages * links.latency + self.flops / links.flops
        )
