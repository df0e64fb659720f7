"""Rules for values generated without communication, and for ops that move elements.

Constants, ranges, random numbers and broadcast values are generated on demand, each rank its part.
If possible, a rank moves elements locally, and only the remaining elements are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from caldera.compiler.passes.constants import array_node, value_of
from caldera.compiler.sharding.layout import Bounds, CartesianLayout, ShardLayout, replicated
from caldera.compiler.sharding.ops import random_part
from caldera.compiler.sharding.rules.registry import (
    Lazy,
    ShardingRule,
    ShardPlacement,
    default_layout,
    rule,
)
from caldera.compiler.sharding.table_layout import joined, reshaped
from caldera.core.graph.node import Node
from caldera.core.graph.ops import broadcast_to, concat, full, iota, reshape, slice_, unslice
from caldera.core.tensor.shape import Shape

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation


def constant_array(values: np.ndarray) -> Node:
    """Return a constant array as a node."""
    return array_node(values) if values.size else full(values.shape, 0, values.dtype)


@rule("constant")
def _(graph: Propagation, node: Node) -> Lazy:
    return Lazy(lambda parts, layout: node)


@rule("array")
def _(graph: Propagation, node: Node) -> Lazy:
    values = value_of(node)

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        if layout.is_replicated:
            return node
        return constant_array(layout.part_of(values, graph.rank))

    return Lazy(make)


@rule("tensor", "variable", "input")
def _(graph: Propagation, node: Node) -> Lazy:
    """Slice each rank's part from a value that is the same on every rank."""
    return Lazy(lambda parts, layout: part(node, layout, graph.rank))


@rule("iota")
def _(graph: Propagation, node: Node) -> Lazy:
    axis, dtype = node.attrs["axis"], node.attrs["dtype"]

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        local = layout.local_shape(graph.rank)
        if layout.splits[axis] is None:
            return iota(shape=local, axis=axis, dtype=dtype)
        numbers = constant_array(layout.axis_indices(graph.rank, axis).astype(dtype))
        line = tuple(n if i == axis else 1 for i, n in enumerate(local))
        return broadcast_to(reshape(numbers, line), local)

    return Lazy(make)


@rule("random_uniform", "random_normal")
def _(graph: Propagation, node: Node) -> Lazy:
    def sources(layout: CartesianLayout) -> list[CartesianLayout]:
        return [replicated(given.shape, layout.ranks) for given in node.inputs]

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        if layout.is_replicated:
            return node.op(*parts, **node.attrs)
        with graph.messaging():
            # Its kernel runs on the host, like the kernels that send messages.
            return random_part(
                *parts,
                layout=layout,
                rank=graph.rank,
                dtype=node.dtype,
                stream=node.attrs["stream"],
                normal=node.op.name == "random_normal",
            )

    return Lazy(make, node.inputs, sources)


@rule("broadcast_to")
def _(graph: Propagation, node: Node) -> Lazy:
    (x,) = node.inputs
    extra = len(node.shape) - len(x.shape)
    repeated = [i for i, n in enumerate(x.shape) if n != node.shape[extra + i]]

    def sources(layout: CartesianLayout) -> list[CartesianLayout]:
        less = layout.without([*range(extra), *(extra + i for i in repeated)])
        for axis in repeated:
            less = less.expanded(axis)
        return [less]

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        return broadcast_to(parts[0], layout.local_shape(graph.rank))

    like = graph.suited(x)
    if like is None or not like.split_axes or repeated:
        return Lazy(make, node.inputs, sources)
    # A broadcast value follows the layout of its input, if that is partitioned.
    for axis in range(extra):
        like = like.expanded(axis, node.shape[axis])
    return Lazy(make, node.inputs, sources, like)


# --- what is moved


@rule("place")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | Lazy:
    """Place a value in the user's layout. A wider dtype is converted after the move."""
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
    """Embed a value in a larger one; the surrounding elements are generated locally."""

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
    """Return the bounds of pieces concatenated along an axis."""
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
    yield replicated(x.shape, own.ranks)


# --- stretches of an axis taken out of a rank's part, or put into one


def take(node: Node, stretches: Sequence[Sequence[slice]]) -> Node:
    """Concatenate these stretches of a node along each axis."""
    for axis, slices in enumerate(stretches):
        pieces = [_cut(node, axis, each) for each in slices] or [_cut(node, axis, slice(0, 0, 1))]
        node = concat(tuple(pieces), axis)
    return node


def _cut(node: Node, axis: int, stretch: slice) -> Node:
    bounds = [(0, n, 1) for n in node.shape]
    bounds[axis] = (stretch.start, stretch.stop, stretch.step or 1)
    return slice_(node, tuple(bounds))


def part(node: Node, layout: CartesianLayout, rank: int) -> Node:
    """Return a rank's part of a value that it has all of."""
    if rank not in layout.ranks:
        return full(layout.local_shape(rank), 0, node.dtype)
    axes = range(len(layout.shape))
    return take(
        node, [[slice(b, e, 1) for b, e in layout.axis_intervals(rank, axis)] for axis in axes]
    )


def embed(
    node: Node, stretches: Sequence[Sequence[slice]], shape: Sequence[int], value: complex = 0
) -> Node:
    """Return a value of `shape` that has the node along these stretches, and a number elsewhere."""
    for axis, slices in enumerate(stretches):
        node = _embedded_along(node, axis, slices, shape[axis], value)
    return node


def _embedded_along(
    node: Node, axis: int, stretches: Sequence[slice], length: int, value: complex
) -> Node:
    def gap(count: int) -> Node:
        return full((*node.shape[:axis], count, *node.shape[axis + 1 :]), value, node.dtype)

    pieces: list[Node] = []
    filled = taken = 0
    for stretch in stretches:
        step = stretch.step or 1
        count = len(range(stretch.start, stretch.stop, step))
        if stretch.start > filled:
            pieces.append(gap(stretch.start - filled))
        bounds = [(0, n, 1) for n in node.shape]
        bounds[axis] = (taken, taken + count, 1)
        piece = slice_(node, tuple(bounds))
        filled = stretch.start + (count - 1) * step + 1
        if step > 1:
            wide = (*node.shape[:axis], filled - stretch.start, *node.shape[axis + 1 :])
            places = tuple((0, n, step if each == axis else 1) for each, n in enumerate(wide))
            piece = unslice(piece, shape=wide, bounds=places)
        pieces.append(piece)
        taken += count
    if filled < length or not pieces:
        pieces.append(gap(length - filled))
    return concat(tuple(pieces), axis)
