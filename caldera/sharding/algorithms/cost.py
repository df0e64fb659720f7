"""What an algorithm costs a rank: bytes and messages it sends, and what it computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """What a message and an operation cost here; `comm`'s table and a benchmark know better."""

    seconds_per_message: float = 5e-6
    bytes_per_second: float = 4e9
    flops_per_second: float = 3e10


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

    def seconds(self, machine: Machine) -> float:
        """How long that takes where nothing overlaps."""
        return (
            self.bytes / machine.bytes_per_second
            + self.messages * machine.seconds_per_message
            + self.flops / machine.flops_per_second
        )
