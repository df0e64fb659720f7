"""Sharding rules: the ways to compute a node on ranks, and rules in Einstein notation.

A way states the layouts of the inputs, the computation of a rank on its parts, and the layouts of
the results. The cheapest way is chosen; for an op without a rule, every rank receives the whole
inputs, which is always correct.

Most ops are loops over named axes. `matmul` is "bmk,bkn->bmn": for any distributed letters, a rank
that has the same indices in all inputs can compute its part. A letter missing from the results is
reduced, and the values that ranks compute for their indices are terms. An axis without a letter
must be whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.compiler.sharding.algorithms.variant import computing
from caldera.compiler.sharding.axis_split import AxisSplit, even_split
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, along_axis, replicated
from caldera.core.graph.node import Node
from caldera.core.tensor.shape import Shape

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation


SMALL_BYTES = 1 << 14
"""Maximum size of arrays that are replicated rather than partitioned."""


@dataclass(frozen=True)
class ShardPlacement:
    """Layout of a result; `terms` of its replicas still have to be reduced."""

    layout: ShardLayout
    terms: int = 1
    reduce: str = "sum"


@dataclass(frozen=True)
class Lazy:
    """A value generated on demand, in any cartesian layout.

    `make` returns this rank's part in a layout from the parts of `inputs`, in the layouts that
    `sources` lists for it. `like` is a preferred layout, if there is one.
    """

    make: Callable[[Sequence[Node], CartesianLayout], Node]
    inputs: tuple[Node, ...] = ()
    sources: Callable[[CartesianLayout], Sequence[CartesianLayout]] = lambda layout: ()
    like: CartesianLayout | None = None


@dataclass(frozen=True)
class DistributedValue:
    """A rank's counterpart of a whole value: its part, or a function that generates it."""

    placement: ShardPlacement
    node: Node | None = None
    lazy: Lazy | None = None


@dataclass(frozen=True)
class ShardingRule:
    """Variant for computing a node.

    `make` returns this rank's parts of the results from its parts of the inputs in their layouts.
    `seconds` is the time of the computation, including `nbytes` that ranks send during it.
    """

    name: str
    inputs: tuple[ShardLayout, ...]
    outputs: tuple[ShardPlacement, ...]
    make: Callable[[Sequence[Node]], Any]
    seconds: float = 0.0
    nbytes: int = 0


