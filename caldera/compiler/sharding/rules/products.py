"""Products: of matrices and of images with weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caldera.compiler.sharding.layout import CartesianLayout
from caldera.compiler.sharding.rules.registry import (
    AxisSignature,
    Letters,
    ShardingRule,
    letter_ways,
    rule,
)
from caldera.core.graph.node import Node

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation


@rule("matmul")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    a, b = node.inputs
    batch = [f"b{number}" for number in range(len(node.shape) - 2)]

    def letters(x: Node, rows: str, columns: str, turned: bool) -> Letters:
        extra = len(node.shape) - len(x.shape)
        before = tuple(
            batch[extra + axis] if n == node.shape[extra + axis] else None
            for axis, n in enumerate(x.shape[:-2])
        )
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
