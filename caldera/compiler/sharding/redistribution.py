"""From one layout to another: what a rank sends to whom, what it gets, and what stays.

What goes between two ranks is cut into messages that fit into a buffer of bounded size, in the same
way at both ends, so that nobody has to be told what comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from math import prod

import numpy as np

from caldera.compiler.sharding.axis_split import positions
from caldera.compiler.sharding.layout import IndexBlock, ShardLayout
from caldera.compiler.sharding.volume import NOTHING, TransferVolume, copies_of, sender_to, volume
from caldera.core.tensor.shape import Shape

MESSAGE_BYTES = 4 << 20
"""The longest message, unless a single row is longer."""

Index = tuple[slice | np.ndarray, ...]


@dataclass(frozen=True)
class Place:
    """Elements of a rank's part: from `offset` on, a block of `shape` in which `index` points to
    them. `size` is how many they are, `term` which term of a sum."""

    offset: int
    shape: Shape
    index: Index
    box: Shape
    term: int = 0

    @cached_property
    def size(self) -> int:
        """How many elements."""
        return prod(self.box)

    def view(self, part: np.ndarray) -> np.ndarray:
        """The block of a flat part; with `index` one reads or writes the elements."""
        count = prod(self.shape)
        return part[self.offset : self.offset + count].reshape(self.shape)


Message = tuple[Place, ...]


@dataclass
class RankTransfer:
    """What one rank does: `stays` goes from its old part to its new one, `sends` and `receives`
    have messages for each rank, in order. `moved` is what all ranks do together."""

    stays: list[tuple[Place, Place]] = field(default_factory=list)
    sends: dict[int, list[Message]] = field(default_factory=dict)
    receives: dict[int, list[Message]] = field(default_factory=dict)
    moved: TransferVolume = NOTHING

    @cached_property
    def in_order(self) -> tuple[Message, list[int], list[Message], list[int]]:
        """What is sent, rank by rank as one message, and how much to each; the same of what is
        received, with a message for each rank."""
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
    """What a rank does when an array goes from one layout to another."""
    found = RankTransfer()
    leaving: dict[int, list[Place]] = {}
    arriving: dict[int, list[Place]] = {}
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


def _crossings(
    source: ShardLayout, target: ShardLayout, rank: int, terms: int
) -> Iterator[tuple[IndexBlock, int, int, IndexBlock, IndexBlock, int]]:
    """(old piece, sender, receiver, new piece, what is in both, term) that concern a rank.

    Between two ranks they come in the same order, whoever asks.
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


def _at(piece: IndexBlock, wanted: IndexBlock, term: int) -> Place:
    index = tuple(positions(own, each) for own, each in zip(piece.axes, wanted.axes, strict=True))
    if any(isinstance(each, np.ndarray) for each in index):
        index = np.ix_(*(np.arange(e.start, e.stop) if isinstance(e, slice) else e for e in index))
    return Place(piece.offset, piece.shape, index, wanted.shape, term)


def _messages(places: list[Place], itemsize: int) -> list[Message]:
    """Places one after the other, as many in a message as fit."""
    found: list[Message] = []
    now: list[Place] = []
    filled = 0
    for place in places:
        for piece in _cut(place, max(1, MESSAGE_BYTES // itemsize)):
            if now and (filled + piece.size) * itemsize > MESSAGE_BYTES:
                found.append(tuple(now))
                now, filled = [], 0
            now.append(piece)
            filled += piece.size
    return [*found, tuple(now)] if now else found


def _cut(place: Place, most: int) -> Iterator[Place]:
    """The same elements in pieces of at most so many, along their longest axis."""
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
        yield from _cut(Place(place.offset, place.shape, tuple(index), box, place.term), most)
