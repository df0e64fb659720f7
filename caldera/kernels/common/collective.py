"""Collectives on the host: packing of messages, their transport, and waiting for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from caldera.comm import Communicator, SingleProcess
from caldera.comm.reproducible_sum import tree_sum
from caldera.comm.requests import Done, Request
from caldera.core.graph.node import Node
from caldera.core.graph.ops.collective import TOKEN, Message, Number, shard_size
from caldera.core.memory.software import address_of
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.table import Call

Array = Any
Pairs = list[tuple[Array, Array]]
"""(target, source) of copies."""
# The two halves of a message are bound by one thread, and must find each other.
_alone = threading.local()


class PendingMessage:
    """State of a message of a communicator."""

    _of: ClassVar[WeakKeyDictionary[Communicator, dict[Number, PendingMessage]]] = (
        WeakKeyDictionary()
    )

    def __init__(self) -> None:
        self._in_flight: tuple[Request, np.ndarray] | None = None

    @classmethod
    def of(cls, communicator: Communicator, message: Message) -> PendingMessage:
        """Return the state of a message; plans that run sequentially may reuse its number."""
        return cls._of.setdefault(communicator, {}).setdefault(message.number, cls())

    def begin(self, request: Request, arrives: np.ndarray) -> None:
        """Record that the message is in flight to `arrives`."""
        self._in_flight = request, arrives

    def end(self) -> np.ndarray:
        """Wait until the message has arrived; return its array."""
        assert self._in_flight is not None, "a collective that was not started cannot complete"
        (request, arrives), self._in_flight = self._in_flight, None
        request.wait()
        return arrives


def communicator_of(call: Call) -> Communicator:
    """Return the communicator that carries a message; a single process has a local one."""
    if call.communicator is not None:
        return call.communicator.along(call.node.attrs["message"].axis)
    if not hasattr(_alone, "communicator"):
        _alone.communicator = SingleProcess()
    return _alone.communicator


def values_of(call: Call) -> list[Array]:
    """Return the values of a start, without its token."""
    given = zip(call.inputs, call.node.inputs, strict=True)
    return [array for array, node in given if node.spec != TOKEN]


def starting(
    message: Message,
    communicator: Communicator,
    shapes: Sequence[Shape],
    places: Sequence[np.ndarray],
    ready: Callable[[], object] = lambda: None,
) -> Callable[[], None]:
    """Return a function that starts a packed message; `ready` waits until it is packed."""
    send, receive = places[0], places[-1]
    flight = PendingMessage.of(communicator, message)

    def carry(own: Communicator) -> None:
        ready()
        perform(message, own, shapes, send, receive)

    def now() -> None:
        with communicator.hurried():
            carry(communicator)
        flight.begin(Done(), receive)

    def later() -> None:
        flight.begin(communicator.background(carry), receive)

    def to_one() -> None:
        ready()
        flight.begin(communicator.Isend(send, message.peer), receive)

    def from_one() -> None:
        flight.begin(communicator.Irecv(receive, message.peer), receive)

    if message.is_point_to_point:
        return to_one if message.kind == "send" else from_one
    return now if message.now else later


def perform(
    message: Message,
    communicator: Communicator,
    shapes: Sequence[Shape],
    send: np.ndarray,
    receive: np.ndarray,
) -> None:
    """Move the data; `shapes` are the shapes of the values in the message."""
    if message.kind == "gather":
        communicator.Allgather(send[communicator.rank], send)
    elif message.kind == "scatter":
        communicator.ReduceScatter(send, receive)
    elif message.leaves is not None:
        np.copyto(receive, tree_sum(send, message.leaves[2], communicator))
    elif message.exchange is not None:
        parts = np.split(send, np.cumsum([size(shape) for shape in shapes])[:-1])
        arrays = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        message.exchange.exchange_all(dict(zip(message.names, arrays, strict=True)), communicator)
    else:
        communicator.Allreduce(send, send)


# --- packing


def places(node: Node) -> list[int | None]:
    """Return the byte offset of each contiguous value in the send buffer, or None."""
    message = node.attrs["message"]
    specs = [given.spec for given in node.inputs if given.spec != TOKEN]
    if message.kind == "scatter":
        whole = len(specs) == 1 and specs[0].size % message.ranks == 0
        return [0] if whole else []
    if message.kind == "gather" or message.leaves is not None:
        return []
    found, place = [], 0
    for spec in specs:
        found.append(place if spec.order is None else None)
        place += spec.nbytes
    return found


def packing(
    message: Message, values: Sequence[Array], send: Array, rank: int, room: Array = None
) -> Pairs:
    """Return the copies that pack a message, in order.

    `room` is a workspace (see `dense_workspace`).
    """
    if message.kind == "scatter":
        pairs = _by_rank(send, values, room)
    elif message.kind == "gather":
        pairs = _side_by_side(send[rank], values)
    elif message.leaves is None:
        pairs = _side_by_side(send, values)
    else:
        count, pairs = len(values) // len(send), []
        for index, row in enumerate(send):
            pairs += _side_by_side(row, values[index * count : (index + 1) * count])
    # Values that were computed in the send buffer are not copied.
    return [(to, given) for to, given in pairs if address_of(to) != address_of(given)]


def _side_by_side(row: Array, values: Sequence[Array]) -> Pairs:
    found, place = [], 0
    for value in values:
        found.append((row[place : place + value.size].reshape(value.shape), value))
        place += value.size
    return found


def _by_rank(send: Array, values: Sequence[Array], room: Array) -> Pairs:
    found, place = [], 0
    for value in values:
        if not value.flags.c_contiguous:
            # It is split in an order that differs from its memory layout.
            dense = room[: value.nbytes].view(value.dtype).reshape(value.shape)
            found.append((dense, value))
            value = dense
        flat, each = value.reshape(-1), shard_size(value.size, len(send))
        full, rest = divmod(value.size, each) if each else (0, 0)
        rows = send[:, place : place + each]
        found.append((rows[:full], flat[: full * each].reshape(full, each)))
        if rest:
            found.append((rows[full, :rest], flat[full * each :]))
        place += each
    return [pair for pair in found if pair[0].size]


def dense_workspace(node: Node) -> int:
    """Return the bytes of workspace in which values are made contiguous, one at a time."""
    if node.attrs["message"].kind != "scatter":
        return 0
    return max(given.spec.nbytes for given in node.inputs)


def unused(message: Message, shapes: Sequence[Shape], send: Array) -> list[Array]:
    """Return the padding of the send buffer, which has to be 0."""
    if message.kind != "scatter":
        return []
    found, place = [], 0
    for elements in map(size, shapes):
        each = shard_size(elements, len(send))
        full, rest = divmod(elements, each) if each else (len(send), 0)
        if full < len(send):
            found.append(send[full, place + rest : place + each])
            found.append(send[full + 1 :, place : place + each])
        place += each
    return [part for part in found if part.size]
