"""Element-wise ops, reductions, and ops that need one axis whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.compiler.sharding.layout import CartesianLayout, replicated
from caldera.compiler.sharding.rules.registry import (
    Assignment,
    AxisSignature,
    Lazy,
    Letters,
    ShardingRule,
    ShardPlacement,
    broadcast_letters,
    letter_ways,
    letters_without,
    names,
    rule,
)
from caldera.compiler.sharding.table_layout import TableLayout
from caldera.core.graph.node import Node
from caldera.core.graph.ops import equal, full, iota, isnan, logical_or, reshape, where
from caldera.core.graph.ops.reduction import max_, min_
from caldera.core.tensor.dtype import DType, bool_, int64, is_float

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation

# --- element by element


def elementwise(graph: Propagation, node: Node) -> list[ShardingRule] | Lazy:
    """Compute locally where all operands are; operands move to the layout of one operand."""
    inputs, output = broadcast_letters(node)
    if all(graph.value(given).lazy is not None for given in node.inputs):
        return _lazy(graph, node, inputs, output)
    ways = letter_ways(graph, node, AxisSignature(inputs, (output,)))
    return [*_table_ways(graph, node), *ways]


@rule("view_as_real", "view_as_complex")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    """The two parts of complex numbers, side by side along a last axis, are on one rank."""
    given, made = node.inputs[0].shape, node.shape
    letters = names(min(len(given), len(made)))
    pairs: Letters = (*letters, None)
    inputs = pairs if len(given) > len(made) else tuple(letters)
    outputs = pairs if len(made) > len(given) else tuple(letters)
    ways = letter_ways(graph, node, AxisSignature((inputs,), (outputs,)))
    # The same memory, seen otherwise.
    return [replace(way, seconds=0.0) for way in ways]


def _lazy(graph: Propagation, node: Node, inputs: tuple[Letters, ...], output: Letters) -> Lazy:
    """Return the rule for an op whose inputs can be computed in the layout of its result."""

    def sources(layout: CartesianLayout) -> list[CartesianLayout]:
        assignment = Assignment.of(layout, output)
        shapes = [given.shape for given in node.inputs]
        return [assignment.layout(s, letters) for s, letters in zip(shapes, inputs, strict=True)]

    def make(parts: Sequence[Node], layout: CartesianLayout) -> Node:
        return node.op(*parts, **node.attrs)

    likes = [value.lazy.like for value in map(graph.value, node.inputs) if value.lazy is not None]
    like = next((each for each in likes if each is not None and each.shape == node.shape), None)
    return Lazy(make, node.inputs, sources, like)


def _table_ways(graph: Propagation, node: Node) -> list[ShardingRule]:
    """In a table of blocks a rank's part is flat; that is enough if shapes are equal."""
    found = []
    if any(each.shape != node.shape and each.spec.size != 1 for each in node.inputs):
        return []
    for given in node.inputs:
        table = _table(graph, given)
        if table is None or given.shape != node.shape:
            continue
        inputs = tuple(
            table if each.shape == node.shape else replicated(each.shape, table.ranks)
            for each in node.inputs
        )
        make = partial(_flat, node)
        found.append(ShardingRule("in its table", inputs, (ShardPlacement(table),), make))
    return found


def _table(graph: Propagation, node: Node) -> TableLayout | None:
    """Return the table of blocks of a value; None if it has another layout."""
    layout = graph.value(node).placement.layout
    return layout if isinstance(layout, TableLayout) else None


def _flat(node: Node, parts: Sequence[Node]) -> Any:
    numbers = [
        reshape(part, ()) if given.shape != node.shape else part
        for part, given in zip(parts, node.inputs, strict=True)
    ]
    return node.op.outputs(*numbers, **node.attrs)


# --- over axes

REDUCED = {"sum": "sum", "max": "max", "min": "min", "prod": "prod"}


