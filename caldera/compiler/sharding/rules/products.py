"""Rules for products of matrices and images, and for other parts of layers and losses:
normalisation, attention, dropout, entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caldera.compiler.sharding.layout import CartesianLayout, replicated
from caldera.compiler.sharding.rules.movement import part
from caldera.compiler.sharding.rules.registry import (
    AxisSignature,
    Letters,
    ShardingRule,
    ShardPlacement,
    letter_ways,
    letters_without,
    matching_letters,
    names,
    rule,
)
from caldera.core.graph import Node, Nodes
from caldera.core.graph.ops import add, constant
from caldera.core.graph.ops.random import bernoulli, dropped
from caldera.core.tensor import float32, int64, size

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation


@rule("matmul")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    a, b = node.inputs
    batch = [f"b{number}" for number in range(len(node.shape) - 2)]

    def letters(x: Node, rows: str, columns: str, turned: bool) -> Letters:
        before = matching_letters(batch, node.shape[:-2], x.shape[:-2])
        return (*before, columns, rows) if turned else (*before, rows, columns)

    signature = AxisSignature(
        (letters(a, "m", "k", node.attrs["ta"]), letters(b, "k", "n", node.attrs["tb"])),
        ((*batch, "m", "n"),),
        "sum",
        frozenset("k"),
    )
    return letter_ways(graph, node, signature)


CONVOLUTIONS: dict[str, tuple[str, str, str]] = {
    "conv2d": ("nc", "kc", "nk"),
    "conv2d_input": ("nk", "kc", "nc"),
    "conv2d_weight": ("nc", "nk", "kc"),
}
"""The first two letters of the operands and of the result: samples, channels in, channels out."""


@rule(*CONVOLUTIONS)
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    first, second, result = CONVOLUTIONS[node.op.name]
    if node.attrs["groups"] != 1:
        # Only samples are independent of each other then.
        first, second, result = (
            "".join(each if each == "n" else "." for each in word)
            for word in (first, second, result)
        )
    inputs = tuple(_image(word) for word in (first, second))
    gone = frozenset(set(first + second) - set(result) - {"."})
    signature = AxisSignature(inputs, (_image(result),), "sum", gone)

    def make(parts: Sequence[Node], layouts: tuple[CartesianLayout, ...]) -> Any:
        attrs = dict(node.attrs)
        if "shape" in attrs:
            attrs["shape"] = layouts[0].local_shape(graph.rank)
        return node.op.outputs(*parts, **attrs)

    return letter_ways(graph, node, signature, make)


def _image(word: str) -> Letters:
    return (*(None if each == "." else each for each in word), None, None)


@rule("max_pool2d", "avg_pool2d")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    if len(node.inputs) != 1:
        return None
    letters: Letters = ("n", "c", None, None)
    return letter_ways(graph, node, AxisSignature((letters,), (letters,) * len(node.outputs)))


# --- layers and losses

SAMPLES = 0


@rule("layer_norm")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    """Normalise locally by samples, if each sample is whole."""
    axes = node.attrs["axis"]
    if _shares(graph, node, axes):
        return None
    kept, numbers = letters_without(names(len(node.inputs[0].shape)), axes)
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
    """Normalise locally by channels; `batch_norm_over_ranks` handles samples of all ranks."""
    letters = names(len(node.inputs[0].shape))
    others = [each for each in range(len(letters)) if each != node.attrs["axis"]]
    if _shares(graph, node, others):
        return None
    kept, channel = letters_without(letters, others)
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
        # The samples of a group of ranks are partitioned over it: the batch is the batch of all
        # ranks.
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
    """Split attention by samples and heads, which are independent products."""
    y, logarithm = node.outputs
    count = len(y.shape) - 2
    letters = names(count)

    batches = (matching_letters(letters, y.shape[:-2], x.shape[:-2]) for x in node.inputs)
    inputs = tuple((*batch, None, None) for batch in batches)
    outputs: tuple[Letters, ...] = (
        (*letters, None, None),
        (*letters, *(None,) * (len(logarithm.shape) - count)),
    )
    return letter_ways(graph, node, AxisSignature(inputs, outputs))


@rule("dropout")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    """Return the same elements as on one rank: numbers are counted through the whole array."""
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
    # The random numbers of a part are not contiguous: the part is sliced from all numbers.
    rate = node.attrs["rate"]
    chance = constant(1 - rate, float32)
    kept = bernoulli(state, start, layout.shape, chance, node.attrs["stream"])
    return dropped(own, part(kept, layout, graph.rank), rate)


@rule("cross_entropy", "cross_entropy_probabilities", "cross_entropy_epsilon", "kl_divergence")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    """Compute the loss locally by samples, if all classes of a sample are on one rank."""
    classes = node.attrs["axis"]
    if _shares(graph, node, [classes]):
        return None
    kept, numbers = letters_without(names(len(node.inputs[0].shape)), [classes])
    targets = numbers if node.op.name == "cross_entropy" else kept
    return letter_ways(graph, node, AxisSignature((kept, targets), (numbers,)))


@rule("one_hot")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    letters = tuple(names(len(node.inputs[0].shape)))
    return letter_ways(graph, node, AxisSignature((letters,), ((*letters, None),)))


def _shares(graph: Propagation, node: Node, axes: Sequence[int]) -> bool:
    """Return True if the first input is or may be partitioned along any of the axes."""
    layout = graph.suited(node.inputs[0])
    return layout is None or bool(set(axes) & set(layout.split_axes))


def _first_only(shape: tuple[int, ...]) -> Letters:
    return tuple("n" if axis == SAMPLES else None for axis in range(len(shape)))
