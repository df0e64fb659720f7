"""A model cut into stages that have about as much to do as each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from caldera.planner.workload import LayerCost


@dataclass(frozen=True, eq=False)
class Stage:
    """Layers that follow each other, on one rank of a pipeline."""

    layers: tuple[LayerCost, ...]

    @cached_property
    def weight(self) -> float:
        """Its part of the time of a step."""
        return sum(layer.weight for layer in self.layers)

    @cached_property
    def trained(self) -> float:
        """Bytes of its gradients."""
        return sum(layer.trained for layer in self.layers)

    @cached_property
    def parameters(self) -> float:
        """Bytes of its parameters."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def output(self) -> float:
        """Bytes of everything that its layers make of one sample."""
        return sum(layer.output for layer in self.layers)

    @cached_property
    def handed_on(self) -> float:
        """Bytes of a sample that the next stage gets."""
        return self.layers[-1].output

    def split(self, ways: int) -> float:
        """The part of a step's time that a rank has left if so many split its layers."""
        able = sum(layer.weight for layer in self.layers if layer.units >= ways)
        return able / ways + self.weight - able


def blocks(layers: Sequence[LayerCost]) -> list[tuple[LayerCost, ...]]:
    """Layers by the part of the model they belong to: nothing is cut inside of one."""
    return [tuple(each) for _, each in groupby(layers, key=lambda layer: layer.block)]


def cut(layers: Sequence[LayerCost], count: int) -> list[Stage] | None:
    """The layers in so many stages, the one with most operations having as few as can be; None if
    there are fewer blocks than that.

    >>> from caldera.planner.workload import LayerCost
    >>> def layer(name, part):
    ...     return LayerCost(name, "Dense", name, part, part, 4, 4, 4, 4)
    >>> found = cut([layer("a", 0.5), layer("b", 0.25), layer("c", 0.25)], 2)
    >>> [stage.weight for stage in found]
    [0.5, 0.5]
    """
    parts = blocks(layers)
    if count > len(parts):
        return None
    weights = [sum(layer.operations for layer in part) for part in parts]
    low, high = max(weights), sum(weights)
    for _ in range(40):
        middle = (low + high) / 2
        if _needed(weights, middle) <= count:
            high = middle
        else:
            low = middle
    groups = _filled(weights, high * (1 + 1e-9), count)
    return [
        Stage(tuple(layer for part in parts[first:last] for layer in part))
        for first, last in groups
    ]


def _needed(weights: Sequence[float], most: float) -> int:
    """How many stages there are if none may weigh more than that."""
    stages, filled = 1, 0.0
    for weight in weights:
        if filled + weight > most * (1 + 1e-12):
            stages, filled = stages + 1, 0.0
        filled += weight
    return stages


def _filled(weights: Sequence[float], most: float, count: int) -> list[tuple[int, int]]:
    """First and last block of each stage, each filled as far as the limit and the rest allow."""
    groups: list[tuple[int, int]] = []
    first, filled = 0, 0.0
    for index, weight in enumerate(weights):
        left = len(weights) - index
        must = count - len(groups) - 1 >= left and index > first
        if index > first and len(groups) < count - 1 and (filled + weight > most or must):
            groups.append((first, index))
            first, filled = index, 0.0
        filled += weight
    return [*groups, (first, len(weights))]
