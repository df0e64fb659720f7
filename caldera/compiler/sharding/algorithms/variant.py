"""Variants of distributed algorithms: input layouts, output layouts and cost per rank.

The cost counts sent bytes, messages and arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.axis_split import AxisSplit, cyclic_split
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, along_axis
from caldera.compiler.sharding.volume import Links, volume
from caldera.core.graph.node import Node
from caldera.core.tensor.shape import Shape

TRANSFORMS = ("fft", "rfft", "irfft")
CONVOLUTION = 4.5
"""Slowdown of a transform whose length has no small factors."""
SLOWER = {
    "sort": 250,
    "qr": 7,
    "cholesky": 6,
    "solve": 5,
    "inverse": 8,
    "slogdet": 4,
    "svd": 4,
    "eigh": 4,
}
"""Operations of products that take as long as one of sorting, or of LAPACK with a matrix that one
rank may have whole."""


def computing(node: Node, share: int = 1) -> AlgorithmCost:
    """Return the cost of computing a node, or of each of `share` ranks with equal parts.

    >>> from caldera.core.graph.opdef import OPS, parameter
    >>> import numpy as np
    >>> from caldera.core.graph.node import Spec
    >>> x = parameter(0, Spec((4, 4), np.dtype(float)))
    >>> computing(OPS["matmul"].node(x, x, ta=False, tb=False), 2).flops
    64
    """
    flops = node.op.count_flops(node)
    if node.op.name in TRANSFORMS:
        n = node.attrs.get("n", node.inputs[0].shape[node.attrs["axis"]])
        slower = slower_than_two(n)
        if _are_rows(node):
            return AlgorithmCost(transforms=int(slower * flops) // share)
        # Half the cost of transforms of columns is reading and writing them.
        nbytes = max(node.inputs[0].spec.nbytes, node.spec.nbytes)
        return AlgorithmCost(columns=((int(slower**0.5 * flops) // share, nbytes // share),))
    return AlgorithmCost(flops=flops * SLOWER.get(node.op.name, 1) // share)


def _are_rows(node: Node) -> bool:
    """Return True if the signals of a transform are contiguous."""
    pairs = node.op.name != "rfft"
    return bool(node.attrs["axis"] == len(node.inputs[0].shape) - 1 - pairs)


@lru_cache(maxsize=256)
def slower_than_two(n: int) -> float:
    """Return the slowdown of a transform of length n relative to its operation count.

    The operation count holds for powers of two. The time grows with the sum of the prime factors,
    up to the length from which pocketfft uses a convolution.

    >>> [round(slower_than_two(n), 1) for n in (1, 1024, 1000, 1023, 1021)]
    [1.0, 1.0, 1.1, 2.2, 4.5]
    """
    found, factor, left = 0, 2, n
    while left > 1:
        if left % factor == 0:
            found, left = found + factor, left // factor
        else:
            factor = left if factor * factor > left else factor + 1
    return min(found / (2 * (n - 1).bit_length()), CONVOLUTION) if n > 1 else 1.0


@dataclass(frozen=True)
class AlgorithmCost:
    """Cost of an algorithm on the rank with most work.

    - `bytes`, `messages`: sent by the rank.
    - `flops`: operations in products.
    - `workspace`: bytes of memory in addition to the inputs and outputs.
    - `overhead`: seconds not covered by any other count.
    - `transforms`: operations in Fourier transforms.
    - `copied`: bytes read and written outside products.
    - `panels`: number of panels by factorisation, with measured messages and calls per panel.
    - `awaited`: bytes that other ranks send while this rank waits for them.
    - `posted`: bytes, among those sent, that are not sent if ranks share memory.
    - `meetings`: number of synchronisations in shared memory that replace `posted`.
    - `columns`: operations in transforms of interleaved signals, with their bytes.

    >>> AlgorithmCost(bytes=8, messages=1) + AlgorithmCost(bytes=4, flops=10, panels=(("qr", 4),))
    AlgorithmCost(bytes=12, messages=1, flops=10, ..., panels=(('qr', 4),), awaited=0, ...)
    """

    bytes: int = 0
    messages: int = 0
    flops: int = 0
    workspace: int = 0
    overhead: float = 0.0
    transforms: int = 0
    copied: int = 0
    panels: tuple[tuple[str, float], ...] = ()
    awaited: int = 0
    posted: int = 0
    meetings: int = 0
    columns: tuple[tuple[int, int], ...] = ()

    def __add__(self, other: AlgorithmCost) -> AlgorithmCost:
        return AlgorithmCost(
            self.bytes + other.bytes,
            self.messages + other.messages,
            self.flops + other.flops,
            max(self.workspace, other.workspace),
            self.overhead + other.overhead,
            self.transforms + other.transforms,
            self.copied + other.copied,
            (*self.panels, *other.panels),
            self.awaited + other.awaited,
            self.posted + other.posted,
            self.meetings + other.meetings,
            (*self.columns, *other.columns),
        )

    def seconds(self, links: Links) -> float:
        """Return the time of this cost in seconds, without overlap."""
        sent, messages = self.bytes + self.awaited, self.messages * links.latency
        if links.shared and self.posted:
            sent, messages = sent - self.posted, self.meetings * links.meeting
        sending = sent / links.collective + messages
        computing = self.flops / links.flops + self.transforms / links.transforms
        computing += sum(flops / links.columns(nbytes) for flops, nbytes in self.columns)
        panels = sum(count * links.panel(name) for name, count in self.panels)
        return sending + computing + panels + self.copied / links.copying + self.overhead


Options = tuple[Any, ...]
"""Parameters of an algorithm in addition to its parts: numbers, strings and nested tuples."""


@dataclass(frozen=True)
class Variant:
    """Variant of an algorithm: displayed `name`, and `options` passed to the algorithm's `run`."""

    name: str
    inputs: tuple[ShardLayout, ...]
    outputs: tuple[ShardLayout, ...]
    cost: AlgorithmCost
    options: Options = ()


