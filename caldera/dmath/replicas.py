"""Keep what you have seen: parts of arrays that were fetched once are not fetched again.

A program that needs an array in another layout than its own brings it there before it runs, and
what arrived stays, up to a limit, for whichever program needs it next. An array never changes, so
what was seen of it is right as long as it exists: a write makes another array.

All ranks have to agree on what they still have, or some would wait for messages that others do not
send. So what is kept follows from the programs alone, which are the same everywhere: sizes are
those of the rank with the most, and freeing an array frees its memory but not its place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.comm.requests import Request
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.transfer import redistributed
from caldera.compiler.sharding.volume import volume
from caldera.core.graph.node import Node, Spec, Symbol, pinned
from caldera.core.graph.opdef import ITEM, item
from caldera.core.graph.ops.base import tensor
from caldera.core.graph.program import topological
from caldera.core.tensor import Tensor
from caldera.core.tensor.dtype import DType
from caldera.dmath.codec import register

DEFAULT_BYTES = 256 << 20
"""What a rank keeps at most, unless it is told otherwise."""


@register
@dataclass(frozen=True)
class View:
    """An array as a program needs it: from the layout it has to another, in a dtype."""

    source: ShardLayout
    target: ShardLayout
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of the largest part: the same number on every rank."""
        return max(self.target.nbytes(rank, self.dtype) for rank in self.target.ranks)


@dataclass(frozen=True)
class Fetch:
    """A view of the leaf with this number, which `symbol` stands for in the program."""

    leaf: int
    view: View
    symbol: Symbol


@dataclass
class _Kept:
    nbytes: int
    part: Tensor | None = None
    request: Request | None = None

    def finish(self) -> None:
        """Wait until it is there, if it is still on its way."""
        if self.request is not None:
            self.request.wait()
            self.request = None


@dataclass
class CacheCounts:
    """How often something was still there, how often it was fetched, and bytes on all ranks that
    did not move because of that; `nbytes` are kept here now."""

    hits: int = 0
    misses: int = 0
    saved_bytes: int = 0
    nbytes: int = 0


class ReplicaCache:
    """Views of arrays that this rank has fetched, by the number of the array; the one that was not
    used for the longest time goes first."""

    def __init__(self, communicator: Communicator, limit: int = DEFAULT_BYTES) -> None:
        self._communicator = communicator
        self.limit = limit
        self.counts = CacheCounts()
        self._kept: OrderedDict[tuple[int, View], _Kept] = OrderedDict()
        self._dropped: list[Tensor] = []

    def part(self, number: int, view: View, own: np.ndarray) -> Tensor:
        """This rank's part of a view; `own` is its part of the array itself."""
        kept = self._kept.get((number, view))
        if kept is None:
            self.counts.misses += 1
            kept = self._keep(number, view)
            self._fetch(kept, view, own, self._communicator)
        else:
            self.counts.hits += 1
            moved = volume(view.source, view.target).elements
            self.counts.saved_bytes += moved * view.dtype.itemsize
            self._kept.move_to_end((number, view))
        kept.finish()
        assert kept.part is not None
        return kept.part

    def begin(self, number: int, view: View, own: np.ndarray) -> None:
        """Fetch a view while something else is computed; whoever needs it waits for the rest."""
        if (number, view) in self._kept or view.nbytes > self.limit:
            return
        self.counts.misses += 1
        kept = self._keep(number, view)
        kept.request = self._communicator.background(
            lambda comm: self._fetch(kept, view, own, comm)
        )

    def free(self, numbers: Iterable[int]) -> None:
        """Arrays are gone, and with them what was seen of them."""
        gone = set(numbers)
        for (number, _), kept in self._kept.items():
            if number in gone:
                self._drop(kept)

    def take_dropped(self) -> list[Tensor]:
        """What was kept and is no longer, since this was last asked."""
        found, self._dropped = self._dropped, []
        return found

    def counted(self) -> CacheCounts:
        """What was counted until now."""
        parts = [kept.part for kept in self._kept.values() if kept.part is not None]
        self.counts.nbytes = sum(part.nbytes for part in parts)
        return self.counts

    def _keep(self, number: int, view: View) -> _Kept:
        kept = self._kept[number, view] = _Kept(view.nbytes)
        while sum(each.nbytes for each in self._kept.values()) > self.limit:
            self._drop(self._kept.popitem(last=False)[1])
        return kept

    def _drop(self, kept: _Kept) -> None:
        kept.finish()
        if kept.part is not None:
            self._dropped.append(kept.part)
            kept.part = None

    def _fetch(self, kept: _Kept, view: View, own: np.ndarray, comm: Communicator) -> None:
        part = Tensor(view.target.local_shape(comm.rank), dtype=view.dtype)
        redistributed(
            own,
            view.source,
            view.target,
            comm,
            rank=comm.rank,
            dtype=view.dtype,
            out=part.host_array(write=True),
        )
        kept.part = part


def with_fetches(
    roots: Sequence[Node], leaves: Sequence[Symbol], limit: int
) -> tuple[list[Node | None], list[Fetch]]:
    """The roots of a program in which views of leaves are leaves themselves, and what they are, in
    the order in which all ranks fetch them. A root that only kept ranks in order may be None."""
    numbers: dict[Any, int] = {symbol: number for number, symbol in enumerate(leaves)}
    found: dict[Node, Fetch] = {}
    new: dict[Node, Node | None] = {}
    for node in topological(roots):
        if node.op.name == "redistribute":
            number = numbers.get(node.inputs[0].attrs.get("symbol"))
            view = View(node.attrs["source"], node.attrs["target"], node.attrs["dtype"])
            if number is not None and node.attrs["terms"] == 1 and view.nbytes <= limit:
                symbol = Symbol("", Spec(node.outputs[0].shape, view.dtype), "tensor")
                found[node] = Fetch(number, view, symbol)
                # In place of the node stands the token that came to it, if there was one.
                new[node] = new[node.inputs[1]] if len(node.inputs) > 1 else None
                continue
        if node.op is ITEM and node.inputs[0] in found:
            whole = node.inputs[0]
            is_value = node.attrs["index"] == 0
            new[node] = tensor(symbol=found[whole].symbol) if is_value else new[whole]
            continue
        given = [new[each] for each in node.inputs]
        kept = tuple(each for each in given if each is not None)
        if node.op is ITEM:
            new[node] = item(kept[0], node.attrs["index"])
        elif len(kept) == len(given):
            new[node] = node.op.rebuild(node, kept)
        else:
            with pinned(node.pin):
                new[node] = node.op.node(*kept, **node.attrs)
    order = sorted(found, key=lambda node: node.attrs["number"])
    return [new[root] for root in roots], [found[node] for node in order]
