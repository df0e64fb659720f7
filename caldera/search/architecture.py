"""Search-space parts for architectures: lists of layers, cells, hierarchies of cells.

Their values are plain data, from which `search.make_layers` and `search.make_cell` build layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from caldera.base.arguments import require, shown
from caldera.base.registry import nearest
from caldera.errors import ConfigError
from caldera.nn import Cell, Layer
from caldera.nn import layers as layer_names
from caldera.search.dimension import Choice, Dimension, Integer
from caldera.search.space import SpaceNode, Walk, check_parameters, describe
from caldera.train.arguments import whole_number

NONE = "none"
"""Name of the operation of an absent edge."""

Operations = Mapping[str, Callable[[], Any]]
"""Factories of operations by name; each returns a new layer or a list of layers."""


@dataclass(frozen=True)
class Repeat(SpaceNode):
    """A list of varying length whose items come from the same part."""

    part: Any
    least: int
    most: int

    def resolve(self, path: str, walk: Walk) -> list[Any]:
        count = self.most
        if self.least < self.most:
            count = walk(f"{path}.count", Integer(self.least, self.most))
        return [walk(f"{path}.{index}", self.part) for index in range(count)]

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "repeat",
            "least": self.least,
            "most": self.most,
            "part": describe(self.part),
        }


@dataclass(frozen=True)
class CellSpace(SpaceNode):
    """A cell of nodes, each the sum of operations on earlier ones."""

    nodes: int
    operations: tuple[str, ...]
    inputs: int

    def resolve(self, path: str, walk: Walk) -> list[dict[str, Any]]:
        found = []
        for node in range(self.nodes):
            sources, operations = [], []
            for index in range(self.inputs):
                place = f"{path}.{node}"
                sources.append(walk(f"{place}.from{index}", Choice(range(node + 1))))
                operations.append(walk(f"{place}.operation{index}", Choice(self.operations)))
            found.append({"sources": sources, "operations": operations})
        return found

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "cell",
            "nodes": self.nodes,
            "operations": list(self.operations),
            "inputs": self.inputs,
        }


@dataclass(frozen=True)
class Hierarchy(SpaceNode):
    """Levels of motifs: an edge of a motif is a motif of the level below."""

    operations: tuple[str, ...]
    levels: tuple[tuple[int, int], ...]

    def resolve(self, path: str, walk: Walk) -> list[list[dict[str, Any]]]:
        found = []
        names: Sequence[str] = self.operations
        for level, (motifs, nodes) in enumerate(self.levels):
            # Deeper levels have longer paths: a mutation can pick a level.
            depth = ".".join(["level"] * (len(self.levels) - level))
            # The edge from the preceding node is never empty, so every node is reached.
            offered = {
                f"{first}-{last}": names if first == last - 1 else (NONE, *names)
                for last in range(1, nodes)
                for first in range(last)
            }
            places = [f"{path}.{depth}.{level}-{motif}" for motif in range(motifs)]
            found.append(
                [
                    {edge: walk(f"{place}:{edge}", Choice(own)) for edge, own in offered.items()}
                    for place in places
                ]
            )
            names = [f"motif{index}" for index in range(motifs)]
        return found

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "hierarchy",
            "operations": list(self.operations),
            "levels": [list(each) for each in self.levels],
        }


# --- as a user writes them


def repeat(part: Any, least: int, most: int) -> Repeat:
    """Return the search space of a list with `least` to `most` values from `part`.

    `part` is a dimension or a dict of dimensions.

    >>> from caldera import search
    >>> space = search.Space({"hidden": search.repeat(search.integer(16, 64, step=16), 1, 3)})
    >>> space.decoded({"hidden.count": 2, "hidden.0": 64, "hidden.1": 32})
    {'hidden': [64, 32]}
    """
    whole_number(least, "least", 0, "repeat")
    whole_number(most, "most", max(least, 1), "repeat")
    if not isinstance(part, Dimension | SpaceNode | Mapping):
        raise ConfigError.build(
            "repeat", expected="a dimension or a dict of dimensions", got=repr(part)[:80]
        )
    if isinstance(part, Mapping):
        check_parameters(part, "repeat ")
    return Repeat(part, least, most)


def layers(choices: Mapping[str, Mapping[str, Any] | None], least: int, most: int) -> Repeat:
    """Return the search space of a list with `least` to `most` layers from `choices`.

    `choices` maps layer names to the dimensions of their arguments.

    >>> from caldera import search
    >>> space = search.Space({"body": search.layers({
    ...     "Dense": {"units": search.choice([8, 16]), "activation": "relu"},
    ...     "Dropout": {"rate": search.uniform(0.1, 0.5)}}, 1, 3)})
    >>> space.decoded({"body.count": 1, "body.0.layer": "Dense", "body.0.units": 8})
    {'body': [{'layer': 'Dense', 'units': 8, 'activation': 'relu'}]}
    """
    if not isinstance(choices, Mapping) or not choices:
        raise ConfigError.build("layers", expected="a dict of layers by name", got=repr(choices))
    for name in choices:
        if name not in layer_names:
            raise ConfigError.build(
                "layers",
                expected="names of layers",
                got=repr(name),
                hint=nearest(name, layer_names),
            )
    opens = {name: dict(arguments or {}) for name, arguments in choices.items()}
    return repeat({"layer": Choice(list(opens), opens)}, least, most)


def make_layers(value: Sequence[Mapping[str, Any]]) -> list[Layer]:
    """Return the layers that `search.layers` chose.

    >>> from caldera import search
    >>> search.make_layers([{"layer": "Dense", "units": 8}])[0].units
    8
    """
    return [_layer(**each) for each in value]


def _layer(layer: str, **arguments: Any) -> Layer:
    return layer_names[layer](**arguments)


def cell(operations: Sequence[str] | Operations, nodes: int = 4, inputs: int = 2) -> CellSpace:
    """Return the search space of a cell (Zoph et al. 2018).

    Each of the `nodes` is the sum of `inputs` operations, each applied to an earlier node.
    `make_cell` builds the layer from the selected value.

    >>> from caldera import search
    >>> space = search.Space({"cell": search.cell(["conv3", "pool"], nodes=1, inputs=1)})
    >>> space.decoded({"cell.0.from0": 0, "cell.0.operation0": "pool"})
    {'cell': [{'sources': [0], 'operations': ['pool']}]}
    """
    whole_number(nodes, "nodes", 1, "cell")
    whole_number(inputs, "inputs", 1, "cell")
    return CellSpace(nodes, _operation_names(operations, "cell"), inputs)


def hierarchy(
    operations: Sequence[str] | Operations, levels: Sequence[tuple[int, int]] = ((3, 3), (1, 4))
) -> Hierarchy:
    """Return a hierarchical search space of motifs (Liu et al. 2018).

    Each level is a pair (number of motifs, nodes per motif). The edges of a motif are motifs of the
    level below; on the first level they are operations. The last level has one motif.

    >>> from caldera import search
    >>> space = search.Space({"network": search.hierarchy(["conv", "pool"], [(1, 2), (1, 2)])})
    >>> sorted(space.dimensions())
    ['network.level.1-0:0-1', 'network.level.level.0-0:0-1']
    """
    names = _operation_names(operations, "hierarchy")
    require(NONE not in names, "hierarchy", f"operations; {NONE!r} is always included", repr(names))
    found = tuple((int(motifs), int(nodes)) for motifs, nodes in levels)
    if not found or found[-1][0] != 1 or any(m < 1 or n < 2 for m, n in found):
        raise ConfigError.build(
            "hierarchy",
            expected="(motifs, nodes) a level, one motif of 2 nodes or more at last",
            got=repr(levels),
        )
    return Hierarchy(names, found)


def make_cell(value: Sequence[Any], operations: Operations, output: str = "last") -> Layer:
    """Build the layer selected by `search.cell` or `search.hierarchy`.

    `operations` maps names to functions that return a layer or a list of layers. Each operation
    must preserve the shape of its input.

    >>> from caldera import nn, search
    >>> operations = {"conv": lambda: nn.Conv2D(8, 3, padding="same"), "skip": lambda: []}
    >>> chosen = [{"sources": [0, 0], "operations": ["conv", "skip"]}]
    >>> search.make_cell(chosen, operations).sources
    [[0, 0]]
    """
    if not _is_cell(value) and not _is_hierarchy(value):
        raise ConfigError.build(
            "make_cell", expected="a choice of search.cell or search.hierarchy", got=shown(value)
        )
    if _is_cell(value):
        sources = [each["sources"] for each in value]
        made = [_made(operations, name) for each in value for name in each["operations"]]
        return Cell(sources, made, output)
    return _motif(value, len(value) - 1, 0, operations)


def _is_cell(value: Any) -> bool:
    return len(value) > 0 and all(
        isinstance(each, Mapping)
        and isinstance(each.get("sources"), Sequence)
        and isinstance(each.get("operations"), Sequence)
        for each in value
    )


def _is_hierarchy(value: Any) -> bool:
    """True for levels of motifs: the name of an operation or of a motif for each edge "0-1"."""
    if isinstance(value, np.ndarray) or not all(isinstance(level, Sequence) for level in value):
        return False
    edges = [motif.items() if isinstance(motif, Mapping) else None for motif in chain(*value)]
    return bool(edges) and all(
        each is not None
        and all(isinstance(n, str) and re.fullmatch(r"\d+-\d+", str(e)) for e, n in each)
        for each in edges
    )


def _motif(levels: Sequence[Any], level: int, motif: int, operations: Operations) -> Layer:
    edges: dict[int, list[tuple[int, Any]]] = {}
    for edge, name in levels[level][motif].items():
        first, last = map(int, edge.split("-"))
        if name == NONE:
            continue
        if level == 0:
            made = _made(operations, name)
        else:
            made = _motif(levels, level - 1, int(name.removeprefix("motif")), operations)
        edges.setdefault(last, []).append((first, made))
    nodes = [edges[node] for node in sorted(edges)]
    return Cell([[first for first, _ in node] for node in nodes], [m for n in nodes for _, m in n])


def _made(operations: Operations, name: str) -> Any:
    require(
        name in operations,
        "make_cell",
        f"an operation for {name!r}",
        ", ".join(operations) or "none",
    )
    return operations[name]()


def _operation_names(operations: Sequence[str] | Operations, where: str) -> tuple[str, ...]:
    names = tuple(operations)
    if isinstance(operations, str) or not names or not all(isinstance(n, str) for n in names):
        raise ConfigError.build(where, expected="names of operations", got=repr(operations)[:80])
    return names
