"""Volume and time of redistributions: only counts, without data.

An element moves to a rank that has it in the target and did not have it in the source. If the
source's replicas are terms of a sum, the rank needs all terms that it does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf, log2

import numpy as np

from caldera.base.formatting import bytes_text
from caldera.comm import Communicator
from caldera.comm.algorithms.shared_exchange import room_bytes
from caldera.comm.autotune import Link, link_for_choices
from caldera.compiler.sharding.axis_split import AxisSplit
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout
from caldera.core.tensor.shape import size

NEAR_BYTES, FAR_BYTES = 1 << 19, 1 << 23
"""Sizes of interleaved signals that fit and that do not fit into a core's caches."""


@dataclass(frozen=True)
class Links(Link):
    """Speed of a rank while all ranks work; `calibration` measures it.

    - `latency`, `bandwidth`: of the link between ranks; `starting`: seconds for the calls of a
      change of layouts; `packing`: bytes packed and unpacked per second; `collective`: bytes per
      second when parts of a product travel along the ranks.
    - `meeting`, `shared`: seconds for an exchange in shared memory in which all ranks have data for
      other ranks, and bytes per second that each rank writes; 0 without shared memory.
    - `flops`: operations per second in products; `copying`: bytes read and written per second.
    - `transforms`: operations per second in Fourier transforms of contiguous signals, counted as 5
      n log2 n; `columns_near`, `columns_far`: the same for interleaved signals with `NEAR_BYTES` in
      total, which fit into caches, and with `FAR_BYTES`.
    - `cholesky_panel`, `qr_panel`, `solve_panel`: seconds for the messages and calls of a panel of
      any size; `reflection`: the same for a column in a bidiagonalisation.
    """

    latency: float = 2e-5
    bandwidth: float = 4e9
    collective: float = 4e9
    flops: float = 3e10
    copying: float = 1e10
    transforms: float = 2e9
    columns_near: float = 2e9
    columns_far: float = 1e9
    cholesky_panel: float = 5e-4
    qr_panel: float = 1e-3
    solve_panel: float = 1.8e-3
    reflection: float = 1e-4
    meeting: float = 0.0
    shared: float = 0.0
    starting: float = 0.0
    packing: float = inf

    @classmethod
    def between(cls, communicator: Communicator) -> Links:
        """Return the defaults with the measured link of a communicator, if it has been measured.

        All ranks have to call this.
        """
        link = link_for_choices(communicator)
        return cls() if link is None else cls(link.latency, link.bandwidth)

    def columns(self, nbytes: int) -> float:
        """Return the operations per second in transforms of columns with `nbytes` bytes in total.

        >>> round(Links().columns(1 << 21) / 1e9, 2)
        1.41
        """
        place = log2(max(nbytes, 1) / NEAR_BYTES) / log2(FAR_BYTES / NEAR_BYTES)
        share = min(max(place, 0.0), 1.0)
        return float(self.columns_near ** (1 - share) * self.columns_far**share)

    def panel(self, name: str) -> float:
        """Return the seconds for a panel: "cholesky", "qr", "solve" or "reflection"."""
        return {
            "cholesky": self.cholesky_panel,
            "qr": self.qr_panel,
            "solve": self.solve_panel,
            "reflection": self.reflection,
        }[name]


@dataclass(frozen=True)
class TransferVolume:
    """Volume of a redistribution in elements.

    - `elements`: total number that move.
    - `most`: maximum that a rank sends or receives.
    - `messages`: maximum number of messages of a rank.
    - `ranks`: number of ranks, if each rank sends and receives elements, else 0.
    - `sent`: maximum that a rank sends.
    """

    elements: int
    most: int
    messages: int
    ranks: int = 0
    sent: int = 0

    def can_share(self, itemsize: int, ranks: int) -> bool:
        """Return True if all ranks exchange elements and their shared memory is large enough."""
        return self.ranks == ranks > 0 and self.sent * itemsize <= room_bytes(ranks)

    def seconds(self, itemsize: int, links: Links) -> float:
        """Return the seconds of the transfer, with all ranks working simultaneously."""
        if links.shared and self.can_share(itemsize, self.ranks):
            return links.meeting + self.most * itemsize / links.shared
        if not self.messages:
            return 0.0
        size = self.most * itemsize
        return links.starting + links.seconds(size, self.messages) + size / links.packing


NOTHING = TransferVolume(0, 0, 0)


@lru_cache(maxsize=4096)
def volume(source: ShardLayout, target: ShardLayout, terms: int = 1) -> TransferVolume:
    """Return the volume between two layouts; `terms` of each group of replicas are summed.

    >>> from caldera.compiler.sharding.distributions import Columns, Rows
    >>> from caldera.compiler.sharding.volume import volume
    >>> volume(Rows().of((4, 4), range(2)), Columns().of((4, 4), range(2))).elements
    8
    """
    if terms == 1 and source == target:
        return NOTHING
    moved = moves(source, target, terms)
    if not moved.size:
        return NOTHING
    np.fill_diagonal(moved, 0)
    both = np.maximum(moved.sum(1), moved.sum(0))
    messages = np.maximum((moved > 0).sum(1), (moved > 0).sum(0))
    everybody = bool(moved.any(0).all() and moved.any(1).all())
    return TransferVolume(
        int(moved.sum()),
        int(both.max()),
        int(messages.max()),
        len(moved) * everybody,
        int(moved.sum(1).max()),
    )


