"""Which kernel serves a node, and why; and the one that has won where they were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from caldera.core.graph.node import Node
from caldera.errors import DeviceError
from caldera.kernels.choice_table import ratios
from caldera.kernels.table import Kernel
from caldera.kernels.thread_counts import seconds_in_plan

Source = Literal["only", "fixed", "remembered", "measured", "predicted", "guess"]
ORACLE = "reference"
"""The kernel that others are checked against. It serves only where there is no other."""
HYSTERESIS = 0.03
"""How much faster a kernel must be to displace one of higher priority."""


@dataclass(frozen=True)
class Verdict:
    """Which kernel serves a node, and why.

    `times` has the seconds a call that each kernel took when it was measured, None if it was not.

    >>> from caldera.kernels.verdict import Verdict
    >>> from caldera.kernels.table import Kernel
    >>> fast = Kernel("matmul", "cpu", "blas", bind=lambda call: lambda: None)
    >>> Verdict(fast, {"blas": 1e-3, "loop": 2e-3}, "measured").beaten
    {'loop': 2.0}
    """

    kernel: Kernel
    times: dict[str, float] | None
    source: Source

    @property
    def beaten(self) -> dict[str, float]:
        """The other kernels that were measured: how many times as long each took."""
        return ratios(self.kernel.name, self.times or {})


def winner(within: Sequence[Kernel], times: dict[str, float], node: Node) -> Kernel:
    """The fastest kernel, with an advantage for those of higher priority."""
    best: Kernel | None = None
    least = math.inf
    for kernel in within:
        cost = seconds_in_plan(kernel, times.get(kernel.name, math.inf))
        if cost < least * (1 - HYSTERESIS):
            best, least = kernel, cost
    if best is None:
        # All of them failed, so the oracle has to do it.
        best = next((kernel for kernel in within if kernel.name == ORACLE), None)
    if best is None:
        raise DeviceError.build(
            f"op.{node.op.name}",
            expected="a kernel that computes what the oracle does",
            got=f"none of {', '.join(kernel.name for kernel in within)}",
        )
    return best
