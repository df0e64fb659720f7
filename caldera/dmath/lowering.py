"""From a program of whole values to what one rank runs of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.graph.node import Node, Symbol
from caldera.sharding.layout import Layout, replicated


@dataclass(frozen=True)
class Lowered:
    """What one rank runs: its outputs, its leaf for each leaf of the program, and the layouts that
    the outputs have."""

    outputs: tuple[Node, ...]
    leaves: tuple[Symbol, ...]
    layouts: tuple[Layout, ...]


def lower(
    outputs: Sequence[Node],
    leaves: Sequence[Symbol],
    layouts: Sequence[Layout],
    wanted: Sequence[Layout | None],
    rank: int,
    ranks: int,
) -> Lowered:
    found = tuple(replicated(node.shape, range(ranks)) for node in outputs)
    return Lowered(tuple(outputs), tuple(leaves), found)