def reduction(graph: Propagation, node: Node) -> list[ShardingRule] | Node | None:
    """Over an axis that is shared out ranks compute terms, which are reduced in turn."""
    signature = _reduction_letters(node)
    if node.op.name in REDUCED:
        make = partial(_reduce, node)
        return [*_flat_terms(graph, node), *letter_ways(graph, node, signature, make)]
    if node.op.name in ("argmax", "argmin"):
        return _position(graph, node)
    layout = graph.suited(node.inputs[0])
    axes = node.attrs["axis"]
    if layout is None or set(axes) & set(layout.split_axes):
        return None
    return letter_ways(graph, node, signature)


def _axes(node: Node) -> tuple[int, ...]:
    axis = node.attrs["axis"]
    return axis if isinstance(axis, tuple) else (axis,)


def _reduction_letters(node: Node) -> AxisSignature:
    axes, letters = _axes(node), names(len(node.inputs[0].shape))
    whole, rest = letters_without(letters, axes)
    output = whole if node.attrs["keepdims"] else rest
    reduce = REDUCED.get(node.op.name)
    if reduce is None:
        return AxisSignature((whole,), (output,))
    gone = frozenset(letters[axis] for axis in axes)
    return AxisSignature((tuple(letters),), (output,), reduce, gone)


def _reduce(node: Node, parts: Sequence[Node], layouts: tuple[CartesianLayout, ...]) -> Node:
    (part,) = parts
    name, dtype = node.op.name, node.dtype
    nothing = any(part.shape[axis] == 0 for axis in _axes(node))
    if nothing and name in ("max", "min"):
        shape = tuple(
            1 if axis in _axes(node) else n
            for axis, n in enumerate(part.shape)
            if node.attrs["keepdims"] or axis not in _axes(node)
        )
        return full(shape, _range(dtype)[name == "min"], dtype)
    return node.op(part, **node.attrs)


def _range(dtype: DType) -> tuple[Any, Any]:
    """Return the least and the largest number of a dtype."""
    if dtype == bool_:
        return False, True
    if is_float(dtype):
        return -float("inf"), float("inf")
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _flat_terms(graph: Propagation, node: Node) -> list[ShardingRule]:
    """Reduce all elements of a table of blocks: each rank reduces its own blocks."""
    (x,) = node.inputs
    table, name = _table(graph, x), node.op.name
    if table is None or len(_axes(node)) != len(x.shape):
        return []
    if any(len(ranks) > 1 for ranks in table.table):
        return []
    if any(not table.elements(rank) for rank in table.ranks) and name in ("max", "min"):
        return []
    terms = ShardPlacement(replicated(node.shape, table.ranks), len(table.ranks), REDUCED[name])

    def make(parts: Sequence[Node]) -> Node:
        flat = node.op(parts[0], axis=(0,), keepdims=False)
        return reshape(flat, node.shape)

    return [ShardingRule("in its table", (table,), (terms,), make)]


def _position(graph: Propagation, node: Node) -> list[ShardingRule] | Node:
    """Compute argmax or argmin; along a partitioned axis, as the first index of the extreme."""
    (x,) = node.inputs
    axis = node.attrs["axis"]
    layout = graph.suited(x)
    if layout is None or layout.splits[axis] is None:
        return letter_ways(graph, node, _reduction_letters(node))
    extreme = max_ if node.op.name == "argmax" else min_
    best = extreme(x, axis=(axis,), keepdims=True)
    there = equal(x, best)
    if is_float(x.dtype):
        # With a nan among the numbers the extreme is nan, and the index is that of the first nan.
        there = logical_or(there, isnan(x))
    places = iota(shape=x.shape, axis=axis, dtype=int64)
    found = where(there, places, full(x.shape, x.shape[axis], int64))
    return min_(found, axis=(axis,), keepdims=node.attrs["keepdims"])


# --- one axis whole


