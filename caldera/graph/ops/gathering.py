"""Values of which each rank along an axis of the mesh has a part: put together, and taken apart.

`all_gather` gives every rank all parts, one after the other along `dim`; `sum_scatter` gives each
rank its part of a sum over ranks. `sizes` has the length of every rank's part, and `rank` says
which one is here; parts may differ, and may be empty.

The convention is that of `all_sum`: the loss of the whole job is the sum of what the ranks compute.
What a part does to it happens on all ranks that were given it, so the gradient of a part is the sum
over ranks of what arrives there for it: each of the two is the other's gradient.
"""

from __future__ import annotations

from caldera.graph.node import Node
from caldera.graph.opdef import Nodes, composite, refuse_shape
from caldera.graph.ops.base import reshape
from caldera.graph.ops.collective import Message, Number, next_number, run_collective
from caldera.graph.ops.movement import concat, narrow, pad
from caldera.tensor.shape import Shape, size

Sizes = tuple[int, ...]


def _resized(shape: Shape, dim: int, length: int) -> Shape:
    return (*shape[:dim], length, *shape[dim + 1 :])


def _flat(part: Node, room: int) -> Node:
    """A part as it travels: all of them take the room of the largest."""
    flat = reshape(part, (part.spec.size,))
    return pad(flat, ((0, room - part.spec.size),))


@composite("all_gather")
def all_gather(x: Node, *, axis: str, dim: int, sizes: Sizes, rank: int, number: Number) -> Node:
    """All ranks' parts, one after the other along `dim`."""
    if x.shape[dim] != sizes[rank]:
        refuse_shape(f"{sizes[rank]} of {sizes} along axis {dim}")
    if len(sizes) == 1:
        return x
    shapes = [_resized(x.shape, dim, length) for length in sizes]
    room = max(map(size, shapes))
    # It depends on what this rank computes: none is begun before it is needed.
    message = Message("gather", axis, number, len(sizes), now=True, ahead=0)
    rows = run_collective([_flat(x, room)], message)
    parts = []
    for index, shape in enumerate(shapes):
        row = reshape(narrow(rows, 0, index, 1), (room,))
        parts.append(reshape(narrow(row, 0, 0, size(shape)), shape))
    return concat(tuple(parts), dim)


@all_gather.gradient
def _(
    g: Node, y: Node, x: Node, *, axis: str, dim: int, sizes: Sizes, rank: int, number: Number
) -> Nodes:
    number = next_number()
    return (sum_scatter(g, axis=axis, dim=dim, sizes=sizes, rank=rank, number=number),)


@composite("sum_scatter")
def sum_scatter(x: Node, *, axis: str, dim: int, sizes: Sizes, rank: int, number: Number) -> Node:
    """This rank's part, along `dim`, of the sum over ranks."""
    if x.shape[dim] != sum(sizes):
        refuse_shape(f"{sum(sizes)} along axis {dim}, for parts {sizes}")
    if len(sizes) == 1:
        return x
    shapes = [_resized(x.shape, dim, length) for length in sizes]
    room, begin, parts = max(map(size, shapes)), 0, []
    for length in sizes:
        parts.append(_flat(narrow(x, dim, begin, length), room))
        begin += length
    message = Message("scatter", axis, number, len(sizes), now=True)
    own = run_collective([concat(tuple(parts), 0)], message)
    return reshape(narrow(own, 0, 0, size(shapes[rank])), shapes[rank])


@sum_scatter.gradient
def _(
    g: Node, y: Node, x: Node, *, axis: str, dim: int, sizes: Sizes, rank: int, number: Number
) -> Nodes:
    number = next_number()
    return (all_gather(g, axis=axis, dim=dim, sizes=sizes, rank=rank, number=number),)


GATHERING = frozenset({"all_gather", "sum_scatter"})
"""What is taken apart before collectives are put in order."""
