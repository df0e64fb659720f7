"""Rules for propagating partitioned values through ops: a file for each family of ops."""

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
"""Rules for ops of a kind that have no separate rule."""

__all__ = [
    "KINDS",
    "RULES",
    "algorithms",
    "convolution",
    "loops",
    "movement",
    "products",
]
