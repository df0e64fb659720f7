"""What an algorithm costs a rank: bytes and messages it sends, and what it computes."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.graph.node import Node
from caldera.sharding.volume import Links

SLOWER = {"fft": 15, "rfft": 15, "irfft": 15, "sort": 250}
"""Operations of products that take as long as one of these ops."""


def operations(node: Node) -> int:
    """What a node computes, in operations of products.

    >>> from caldera.graph.opdef import OPS, parameter
    >>> import numpy as np
    >>> from caldera.graph.node import Spec
    >>> x = parameter(0, Spec((4, 4), np.dtype(float)))
    >>> operations(OPS["matmul"].node(x, x, ta=False, tb=False))
    128
    """
    return node.op.count_flops(node) * SLOWER.get(node.op.name, 1)


@dataclass(frozen=True)
class Cost:
    """Of the rank that has most to do: bytes and messages that it sends, operations, the bytes it
    needs beside what it is given and what it makes, seconds for what is none of these, and panels
    of a factorisation, each with messages and calls that are as many as those of QR.

    >>> Cost(bytes=8, messages=1) + Cost(bytes=4, flops=10)
    Cost(bytes=12, messages=1, flops=10, workspace=0, overhead=0.0, panels=0.0)
    """

    bytes: int = 0
    messages: int = 0
    flops: int = 0
    workspace: int = 0
    overhead: float = 0.0
    panels: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes + other.bytes,
            self.messages + other.messages,
            self.flops + other.flops,
            max(self.workspace, other.workspace),
            self.overhead + other.overhead,
            self.panels + other.panels,
        )

    def seconds(self, links: Links) -> float:
        """How long that takes where nothing overlaps."""
        sending = self.bytes / links.collective + self.messages * links.latency
        return sending + self.flops / links.flops + self.overhead + self.panels * links.panel
