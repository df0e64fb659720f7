"""A graph in which ranks along the "model" axis compute parts.

Every value of the graph as it was written has a placement: each rank has all of it, or a part. From
inputs to outputs, each op says what becomes of those of its inputs (see `parallel.rules`); where it
says nothing, it is given whole values. What is split is gathered only where somebody needs all of
it, and the graph then shows that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from caldera.graph.body import topological
from caldera.graph.node import Node
from caldera.graph.opdef import ITEM, item
from caldera.graph.ops.collective import all_gather, all_sum, next_number
from caldera.parallel.layout import AXIS, Placement, Split
from caldera.parallel.tensor.sharding_rules import Placed, placed


class ShardingPropagation:
    """Rewrites a graph bit by bit, for one of the ranks along the axis.

    `parts` has the leaves of which a rank has parts: the node for its own, and how it is split.
    """

    def __init__(self, rank: int, ranks: int, parts: Mapping[Node, tuple[Node, Split]]) -> None:
        self.rank = rank
        self.ranks = ranks
        self._new: dict[Node, list[Placed]] = {leaf: [found] for leaf, found in parts.items()}
        self._whole: dict[Node, Node] = {}

    # --- what rules ask

    def placement(self, node: Node) -> Placement:
        """How a value of the graph is spread."""
        return self._new[node][0][1]

    def whole(self, node: Node) -> Node:
        """All of a value, on every rank."""
        if node not in self._whole:
            here, split = self._new[node][0]
            self._whole[node] = here if split is None else split.whole(here, self.rank)
        return self._whole[node]

    def part(self, node: Node, split: Split) -> Node:
        """This rank's part of a value, however it is spread."""
        here, placement = self._new[node][0]
        return here if placement == split else split.part(self.whole(node), self.rank)

    def added_up(self, term: Node) -> Node:
        """The sum over the ranks of what each has computed from its parts."""
        node: Node = all_sum(term, axis=AXIS, number=next_number())
        return node

    def choose(self, weight: Node, fed_by_parts: bool) -> None:
        """Called before a product with a weight, which may be split now; it says whether what it
        is multiplied with is split along the axis that the product sums over."""

    def split_now(self, leaf: Node, here: Node, split: Split) -> None:
        """From now on, ranks have parts of this leaf."""
        self._new[leaf] = [(here, split)]
        self._whole.pop(leaf, None)

    def settle_again(self, nodes: Iterable[Node]) -> None:
        """These depend on what has been split since they were met."""
        for node in nodes:
            self._new.pop(node, None)
            self._whole.pop(node, None)
            self._settle(node)

    # --- rewriting

    def keep(self, nodes: Iterable[Node]) -> None:
        """These, and all that they depend on, are about a rank's parts already."""
        for node in topological(nodes):
            if node.op is not ITEM:
                self._new.setdefault(node, [(each, None) for each in _outputs(node)])

    def here(self, nodes: Iterable[Node]) -> list[Node]:
        """What this rank computes in place of each: all of it, or a part."""
        wanted = list(nodes)
        for node in topological(each for each in wanted if each not in self._new):
            self._settle(node)
        return [self._new[node][0][0] for node in wanted]

    def written(self, roots: Collection[Node]) -> list[Node]:
        """What ranks compute in place of these nodes: all of each, on every rank."""
        self.here(roots)
        return [self.whole(root) for root in roots]

    def _settle(self, node: Node) -> None:
        if node in self._new:
            return
        if node.op is ITEM:
            self._new[node] = [self._new[node.inputs[0]][node.attrs["index"]]]
        elif node.op is all_gather and node.attrs["axis"] == AXIS:
            # Where samples are gathered, it is done as late as can be.
            self._new[node] = [(self.whole(node.inputs[0]), _gathered(node))]
        else:
            self._new[node] = placed(self, node) or self._as_it_was(node)

    def _as_it_was(self, node: Node) -> list[Placed]:
        new = node.op.rebuild(node, tuple(self.whole(given) for given in node.inputs))
        return [(each, None) for each in _outputs(new)]


def _outputs(node: Node) -> list[Node]:
    count = len(node.outputs)
    return [node] if count == 1 else [item(node, index) for index in range(count)]


def _gathered(node: Node) -> Split:
    cuts = [0]
    for length in node.attrs["sizes"]:
        cuts.append(cuts[-1] + length)
    return Split(node.attrs["dim"], tuple(cuts))
