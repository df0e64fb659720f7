"""What layers of networks and losses are made of: normalisation, attention, dropout, entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from caldera.compiler.sharding.layout import CartesianLayout, replicated
from caldera.compiler.sharding.rules.registry import (
    AxisSignature,
    Letters,
    ShardingRule,
    ShardPlacement,
    letter_ways,
    names,
    rule,
)
from caldera.compiler.sharding.rules.stretches import part
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes
from caldera.core.graph.ops.base import constant
from caldera.core.graph.ops.elementwise import add
from caldera.core.graph.ops.random import bernoulli, dropped
from caldera.core.tensor.dtype import float32, int64
from caldera.core.tensor.shape import size

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation

SAMPLES = 0


@rule("layer_norm")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    """Each sample by itself, if it is whole."""
    axes = node.attrs["axis"]
    if _shares(graph, node, axes):
        return None
    letters = names(len(node.inputs[0].shape))
    kept: Letters = tuple(None if axis in axes else n for axis, n in enumerate(letters))
    numbers: Letters = tuple(n for axis, n in enumerate(letters) if axis not in axes)
    whole: Letters = (None,) * len(axes)
    return letter_ways(graph, node, AxisSignature((kept, whole, whole), (kept, numbers, numbers)))


@rule("group_norm", "local_response_norm")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    x, *others = node.inputs
    if _shares(graph, node, range(1, len(x.shape))):
        return None
    outputs = [_first_only(spec.shape) for spec in node.outputs]
    whole = [(None,) * len(given.shape) for given in others]
    return letter_ways(graph, node, AxisSignature((_first_only(x.shape), *whole), tuple(outputs)))


@rule("batch_norm_inference")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    x, *others = node.inputs
    letters = tuple(names(len(x.shape)))
    channel: Letters = (letters[node.attrs["axis"]],)
    inputs = (letters, *(channel for _ in others))
    return letter_ways(graph, node, AxisSignature(inputs, (letters,)))


@rule("batch_norm")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    """Channels by themselves; samples of all ranks together are another op's."""
    letters = names(len(node.inputs[0].shape))
    axis = node.attrs["axis"]
    if _shares(graph, node, [each for each in range(len(letters)) if each != axis]):
        return None
    kept: Letters = tuple(n if each == axis else None for each, n in enumerate(letters))
    channel: Letters = (letters[axis],)
    signature = AxisSignature((kept, channel, channel), (kept, channel, channel))
    return letter_ways(graph, node, signature)


@rule("batch_norm_over_ranks")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    x = node.inputs[0]
    layout = graph.suited(x)
    axis = node.attrs["axis"]
    if layout is None or layout.replicas > 1:
        return None
    if layout.split_axes == (SAMPLES,):
        # The samples of a group of ranks are spread over it: the batch is that of all ranks.
        number = replicated(node.outputs[1].shape, layout.ranks)
        everywhere = [
            ShardPlacement(number),
            ShardPlacement(number),
            ShardPlacement(replicated((), layout.ranks)),
        ]

        def make(parts: Sequence[Node]) -> Nodes:
            return node.op.outputs(*parts, **{**node.attrs, "mesh": "all"})

        return [
            ShardingRule(
                "samples of all",
                (layout, number, number),
                (ShardPlacement(layout), *everywhere),
                make,
            )
        ]
    if layout.split_axes != (axis,):
        return None
    letters: Letters = tuple("c" if each == axis else None for each in range(len(x.shape)))
    outputs: tuple[Letters, ...] = (letters, ("c",), ("c",), ())
    return letter_ways(graph, node, AxisSignature((letters, ("c",), ("c",)), outputs))[:1]


@rule("scaled_dot_product_attention")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    """Many products, of which each rank has some: by samples and heads."""
    y, logarithm = node.outputs
    count = len(y.shape) - 2
    letters = names(count)

    def of(shape: tuple[int, ...]) -> Letters:
        extra = len(shape) - 2 - count
        batch = tuple(
            letters[axis - extra] if n == y.shape[axis - extra] else None
            for axis, n in enumerate(shape[:-2])
        )
        return (*batch, None, None)

    inputs = tuple(of(given.shape) for given in node.inputs)
    outputs: tuple[Letters, ...] = (
        (*letters, None, None),
        (*letters, *(None,) * (len(logarithm.shape) - count)),
    )
    return letter_ways(graph, node, AxisSignature(inputs, outputs))


@rule("dropout")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    """The same elements as on one rank: numbers are counted through the whole array."""
    x, state, _ = node.inputs
    layout = graph.suited(x)
    if layout is None or (graph.may_exchange and layout.split_axes not in ((), (SAMPLES,))):
        return None
    inputs = (layout, replicated(state.shape, layout.ranks), replicated((), layout.ranks))

    def make(parts: Sequence[Node]) -> Node:
        return _dropped(graph, node, layout, parts)

    return [ShardingRule("where it is", inputs, (ShardPlacement(layout),), make)]


def _dropped(
    graph: Propagation, node: Node, layout: CartesianLayout, parts: Sequence[Node]
) -> Node:
    own, state, start = parts
    stretches = layout.axis_intervals(graph.rank, SAMPLES) if layout.shape else ()
    if layout.split_axes in ((), (SAMPLES,)) and len(stretches) <= 1:
        skipped = stretches[0][0] * size(layout.shape[1:]) if stretches else 0
        first = add(start, constant(skipped, int64))
        return node.op(own, state, first, **node.attrs)
    # The numbers of a part do not follow each other: it is cut out of all of them.
    rate = node.attrs["rate"]
    chance = constant(1 - rate, float32)
    kept = bernoulli(state, start, layout.shape, chance, node.attrs["stream"])
    return dropped(own, part(kept, layout, graph.rank), rate)


@rule("cross_entropy", "cross_entropy_probabilities", "cross_entropy_epsilon", "kl_divergence")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    """Each sample by itself, if all of its classes are there."""
    classes = node.attrs["axis"]
    if _shares(graph, node, [classes]):
        return None
    kept, numbers = _without(names(len(node.inputs[0].shape)), classes)
    targets = numbers if node.op.name == "cross_entropy" else kept
    return letter_ways(graph, node, AxisSignature((kept, targets), (numbers,)))


@rule("one_hot")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    letters = tuple(names(len(node.inputs[0].shape)))
    return letter_ways(graph, node, AxisSignature((letters,), ((*letters, None),)))


def _without(letters: Sequence[str], axis: int) -> tuple[Letters, Letters]:
    """Those of a value that is whole along an axis, and of what has one axis less."""
    kept = tuple(None if each == axis else n for each, n in enumerate(letters))
    return kept, tuple(n for n in kept if n is not None)


def _shares(graph: Propagation, node: Node, axes: Sequence[int]) -> bool:
    """Whether ranks have parts of the first input along some axes, or nobody knows."""
    layout = graph.suited(node.inputs[0])
    return layout is None or bool(set(axes) & set(layout.split_axes))


def _first_only(shape: tuple[int, ...]) -> Letters:
    return tuple("n" if axis == SAMPLES else None for axis in range(len(shape)))
