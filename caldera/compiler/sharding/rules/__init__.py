"""What becomes of values of which ranks have parts, op by op: a file for each family."""

from __future__ import annotations

from caldera.compiler.sharding.rules import (
    algorithms,
    convolution,
    loops,
    movement,
    products,
)
from caldera.compiler.sharding.rules.registry import RULES, Rule

KINDS: dict[str, Rule] = {"elementwise": loops.elementwise, "reduction": loops.reduction}
"""For all ops of a kind that have no rule of their own."""

__all__ = [
    "KINDS",
    "RULES",
    "algorithms",
    "convolution",
    "loops",
    "movement",
    "products",
]
