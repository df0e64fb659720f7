"""Pooling over windows that lie side by side, and its gradients, as work on images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caldera.core.graph.node import Node
from caldera.kernels.cuda.codegen.kernel import Array
from caldera.kernels.cuda.persistent.images import Pixelwise
from caldera.kernels.cuda.persistent.memory_access import Access
from caldera.kernels.table import Call


def _is_plain(node: Node) -> bool:
    """Whether windows neither overlap nor leave the image."""
    attrs = node.attrs
    inside = attrs["padding"] == ((0, 0), (0, 0)) and attrs["size"] == attrs["stride"]
    return inside and attrs.get("dilation", (1, 1)) == (1, 1)


def _window(node: Node, here: Sequence[str]) -> list[list[str]]:
    """The coordinates of the elements of the window at a place, in their order."""
    image, channel, y, x = here
    rows, columns = node.attrs["size"]
    return [
        [image, channel, f"({y} * {rows} + {i})", f"({x} * {columns} + {j})"]
        for i in range(rows)
        for j in range(columns)
    ]


def _place(node: Node, here: Sequence[str], pooled: Array) -> tuple[list[str], str, str]:
    """Where the window lies that an element is in, whether there is one, and the element's number
    in it."""
    image, channel, y, x = here
    rows, columns = node.attrs["size"]
    down, across = pooled.shape[2:]
    known = [
        image,
        channel,
        f"min({y} / {rows}, {down - 1})",
        f"min({x} / {columns}, {across - 1})",
    ]
    inside = f"{y} < {rows * down} && {x} < {columns * across}"
    return known, inside, f"{y} % {rows} * {columns} + {x} % {columns}"


def average_pool(call: Call) -> Pixelwise:
    """The mean of each window."""
    (given,), (result,) = call.inputs, call.outputs

    def element(places: Access, here: Sequence[str]) -> list[str]:
        window = [places.load(given, each) for each in _window(call.node, here)]
        return [f"float value = ({' + '.join(window)}) / {len(window)}.0f;"]

    return Pixelwise(call.inputs, result, element)


def average_pool_input(call: Call) -> Pixelwise:
    """Each element's share of its window's gradient."""
    (given,), (result,) = call.inputs, call.outputs
    rows, columns = call.node.attrs["size"]

    def element(places: Access, here: Sequence[str]) -> list[str]:
        place, inside, _ = _place(call.node, here, given)
        share = f"{places.load(given, place)} / {rows * columns}.0f"
        return [f"float value = {inside} ? {share} : 0.0f;"]

    return Pixelwise(call.inputs, result, element)


def max_pool(call: Call) -> Pixelwise:
    """The largest element of each window, of equal ones the first; a nan is larger than all. A bias
    and a relu may follow."""
    (given, *biases), (result, index) = call.inputs, call.outputs

    def element(places: Access, here: Sequence[str]) -> list[str]:
        first, *rest = (places.load(given, each) for each in _window(call.node, here))
        lines = [f"float value = {first}, other;", "i32 place = 0;"]
        for number, each in enumerate(rest, 1):
            lines += [
                f"other = {each};",
                "if (value == value && !(other <= value)) {",
                "    value = other;",
                f"    place = {number};",
                "}",
            ]
        for bias in biases:
            lines.append(f"value = op_add(value, {places.load(bias, [here[1], '0', '0'])});")
        if call.node.attrs.get("activated"):
            lines.append("value = op_relu(value);")
        return [*lines, places.store(index, here, "place")]

    return Pixelwise(call.inputs, result, element, (index,))


def pool_scatter(call: Call) -> Pixelwise:
    """The gradient of a window for the element that won, 0 for the others."""
    (given, index), (result,) = call.inputs, call.outputs

    def element(places: Access, here: Sequence[str]) -> list[str]:
        place, inside, number = _place(call.node, here, given)
        wins = f"{inside} && (i32){places.load(index, place)} == {number}"
        return [f"float value = {wins} ? {places.load(given, place)} : 0.0f;"]

    return Pixelwise(call.inputs, result, element)


_BUILDERS: dict[str, Callable[[Call], Pixelwise]] = {
    "avg_pool2d": average_pool,
    "avg_pool2d_input": average_pool_input,
    "max_pool2d": max_pool,
    "max_pool2d_epilogue": max_pool,
    "pool_scatter": pool_scatter,
}


def pool(call: Call) -> Pixelwise | None:
    """The call as work on images; None for what is no pooling, or one of another kind."""
    builder = _BUILDERS.get(call.node.op.name)
    if builder is None or not _is_plain(call.node) or call.outputs[0].dtype != np.float32:
        return None
    return builder(call)