@rule("cumsum", "softmax", "log_softmax", "sort", "top_k")
def _(graph: Propagation, node: Node) -> list[ShardingRule] | None:
    x, *others = node.inputs
    if others:
        return None
    layout = graph.suited(x)
    whole = _axes(node)
    if node.op.decompose is not None and (layout is None or set(whole) & set(layout.split_axes)):
        return None
    letters, _ = letters_without(names(len(x.shape)), whole)
    return letter_ways(graph, node, AxisSignature((letters,), (letters,) * len(node.outputs)))


@rule("take_along_axis")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    letters, _ = letters_without(names(len(node.shape)), _axes(node))
    same = tuple(
        n if node.inputs[0].shape[i] == node.inputs[1].shape[i] else None
        for i, n in enumerate(letters)
    )
    return letter_ways(graph, node, AxisSignature((same, same), (same,)))


@rule("gather")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    x, places = node.inputs
    axis = node.attrs["axis"]
    rows = names(len(x.shape))
    found = names(len(places.shape), len(rows))
    given, _ = letters_without(rows, [axis])
    output = (*rows[:axis], *found, *rows[axis + 1 :])
    return letter_ways(graph, node, AxisSignature((given, tuple(found)), (output,)))


@rule("scatter_add")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    places = node.inputs[1]
    axis, rows = node.attrs["axis"], names(len(node.shape))
    kept, _ = letters_without(rows, [axis])
    every: Letters = (None,) * len(places.shape)
    updates = (*rows[:axis], *every, *rows[axis + 1 :])
    return letter_ways(graph, node, AxisSignature((kept, every, updates), (kept,)))


@rule("put_along_axis_add")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    kept, _ = letters_without(names(len(node.shape)), _axes(node))
    return letter_ways(graph, node, AxisSignature((kept,) * 3, (kept,)))


@rule("conj", "real", "imag", "complex")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    letters = tuple(names(len(node.shape)))
    return letter_ways(graph, node, AxisSignature((letters,) * len(node.inputs), (letters,)))


@rule("mirror")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    """With the axis shared out as it is: who has a frequency has that which mirrors it."""
    (x,), attrs = node.inputs, node.attrs
    axis, begin, end = attrs["axis"], attrs["begin"], attrs["end"]
    whole = {axis, *attrs["others"], len(x.shape) - 1}
    letters, _ = letters_without(names(len(x.shape)), whole)
    ways = letter_ways(graph, node, AxisSignature((letters,), (letters,)))
    given = graph.suited(x)
    if given is None or begin == end or set(given.split_axes) & whole != {axis}:
        return ways
    split = given.splits[axis]
    assert split is not None
    made = split.joined(split.sliced(begin, end).flipped())
    layout = CartesianLayout(
        node.shape, (*given.splits[:axis], made, *given.splits[axis + 1 :]), given.ranks
    )

    def make(parts: Sequence[Node]) -> Node:
        """Mirror a rank's own stretch; its parts follow each other in order."""
        part = given.part_along(axis, graph.rank)
        before = sum(min(e, begin) - min(b, begin) for b, e in split.intervals[part])
        until = sum(min(e, end) - min(b, end) for b, e in split.intervals[part])
        return node.op(parts[0], **{**attrs, "begin": before, "end": until})

    # Backwards through memory, which takes twice as long.
    seconds = 2 * (x.spec.nbytes + node.spec.nbytes) / split.parts / graph.links.copying
    return [
        *ways,
        ShardingRule("mirrored parts", (given,), (ShardPlacement(layout),), make, seconds),
    ]


@rule("fft", "rfft", "irfft")
def _(graph: Propagation, node: Node) -> list[ShardingRule]:
    """Transform a whole axis; complex arrays have pairs of numbers along the last axis."""
    (x,) = node.inputs
    axes = len(x.shape) if node.op.name == "rfft" else len(x.shape) - 1
    free, _ = letters_without(names(axes), _axes(node))
    given = free if node.op.name == "rfft" else (*free, None)
    output = free if node.op.name == "irfft" else (*free, None)
    return letter_ways(graph, node, AxisSignature((given,), (output,)))