def moves(source: ShardLayout, target: ShardLayout, terms: int = 1) -> np.ndarray:
    """Return the elements sent from each rank (row) to each rank (column), or kept (diagonal)."""
    count = max((*source.ranks, *target.ranks)) + 1
    found = np.zeros((count, count), np.int64)
    if not size(source.shape):
        return found
    if isinstance(source, CartesianLayout) and isinstance(target, CartesianLayout):
        shared = _shared(source, target)
    else:
        shared = _shared_pieces(source, target)
    # `sender_to` for all ranks of the target, vectorised: there may be thousands.
    receivers, places = np.array(target.ranks), np.arange(len(target.ranks))
    for row, owners in enumerate(groups(source)):
        for term in range(terms):
            copies = np.array(copies_of(owners, term, terms))
            senders = copies[places % len(copies)]
            has_it = np.isin(receivers, copies)
            senders[has_it] = receivers[has_it]
            found[senders, receivers] += shared[row]
    return found


def groups(layout: ShardLayout) -> list[tuple[int, ...]]:
    """Return the ranks of each part of a layout, or of each block."""
    if isinstance(layout, CartesianLayout):
        each = layout.replicas
        return [layout.ranks[i : i + each] for i in range(0, len(layout.ranks), each)]
    found = {}
    for rank in layout.ranks:
        for piece in layout.pieces(rank):
            owners = layout.owners([axis[0][0] for axis in piece.axes])
            found[piece.axes] = owners
    return list(found.values())


def copies_of(owners: tuple[int, ...], term: int, terms: int) -> tuple[int, ...]:
    """Return the replicas that have a term of the sum."""
    each = len(owners) // terms
    return owners[term * each : (term + 1) * each]


def sender_to(rank: int, copies: tuple[int, ...], place: int) -> int:
    """Return the rank that sends copies to a rank: itself if it has one, else in turns."""
    return rank if rank in copies else copies[place % len(copies)]


def _shared(source: CartesianLayout, target: CartesianLayout) -> np.ndarray:
    """Return the number of elements shared by each source part and each rank of the target."""
    one_of_each = [group[0] for group in groups(source)]
    found = np.ones((len(one_of_each), len(target.ranks)), np.int64)
    for axis, n in enumerate(source.shape):
        splits = [each.splits[axis] or AxisSplit(1, (0, n), (0,)) for each in (source, target)]
        table = np.zeros([split.parts for split in splits], np.int64)
        # The part that has each index, in both.
        np.add.at(table, tuple(np.repeat(s.owners, np.diff(s.cuts)) for s in splits), 1)
        rows = [source.part_along(axis, rank) for rank in one_of_each]
        columns = [target.part_along(axis, rank) for rank in target.ranks]
        found *= table[np.ix_(rows, columns)]
    return found


def _shared_pieces(source: ShardLayout, target: ShardLayout) -> np.ndarray:
    if isinstance(source, CartesianLayout):
        ordered = [source.pieces(group[0]) for group in groups(source)]
    else:
        every = [piece for rank in source.ranks for piece in source.pieces(rank)]
        ordered = [(piece,) for piece in {piece.axes: piece for piece in every}.values()]
    found = np.zeros((len(ordered), len(target.ranks)), np.int64)
    for column, rank in enumerate(target.ranks):
        for mine, (row, pieces) in product(target.pieces(rank), enumerate(ordered)):
            both = [piece.overlap(mine) for piece in pieces]
            found[row, column] += sum(each.size for each in both if each is not None)
    return found


@dataclass(frozen=True)
class Move:
    """Redistribution of a value: its description, the layouts, and the bytes that move."""

    what: str
    source: ShardLayout
    target: ShardLayout
    nbytes: int
    terms: int
    seconds: float


# --- in words


def summary(layout: ShardLayout) -> str:
    """Return a layout in a few words.

    >>> from caldera.compiler.sharding.distributions import Grid, Replicated, Rows
    >>> from caldera.compiler.sharding.volume import summary
    >>> shape = (8, 8)
    >>> [summary(each.of(shape, range(4))) for each in (Rows(), Grid(2, 2), Replicated())]
    ['axis 0 over 4', 'axis 0 over 2, axis 1 over 2', 'whole on 4']
    """
    if not isinstance(layout, CartesianLayout):
        return f"blocks on {len(layout.ranks)}"
    splits = [(axis, split.parts) for axis, split in enumerate(layout.splits) if split is not None]
    if not splits:
        return f"whole on {len(layout.ranks)}"
    words = ", ".join(f"axis {axis} over {parts}" for axis, parts in splits)
    return words if layout.replicas == 1 else f"{words}, {layout.replicas} copies"


def moves_table(moves: Sequence[Move]) -> list[str]:
    """Return a table of moves: the values, their layouts, bytes and seconds."""
    lines = [f"{'what moves':44}  {'from':22}  {'to':22}  {'bytes':>10}  seconds"]
    for move in moves:
        terms = f"{move.terms} terms, " if move.terms > 1 else ""
        lines.append(
            f"{shortened(move.what, 44):44}  {shortened(terms + summary(move.source), 22):22}  "
            f"{shortened(summary(move.target), 22):22}  {bytes_text(move.nbytes):>10}  "
            f"{move.seconds:.1e}"
        )
    return lines


def shortened(text: str, width: int) -> str:
    """Return a text that is no longer than this."""
    return text if len(text) <= width else text[: width - 1] + "…"
