"""Redistribution by collectives with gradients: the nodes to write, and their cost.

Replicated values are sliced locally. Terms of a sum on all ranks are added up, for all ranks or for
each rank's own part. Parts along one axis are gathered. Any other move is sent from rank to rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import ceil, log2

from caldera.compiler.sharding.axis_split import AxisSplit
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, along_axis, replicated
from caldera.compiler.sharding.ops import redistribute
from caldera.compiler.sharding.rules.movement import part as part_of
from caldera.compiler.sharding.rules.movement import take
from caldera.compiler.sharding.rules.registry import ShardPlacement
from caldera.compiler.sharding.volume import Links, volume
from caldera.core.graph import Node, Spec, item
from caldera.core.graph.ops.collective import all_gather, all_sum, next_number, sum_scatter
from caldera.core.graph.ops.movement import concat, narrow
from caldera.core.tensor.shape import Shape


@dataclass(frozen=True)
class CollectiveMoves:
    """Redistribution by collectives for a rank along an axis of the mesh.

    With `direct`, parts along an axis are sent from rank to rank if they are needed along another
    axis, instead of being gathered on all ranks first.
    """

    rank: int
    ranks: int
    axis: str
    links: Links
    _: KW_ONLY
    direct: bool

    # --- facts

    def is_everywhere(self, layout: ShardLayout) -> bool:
        """Return True if the value is whole on every rank."""
        return (
            isinstance(layout, CartesianLayout)
            and not layout.split_axes
            and len(layout.ranks) == self.ranks
        )

    def is_sum(self, where: ShardPlacement) -> bool:
        """Return True if every rank has a term of the whole value."""
        return where.terms == self.ranks > 1 and self.is_everywhere(where.layout)

    def is_free(self, where: ShardPlacement) -> bool:
        """Return True if no layout requires communication."""
        return where.terms == 1 and self.is_everywhere(where.layout)

    def _is_along_one_axis(self, layout: ShardLayout) -> bool:
        return is_plain(layout, self.ranks) and not self.is_everywhere(layout)

    def _stretches(self, layout: ShardLayout) -> tuple[int, AxisSplit] | None:
        """Return the axis of which each rank has one stretch, in the order of ranks, and these."""
        if not self._is_along_one_axis(layout):
            return None
        axis, split = _only_split(layout)
        return (axis, split) if _is_straight(split) else None

    def seconds(self, where: ShardPlacement, layout: ShardLayout, spec: Spec) -> float:
        """Return the seconds to move a value from its current placement to a layout."""
        if self.is_free(where) or (where.layout == layout and where.terms == 1):
            return 0.0
        if not (self.is_sum(where) or self._is_along_one_axis(where.layout)):
            moved = volume(where.layout, layout, where.terms)
            return moved.seconds(spec.dtype.itemsize, self.links)
        once = spec.nbytes * (self.ranks - 1) / self.ranks / self.links.bandwidth
        start = ceil(log2(max(2, self.ranks))) * self.links.latency
        is_sum = where.terms > 1 and self._stretches(layout) is None
        return start + (2 * once if is_sum else once)

    # --- writing

    def written(self, part: Node, where: ShardPlacement, layout: ShardLayout) -> Node:
        """Return this rank's part of a value in a layout."""
        if self.is_free(where):
            return self.cut(part, layout)
        if self.is_sum(where):
            return self._summed(part, layout)
        to_all = self.is_everywhere(layout) or not self.direct
        if where.terms == 1 and self._is_along_one_axis(where.layout) and to_all:
            return self.cut(self._gathered(part, where.layout), layout)
        return self._redistributed(part, where, layout)

    def cut(self, whole: Node, layout: ShardLayout) -> Node:
        """Return this rank's part of a value that it has all of."""
        if self.is_everywhere(layout):
            return whole
        if isinstance(layout, CartesianLayout) and self.rank in layout.ranks:
            return part_of(whole, layout, self.rank)
        if isinstance(layout, CartesianLayout):
            # An empty slice, but of this value: gradients then follow the same path on all ranks.
            return take(whole, [[] for _ in whole.shape])
        everywhere = ShardPlacement(replicated(layout.shape, range(self.ranks)))
        return self._redistributed(whole, everywhere, layout)

    def _summed(self, term: Node, layout: ShardLayout) -> Node:
        target = self._stretches(layout)
        if target is None:
            return self.cut(all_sum(term, axis=self.axis, number=next_number()), layout)
        axis, split = target
        return sum_scatter(
            term, axis=self.axis, dim=axis, sizes=split.sizes, rank=self.rank, number=next_number()
        )

    def _gathered(self, part: Node, layout: ShardLayout) -> Node:
        """Gather the parts along an axis on all ranks; each part may have several blocks."""
        axis, split = _only_split(layout)
        node = all_gather(
            part, axis=self.axis, dim=axis, sizes=split.sizes, rank=self.rank, number=next_number()
        )
        if _is_straight(split):
            return node
        places = [sum(split.sizes[:owner]) for owner in range(split.parts)]
        pieces = []
        for owner, begin, end in zip(split.owners, split.cuts, split.cuts[1:], strict=False):
            pieces.append(narrow(node, axis, places[owner], end - begin))
            places[owner] += end - begin
        return concat(tuple(pieces), axis)

    def _redistributed(self, part: Node, where: ShardPlacement, layout: ShardLayout) -> Node:
        sent = redistribute.node(
            part,
            source=where.layout,
            target=layout,
            rank=self.rank,
            dtype=part.dtype,
            terms=where.terms,
            reduce=where.reduce,
            axis=self.axis,
            number=next_number(),
        )
        return item(sent, 0)


def is_plain(layout: ShardLayout, ranks: int) -> bool:
    """Return True if all ranks partition one axis, in their order, or each has the whole."""
    if not isinstance(layout, CartesianLayout) or len(layout.ranks) != ranks:
        return False
    in_order = layout.ranks == tuple(range(ranks)) and layout.replicas == 1
    return not layout.split_axes or (in_order and len(layout.split_axes) == 1)


def in_stretches(shape: Shape, axis: int, sizes: Sequence[int]) -> CartesianLayout:
    """Return the layout in which each rank has one interval of an axis, in the order of ranks."""
    cuts = [0]
    for length in sizes:
        cuts.append(cuts[-1] + length)
    split = AxisSplit(len(sizes), tuple(cuts), tuple(range(len(sizes))))
    return along_axis(shape, axis, split, range(len(sizes)))


def _only_split(layout: ShardLayout) -> tuple[int, AxisSplit]:
    assert isinstance(layout, CartesianLayout)
    (axis,) = layout.split_axes
    split = layout.splits[axis]
    assert split is not None
    return axis, split


def _is_straight(split: AxisSplit) -> bool:
    """Return True if the parts are contiguous and in order."""
    return list(split.owners) == sorted(split.owners)
