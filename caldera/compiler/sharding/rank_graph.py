"""The graph that one rank computes of a network, with gradients.

Here layouts are propagated only through the forward pass, by the same rules as everywhere, and
moves are written as collectives with gradients. So `op.grad` of a rank's results is its part of the
gradient, and the backward pass is parallel like the forward pass. The loss of the whole job is the
sum of the losses that the ranks compute (see `graph.ops.collective`).

Partitioned parameters stay in place: activations move instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from caldera.compiler.sharding.collective_moves import CollectiveMoves, in_stretches
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, replicated
from caldera.compiler.sharding.propagation import Propagation
from caldera.compiler.sharding.rules.registry import (
    DistributedValue,
    Rule,
    ShardingRule,
    ShardPlacement,
)
from caldera.compiler.sharding.volume import Links
from caldera.core.graph import ITEM, Node, Spec, item, topological
from caldera.core.graph.ops import cast, constant, mul
from caldera.core.graph.ops.collective import all_gather, tied
from caldera.core.tensor.dtype import DType, is_complex

LEAVES = frozenset({"input", "tensor", "variable"})
DRAWN = frozenset({"random_uniform", "random_normal"})
"""Ops that all ranks compute redundantly: most devices lack kernels for parts."""
OF_SUMS = frozenset({"mean", "var", "norm"})
"""Reductions composed of sums, of which ranks can have terms."""
INHERITING = ("movement", "elementwise")
"""Kinds of ops after which a parameter still is one, in another shape or dtype."""
LINEAR = frozenset({"add", "sub", "mul", "div", "neg"})
STAYS = 1e3
"""Seconds that count for moving a parameter: more than anything else would take."""


class RankGraph(Propagation):
    """Incremental rewriter of a graph, for one of the ranks along an axis of the mesh.

    `parts` has the partitioned leaves: the node for this rank's part, and the layout. The remaining
    leaves are replicated. With `direct`, moves other than sums and gathers are sent from rank to
    rank, instead of through a gather on all ranks; only hosts support this. `links` are the cost of
    moves.
    """

    may_exchange: ClassVar[bool] = False

    def __init__(
        self,
        rank: int,
        ranks: int,
        parts: Mapping[Node, tuple[Node, ShardLayout]],
        axis: str,
        *,
        direct: bool = False,
        links: Links | None = None,
    ) -> None:
        super().__init__(ranks, rank, {}, links or Links())
        self.axis = axis
        self._collectives = CollectiveMoves(rank, ranks, axis, self.links, direct=direct)
        self._weights = set(parts)
        self._everyone = tuple(range(ranks))
        for leaf, (own, layout) in parts.items():
            self.split_now(leaf, own, layout)

    # --- what is asked

    def split_now(self, leaf: Node, own: Node, layout: ShardLayout) -> None:
        """Partition this leaf from now on."""
        self._weights.add(leaf)
        self._values[leaf] = [DistributedValue(ShardPlacement(layout), own)]
        self._forget(leaf)

    def settle_again(self, nodes: Iterable[Node]) -> None:
        """Settle nodes again that depend on leaves split since they were settled."""
        for node in nodes:
            self._values.pop(node, None)
            self._forget(node)
            self.settle([node])

    def keep(self, nodes: Iterable[Node]) -> None:
        """These, and all that they depend on, are about a rank's parts already."""
        for node in topological(nodes):
            if node.op is not ITEM:
                self._values.setdefault(node, self._everywhere(node))

    def here(self, nodes: Iterable[Node]) -> list[Node]:
        """Return this rank's counterparts of nodes: whole values or parts."""
        wanted = list(nodes)
        self.settle(each for each in wanted if each not in self._values)
        return [self.placed(node, self.layout(node)) for node in wanted]

    def written(self, roots: Collection[Node]) -> list[Node]:
        """Return the counterparts of these nodes, whole on every rank."""
        self.settle(roots)
        return [self.whole(root) for root in roots]

    def whole(self, node: Node) -> Node:
        """Return the node of the whole value, on every rank."""
        return self.placed(node, replicated(node.shape, self._everyone))

    def share(self, number: Node) -> Node:
        """Return this rank's contribution to a number; the contributions sum to the number."""
        self.settle([number])
        value = self.value(number)
        if value.node is not None and self._collectives.is_sum(value.placement):
            return value.node
        return mul(self.whole(number), constant(1 / self.ranks, number.dtype))

    def is_whole(self, node: Node) -> bool:
        """Return True if a value is whole on every rank."""
        value = self.value(node)
        if value.lazy is not None or value.placement.terms > 1:
            return False
        return self._collectives.is_everywhere(value.placement.layout)

    # --- deciding

    def settle(self, roots: Iterable[Node]) -> None:
        for node in topological(roots):
            if node not in self._values:
                self.before(node)
                self._values[node] = self._settled(node)
                self._keep.append(node)
                if node.op.kind in INHERITING and all(n in self._weights for n in node.inputs):
                    self._weights.add(node)

    def before(self, node: Node) -> None:
        """Called before a node is settled."""

    def _settled(self, node: Node) -> list[DistributedValue]:
        if node.op is all_gather and node.attrs["axis"] == self.axis:
            # Where samples are gathered, it is done as late as can be.
            layout = in_stretches(node.shape, node.attrs["dim"], node.attrs["sizes"])
            return [DistributedValue(ShardPlacement(layout), self.whole(node.inputs[0]))]
        if node.op.name in LEAVES:
            return self._everywhere(node)
        if node.op.name == "place" and node.attrs["layout"] is not None:
            layout = node.attrs["layout"]
            return [DistributedValue(ShardPlacement(layout), self.placed(node.inputs[0], layout))]
        if self._is_of_wholes(node):
            return self._without_rule(node)
        return self._scaled(node) or super()._settled(node)

    def _scaled(self, node: Node) -> list[DistributedValue] | None:
        """A sum of terms that is scaled, or added to another, still is one."""
        if node.op.name not in LINEAR:
            return None
        terms = [each for each in node.inputs if self._is_pending(each)]
        others = [each for each in node.inputs if each not in terms]
        if not terms or any(each.shape != node.shape for each in terms):
            return None
        if node.op.name in ("add", "sub"):
            fits = not others
        else:
            fits = terms == [node.inputs[0]] or (node.op.name == "mul" and len(terms) == 1)
        if not fits or not all(self.is_whole(each) or self._is_free(each) for each in others):
            return None
        parts = [self._term(each) if each in terms else self.whole(each) for each in node.inputs]
        made = node.op(*parts, **node.attrs)
        where = ShardPlacement(replicated(node.shape, self._everyone), self.ranks)
        return [DistributedValue(where, made)]

    def _term(self, node: Node) -> Node:
        term = self.value(node).node
        assert term is not None
        return term

    def _is_pending(self, node: Node) -> bool:
        value = self.value(node)
        return (
            value.lazy is None
            and self._collectives.is_sum(value.placement)
            and not self._known(node, value.placement.layout)
        )

    def _is_of_wholes(self, node: Node) -> bool:
        """Return True if all inputs of a node are whole on every rank."""
        if node.op is ITEM or not any(map(self.is_whole, node.inputs)):
            return False
        return all(self.is_whole(each) or self._is_free(each) for each in node.inputs)

    def depending(self, made: Node, parts: Sequence[Node]) -> Node:
        # Without this, a rank without a part of the result or of an input would omit collectives.
        reached = set(parts)
        topological([made], reached)
        used = {given for node in reached for given in node.inputs} | {made}
        others = [each for each in parts if each not in used]
        return tied(made, *others) if others else made

    def rule(self, node: Node) -> Rule | None:
        return None if node.op.name in DRAWN else super().rule(node)

    def _without_rule(self, node: Node) -> list[DistributedValue]:
        """Compute the whole op on every rank, except for sums."""
        if node.op.name in OF_SUMS and not self._is_of_wholes(node):
            return self._in_parts(node)
        return self._everywhere(
            node.op.rebuild(node, tuple(self.whole(given) for given in node.inputs))
        )

    def _everywhere(self, node: Node) -> list[DistributedValue]:
        count = len(node.outputs)
        outputs = [node] if count == 1 else [item(node, index) for index in range(count)]
        return [
            DistributedValue(ShardPlacement(replicated(n.shape, self._everyone)), n)
            for n in outputs
        ]

    def _computed(self, node: Node, ways: Sequence[ShardingRule]) -> list[DistributedValue]:
        possible = [way for way in ways if _has_gradient(way)]
        return super()._computed(node, possible) if possible else self._without_rule(node)

    def suited(self, node: Node) -> CartesianLayout | None:
        # All ranks take part in every op, so that gradients follow the same path on all ranks.
        layout = super().suited(node)
        if layout is None or len(layout.ranks) == self.ranks:
            return layout
        return self.default(node.spec)

    def resting(self, where: ShardPlacement, spec: Spec) -> CartesianLayout:
        assert isinstance(where.layout, CartesianLayout)
        return where.layout

    # --- what it takes

    def _moving(self, node: Node, layout: ShardLayout) -> tuple[float, int]:
        value = self.value(node)
        if value.lazy is not None or self._known(node, layout):
            return super()._moving(node, layout)
        if node in self._weights and value.placement.layout != layout:
            return STAYS, 0
        return self._between(value.placement, layout, node.spec)

    def _transfer(
        self, where: ShardPlacement, layout: ShardLayout, spec: Spec, width: int
    ) -> float:
        return self._collectives.seconds(where, layout, spec)

    # --- moving

    def placed(self, node: Node, layout: ShardLayout, dtype: DType | None = None) -> Node:
        everywhere = replicated(node.shape, self._everyone)
        if (
            dtype in (None, node.dtype)
            and (node, layout) not in self._placed
            and (node, everywhere) in self._placed
            and isinstance(layout, CartesianLayout)
        ):
            # A rank with the whole value has every part.
            whole = self._placed[node, everywhere]
            self._placed[node, layout] = self._collectives.cut(whole, layout)
        return super().placed(node, layout, dtype)

    def _moved(self, node: Node, layout: ShardLayout, dtype: DType) -> Node:
        value = self.value(node)
        if value.lazy is not None and len(layout.ranks) == self.ranks:
            return super()._moved(node, layout, dtype)
        if value.lazy is not None:
            everywhere = replicated(node.shape, self._everyone)
            made = self._made(node, value.lazy, everywhere)
            return self._sent(node, made, ShardPlacement(everywhere), layout, dtype)
        assert value.node is not None
        return self._sent(node, value.node, value.placement, layout, dtype)

    def _sent(
        self, node: Node, part: Node, where: ShardPlacement, layout: ShardLayout, dtype: DType
    ) -> Node:
        if is_complex(node.dtype):
            return super()._sent(node, part, where, layout, dtype)
        moved = part
        if where.layout != layout or where.terms > 1:
            if not self._collectives.is_free(where):
                self._note(node, where, layout, node.dtype.itemsize)
            moved = self._collectives.written(part, where, layout)
        return moved if dtype == node.dtype else cast(moved, dtype)

    # --- facts

    def _is_free(self, node: Node) -> bool:
        """Return True if a value can be generated in any layout, and has no preferred one."""
        value = self.value(node)
        return value.lazy is not None and value.lazy.like is None

    def _known(self, node: Node, layout: ShardLayout) -> bool:
        everywhere = replicated(node.shape, self._everyone)
        return (node, layout) in self._placed or (node, everywhere) in self._placed

    def _forget(self, node: Node) -> None:
        for key in [each for each in self._placed if each[0] is node]:
            del self._placed[key]


def _has_gradient(way: ShardingRule) -> bool:
    """Return True if a rule's outputs have gradients: terms of a maximum or product have none."""
    return all(where.terms == 1 or where.reduce == "sum" for where in way.outputs)
