"""What becomes of values of which ranks have parts, op by op.

A rule is given the graph that is being rewritten, a node of the one as it was, and how its first
input is split. It gives the new node and the placement of each of its outputs, or None if the node
needs whole values. Rules for any input look themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from caldera.graph.node import Node
from caldera.graph.opdef import as_tuple
from caldera.graph.ops.base import Axes, broadcast_to, reshape
from caldera.graph.ops.elementwise import add
from caldera.graph.ops.leaf import constant
from caldera.graph.ops.movement import narrow, slice_
from caldera.graph.ops.random import bernoulli, dropped
from caldera.parallel.layout import Placement, Split, reshaped
from caldera.tensor.dtype import float32, int64
from caldera.tensor.shape import size

if TYPE_CHECKING:
    from caldera.parallel.tensor.sharding_propagation import ShardingPropagation

Placed = tuple[Node, Placement]
Rule = Callable[["ShardingPropagation", Node], list[Placed] | None]
SplitRule = Callable[["ShardingPropagation", Node, Split], list[Placed] | None]
RULES: dict[str, Rule] = {}
"""By the name of the op."""


def placed(graph: ShardingPropagation, node: Node) -> list[Placed] | None:
    """The outputs of a node for a rank's parts; None if it needs whole values."""
    if not node.inputs:
        return None
    if node.op.kind in ("elementwise", "reduction"):
        return _KINDS[node.op.kind](graph, node)
    rule = RULES.get(node.op.name)
    return None if rule is None else rule(graph, node)