Rule = Callable[["Propagation", Node], "list[ShardingRule] | Lazy | Node | None"]
"""Function that returns rules of a node, a function that builds it on any rank, or an equivalent
node.
"""
RULES: dict[str, Rule] = {}
"""Rules by the name of the op."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for these ops."""

    def add(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = function
        return function

    return add


def default_layout(shape: Shape, ranks: Sequence[int], itemsize: int = 8) -> CartesianLayout:
    """Return the default layout of an array.

    It is partitioned along its first axis that is long enough, or along its longest axis. Small
    arrays are replicated.

    >>> from caldera.compiler.sharding.rules.registry import default_layout
    >>> default_layout((2, 4096), range(4)).local_shape(0)
    (2, 1024)
    """
    if prod(shape) * itemsize <= SMALL_BYTES or len(ranks) == 1:
        return replicated(shape, ranks)
    long = [axis for axis, n in enumerate(shape) if n >= len(ranks)]
    axis = long[0] if long else max(range(len(shape)), key=lambda each: shape[each])
    return along_axis(shape, axis, even_split(shape[axis], len(ranks)), ranks)


Letters = tuple[str | None, ...]


@dataclass(frozen=True)
class AxisSignature:
    """Letters of the axes of inputs and outputs, and the reduction of letters without output.

    `reduce` is "sum", "max", "min" or "prod".
    """

    inputs: tuple[Letters, ...]
    outputs: tuple[Letters, ...]
    reduce: str = "sum"
    reduced: frozenset[str] = frozenset()


class Assignment:
    """Which letters are shared out, how, and over which ranks: a mesh with an axis for each letter,
    and a last one of replicas."""

    def __init__(self, splits: dict[str, AxisSplit], mesh: np.ndarray) -> None:
        self.splits = splits
        self.mesh = mesh

    @classmethod
    def of(cls, layout: CartesianLayout, letters: Letters) -> Assignment:
        """Return the assignment of a layout; axes without a letter become whole."""
        free = [axis for axis in layout.split_axes if letters[axis] is None]
        kept = layout.unsplit(free) if free else layout
        splits = {}
        for axis in kept.split_axes:
            letter, split = letters[axis], kept.splits[axis]
            assert letter is not None
            assert split is not None
            splits[letter] = split
        return cls(splits, np.array(kept.ranks).reshape(kept.mesh))

    @classmethod
    def turned(cls, layout: CartesianLayout, letters: Letters) -> Iterator[Assignment]:
        """Yield assignments that partition another axis instead of the axes without a letter.

        The other axis is partitioned over the same ranks, as in a transform along each axis in
        turn.
        """
        split = layout.split_axes
        kept = [place for place, axis in enumerate(split) if letters[axis] is not None]
        free = [place for place, axis in enumerate(split) if letters[axis] is None]
        if not free:
            return
        mesh = np.array(layout.ranks).reshape(layout.mesh).transpose(*kept, *free, len(split))
        parts = prod(mesh.shape[len(kept) : -1])
        mesh = mesh.reshape(*mesh.shape[: len(kept)], parts, mesh.shape[-1])
        splits = cls.of(layout, letters).splits
        for axis, letter in enumerate(letters):
            if letter is not None and letter not in splits and layout.shape[axis] >= parts:
                yield cls({**splits, letter: even_split(layout.shape[axis], parts)}, mesh)

    def key(self) -> Any:
        """Equal for equal assignments."""
        return tuple(self.splits.items()), self.mesh.shape, tuple(self.mesh.reshape(-1).tolist())

    def layout(
        self, shape: Shape, letters: Letters, first: frozenset[str] = frozenset()
    ) -> CartesianLayout:
        """Return the layout of an operand with these letters.

        Among its replicas, ranks that differ in a letter of `first` come first.
        """
        names = list(self.splits)
        used = [names.index(each) for each in letters if each in self.splits]
        ahead = [i for i, name in enumerate(names) if name in first and i not in used]
        rest = [i for i in range(len(names) + 1) if i not in used and i not in ahead]
        ranks = self.mesh.transpose(*used, *ahead, *rest).reshape(-1)
        splits = tuple(None if each is None else self.splits.get(each) for each in letters)
        return _layout(shape, splits, tuple(ranks.tolist()))

    @property
    def share(self) -> int:
        """Number of ranks that compute different parts."""
        return prod(split.parts for split in self.splits.values())

    def __str__(self) -> str:
        inside = ", ".join(f"{name}/{split.parts}" for name, split in self.splits.items())
        return f"{inside or 'whole'} on {self.mesh.size}"


@lru_cache(1 << 12)
def _layout(
    shape: Shape, splits: tuple[AxisSplit | None, ...], ranks: tuple[int, ...]
) -> CartesianLayout:
    """Return a layout, cached: layers repeat, and layouts cache their properties."""
    return CartesianLayout(shape, splits, ranks)


def letter_ways(
    graph: Propagation,
    node: Node,
    signature: AxisSignature,
    make: Callable[[Sequence[Node], tuple[CartesianLayout, ...]], Any] | None = None,
) -> list[ShardingRule]:
    """Return the ways of an op that is a loop over letters. `make` writes the node of a rank, if it
    is not simply the same op: it is given the parts and the layouts of the results."""
    shapes = [given.shape for given in node.inputs]
    found = []
    for assignment in _assignments(graph, node, signature):
        inputs = tuple(
            assignment.layout(shape, letters)
            for shape, letters in zip(shapes, signature.inputs, strict=True)
        )
        outputs = []
        for spec, letters in zip(node.outputs, signature.outputs, strict=True):
            pending = [n for n in assignment.splits if n in signature.reduced and n not in letters]
            terms = prod(assignment.splits[name].parts for name in pending)
            layout = assignment.layout(spec.shape, letters, frozenset(pending))
            outputs.append(ShardPlacement(layout, terms, signature.reduce))
        layouts = tuple(each.layout for each in outputs)
        seconds = _computing(graph, node, (*inputs, *layouts), assignment.share)
        found.append(
            ShardingRule(
                str(assignment), inputs, tuple(outputs), _maker(node, make, layouts), seconds
            )
        )
    return found


def _computing(graph: Propagation, node: Node, layouts: Sequence[ShardLayout], share: int) -> float:
    """Return the seconds for a rank's share: computing, or only reading and writing it."""
    specs = (*(given.spec for given in node.inputs), *node.outputs)
    nbytes = sum(
        prod(layout.local_shape(layout.ranks[0])) * spec.dtype.itemsize
        for spec, layout in zip(specs, layouts, strict=True)
    )
    work = computing(node, share).seconds(graph.links)
    return max(work, nbytes / graph.links.copying)


def _maker(node: Node, make: Any, layouts: Any) -> Callable[[Sequence[Node]], Any]:
    if make is None:
        return lambda parts: node.op.outputs(*parts, **node.attrs)
    return lambda parts: make(parts, layouts)


def _assignments(graph: Propagation, node: Node, signature: AxisSignature) -> Iterator[Assignment]:
    """Yield the assignments to consider.

    They follow the layout of each input, partition another axis if an axis must be whole, combine
    the assignments of two inputs, or partition no axis.
    """
    seen = set()
    made: list[Assignment] = []
    for given, letters in zip(node.inputs, signature.inputs, strict=True):
        layout = graph.suited(given)
        if layout is not None:
            made += [Assignment.of(layout, letters), *Assignment.turned(layout, letters)]
    if not made:
        output = signature.outputs[0]
        made.append(Assignment.of(graph.default(node.outputs[0]), output))
    made += [both for a in made for b in made if (both := _combined(a, b)) is not None]
    largest = max(made, key=lambda each: each.mesh.size)
    made.append(Assignment({}, largest.mesh.reshape(-1)))
    for each in made:
        if each.key() not in seen:
            seen.add(each.key())
            yield each


def _combined(first: Assignment, second: Assignment) -> Assignment | None:
    """Combine the first letter of one assignment with the second letter of another.

    Both must have the same mesh. Results then stay in place, and both operands move.
    """
    if len(first.splits) != 2 or first.mesh.shape != second.mesh.shape:
        return None
    if len(second.splits) != 2 or not np.array_equal(first.mesh, second.mesh):
        return None
    (row, rows), (column, columns) = (
        next(iter(first.splits.items())),
        list(second.splits.items())[1],
    )
    return None if row == column else Assignment({row: rows, column: columns}, first.mesh)


def names(count: int, start: int = 0) -> list[str]:
    """Return letters for axes."""
    return [f"x{start + number}" for number in range(count)]


def letters_without(letters: Sequence[str], axes: Collection[int]) -> tuple[Letters, Letters]:
    """Return the letters of a value that is whole along some axes, with and without these axes."""
    kept = tuple(None if axis in axes else n for axis, n in enumerate(letters))
    return kept, tuple(n for n in kept if n is not None)


def broadcast_letters(node: Node) -> tuple[tuple[Letters, ...], Letters]:
    """Return the letters of inputs and of their result under NumPy broadcasting."""
    shape = node.outputs[0].shape
    output = tuple(names(len(shape)))
    return tuple(matching_letters(output, shape, given.shape) for given in node.inputs), output


def matching_letters(letters: Sequence[str], whole: Shape, shape: Shape) -> Letters:
    """Return the letters of a value that is broadcast to one with these letters.

    Axes of a different length are repeated, and have no letter.
    """
    extra = len(whole) - len(shape)
    return tuple(
        letters[extra + axis] if n == whole[extra + axis] else None for axis, n in enumerate(shape)
    )
