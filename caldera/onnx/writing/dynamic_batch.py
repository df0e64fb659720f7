"""A graph whose first axis is open, from two graphs with two numbers of samples.

Shapes of Caldera are fixed, those of ONNX need not be. A model is therefore written down twice; the
two graphs are the same but for the sizes and numbers that follow from the number of samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caldera.core.graph.node import Node, Spec, describe
from caldera.core.graph.opdef import as_tuple
from caldera.errors import ConfigError

FIRST, SECOND = 13, 17
"""The two numbers of samples: unlike any size that a network is likely to have."""


@dataclass(frozen=True)
class Samples:
    """A size that is so many times the number of samples."""

    times: int


Size = int | Samples


@dataclass(frozen=True)
class Pair:
    """A node in both graphs."""

    node: Node
    twin: Node

    @property
    def name(self) -> str:
        """The name of its op."""
        return self.node.op.name

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes that it has in the first graph."""
        return self.node.attrs

    @property
    def spec(self) -> Spec:
        """Shape and dtype in the first graph, of its only output."""
        return self.node.spec

    @property
    def inputs(self) -> tuple[Pair, ...]:
        """The nodes that it reads."""
        return tuple(Pair(a, b) for a, b in zip(self.node.inputs, self.twin.inputs, strict=True))

    @property
    def shape(self) -> tuple[Size, ...]:
        """The sizes of its only output."""
        return sizes(self.node.shape, self.twin.shape, self.node)

    def sizes(self, name: str) -> tuple[Size, ...]:
        """An attribute that is a shape."""
        return sizes(self.node.attrs[name], self.twin.attrs[name], self.node)

    def different(self) -> list[str]:
        """The attributes that are not the same in both graphs."""
        a, b = self.node.attrs, self.twin.attrs
        return [name for name in a if not (a[name] == b[name] or _both_nan(a[name], b[name]))]

    def parts(self) -> tuple[Pair, ...]:
        """What a composite op is made of."""
        assert self.node.op.decompose is not None
        firsts, seconds = (
            as_tuple(each.op.decompose(*each.inputs, **each.attrs))  # type: ignore[misc]
            for each in (self.node, self.twin)
        )
        return tuple(Pair(a, b) for a, b in zip(firsts, seconds, strict=True))


def _both_nan(a: Any, b: Any) -> bool:
    return bool(a != a) and bool(b != b)


def size(first: int, second: int, node: Node) -> Size:
    """A size as a function of the number of samples."""
    if first == second:
        return first
    times, rest = divmod(first, FIRST)
    if rest or times * SECOND != second:
        raise not_open("sizes that are multiples of the number of samples", first, second, node)
    return Samples(times)


def not_open(expected: str, first: object, second: object, node: Node) -> ConfigError:
    """The error about something that is not a known function of the number of samples."""
    return ConfigError.build(
        "onnx export",
        expected=expected,
        got=f"{first} for {FIRST} and {second} for {SECOND} in {describe(node)}",
        hint="export it with batch_size=, for a fixed number of samples",
    )


def sizes(first: Sequence[int], second: Sequence[int], node: Node) -> tuple[Size, ...]:
    """Sizes as functions of the number of samples."""
    return tuple(size(a, b, node) for a, b in zip(first, second, strict=True))


def in_order(roots: Iterable[Pair]) -> list[Pair]:
    """Every pair that the roots depend on, inputs before users."""
    order: list[Pair] = []
    done: set[Pair] = set()
    for root in roots:
        stack = [(root, False)]
        while stack:
            pair, is_ready = stack.pop()
            if is_ready:
                order.append(pair)
                continue
            if pair in done:
                continue
            done.add(pair)
            _check(pair)
            stack.append((pair, True))
            stack.extend((given, False) for given in reversed(pair.inputs) if given not in done)
    return order


def _check(pair: Pair) -> None:
    a, b = pair.node, pair.twin
    if a.op is not b.op or len(a.inputs) != len(b.inputs):
        raise not_open("the same ops for every number of samples", describe(a), describe(b), a)
