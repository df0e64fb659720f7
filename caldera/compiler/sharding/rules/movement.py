"""Ops that move elements: where a rank can, it moves its own; nothing else is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from caldera.compiler.sharding.layout import Bounds, CartesianLayout, ShardLayout, replicated
from caldera.compiler.sharding.rules.registry import (
    Lazy,
    ShardingRule,
    ShardPlacement,
    default_layout,
    rule,
)
from caldera.compiler.sharding.rules.stretches import embed, part, take
from caldera.compiler.sharding.table_layout import joined, reshaped
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import reshape
from caldera.core.graph.ops.movement import concat
from caldera.core.tensor.shape import Shape

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation


@rule("place")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | Lazy:
    """What a user asks for. A wider dtype is made where the value arrives."""
    (x,) = node.inputs
    layout: ShardLayout | None = node.attrs["layout"]
    if layout is None:
        lazy = graph.value(x).lazy
        return lazy or [_one(graph.layout(x), graph.layout(x), lambda part: part)]
    where = (ShardPlacement(layout),)
    widens = x.op.name == "cast" and x.dtype.itemsize > x.inputs[0].dtype.itemsize
    if widens and x.inputs[0].dtype.kind != "b" and x.shape == x.inputs[0].shape:
        made = graph.placed(x.inputs[0], layout, x.dtype)
        return [ShardingRule("widened there", (graph.layout(x),), where, lambda parts: made)]
    return [ShardingRule("as asked for", (layout,), where, lambda parts: parts[0])]


def _own(graph: Propagation, node: Node) -> CartesianLayout:
    return graph.suited(node) or graph.default(node.spec)


@rule("transpose")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | Lazy:
    (x,) = node.inputs
    axes = node.attrs["axes"]
    back = tuple(axes.index(axis) for axis in range(len(axes)))
    own = graph.suited(x)
    if own is None:
        return Lazy(
            lambda parts, layout: node.op(parts[0], **node.attrs),
            node.inputs,
            lambda layout: [layout.transposed(back)],
        )
    return [_one(own, own.transposed(axes), lambda part: node.op(part, axes=axes))]


@rule("flip")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    (x,) = node.inputs
    own = _own(graph, x)
    turned = own.flipped(node.attrs["axis"])
    return [_one(own, turned, lambda part: node.op(part, **node.attrs))]


def _one(source: ShardLayout, target: ShardLayout, make: Callable[[Node], Node]) -> ShardingRule:
    return ShardingRule(
        "where it is", (source,), (ShardPlacement(target),), lambda parts: make(parts[0])
    )


# --- slices


@rule("slice")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    (x,) = node.inputs
    own, bounds = _own(graph, x), node.attrs["bounds"]
    stretches = own.local_slices(bounds, graph.rank)
    return [_one(own, own.sliced(bounds), lambda part: take(part, stretches))]


@rule("split")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    (x,) = node.inputs
    own = _own(graph, x)
    places = _bounds(x.shape, node.attrs["axis"], node.attrs["sizes"])

    def make(parts: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(take(parts[0], own.local_slices(each, graph.rank)) for each in places)

    return [
        ShardingRule(
            "where it is", (own,), tuple(ShardPlacement(own.sliced(each)) for each in places), make
        )
    ]


@rule("unslice")
def _(graph: Propagation, node: Node) -> Lazy:
    return _embedded(graph, node, node.attrs["bounds"], 0)


@rule("pad")
def _(graph: Propagation, node: Node) -> Lazy:
    (x,) = node.inputs
    widths = node.attrs["widths"]
    bounds = [(a, a + n, 1) for n, (a, _) in zip(x.shape, widths, strict=True)]
    return _embedded(graph, node, bounds, node.attrs["value"])


def _embedded(graph: Propagation, node: Node, bounds: Bounds, value: complex) -> Lazy:
    """A value within a larger one: what is around it nobody has to send."""

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        stretches = layout.local_slices(bounds, graph.rank)
        return embed(parts[0], stretches, layout.local_shape(graph.rank), value)

    own = graph.suited(node.inputs[0])
    like = None
    if own is not None and own.split_axes:
        like = default_layout(node.shape, own.ranks, node.dtype.itemsize)
    return Lazy(make, node.inputs, lambda layout: [layout.sliced(bounds)], like)


@rule("concat")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    axis = node.attrs["axis"]
    owns = [graph.suited(given) for given in node.inputs]
    known = [own for own in owns if own is not None]
    ways = []
    together = joined(known, axis) if len(known) == len(owns) else None
    if together is not None:
        ways.append(_joining(node, known, together))
    ranks = max((own.ranks for own in known), key=len, default=tuple(range(graph.ranks)))
    spread = default_layout(node.shape, ranks, node.dtype.itemsize)
    places = _bounds(node.shape, axis, [given.shape[axis] for given in node.inputs])
    ways.append(_joining(node, [spread.sliced(each) for each in places], spread))
    return ways


def _bounds(shape: Shape, axis: int, sizes: Sequence[int]) -> list[Bounds]:
    """The bounds of pieces that lie one after the other along an axis."""
    return [
        [(end - n, end, 1) if each == axis else (0, m, 1) for each, m in enumerate(shape)]
        for n, end in zip(sizes, accumulate(sizes), strict=True)
    ]


def _joining(node: Node, layouts: Sequence[ShardLayout], result: ShardLayout) -> ShardingRule:
    where = (ShardPlacement(result),)
    return ShardingRule(
        "joined", tuple(layouts), where, lambda parts: concat(tuple(parts), node.attrs["axis"])
    )


# --- reshape


@rule("reshape")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | Lazy:
    (x,) = node.inputs
    shape = node.shape
    own = graph.suited(x)
    if own is None:
        return _lazy_reshape(graph, node)
    ways = []
    for source in (own, *_others(graph, x, shape, own)):
        target = reshaped(source, shape)
        if target is not None:
            ways.append(
                _one(source, target, partial(reshape, shape=target.local_shape(graph.rank)))
            )
    return ways


def _lazy_reshape(graph: Propagation, node: Node) -> Lazy:
    (x,) = node.inputs

    def sources(layout: CartesianLayout) -> list[CartesianLayout]:
        return [reshaped(layout, x.shape) or replicated(x.shape, layout.ranks)]

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        if reshaped(layout, x.shape) is not None:
            return reshape(parts[0], layout.local_shape(graph.rank))
        return part(reshape(parts[0], node.shape), layout, graph.rank)

    return Lazy(make, node.inputs, sources)


def _others(
    graph: Propagation, x: Node, shape: tuple[int, ...], own: CartesianLayout
) -> Iterator[CartesianLayout]:
    """Layouts to bring a value to before it is reshaped."""
    wanted = default_layout(shape, own.ranks, x.dtype.itemsize)
    if prod(shape):
        back = reshaped(wanted, x.shape)
        if back is not None:
            yield back
    yield default_layout(x.shape, own.ranks, x.dtype.itemsize)
    for axis in own.split_axes:
        yield own.unsplit([each for each in own.split_axes if each != axis])
    yield own.replicated()