def _any_input(*names: str) -> Callable[[Rule], Rule]:
    """A rule for ops of which any input may be split."""

    def add_to(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return add_to


def _rule(*names: str) -> Callable[[SplitRule], SplitRule]:
    """A rule for ops whose first input is split."""

    def add_to(rule: SplitRule) -> SplitRule:
        _any_input(*names)(_of_first(rule))
        return rule

    return add_to


def _of_first(rule: SplitRule) -> Rule:
    def found(graph: ShardingPropagation, node: Node) -> list[Placed] | None:
        split = graph.placement(node.inputs[0])
        return None if split is None else rule(graph, node, split)

    return found


def _aligned(graph: ShardingPropagation, given: Node, split: Split, rank: int) -> Node:
    """What a rank needs of an input that is broadcast to a value of so many axes split so."""
    axis = split.axis - rank + len(given.shape)
    if axis < 0:
        return graph.whole(given)
    if given.shape[axis] == 1 and graph.placement(given) != split.moved(axis):
        return graph.whole(given)
    return graph.part(given, split.moved(axis))


def _outputs(made: Node | tuple[Node, ...], *placements: Placement) -> list[Placed]:
    """What a node gives, each with its placement, or all with the only one."""
    nodes = as_tuple(made)
    each = placements * len(nodes) if len(placements) == 1 else placements
    return list(zip(nodes, each, strict=True))


def _followed(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed]:
    """Computed for the part of the first input, and whole others; outputs are split the same."""
    others = [graph.whole(given) for given in node.inputs[1:]]
    return _outputs(node.op(graph.part(node.inputs[0], split), *others, **node.attrs), split)


# --- elements, sums


def _elementwise(graph: ShardingPropagation, node: Node) -> list[Placed] | None:
    rank = len(node.shape)
    for given in node.inputs:
        split = graph.placement(given)
        if split is not None:
            split = split.moved(split.axis + rank - len(given.shape))
            inputs = [_aligned(graph, each, split, rank) for each in node.inputs]
            return _outputs(node.op(*inputs, **node.attrs), split)
    return None


def _reduction(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    given = node.attrs["axis"]
    axes: Axes = given if isinstance(given, tuple) else (given,)
    if split.axis not in axes:
        before = 0 if node.attrs.get("keepdims") else sum(axis < split.axis for axis in axes)
        made = node.op(graph.part(node.inputs[0], split), **node.attrs)
        return _outputs(made, split.moved(split.axis - before))
    if node.op.name != "sum":
        return None
    part = node.op(graph.part(node.inputs[0], split), **node.attrs)
    return _outputs(graph.added_up(part), None)


_KINDS: dict[str, Rule] = {"elementwise": _elementwise, "reduction": _of_first(_reduction)}


# --- products


@_any_input("matmul")
def _(graph: ShardingPropagation, node: Node) -> list[Placed] | None:
    x, weight = node.inputs
    last = len(x.shape) - 1
    if node.attrs["ta"] or node.attrs["tb"] or len(weight.shape) != 2 or last < 1:
        return _batched(graph, node)
    wide = node.shape[last] * 2 > x.shape[last]
    return _product(graph, node, features=last, outputs=1, inputs=0, wide=wide)


@_any_input("conv2d")
def _(graph: ShardingPropagation, node: Node) -> list[Placed] | None:
    split = graph.placement(node.inputs[0])
    if node.attrs["groups"] != 1:
        return _followed(graph, node, split) if split is not None and split.axis == 0 else None
    wide = size(node.shape[1:]) * 2 > size(node.inputs[0].shape[1:])
    return _product(graph, node, features=1, outputs=0, inputs=1, wide=wide)


def _product(
    graph: ShardingPropagation, node: Node, *, features: int, outputs: int, inputs: int, wide: bool
) -> list[Placed] | None:
    """A product of x, whose features lie along an axis, with a weight that has an axis for those it
    takes and one for those it gives. `wide`: to sum the result costs more than to gather x."""
    x, weight = node.inputs
    given = graph.placement(x)
    along_features = given is not None and given.axis == features
    graph.choose(weight, fed_by_parts=along_features)
    split = graph.placement(weight)
    if split is None and given is not None:
        if not along_features:
            return _followed(graph, node, given)
        if not wide:
            split = given.moved(inputs)
    if split is None:
        return None
    part = graph.part(weight, split)
    if split.axis == outputs:
        return _outputs(node.op(graph.whole(x), part, **node.attrs), split.moved(features))
    if split.axis != inputs:
        return None
    term = node.op(graph.part(x, split.moved(features)), part, **node.attrs)
    return _outputs(graph.added_up(term), None)


@_any_input("scaled_dot_product_attention")
def _batched(graph: ShardingPropagation, node: Node) -> list[Placed] | None:
    """Products of matrices, many of them, of which each rank has some."""
    rank = len(node.outputs[0].shape)
    for given in node.inputs:
        split = graph.placement(given)
        if split is None or split.axis >= len(given.shape) - 2:
            continue
        split = split.moved(split.axis + rank - len(given.shape))
        inputs = [_aligned(graph, each, split, rank) for each in node.inputs]
        return _outputs(node.op(*inputs, **node.attrs), split)
    return None


# --- by channels or samples


@_rule("max_pool2d", "avg_pool2d")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    return None if split.axis > 1 else _followed(graph, node, split)


@_rule("local_response_norm", "group_norm")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    return None if split.axis > 0 else _followed(graph, node, split)


@_rule("softmax", "log_softmax")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    axis = node.attrs["axis"]
    along = axis if isinstance(axis, tuple) else (axis,)
    return None if split.axis in along else _followed(graph, node, split)


@_rule("layer_norm")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    axes = node.attrs["axis"]
    if split.axis in axes:
        return None
    (y, _), *rest = _followed(graph, node, split)
    number = split.moved(split.axis - sum(axis < split.axis for axis in axes))
    return [(y, split), *((each, number) for each, _ in rest)]


@_rule("batch_norm_inference")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    if split.axis != node.attrs["axis"]:
        return _followed(graph, node, split)
    channels = [graph.part(given, split.moved(0)) for given in node.inputs[1:]]
    made = node.op(graph.part(node.inputs[0], split), *channels, **node.attrs)
    return _outputs(made, split)


@_rule("batch_norm_over_ranks")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    x, scale, shift = node.inputs
    if split.axis == node.attrs["axis"]:
        own = [graph.part(scale, split.moved(0)), graph.part(shift, split.moved(0))]
        made = node.op(graph.part(x, split), *own, **node.attrs)
        return _outputs(made, split, split.moved(0), split.moved(0), None)
    if split.axis != 0:
        return None
    # The samples of a group of ranks are spread over it: the batch is that of all ranks.
    whole = [graph.whole(scale), graph.whole(shift)]
    made = node.op(graph.part(x, split), *whole, **{**node.attrs, "mesh": "all"})
    return _outputs(made, split, None, None, None)


@_rule("dropout")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    x, state, offset = node.inputs
    rate = node.attrs["rate"]
    start = graph.whole(offset)
    if split.axis == 0:
        skipped = split.cuts[graph.rank] * size(x.shape[1:])
        start = add(start, constant(skipped, int64))
        made = node.op(graph.part(x, split), graph.whole(state), start, **node.attrs)
        return _outputs(made, split)
    # The numbers of a part do not follow each other: it is cut out of all of them.
    chance = constant(1 - rate, float32)
    kept = bernoulli(graph.whole(state), start, x.shape, chance, node.attrs["stream"])
    return _outputs(dropped(graph.part(x, split), split.part(kept, graph.rank), rate), split)


# --- movement


@_rule("reshape")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    (x,) = node.inputs
    new = reshaped(split, x.shape, node.shape)
    if new is None:
        return None
    return _outputs(reshape(graph.part(x, split), new.shape(node.shape, graph.rank)), new)


@_rule("transpose")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    made = node.op(graph.part(node.inputs[0], split), **node.attrs)
    return _outputs(made, split.moved(node.attrs["axes"].index(split.axis)))


@_rule("broadcast_to")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    (x,) = node.inputs
    here = graph.part(x, split)
    split = split.moved(split.axis + len(node.shape) - len(x.shape))
    return _outputs(broadcast_to(here, split.shape(node.shape, graph.rank)), split)


@_rule("pad")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    untouched = node.attrs["widths"][split.axis] == (0, 0)
    return _followed(graph, node, split) if untouched else None


@_rule("slice")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    bounds = list(node.attrs["bounds"])
    if split.block == 0:
        return None
    begin, end, step = bounds[split.axis]
    first, count = begin // split.block, (end - begin) // split.block
    if step != 1 or (begin, end) != (first * split.block, (first + count) * split.block):
        return None
    # Whole blocks are taken: a rank has its part of each.
    each = split.sizes[graph.rank] // split.blocks
    here = narrow(graph.part(node.inputs[0], split), split.axis, first * each, count * each)
    bounds[split.axis] = (0, count * each, 1)
    return _outputs(slice_(here, tuple(bounds)), Split(split.axis, split.cuts, count))


@_rule("split")
def _(graph: ShardingPropagation, node: Node, split: Split) -> list[Placed] | None:
    sizes = node.attrs["sizes"]
    here = graph.part(node.inputs[0], split)
    if split.axis != node.attrs["axis"]:
        return _outputs(node.op(here, **node.attrs), split)
    if split.block == 0 or any(length % split.block for length in sizes):
        return None
    counts = [length // split.block for length in sizes]
    each = split.sizes[graph.rank] // split.blocks
    made = node.op(here, sizes=tuple(count * each for count in counts), axis=split.axis)
    return _outputs(made, *(Split(split.axis, split.cuts, count) for count in counts))


@_any_input("concat")
def _(graph: ShardingPropagation, node: Node) -> list[Placed] | None:
    split = next(filter(None, map(graph.placement, node.inputs)), None)
    if split is None or split.axis == node.attrs["axis"]:
        return None
    inputs = [graph.part(given, split) for given in node.inputs]
    return _outputs(node.op(*inputs, **node.attrs), split)


@_any_input("gather")
def _(graph: ShardingPropagation, node: Node) -> list[Placed] | None:
    rows, places = node.inputs
    split = graph.placement(places)
    if split is None or graph.placement(rows) is not None:
        return None
    made = node.op(graph.whole(rows), graph.part(places, split), **node.attrs)
    return _outputs(made, split.moved(split.axis + node.attrs["axis"]))
