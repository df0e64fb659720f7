"""From a graph of whole values to the graph that one rank runs.

Leaves have layouts. Each op is computed in the cheapest way of its rule (see `sharding.rules`), and
its inputs move by `redistribute` nodes. All ranks decide alike, and write the same moves in one
order, which a token keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caldera.compiler.sharding import ops  # noqa: F401 - registers them
from caldera.compiler.sharding.axis_split import even_split
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, replicated
from caldera.compiler.sharding.ops import EVERYONE, STACK, redistribute, reduced_stack
from caldera.compiler.sharding.rules import KINDS, RULES
from caldera.compiler.sharding.rules.registry import (
    SMALL_BYTES,
    DistributedValue,
    Lazy,
    Rule,
    ShardingRule,
    ShardPlacement,
    default_layout,
)
from caldera.compiler.sharding.transfer import is_in_blocks
from caldera.compiler.sharding.volume import Links, Move, volume
from caldera.core.graph import (
    ITEM,
    Node,
    Op,
    Spec,
    Symbol,
    as_tuple,
    describe,
    item,
    parameter,
    pinned,
    substitute,
    topological,
)
from caldera.core.graph.ops.base import cast, full, tensor
from caldera.core.tensor.dtype import DType
from caldera.errors import ConfigError


@dataclass(frozen=True)
class MoveCost:
    """Cost of a variant of an op: seconds, and bytes that move between ranks.

    Both include the redistribution of its inputs and the reduction of its terms.
    """

    name: str
    seconds: float
    nbytes: int


@dataclass(frozen=True)
class ShardingStrategy:
    """Chosen variant of an op, and the alternatives.

    `seconds` and `nbytes` cover the computation only: redistribution before and after is among the
    moves.
    """

    what: str
    chosen: MoveCost
    others: tuple[MoveCost, ...]
    seconds: float
    nbytes: int


@dataclass(frozen=True)
class Distributed:
    """Graph of a rank: its outputs, the symbols of its parts of leaves, and output layouts.

    `roots` must be compiled: they include the token that keeps ranks in one order. `views` are the
    numbers of the moves of leaves, the same on every rank.
    """

    outputs: tuple[Node, ...]
    leaves: dict[Symbol, Symbol]
    layouts: tuple[ShardLayout, ...]
    token: Node | None
    moves: tuple[Move, ...]
    choices: tuple[ShardingStrategy, ...]
    views: frozenset[int]

    @property
    def roots(self) -> tuple[Node, ...]:
        """The outputs, and the token if anything moves."""
        return self.outputs if self.token is None else (*self.outputs, self.token)


def distribute(
    outputs: Sequence[Node],
    leaves: Mapping[Symbol, ShardLayout],
    wanted: Sequence[ShardLayout | None] | None = None,
    *,
    ranks: int,
    rank: int,
    links: Links | None = None,
    messages_on: str | None = None,
    family: str = "cpu",
) -> Distributed:
    """Return the graph that a rank runs for these outputs, and the layouts of the results.

    `leaves` has the layouts of partitioned `tensor` leaves; the remaining leaves are the same on
    every rank. `wanted` has a layout for each output, or None for the cheapest. Collective nodes
    are pinned to `messages_on`, if given. With the kernels of the `family` "cuda", blocks move
    between GPUs, and products are local.
    """
    graph = Propagation(ranks, rank, leaves, links or Links(), messages_on, family)
    asked = [None] * len(outputs) if wanted is None else list(wanted)
    graph.settle(outputs)
    made, layouts = [], []
    for node, layout in zip(outputs, asked, strict=True):
        where = graph.layout(node) if layout is None else layout
        made.append(graph.placed(node, where))
        layouts.append(where)
    return Distributed(
        tuple(made),
        graph.leaves,
        tuple(layouts),
        graph.token,
        tuple(graph.moves),
        tuple(graph.choices),
        frozenset(graph.views),
    )


@dataclass(eq=False)
class Propagation:
    """Graph writer for a single rank, node by node."""

    ranks: int
    rank: int
    layouts: Mapping[Symbol, ShardLayout]
    links: Links
    messages_on: str | None = None
    family: str = "cpu"
    leaves: dict[Symbol, Symbol] = field(default_factory=dict)
    token: Node | None = None
    moves: list[Move] = field(default_factory=list)
    choices: list[ShardingStrategy] = field(default_factory=list)
    views: set[int] = field(default_factory=set)
    _values: dict[Node, list[DistributedValue]] = field(default_factory=dict)
    _placed: dict[tuple[Node, ShardLayout], Node] = field(default_factory=dict)
    _keep: list[Node] = field(default_factory=list)

    may_exchange: ClassVar[bool] = True
    """True if rules may write collective nodes that send messages."""

    # --- what rules ask

    def value(self, node: Node) -> DistributedValue:
        """Return a rank's counterpart of a whole value."""
        return self._values[node][0]

    def layout(self, node: Node) -> ShardLayout:
        """Return the layout of a value, or its default if no layout is requested."""
        value = self.value(node)
        if value.lazy is not None:
            return value.lazy.like or self.default(node.spec)
        if value.placement.terms == 1:
            return value.placement.layout
        return self.resting(value.placement, node.spec)

    def suited(self, node: Node) -> CartesianLayout | None:
        """Return a cartesian layout equal or near to a value's layout; None if it has none yet."""
        value = self.value(node)
        layout = value.lazy.like if value.lazy is not None else self.layout(node)
        if layout is None or isinstance(layout, CartesianLayout):
            return layout
        return default_layout(node.shape, layout.ranks, node.dtype.itemsize)

    def default(self, spec: Spec) -> CartesianLayout:
        """Return the default layout of an array."""
        return default_layout(spec.shape, range(self.ranks), spec.dtype.itemsize)

    def seconds(self, node: Node, layout: ShardLayout) -> float:
        """Return the seconds to bring a value to a layout."""
        return self._moving(node, layout)[0]

    def _moving(self, node: Node, layout: ShardLayout) -> tuple[float, int]:
        """Return seconds, and bytes that move, to have a value in a layout."""
        if (node, layout) in self._placed:
            return 0.0, 0
        value = self.value(node)
        if value.lazy is not None:
            near = layout if isinstance(layout, CartesianLayout) else self.default(node.spec)
            needed = zip(value.lazy.inputs, value.lazy.sources(near), strict=True)
            return sum(self.seconds(*each) for each in needed), 0
        return self._between(value.placement, layout, node.spec)

    def _between(self, where: ShardPlacement, layout: ShardLayout, spec: Spec) -> tuple[float, int]:
        """Return seconds, and bytes that move, from where a value is to a layout."""
        moved = volume(where.layout, layout, where.terms).elements * spec.dtype.itemsize
        return self._transfer(where, layout, spec, spec.dtype.itemsize), moved

    def placed(self, node: Node, layout: ShardLayout, dtype: DType | None = None) -> Node:
        """Return this rank's part of a value in a layout, brought there if it has to be."""
        if dtype is not None and dtype != node.dtype:
            return self._moved(node, layout, dtype)
        known = self._placed.get((node, layout))
        if known is None:
            known = self._placed[node, layout] = self._moved(node, layout, node.dtype)
        return known

    def messaging(self) -> AbstractContextManager[None]:
        """Return a context that pins collective nodes to their device, if there is one."""
        return nullcontext() if self.messages_on is None else pinned(self.messages_on)

    def together(self, op: Op, *parts: Node, **attrs: Any) -> tuple[Node, ...]:
        """Return the outputs of a collective op.

        Its last input and its last output are tokens, which keep all ranks in one order.
        """
        tokens = () if self.token is None else (self.token,)
        on_cards = op is redistribute and self._is_on_cards(attrs["source"], attrs["target"])
        with nullcontext() if on_cards else self.messaging():
            node = op.node(*parts, *tokens, rank=self.rank, number=len(self.moves), **attrs)
        *made, self.token = (item(node, index) for index in range(len(node.outputs)))
        return tuple(made)

    def empty(self, layout: ShardLayout, dtype: DType) -> Node:
        """Return the part of a rank that has no elements of a value."""
        return full(layout.local_shape(self.rank), 0, dtype)

    def depending(self, made: Node, parts: Sequence[Node]) -> Node:
        """Return `made`; a subclass may tie it to `parts`, so that their collectives always run."""
        return made

    # --- rewriting

    def settle(self, roots: Sequence[Node]) -> None:
        """Decide how everything is computed that these depend on."""
        for node in topological(roots):
            if node not in self._values:
                self._values[node] = self._settled(node)
                self._keep.append(node)

    def _settled(self, node: Node) -> list[DistributedValue]:
        if node.op is ITEM:
            return [self._values[node.inputs[0]][node.attrs["index"]]]
        symbol = node.attrs.get("symbol")
        if symbol is not None and symbol in self.layouts:
            return [self._leaf(node, symbol)]
        rule = self.rule(node)
        found = None if rule is None else rule(self, node)
        if isinstance(found, Lazy):
            return [DistributedValue(ShardPlacement(self.default(node.spec)), lazy=found)]
        if isinstance(found, Node):
            self.settle([found])
            return self._values[found]
        return self._computed(node, found) if found else self._without_rule(node)

    def rule(self, node: Node) -> Rule | None:
        """Return the sharding rule of a node."""
        return RULES.get(node.op.name) or KINDS.get(node.op.kind)

    def _without_rule(self, node: Node) -> list[DistributedValue]:
        if node.op.decompose is not None and not self._is_whole(node):
            return self._in_parts(node)
        return self._computed(node, [self._whole(node)])

    def resting(self, where: ShardPlacement, spec: Spec) -> CartesianLayout:
        """Return the layout of the sum of terms.

        Each rank with a term gets a share, along an axis that is not partitioned yet. Small sums
        are replicated on all ranks.
        """
        layout = where.layout
        assert isinstance(layout, CartesianLayout)
        if spec.nbytes <= SMALL_BYTES:
            return layout
        for axis, n in enumerate(layout.shape):
            if layout.splits[axis] is None and n >= where.terms:
                before = len([each for each in layout.split_axes if each < axis])
                # The ranks, if the terms are an axis of the mesh at this position.
                mesh = np.array(layout.ranks).reshape(*layout.mesh[:-1], where.terms, -1)
                ranks = tuple(np.moveaxis(mesh, -2, before).reshape(-1).tolist())
                split = even_split(n, where.terms)
                splits = (*layout.splits[:axis], split, *layout.splits[axis + 1 :])
                return CartesianLayout(layout.shape, splits, ranks)
        return layout

    def _leaf(self, node: Node, symbol: Symbol) -> DistributedValue:
        layout = self.layouts[symbol]
        if symbol not in self.leaves:
            spec = Spec(layout.local_shape(self.rank), node.dtype)
            self.leaves[symbol] = Symbol(symbol.name, spec, "tensor")
        return DistributedValue(ShardPlacement(layout), tensor(symbol=self.leaves[symbol]))

    def _computed(self, node: Node, ways: Sequence[ShardingRule]) -> list[DistributedValue]:
        """Compute the node by its cheapest rule."""
        costs = [self._cost(node, way) for way in ways]
        best = min(range(len(ways)), key=lambda each: costs[each].seconds)
        way = ways[best]
        others = (*costs[:best], *costs[best + 1 :])
        choice = ShardingStrategy(describe(node, 1), costs[best], others, way.seconds, way.nbytes)
        self.choices.append(choice)
        parts = [self.placed(x, where) for x, where in zip(node.inputs, way.inputs, strict=True)]
        takes_part = any(self.rank in placement.layout.ranks for placement in way.outputs)
        made = as_tuple(way.make(parts)) if takes_part else (None,) * len(way.outputs)
        values = []
        for spec, placement, part in zip(node.outputs, way.outputs, made, strict=True):
            if part is None or self.rank not in placement.layout.ranks:
                part = self.empty(placement.layout, spec.dtype)
            expected = placement.layout.local_shape(self.rank)
            assert part.shape == expected, f"{describe(node)}: {part.shape} is not {expected}"
            values.append(DistributedValue(placement, self.depending(part, parts)))
        return values

    def _cost(self, node: Node, way: ShardingRule) -> MoveCost:
        seconds, nbytes = way.seconds, way.nbytes
        for given, layout in zip(node.inputs, way.inputs, strict=True):
            taken, sent = self._moving(given, layout)
            seconds, nbytes = seconds + taken, nbytes + sent
        for spec, where in zip(node.outputs, way.outputs, strict=True):
            if where.terms > 1:
                taken, sent = self._between(where, self.resting(where, spec), spec)
                seconds, nbytes = seconds + taken, nbytes + sent
        return MoveCost(way.name, seconds, nbytes)

    def _is_whole(self, node: Node) -> bool:
        return all(
            isinstance(layout, CartesianLayout) and layout.is_replicated
            for layout in map(self.layout, node.inputs)
        )

    def _whole(self, node: Node) -> ShardingRule:
        """Compute the whole op on every rank that has a part of an input."""
        ranks = sorted({r for given in node.inputs for r in self._ranks_of(given)})
        where = ranks or range(self.ranks)
        return ShardingRule(
            "whole",
            tuple(replicated(given.shape, where) for given in node.inputs),
            tuple(ShardPlacement(replicated(spec.shape, where)) for spec in node.outputs),
            lambda parts: node.op.outputs(*parts, **node.attrs),
        )

    def _ranks_of(self, node: Node) -> tuple[int, ...]:
        value = self.value(node)
        if value.lazy is not None:
            return () if value.lazy.like is None else value.lazy.like.ranks
        return value.placement.layout.ranks

    def _in_parts(self, node: Node) -> list[DistributedValue]:
        """A composite op: its parts are settled one by one."""
        stand_ins = [parameter(i, given.spec) for i, given in enumerate(node.inputs)]
        assert node.op.decompose is not None
        parts = as_tuple(node.op.decompose(*stand_ins, **node.attrs))
        written = substitute(parts, dict(zip(stand_ins, node.inputs, strict=True)))
        self.settle(written)
        return [self._values[each][0] for each in written]

    # --- moving

    def _moved(self, node: Node, layout: ShardLayout, dtype: DType) -> Node:
        value = self.value(node)
        if value.lazy is not None:
            near = layout if isinstance(layout, CartesianLayout) else self.default(node.spec)
            part = self._made(node, value.lazy, near)
            return self._sent(node, part, ShardPlacement(near), layout, dtype)
        assert value.node is not None
        where = value.placement
        large = node.spec.nbytes > SMALL_BYTES
        if (
            where.terms > 1
            and large
            and isinstance(layout, CartesianLayout)
            and layout.replicas > 1
        ):
            # Each rank reduces a share, which is then gathered: cheaper than sending all terms to
            # all.
            share = self.resting(where, node.spec)
            part = self._sent(node, value.node, where, share, node.dtype)
            return self._sent(node, part, ShardPlacement(share), layout, dtype)
        return self._sent(node, value.node, where, layout, dtype)

    def _made(self, node: Node, lazy: Lazy, layout: CartesianLayout) -> Node:
        """Return this rank's part of a value that is made anywhere.

        All ranks bring its inputs there.
        """
        needed = zip(lazy.inputs, lazy.sources(layout), strict=True)
        parts = [self.placed(*each) for each in needed]
        here = self.rank in layout.ranks
        made = lazy.make(parts, layout) if here else self.empty(layout, node.dtype)
        return self.depending(made, parts)

    def _sent(
        self, node: Node, part: Node, where: ShardPlacement, layout: ShardLayout, dtype: DType
    ) -> Node:
        if where.layout == layout and where.terms == 1 and dtype == node.dtype:
            return part
        if layout.shape != where.layout.shape:
            raise ConfigError.build(
                "layout", expected=f"one of shape {where.layout.shape}", got=f"{layout.shape}"
            )
        if where.terms == 1 and self._is_leaf(node):
            self.views.add(len(self.moves))
        on_cards = self._is_on_cards(where.layout, layout)
        (sent,) = self.together(
            redistribute,
            part,
            source=where.layout,
            target=layout,
            dtype=node.dtype if on_cards else dtype,
            terms=where.terms,
            reduce=STACK if on_cards and where.terms > 1 else where.reduce,
            axis=EVERYONE,
        )
        widest = node.dtype if where.terms > 1 or on_cards else dtype
        self._note(node, where, layout, min(node.dtype.itemsize, widest.itemsize))
        if on_cards and where.terms > 1:
            sent = reduced_stack(sent, where.reduce)
        return cast(sent, dtype) if on_cards else sent

    def _is_on_cards(self, *layouts: ShardLayout) -> bool:
        return self.family == "cuda" and is_in_blocks(*layouts)

    def _is_leaf(self, node: Node) -> bool:
        """Return True for a leaf, regardless of its placement.

        A slice that contains one rank's whole part of a leaf is not a leaf on other ranks.
        """
        while node.op.name == "place" and node.attrs["layout"] is None:
            (node,) = node.inputs
        return node.attrs.get("symbol") in self.layouts

    def _note(self, node: Node, where: ShardPlacement, layout: ShardLayout, width: int) -> None:
        """Write down what moves, in elements of that many bytes."""
        moved = volume(where.layout, layout, where.terms)
        nbytes, seconds = moved.elements * width, self._transfer(where, layout, node.spec, width)
        move = Move(describe(node, 1), where.layout, layout, nbytes, where.terms, seconds)
        self.moves.append(move)

    def _transfer(
        self, where: ShardPlacement, layout: ShardLayout, spec: Spec, width: int
    ) -> float:
        """Return seconds from where a value is to a layout."""
        return volume(where.layout, layout, where.terms).seconds(width, self.links)
