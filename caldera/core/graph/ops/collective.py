"""Collectives as ordinary nodes, so that a plan shows where data moves.

`all_sum` is what graphs are written with. The gradient of a sum over ranks: the loss of the whole
job is the sum of what the ranks compute, so the derivative with respect to one rank's term is the
sum of what arrives on all of them. What several ranks compute alike counts several times, unless
each of them takes its part of it.

`all_gather` and `sum_scatter` are the same for values of which each rank has a part: the one gives
every rank all parts, one after the other along `dim`, the other gives each rank its part of a sum
over ranks. `sizes` has the length of every rank's part, and `rank` says which one is here; parts
may differ, and may be empty. What a part does to the loss happens on all ranks that were given it,
so each of the two is the other's gradient.

A plan for several ranks has every collective in two parts, `collective_start` and
`collective_finish`: between them the data may be on their way while the rank computes. Each carries
the axis of the mesh and a number. Numbers are given as nodes are written, so that sorting by them
never puts a collective before one it depends on, and two collectives never become one because
their inputs happen to be equal on some rank. A token goes from each part to the next (see
`passes.collectives`): it holds nothing, and keeps all ranks to one order.

A message may also go from one rank to one other. Who sends and who receives have programs of their
own then, which are written with tokens: the order of such messages is that in which they stand.
`turn` moves nothing: it says that something is computed before whatever comes next.

Ranks that have other parts of a value may compute it from other inputs, or not at all. `tied` keeps
the dependences equal on all of them, so that each rank has every collective, in both directions.
Collectives of a backward pass have numbers in the reverse order of the forward ones: the order does
not follow from a rank's own graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from caldera.core.graph import Node, Nodes, Spec, composite, op, refuse_dtype, refuse_shape
from caldera.core.graph.ops import concat, full, narrow, pad, reshape
from caldera.core.tensor import Shape, is_inexact, size, uint8

Number = tuple[int, ...]
TOKEN = Spec((0,), uint8)
_numbers = itertools.count()


def next_number() -> Number:
    """The number of a collective that is written now."""
    return (next(_numbers),)


_backward_pass: ContextVar[int | None] = ContextVar("caldera_backward_pass", default=None)


@contextmanager
def backward_pass() -> Iterator[None]:
    """Context of one backward pass, in which `backward_number` gives numbers."""
    if _backward_pass.get() is not None:
        yield
        return
    token = _backward_pass.set(next(_numbers))
    try:
        yield
    finally:
        _backward_pass.reset(token)


def backward_number(number: int | Number) -> Number:
    """Return the number of the backward collective of the forward one with this number.

    In a pass they are in reverse order, which is valid: gradients flow from users to inputs.

    >>> with backward_pass():
    ...     backward_number((7,)) < backward_number((3,)) < next_number()
    True
    """
    started, forward = _backward_pass.get(), number if isinstance(number, tuple) else (number,)
    return next_number() if started is None else (started, *(-each for each in forward))


@composite("tied", gradient=lambda g, y, x, *others: (g, *_ties(g, others)))
def tied(x: Node, *others: Node) -> Node:
    """`x`, which depends on the others on some rank, and so on all of them."""
    return x


def _ties(g: Node, others: Nodes) -> tuple[Node | None, ...]:
    """Gradients of 0 that depend on what flows to the value itself."""
    zeros = (full(each.shape, 0, each.dtype) if is_inexact(each.dtype) else None for each in others)
    return tuple(None if zero is None else tied(zero, g) for zero in zeros)


@op("all_sum")
def all_sum(x: Spec, *, axis: str, number: Number) -> Spec:
    """The sum of `x` over the ranks along a named axis of the mesh of ranks."""
    return x


all_sum.gradient(
    lambda g, y, x, *, axis, number: (all_sum(g, axis=axis, number=backward_number(number)),)
)


@dataclass(frozen=True)
class Message:
    """What a collective does with the values it is given, all of them in one message.

    - `kind`: "sum" (everyone gets the sum of everyone's values), "scatter" (rank r gets the r-th
      part of the sum of each), "gather" (everyone gets everyone's parts, one after the other),
      "send" (the rank `peer` gets the values) or "receive" (`brings` comes from there).
    - `axis`: of the mesh of ranks; `number`: its place in the order of all collectives.
    - `ranks`: how many take part, where that decides about shapes.
    - `now`: whether the rank waits for it at once, instead of computing while data move.
    - `ahead`: for "gather", how many of those that are needed next are on their way at a time.
    - `leaves`: for "sum", (first, last, all): each value is given for the leaves first to last of a
      tree, and the sum is added up along the tree of all, however many ranks there are.
    - `exchange`: for "sum", who sums in place of the communicator, an object with
      `exchange_all(arrays by name, communicator)`; `names` has a name for each value.
    """

    kind: str
    axis: str
    number: Number
    ranks: int = 1
    now: bool = False
    ahead: int = 1
    leaves: tuple[int, int, int] | None = None
    # Whoever exchanges need not be comparable; but who it is tells messages apart.
    exchange: Any = field(default=None, compare=False)
    names: tuple[str, ...] = ()
    peer: int = -1
    brings: tuple[Spec, ...] = ()
    who: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", id(self.exchange))

    @property
    def is_point_to_point(self) -> bool:
        """Whether only two ranks take part."""
        return self.kind in ("send", "receive")


def shard_size(elements: int, ranks: int) -> int:
    """How many elements each rank has of a value that is spread over ranks; the last ones of the
    last ranks may stand for nothing."""
    return -(-elements // ranks)


@op("collective_start")
def start(*inputs: Spec, message: Message) -> tuple[Spec, ...]:
    """Values, and perhaps a token, to the memory that is on its way, and a token.

    That memory is what is sent and received, or two places, one for each.
    """
    values = [given for given in inputs if given != TOKEN] or list(message.brings)
    if len({given.dtype for given in values}) != 1:
        refuse_dtype("values of one dtype in a message")
    dtype = values[0].dtype
    if message.kind == "gather":
        return Spec((message.ranks, sum(given.size for given in values)), dtype), TOKEN
    if message.kind == "scatter":
        each = sum(shard_size(given.size, message.ranks) for given in values)
        return Spec((message.ranks, each), dtype), Spec((each,), dtype), TOKEN
    total = sum(given.size for given in values)
    if message.leaves is None:
        return Spec((total,), dtype), TOKEN
    own = message.leaves[1] - message.leaves[0]
    return Spec((own, total // own), dtype), Spec((total // own,), dtype), TOKEN


@op("collective_finish")
def finish(*inputs: Spec, message: Message) -> tuple[Spec, ...]:
    """What a start gave, to what was received, and a token."""
    return inputs[-2], TOKEN


@op("turn")
def turn(*inputs: Spec, action: str, number: Number) -> Spec:
    """A token: what is given has been computed, before anything that takes the token."""
    return TOKEN


def start_collective(
    values: Sequence[Node], message: Message, token: Node | None
) -> tuple[Nodes, Node]:
    """What is on its way once a message has started after a token, and the next token."""
    tokens = [] if token is None else [token]
    *places, after = start.outputs(*values, *tokens, message=message)
    return tuple(places), after


def finish_collective(places: Nodes, message: Message, token: Node) -> tuple[Node, Node]:
    """What a message that has started brings, waited for after a token, and the next token."""
    result, after = finish.outputs(*places, token, message=message)
    return result, after


def run_collective(values: Sequence[Node], message: Message) -> Node:
    """What a message brings: flat, and for "gather" a row for each rank."""
    return finish.outputs(*start.outputs(*values, message=message), message=message)[0]


def all_reduce(values: Sequence[Node], message: Message) -> list[Node]:
    """The sums over ranks of several values, in one message."""
    return cut(run_collective(values, message), [value.shape for value in values])


def cut(flat: Node, shapes: Sequence[Shape]) -> list[Node]:
    """Values of these shapes that lie one after the other."""
    found, place = [], 0
    for shape in shapes:
        found.append(reshape(narrow(flat, 0, place, size(shape)), shape))
        place += size(shape)
    return found


def reduce_scatter_flat(values: Sequence[Node], message: Message) -> list[Node]:
    """This rank's part of the sum over ranks of each value; parts are flat."""
    shapes = [(shard_size(value.spec.size, message.ranks),) for value in values]
    return cut(run_collective(values, message), shapes)


def all_gather_flat(parts: Sequence[Node], shapes: Sequence[Shape], message: Message) -> list[Node]:
    """Values of these shapes, of which each rank has a part."""
    rows = run_collective(parts, message)
    found, place = [], 0
    for part, shape in zip(parts, shapes, strict=True):
        flat = reshape(narrow(rows, 1, place, part.spec.size), (rows.shape[0] * part.spec.size,))
        found.append(reshape(narrow(flat, 0, 0, size(shape)), shape))
        place += part.spec.size
    return found


Sizes = tuple[int, ...]


def _resized(shape: Shape, dim: int, length: int) -> Shape:
    return (*shape[:dim], length, *shape[dim + 1 :])


def _flat(part: Node, capacity: int) -> Node:
    """A part as it travels: all of them take the space of the largest."""
    flat = reshape(part, (part.spec.size,))
    return pad(flat, ((0, capacity - part.spec.size),))


@composite("all_gather")
def all_gather(x: Node, *, axis: str, dim: int, sizes: Sizes, rank: int, number: Number) -> Node:
    """All ranks' parts, one after the other along `dim`."""
    if x.shape[dim] != sizes[rank]:
        refuse_shape(f"{sizes[rank]} of {sizes} along axis {dim}")
    if len(sizes) == 1:
        return x
    shapes = [_resized(x.shape, dim, length) for length in sizes]
    capacity = max(map(size, shapes))
    # It depends on what this rank computes: none is begun before it is needed.
    message = Message("gather", axis, number, len(sizes), now=True, ahead=0)
    rows = run_collective([_flat(x, capacity)], message)
    parts = []
    for index, shape in enumerate(shapes):
        row = reshape(narrow(rows, 0, index, 1), (capacity,))
        parts.append(reshape(narrow(row, 0, 0, size(shape)), shape))
    return concat(tuple(parts), dim)


@composite(
    "sum_scatter",
    gradient=lambda g, y, x, *, number, **how: (
        all_gather(g, **how, number=backward_number(number)),
    ),
)
def sum_scatter(x: Node, *, axis: str, dim: int, sizes: Sizes, rank: int, number: Number) -> Node:
    """This rank's part, along `dim`, of the sum over ranks."""
    if x.shape[dim] != sum(sizes):
        refuse_shape(f"{sum(sizes)} along axis {dim}, for parts {sizes}")
    if len(sizes) == 1:
        return x
    shapes = [_resized(x.shape, dim, length) for length in sizes]
    capacity, begin, parts = max(map(size, shapes)), 0, []
    for length in sizes:
        parts.append(_flat(narrow(x, dim, begin, length), capacity))
        begin += length
    message = Message("scatter", axis, number, len(sizes), now=True)
    own = run_collective([concat(tuple(parts), 0)], message)
    return reshape(narrow(own, 0, 0, size(shapes[rank])), shapes[rank])


all_gather.gradient(
    lambda g, y, x, *, number, **how: (sum_scatter(g, **how, number=backward_number(number)),)
)


GATHERING = frozenset({"all_gather", "sum_scatter"})
"""What is taken apart before collectives are put in order."""
