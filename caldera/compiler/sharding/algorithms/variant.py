"""A way to compute something on ranks: where inputs must be, where outputs will be, its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.cost import Cost
from caldera.compiler.sharding.axis_split import AxisSplit, cyclic_split
from caldera.compiler.sharding.layout import CartesianLayout, Layout
from caldera.compiler.sharding.volume import Links, volume
from caldera.core.graph.node import Node

Options = tuple[Any, ...]
"""What an algorithm needs to know beside its parts: numbers, words and tuples of them."""


@dataclass(frozen=True)
class Variant:
    """`name` is what a user reads; `options` is what the algorithm's `run` is given."""

    name: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    cost: Cost
    options: Options = ()


@dataclass(frozen=True)
class Algorithm:
    """How an op of whole values is computed by ranks.

    - `variants(node, layouts of its inputs, ranks)`: what there is to choose from, if anything; the
      ranks are 0 to `ranks` - 1.
    - `run(parts, variant's inputs, variant's outputs, options, communicator)`: this rank's parts of
      the outputs. All ranks call it.
    - `run_into(places, ...)`: the same, written to memory that is there, where that saves a copy.
    """

    variants: Callable[[Node, Sequence[Layout], int], list[Variant]]
    run: Callable[
        [Sequence[np.ndarray], Sequence[Layout], Sequence[Layout], Options, Communicator],
        Sequence[np.ndarray],
    ]
    run_into: (
        Callable[
            [
                Sequence[np.ndarray],
                Sequence[np.ndarray],
                Sequence[Layout],
                Sequence[Layout],
                Options,
                Communicator,
            ],
            None,
        ]
        | None
    ) = None


@dataclass(frozen=True)
class Choice:
    """The way that was taken, and those it beat, each with the seconds it is expected to take."""

    variant: Variant
    seconds: float
    beaten: tuple[tuple[str, float], ...]


def choose(
    variants: Sequence[Variant], given: Sequence[Layout], itemsize: int, links: Links
) -> Choice:
    """The way that takes least, with what it takes to bring the inputs there."""

    def seconds(variant: Variant) -> float:
        moves = (volume(*each) for each in zip(given, variant.inputs, strict=True))
        return variant.cost.seconds(links) + sum(each.seconds(itemsize, links) for each in moves)

    ranked = sorted(((seconds(variant), place) for place, variant in enumerate(variants)))
    best = variants[ranked[0][1]]
    beaten = tuple((variants[place].name, taken) for taken, place in ranked[1:])
    return Choice(best, ranked[0][0], beaten)


# --- layouts


def contiguous(cuts: Sequence[int]) -> AxisSplit:
    """One block for each part, in order."""
    return AxisSplit(len(cuts) - 1, tuple(cuts), tuple(range(len(cuts) - 1)))


def cuts_of(layout: Layout, axis: int, parts: int) -> tuple[int, ...] | None:
    """How a layout cuts an axis, if each of that many parts has one block of it, in order."""
    if not isinstance(layout, CartesianLayout) or len(layout.ranks) % parts:
        return None
    split = layout.splits[axis]
    if parts == 1:
        return (0, layout.shape[axis]) if split is None else None
    if split is None or split.parts != parts or list(split.owners) != sorted(set(split.owners)):
        return None
    return (0, *(int(cut) for cut in np.cumsum(split.sizes)))


def grid_layout(
    shape: tuple[int, ...],
    rows: Sequence[int],
    columns: Sequence[int],
    ranks: Sequence[int],
) -> CartesianLayout:
    """Contiguous blocks of the last two axes on a grid of ranks, row by row."""
    before = (None,) * (len(shape) - 2)
    return CartesianLayout(shape, (*before, contiguous(rows), contiguous(columns)), tuple(ranks))


def rows_layout(shape: tuple[int, ...], cuts: Sequence[int]) -> CartesianLayout:
    """Contiguous blocks of the first axis, one for each rank."""
    splits = (contiguous(cuts), *(None,) * (len(shape) - 1))
    return CartesianLayout(shape, splits, tuple(range(len(cuts) - 1)))


def columns_layout(shape: tuple[int, ...], cuts: Sequence[int]) -> CartesianLayout:
    """Contiguous blocks of the last axis, one for each rank."""
    splits = (*(None,) * (len(shape) - 1), contiguous(cuts))
    return CartesianLayout(shape, splits, tuple(range(len(cuts) - 1)))


def cyclic_layout(shape: tuple[int, int], block: int, grid: tuple[int, int]) -> CartesianLayout:
    """Square blocks dealt out to a grid of ranks."""
    splits = (cyclic_split(shape[0], grid[0], block), cyclic_split(shape[1], grid[1], block))
    return CartesianLayout(shape, splits, tuple(range(grid[0] * grid[1])))
