"""Layers that contain layers: residual blocks, branches and layers that join branches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.nn.basic import (
    Sequential,
    activation_function,
    check_layers,
    named_in_order,
    register,
)
from caldera.nn.layer import Layer


@register
@dataclass(eq=False)
class Residual(Layer):
    """The output of `layers` plus x (or plus `shortcut(x)`), then `activation`.

    Args:
        layers: Layers of the branch.
        shortcut: Layer on the input, where its shape differs from the branch's.
        activation: Name of the activation of the sum.

    >>> from caldera import nn, op
    >>> block = nn.Residual([nn.Dense(4, activation="relu"), nn.Dense(4)], activation="relu")
    >>> block(op.input("x", (5, 4))).shape
    (5, 4)
    """

    layers: Sequence[Layer]
    shortcut: Layer | None = None
    activation: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.layers = check_layers("Residual", self.layers)
        if self.shortcut is not None and not isinstance(self.shortcut, Layer):
            raise ConfigError.build(
                "Residual",
                expected="shortcut= a layer or None",
                got=repr(self.shortcut),
                hint="put several into nn.Sequential",
            )
        activation_function(self.activation)  # Refused now, not when it is first called.

    def children(self) -> Iterator[tuple[str, Layer]]:
        yield from named_in_order(self.layers)
        if self.shortcut is not None:
            yield self.shortcut.name or "shortcut", self.shortcut

    def forward(self, x: Expr) -> Expr:
        y = x
        for layer in self.layers:
            y = layer(y)
        kept = x if self.shortcut is None else self.shortcut(x)
        self.require(
            y.shape == kept.shape,
            f"layers whose output has the shape of the shortcut, {kept.shape}",
            f"{y.shape}",
            "pass a shortcut= with the same strides and channels",
        )
        return activation_function(self.activation)(y + kept)


@register
@dataclass(eq=False)
class Branches(Layer):
    """Several layers on the same input, their results joined along `axis` (1 is the channels).

    A branch is a layer or a list of layers.

    >>> from caldera import nn, op
    >>> block = nn.Branches([nn.Conv2D(8, 1), [nn.Conv2D(4, 1), nn.Conv2D(8, 3, padding="same")]])
    >>> block(op.input("x", (5, 3, 7, 7))).shape
    (5, 16, 7, 7)
    """

    branches: Sequence[Any]
    axis: int = 1

    def __post_init__(self) -> None:
        wrapped = [
            Sequential(branch) if isinstance(branch, list | tuple) else branch
            for branch in self.branches
        ]
        self.branches = check_layers("Branches", wrapped)
        require(self.branches, "Branches", "at least one branch")

    def children(self) -> Iterator[tuple[str, Layer]]:
        return named_in_order(self.branches, "branch{index}")

    def forward(self, x: Expr) -> Expr:
        return _joined(self, [branch(x) for branch in self.branches], self.axis)


@register
@dataclass(eq=False)
class Cell(Layer):
    """A small graph of layers: each node is the sum of layers applied to earlier nodes.

    Node 0 is the input. `sources` lists the input nodes of each further node, and `layers` a layer
    for each of these inputs, in that order. The output is the last node, or all nodes that are not
    inputs of other nodes, joined along `axis` (1 is the channels).

    >>> from caldera import nn, op
    >>> convolutions = [nn.Conv2D(3, 3, padding="same") for _ in range(3)]
    >>> cell = nn.Cell([[0], [0, 1]], convolutions)
    >>> cell(op.input("x", (5, 3, 7, 7))).shape
    (5, 3, 7, 7)
    """

    sources: Sequence[Sequence[int]]
    layers: Sequence[Any]
    output: str = "last"
    axis: int = 1

    def __post_init__(self) -> None:
        wrapped = [
            Sequential(layer) if isinstance(layer, list | tuple) else layer for layer in self.layers
        ]
        self.layers = check_layers("Cell", wrapped)
        self.sources = [list(each) for each in self.sources]
        for number, seen in enumerate(self.sources, start=1):
            require(
                seen and all(isinstance(s, int) and 0 <= s < number for s in seen),
                "Cell",
                f"numbers of nodes before node {number}",
                repr(seen),
            )
        count = sum(map(len, self.sources))
        require(
            count and count == len(self.layers),
            "Cell",
            f"a layer for each of {count} sources",
            len(self.layers),
        )
        require(
            self.output in ("last", "loose"), "Cell", 'output="last" or "loose"', repr(self.output)
        )

    def children(self) -> Iterator[tuple[str, Layer]]:
        return named_in_order(self.layers, "edge{index}")

    def forward(self, x: Expr) -> Expr:
        nodes, layers = [x], iter(self.layers)
        for seen in self.sources:
            made = [next(layers)(nodes[source]) for source in seen]
            total = made[0]
            for other in made[1:]:
                self.require(
                    other.shape == total.shape,
                    f"layers whose outputs all have shape {total.shape}",
                    f"{other.shape}",
                )
                total = total + other
            nodes.append(total)
        if self.output == "last":
            return nodes[-1]
        used = {source for seen in self.sources for source in seen}
        loose = [node for number, node in enumerate(nodes) if number and number not in used]
        return _joined(self, loose, self.axis)


@register
@dataclass(eq=False)
class Concat(Layer):
    """Layer that joins its inputs along `axis` (1 is the channels).

    >>> from caldera import nn, op
    >>> nn.Concat()(op.input("a", (5, 2, 7)), op.input("b", (5, 3, 7))).shape
    (5, 5, 7)
    """

    axis: int = 1

    def forward(self, *inputs: Expr) -> Expr:
        return _joined(self, list(inputs), self.axis)


def _joined(layer: Layer, parts: list[Expr], axis: int) -> Expr:
    given = bool(parts) and all(part is not None for part in parts)
    layer.require(given, "parts to join", "None")
    shapes = [part.shape for part in parts]
    rank = len(shapes[0])
    layer.require(-rank <= axis < rank, f"parts that have an axis {axis}", f"shape {shapes[0]}")
    around = {(len(s), s[: axis % rank], s[axis % rank + 1 :]) for s in shapes}
    layer.require(
        len(around) <= 1,
        f"parts that differ along axis {axis} only",
        " and ".join(str(shape) for shape in shapes),
        "strides and paddings of the branches must agree",
    )
    return op.concat(parts, axis=axis)
