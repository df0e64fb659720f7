"""From a program of whole values to what one rank runs of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.propagation import distribute
from caldera.compiler.sharding.volume import Links
from caldera.core.graph.node import Node, Symbol


@dataclass(frozen=True)
class Lowered:
    """What one rank runs: its outputs, its leaf for each leaf of the program, and the layouts that
    the outputs have. `roots` are compiled: with the outputs what keeps ranks to one order."""

    outputs: tuple[Node, ...]
    leaves: tuple[Symbol, ...]
    layouts: tuple[ShardLayout, ...]
    roots: tuple[Node, ...]


def lower(
    outputs: Sequence[Node],
    leaves: Mapping[Symbol, ShardLayout],
    wanted: Sequence[ShardLayout | None],
    rank: int,
    ranks: int,
    links: Links,
    messages_on: str | None = None,
) -> Lowered:
    """What a rank runs of a program; layouts and links are the same on every rank. Messages go from
    the device `messages_on`, where the rest runs on another."""
    found = distribute(
        outputs, leaves, wanted, ranks=ranks, rank=rank, links=links, messages_on=messages_on
    )
    own = tuple(found.leaves[leaf] for leaf in leaves)
    return Lowered(found.outputs, own, found.layouts, found.roots)
