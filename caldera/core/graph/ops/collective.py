"""Collectives as ordinary nodes, so that a plan shows the movement of data.

Graphs are written with `all_sum`. The gradient of a sum over ranks is again a sum. The loss of the
job is the sum of the ranks' losses, so the derivative with respect to one rank's term is the sum of
the gradients on all ranks. A value that several ranks compute alike counts several times, unless
each takes its share.

`all_gather` and `sum_scatter` are the counterparts for values split over ranks. `all_gather`
concatenates all parts along `dim` on every rank; `sum_scatter` returns each rank's part of a sum
over ranks. `sizes` contains the length of every rank's part, and `rank` is the index of this one;
parts may differ, and may be empty. A part affects the loss on all ranks that received it, so the
two ops are mutual gradients.

A plan for several ranks splits every collective into `collective_start` and `collective_finish`: in
between, the data may be in transit while the rank computes. Each carries the axis of the mesh and a
number. Numbers are assigned as nodes are created. Sorting by them therefore never puts a collective
before its dependencies, and two collectives are never merged because their inputs happen to be
equal on some rank. A token connects each part with the next (see `passes.collectives`): it has no
value, and keeps all ranks in the same order.

A message may also be sent from one rank to another. Sender and receiver then have separate
programs, which are written with tokens: the order of such messages is the order in the program.
`turn` transfers no data: it orders a computation before all that follows.

Ranks with different parts of a value may compute it from different inputs, or not at all. `tied`
keeps the dependencies equal on all ranks, so that each rank has every collective, in both
directions. Collectives of a backward pass are numbered in the reverse order of the forward ones:
the order is independent of a rank's own graph.
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
    """Return the number of a collective that is written now."""
    return (next(_numbers),)


_backward_pass: ContextVar[int | None] = ContextVar("caldera_backward_pass", default=None)


@contextmanager
def backward_pass() -> Iterator[None]:
    """Context manager of a backward pass, in which `backward_number` returns numbers."""
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
    """Return `x` with dependencies that some rank has, and so every rank gets."""
    return x


def _ties(g: Node, others: Nodes) -> tuple[Node | None, ...]:
    """Return gradients of 0 that depend on what flows to the value itself."""
    zeros = (full(each.shape, 0, each.dtype) if is_inexact(each.dtype) else None for each in others)
    return tuple(None if zero is None else tied(zero, g) for zero in zeros)


@op("all_sum")
def all_sum(x: Spec, *, axis: str, number: Number) -> Spec:
    """Return the sum of `x` over the ranks along a named axis of the mesh of ranks."""
    return x


all_sum.gradient(
    lambda g, y, x, *, axis, number: (all_sum(g, axis=axis, number=backward_number(number)),)
)


@dataclass(frozen=True)
class Message:
    """Description of a collective over several values in one message.

    - `kind`: "sum" (sum over ranks on every rank), "scatter" (rank r receives the r-th part of each
      sum), "gather" (all parts concatenated on every rank), "send" (to the rank `peer`) or
      "receive" (`brings`, from `peer`).
    - `axis`: of the mesh of ranks; `number`: its position in the order of all collectives.
    - `ranks`: the number of participants, if shapes depend on it.
    - `now`: True if the rank waits for it immediately, instead of computing during it.
    - `ahead`: for "gather", the number of prefetched messages.
    - `leaves`: for "sum", (first, last, all): each value covers the leaves first to last of a tree,
      and the sum is computed along the whole tree, for any number of ranks.
    - `exchange`: for "sum", an object that replaces the communicator's sum, with
      `exchange_all(arrays by name, communicator)`; `names` has a name for each value.
    """

    kind: str
    axis: str
    number: Number
    ranks: int = 1
    now: bool = False
    ahead: int = 1
    leaves: tuple[int, int, int] | None = None
    # The exchanger may not support comparison; its identity distinguishes messages.
    exchange: Any = field(default=None, compare=False)
    names: tuple[str, ...] = ()
    peer: int = -1
    brings: tuple[Spec, ...] = ()
    who: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", id(self.exchange))

    @property
    def is_point_to_point(self) -> bool:
        """True if only two ranks take part."""
        return self.kind in ("send", "receive")


def shard_size(elements: int, ranks: int) -> int:
    """Return the number of elements per rank of a distributed value, with padding on the last
    ranks.
    """
    return -(-elements // ranks)


@op("collective_start")
def start(*inputs: Spec, message: Message) -> tuple[Spec, ...]:
    """Start a message: from values, and optionally a token, to its buffers and a token.

    There is one buffer, sent and received, or a pair of buffers.
    """
    values = [given for given in inputs if given != TOKEN] or list(message.brings)
    if len({given.dtype for given in values}) != 1:
        refuse_dtype("values of the same dtype in a message")
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
    """Finish a message: from the results of its start to the received value and a token."""
    return inputs[-2], TOKEN


@op("turn")
def turn(*inputs: Spec, action: str, number: Number) -> Spec:
    """Return a token that orders the inputs before all users of the token."""
    return TOKEN


def start_collective(
    values: Sequence[Node], message: Message, token: Node | None
) -> tuple[Nodes, Node]:
    """Return the buffers of a message started after a token, and the next token."""
    tokens = [] if token is None else [token]
    *places, after = start.outputs(*values, *tokens, message=message)
    return tuple(places), after


def finish_collective(places: Nodes, message: Message, token: Node) -> tuple[Node, Node]:
    """Return the value of a started message, awaited after a token, and the next token."""
    result, after = finish.outputs(*places, token, message=message)
    return result, after


def run_collective(values: Sequence[Node], message: Message) -> Node:
    """Return the flat value of a message; for "gather" a row per rank."""
    return finish.outputs(*start.outputs(*values, message=message), message=message)[0]


def all_reduce(values: Sequence[Node], message: Message) -> list[Node]:
    """Return the sums over ranks of several values, in one message."""
    return cut(run_collective(values, message), [value.shape for value in values])


def cut(flat: Node, shapes: Sequence[Shape]) -> list[Node]:
    """Return values of these shapes from consecutive parts of a flat one."""
    found, place = [], 0
    for shape in shapes:
        found.append(reshape(narrow(flat, 0, place, size(shape)), shape))
        place += size(shape)
    return found


def reduce_scatter_flat(values: Sequence[Node], message: Message) -> list[Node]:
    """Return this rank's part of the sum over ranks of each value; parts are flat."""
    shapes = [(shard_size(value.spec.size, message.ranks),) for value in values]
    return cut(run_collective(values, message), shapes)


def all_gather_flat(parts: Sequence[Node], shapes: Sequence[Shape], message: Message) -> list[Node]:
    """Return values of these shapes, of which each rank has a part."""
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
    """Return a part as it is sent, padded to the largest part."""
    flat = reshape(part, (part.spec.size,))
    return pad(flat, ((0, capacity - part.spec.size),))


@composite("all_gather")
def all_gather(x: Node, *, axis: str, dim: int, sizes: Sizes, rank: int, number: Number) -> Node:
    """Concatenate the parts of all ranks along `dim`."""
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
    """Return this rank's part, along `dim`, of the sum over ranks."""
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
"""Ops that are decomposed before collectives are ordered."""
