"""Redistribution: messages between ranks, and their transfer in bounded memory.

The elements sent between two ranks are split into messages that fit into a buffer of bounded size.
Both ranks compute the same split, so no sizes are sent.

Ranks communicate in rounds: in round k a rank sends to the k-th rank after it and receives from the
k-th rank before it, one message at a time in each direction. No order of the ranks can block that:
the rank furthest behind always finds its partner waiting. If all messages of a rank fit into a
buffer together, they are sent simultaneously. Ranks of one machine leave them in shared memory
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import chain, zip_longest
from math import prod
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.comm.algorithms.shared_exchange import shared_exchange
from caldera.compiler.sharding.layout import CartesianLayout, IndexBlock, ShardLayout
from caldera.compiler.sharding.volume import NOTHING, TransferVolume, copies_of, sender_to, volume
from caldera.core.tensor import HALVES, Shape, float32

MESSAGE_BYTES = 4 << 20
"""The longest message, unless a single row is longer."""

Index = tuple[slice | np.ndarray, ...]


@dataclass(frozen=True)
class TransferPiece:
    """Elements of a rank's part: in the block of `shape` at `offset`, the elements at `index`.

    `size` is the number of elements, `term` the index of a term of a sum.
    """

    offset: int
    shape: Shape
    index: Index
    box: Shape
    term: int = 0

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.box)

    def view(self, part: np.ndarray) -> np.ndarray:
        """Return the block of a flat part; with `index` one reads or writes the elements."""
        count = prod(self.shape)
        return part[self.offset : self.offset + count].reshape(self.shape)


Message = tuple[TransferPiece, ...]


@dataclass
class RankTransfer:
    """Transfers of a rank: `stays` is copied from its old part to its new part.

    `sends` and `receives` have messages for each rank, in order. `moved` is the volume of all
    ranks.
    """

    stays: list[tuple[TransferPiece, TransferPiece]] = field(default_factory=list)
    sends: dict[int, list[Message]] = field(default_factory=dict)
    receives: dict[int, list[Message]] = field(default_factory=dict)
    moved: TransferVolume = NOTHING

    @cached_property
    def in_order(self) -> tuple[Message, list[int], list[Message], list[int]]:
        """Outgoing message with its size for each rank, and incoming messages with their sizes.

        The outgoing message is ordered by rank. There is one incoming message for each rank.
        """
        leaving, arriving = (
            [tuple(chain.from_iterable(plan.get(rank, ()))) for rank in range(self.moved.ranks)]
            for plan in (self.sends, self.receives)
        )
        counts = ([sum(p.size for p in each) for each in every] for every in (leaving, arriving))
        to_each, from_each = counts
        return tuple(chain.from_iterable(leaving)), to_each, arriving, from_each


@lru_cache(maxsize=512)
def exchange(
    source: ShardLayout, target: ShardLayout, rank: int, itemsize: int, terms: int = 1
) -> RankTransfer:
    """Return the transfers of a rank for a redistribution from one layout to another."""
    found = RankTransfer()
    leaving: dict[int, list[TransferPiece]] = {}
    arriving: dict[int, list[TransferPiece]] = {}
    for mine, sender, receiver, theirs, both, term in _crossings(source, target, rank, terms):
        if sender == receiver:
            found.stays.append((_at(mine, both, term), _at(theirs, both, term)))
        elif sender == rank:
            leaving.setdefault(receiver, []).append(_at(mine, both, term))
        else:
            arriving.setdefault(sender, []).append(_at(theirs, both, term))
    found.sends = {peer: _messages(places, itemsize) for peer, places in leaving.items()}
    found.receives = {peer: _messages(places, itemsize) for peer, places in arriving.items()}
    found.moved = volume(source, target, terms)
    return found


def is_in_blocks(*layouts: ShardLayout) -> bool:
    """Return True if each rank has one block in each layout, so that slices select all overlaps.

    >>> from caldera.compiler.sharding.distributions import BlockCyclic, Rows
    >>> [is_in_blocks(each.of((8,), range(2))) for each in (Rows(), BlockCyclic(2, grid=(2,)))]
    [True, False]
    """
    return all(isinstance(layout, CartesianLayout) for layout in layouts) and all(
        split is None or len(set(split.owners)) == len(split.owners)
        for layout in layouts
        if isinstance(layout, CartesianLayout)
        for split in layout.splits
    )


def _crossings(
    source: ShardLayout, target: ShardLayout, rank: int, terms: int
) -> Iterator[tuple[IndexBlock, int, int, IndexBlock, IndexBlock, int]]:
    """Yield (old piece, sender, receiver, new piece, overlap, term) for transfers of a rank.

    Both ranks of a pair compute the same order.
    """
    places = {each: place for place, each in enumerate(target.ranks)}
    for old in source.ranks:
        for mine in source.pieces(old):
            owners = source.owners([axis[0][0] for axis in mine.axes])
            each = len(owners) // terms
            term = owners.index(old) // each
            copies = copies_of(owners, term, terms)
            for new in target.ranks if old == rank else (rank,) if rank in places else ():
                if sender_to(new, copies, places[new]) != old:
                    continue
                for theirs in target.pieces(new):
                    both = mine.overlap(theirs)
                    if both is not None:
                        yield mine, old, new, theirs, both, term


def _at(piece: IndexBlock, wanted: IndexBlock, term: int) -> TransferPiece:
    return TransferPiece(piece.offset, piece.shape, piece.index_of(wanted), wanted.shape, term)


def _messages(places: list[TransferPiece], itemsize: int) -> list[Message]:
    """Return messages for these places in order, each filled as far as possible."""
    found: list[Message] = []
    now: list[TransferPiece] = []
    filled = 0
    for place in places:
        for piece in _cut(place, max(1, MESSAGE_BYTES // itemsize)):
            if now and (filled + piece.size) * itemsize > MESSAGE_BYTES:
                found.append(tuple(now))
                now, filled = [], 0
            now.append(piece)
            filled += piece.size
    return [*found, tuple(now)] if now else found


def _cut(place: TransferPiece, most: int) -> Iterator[TransferPiece]:
    """Yield the same elements in pieces of at most `most`, split along their longest axis."""
    if place.size <= most:
        yield place
        return
    axis = int(np.argmax(place.box))
    length = place.box[axis]
    count = min(length, -(-place.size // most))
    for number in range(count):
        begin, end = length * number // count, length * (number + 1) // count
        box = (*place.box[:axis], end - begin, *place.box[axis + 1 :])
        index = list(place.index)
        own = index[axis]
        if isinstance(own, slice):
            index[axis] = slice(own.start + begin, own.start + end)
        else:
            index[axis] = own.take(np.arange(begin, end), axis)
        yield from _cut(
            TransferPiece(place.offset, place.shape, tuple(index), box, place.term), most
        )


AT_ONCE_BYTES = 16 << 20
"""Maximum size of all messages of a rank for sending them simultaneously."""
TAG = 3
"""Tag of messages without a number; concurrent communication must use another tag."""
NUMBERED_TAGS = range(1 << 12, 1 << 13)
"""Tags by the number of a transfer in its program, which keep transfers separate."""
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}
"""Reductions of terms, by name."""


def redistributed(
    part: np.ndarray,
    source: ShardLayout,
    target: ShardLayout,
    communicator: Communicator | None,
    *,
    rank: int = 0,
    dtype: Any = None,
    terms: int = 1,
    reduce: str = "sum",
    out: np.ndarray | None = None,
    in_memory: bool = True,
    number: int | None = None,
) -> np.ndarray:
    """Return a rank's part of an array in another layout, optionally in another dtype.

    `terms` of the source's replicas are reduced (added, for example), in their order. All ranks of
    the communicator call this, including ranks without a part. With `in_memory`, ranks use shared
    memory if they have it instead of messages. The `number` of the transfer, the same on all ranks,
    selects its tag.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> from caldera.compiler.sharding.distributions import Columns, Rows
    >>> rows, columns = Rows().of((2, 4), range(2)), Columns().of((2, 4), range(2))
    >>> whole = np.arange(8).reshape(2, 4)
    >>> def work(comm):
    ...     own = rows.part_of(whole, comm.rank)
    ...     return redistributed(own, rows, columns, comm, rank=comm.rank).tolist()
    >>> run_virtual_ranks(2, work)
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """
    given = np.dtype(part.dtype)
    wanted = given if dtype is None else np.dtype(dtype)
    # What arrives narrower is sent so. But terms are added before they are rounded.
    wire = wanted if wanted.itemsize < given.itemsize and terms == 1 else given
    made = np.zeros(target.local_shape(rank), wanted) if out is None else out
    plan = exchange(source, target, rank, wire.itemsize, terms)
    tag = TAG if number is None else NUMBERED_TAGS[number % len(NUMBERED_TAGS)]
    flat_part = np.ascontiguousarray(part).reshape(-1)
    move = _Transfer(plan, flat_part, wire, communicator, rank, in_memory, tag)
    if terms == 1:
        flat = made.reshape(-1)
        move.run(lambda _: flat)
        return made
    added = float32 if given in HALVES else given
    rows = [np.zeros(made.size, added) for _ in range(terms)]
    move.run(lambda term: rows[term])
    if rank in target.ranks:
        total = rows[0]
        for row in rows[1:]:
            REDUCTIONS[reduce](total, row, out=total)
        made.reshape(-1)[...] = total.astype(wanted)
    return made


@dataclass
class _Transfer:
    """State of a redistribution on one rank."""

    plan: RankTransfer
    part: np.ndarray
    wire: Any
    communicator: Communicator | None
    rank: int
    may_share: bool
    tag: int

    def run(self, place: Callable[[int], np.ndarray]) -> None:
        """Move all elements; `place` returns the flat target array for a term's elements."""
        for old, new in self.plan.stays:
            values = old.view(self.part)[old.index]
            new.view(place(new.term))[new.index] = values.astype(self.wire, copy=False)
        sends, receives = self.plan.sends, self.plan.receives
        comm = self.communicator
        if comm is None or not (sends or receives):
            return
        # True if all ranks take part and share enough memory: the same on all ranks.
        fits = self.plan.moved.can_share(self.wire.itemsize, comm.size)
        if fits and self.may_share and comm.shares_memory:
            self._in_memory(comm, place)
            return
        everything = [m for messages in (*sends.values(), *receives.values()) for m in messages]
        elements = sum(place.size for message in everything for place in message)
        if elements * self.wire.itemsize <= AT_ONCE_BYTES:
            self._exchange(comm, sends, receives, place)
            return
        for distance in range(1, comm.size):
            to, come = (self.rank + distance) % comm.size, (self.rank - distance) % comm.size
            for leaving, arriving in zip_longest(sends.get(to, []), receives.get(come, [])):
                sent = {to: [leaving]} if leaving else {}
                received = {come: [arriving]} if arriving else {}
                self._exchange(comm, sent, received, place)

    def _in_memory(self, comm: Communicator, place: Callable[[int], np.ndarray]) -> None:
        """Exchange without messages: each rank packs its elements into shared memory."""
        leaving, to_each, arriving, from_each = self.plan.in_order
        found = shared_exchange(comm).run(
            to_each, from_each, self.wire, partial(_pack, leaving, self.part)
        )
        for message, numbers in zip(arriving, found, strict=True):
            _unpack(message, numbers, place)

    def _exchange(
        self,
        comm: Communicator,
        sends: Mapping[int, Sequence[Message]],
        receives: Mapping[int, Sequence[Message]],
        place: Callable[[int], np.ndarray],
    ) -> None:
        """Exchange messages simultaneously, as bytes: not every library supports every dtype."""
        arriving, leaving = [], []
        for peer, messages in receives.items():
            for message in messages:
                buffer = np.empty(sum(each.size for each in message), self.wire)
                arriving.append(
                    (message, buffer, comm.Irecv(buffer.view(np.uint8), peer, self.tag))
                )
        for peer, messages in sends.items():
            for message in messages:
                buffer = _packed(message, self.part, self.wire)
                leaving.append((buffer, comm.Isend(buffer.view(np.uint8), peer, self.tag)))
        for message, buffer, request in arriving:
            request.wait()
            _unpack(message, buffer, place)
        for _, request in leaving:
            request.wait()


def _packed(message: Message, part: np.ndarray, wire: Any) -> np.ndarray:
    if len(message) == 1:
        (place,) = message
        values = place.view(part)[place.index]
        # Contiguous elements are sent without a copy.
        return np.ascontiguousarray(values, dtype=wire).reshape(-1)
    buffer = np.empty(sum(place.size for place in message), wire)
    _pack(message, part, buffer)
    return buffer


def _pack(message: Message, part: np.ndarray, buffer: np.ndarray) -> None:
    """Write a message to a buffer."""
    filled = 0
    for place in message:
        buffer[filled : filled + place.size].reshape(place.box)[...] = place.view(part)[place.index]
        filled += place.size


def _unpack(message: Message, buffer: np.ndarray, place: Callable[[int], np.ndarray]) -> None:
    filled = 0
    for each in message:
        values = buffer[filled : filled + each.size].reshape(each.box)
        each.view(place(each.term))[each.index] = values
        filled += each.size