@dataclass(frozen=True)
class Algorithm:
    """Distributed implementation of an op on whole values.

    - `variants(node, layouts of its inputs, ranks)`: list of variants, which may be empty; the
      ranks are 0 to `ranks` - 1.
    - `run(parts, variant's inputs, variant's outputs, options, communicator)`: return this rank's
      parts of the outputs. All ranks call it.
    - `run_into(places, ...)`: the same, written to existing memory, if that saves a copy.
    """

    variants: Callable[[Node, Sequence[ShardLayout], int], list[Variant]]
    run: Callable[
        [Sequence[np.ndarray], Sequence[ShardLayout], Sequence[ShardLayout], Options, Communicator],
        Sequence[np.ndarray],
    ]
    run_into: (
        Callable[
            [
                Sequence[np.ndarray],
                Sequence[np.ndarray],
                Sequence[ShardLayout],
                Sequence[ShardLayout],
                Options,
                Communicator,
            ],
            None,
        ]
        | None
    ) = None


def choose(
    variants: Sequence[Variant], given: Sequence[ShardLayout], itemsize: int, links: Links
) -> Variant:
    """Return the fastest variant, including the redistribution of its inputs."""

    def seconds(variant: Variant) -> float:
        moves = (volume(*each) for each in zip(given, variant.inputs, strict=True))
        return variant.cost.seconds(links) + sum(each.seconds(itemsize, links) for each in moves)

    return min(variants, key=seconds)


# --- layouts


def contiguous(cuts: Sequence[int]) -> AxisSplit:
    """Return a split with one block per part, in order."""
    return AxisSplit(len(cuts) - 1, tuple(cuts), tuple(range(len(cuts) - 1)))


def cuts_of(layout: ShardLayout, axis: int, parts: int) -> tuple[int, ...] | None:
    """Return the cuts of an axis if each of `parts` parts has one block, in order, else None."""
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
    """Return contiguous blocks of the last two axes on a grid of ranks, row by row."""
    before = (None,) * (len(shape) - 2)
    return CartesianLayout(shape, (*before, contiguous(rows), contiguous(columns)), tuple(ranks))


def axis_layout(shape: Shape, axis: int, cuts: Sequence[int]) -> CartesianLayout:
    """Return the layout with contiguous blocks of an axis, one for each rank."""
    return along_axis(shape, axis % len(shape), contiguous(cuts), range(len(cuts) - 1))


def cyclic_layout(shape: tuple[int, int], block: int, grid: tuple[int, int]) -> CartesianLayout:
    """Return square blocks dealt out to a grid of ranks."""
    splits = (cyclic_split(shape[0], grid[0], block), cyclic_split(shape[1], grid[1], block))
    return CartesianLayout(shape, splits, tuple(range(grid[0] * grid[1])))
