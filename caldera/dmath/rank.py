"""State of a rank: its parts of all arrays, its programs and its cache of remote data.

Before a program runs, arrays are transferred to the layouts it needs. Transferred copies are
cached, up to a limit, for later programs. Arrays are immutable, so a copy stays valid for the
lifetime of its array: a write creates another array.

All ranks have to agree on the cached copies; otherwise some would wait for messages that are never
sent. Cache contents therefore depend only on the programs, which are the same on every rank. The
size of an entry is the size on the rank with the most data, and freeing an array frees its memory
but not its slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.comm import Communicator, Request
from caldera.comm.nccl import with_nccl
from caldera.compiler.lazy.compile import compile_nodes
from caldera.compiler.plan.plan import Plan
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.ops import EVERYONE, redistribute
from caldera.compiler.sharding.propagation import Distributed, distribute
from caldera.compiler.sharding.transfer import is_in_blocks, redistributed
from caldera.compiler.sharding.volume import Links, volume
from caldera.core.graph import ITEM, Node, Spec, Symbol, item, parameter, pinned, topological
from caldera.core.graph.ops.base import tensor
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.core.memory.gpus import card_count
from caldera.core.tensor import DType, Tensor
from caldera.dmath.codec import decode, decode_graph, encode, register
from caldera.errors import CommError
from caldera.kernels.table import TABLE, Call

DEFAULT_BYTES = 256 << 20
"""Default size of the cache."""


@register
@dataclass(frozen=True)
class View:
    """Redistribution that a program requires of an array: both layouts, and the dtype."""

    source: ShardLayout
    target: ShardLayout
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of the largest part: the same number on every rank."""
        return max(self.target.nbytes(rank, self.dtype) for rank in self.target.ranks)

    def is_on_card(self, own: Tensor) -> bool:
        """Return True if GPUs exchange the array of which `own` is a part."""
        in_blocks = is_in_blocks(self.source, self.target)
        return own.device.kernels == "cuda" and in_blocks and own.dtype == self.dtype


@dataclass(frozen=True)
class Fetch:
    """A copy of a leaf in another layout, represented by `symbol` in the program."""

    leaf: int
    view: View
    symbol: Symbol


@dataclass
class _Kept:
    nbytes: int
    part: Tensor | None = None
    request: Request | None = None

    def finish(self) -> None:
        """Wait for the transfer of the array, if it has not finished."""
        if self.request is not None:
            self.request.wait()
            self.request = None


@dataclass
class CacheCounts:
    """Cache statistics: hits, misses, and the bytes saved on all ranks; `nbytes` are cached now."""

    hits: int = 0
    misses: int = 0
    saved_bytes: int = 0
    nbytes: int = 0


class ReplicaCache:
    """Cached copies of arrays in other layouts, by array number, in least-recently-used order."""

    def __init__(self, communicator: Communicator, limit: int = DEFAULT_BYTES) -> None:
        self._communicator = communicator
        self.limit = limit
        self.counts = CacheCounts()
        self._kept: OrderedDict[tuple[int, View], _Kept] = OrderedDict()
        self._dropped: list[Tensor] = []

    def part(self, number: int, view: View, own: Tensor) -> Tensor:
        """Return this rank's part of a view; `own` is its part of the array itself."""
        kept = self._kept.get((number, view))
        if kept is None:
            self.counts.misses += 1
            kept = self._keep(number, view)
            self._fetch(kept, view, own)
        else:
            self.counts.hits += 1
            moved = volume(view.source, view.target).elements
            self.counts.saved_bytes += moved * view.dtype.itemsize
            self._kept.move_to_end((number, view))
        kept.finish()
        assert kept.part is not None
        return kept.part

    def begin(self, number: int, view: View, own: Tensor, wait: bool) -> None:
        """Fetch a view while something else is computed; programs that need it wait for the rest,
        and so does this with `wait`."""
        if view.nbytes > self.limit:
            return
        kept = self._kept.get((number, view))
        if kept is None:
            self.counts.misses += 1
            kept = self._keep(number, view)
            if view.is_on_card(own):
                # The host does not wait for GPUs, unless they have no access to messages.
                self._fetch(kept, view, own)
            else:
                here = own.numpy()
                kept.request = self._communicator.on_host.background(
                    lambda comm: self._receive(kept, view, here, comm)
                )
        if wait:
            kept.finish()

    def free(self, numbers: Iterable[int]) -> None:
        """Free arrays and their cached copies."""
        gone = set(numbers)
        for (number, _), kept in self._kept.items():
            if number in gone:
                self._drop(kept)

    def take_dropped(self) -> list[Tensor]:
        """Return the copies dropped since the last call."""
        found, self._dropped = self._dropped, []
        return found

    def counted(self) -> CacheCounts:
        """Return the statistics so far."""
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

    def _fetch(self, kept: _Kept, view: View, own: Tensor) -> None:
        if view.is_on_card(own):
            kept.part = _moved_on_card(own, view, self._communicator)
        else:
            self._receive(kept, view, own.numpy(), self._communicator)

    def _receive(self, kept: _Kept, view: View, own: np.ndarray, comm: Communicator) -> None:
        part = Tensor(view.target.local_shape(comm.rank), dtype=view.dtype)
        room, layouts = part.host_array(write=True), (view.source, view.target)
        redistributed(own, *layouts, comm, rank=comm.rank, dtype=view.dtype, out=room)
        kept.part = part


def _moved_on_card(own: Tensor, view: View, comm: Communicator) -> Tensor:
    """Return a rank's part of a view, moved by the kernel of its GPU."""
    node = redistribute.node(
        parameter(0, Spec(own.shape, own.dtype)),
        source=view.source,
        target=view.target,
        rank=comm.rank,
        dtype=view.dtype,
        terms=1,
        reduce="sum",
        axis=EVERYONE,
        number=0,
    )
    kernel = TABLE.candidates(node, own.device.kernels)[0]
    made = Tensor(node.outputs[0].shape, dtype=view.dtype, device=own.device)
    room = Tensor((kernel.workspace(node),), dtype="uint8", device=own.device)
    arrays = (made.device_array(True, True),), (own.device_array(),)
    own.device.stream.launch(kernel.bind(Call(node, *arrays, room.device_array(True, True), comm)))
    return made


def with_fetches(
    roots: Sequence[Node], leaves: Sequence[Symbol], limit: int, views: Container[int]
) -> tuple[list[Node | None], list[Fetch]]:
    """Return a program's roots with cacheable transfers replaced by leaves, and the transfers.

    Transfers are in the order in which all ranks perform them; `views` contains their numbers. A
    root that only served as an ordering token may be None.
    """
    numbers: dict[Any, int] = {symbol: number for number, symbol in enumerate(leaves)}
    found: dict[Node, Fetch] = {}
    new: dict[Node, Node | None] = {}
    for node in topological(roots):
        if node.op.name == "redistribute":
            view = View(node.attrs["source"], node.attrs["target"], node.attrs["dtype"])
            if node.attrs["number"] in views and view.nbytes <= limit:
                number = numbers[node.inputs[0].attrs["symbol"]]
                symbol = Symbol("", Spec(node.outputs[0].shape, view.dtype), "tensor")
                found[node] = Fetch(number, view, symbol)
                # The node is replaced by its incoming token, if any.
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


_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Definition:
    """Definition of a program, sent to the ranks.

    It consists of a graph of whole values, encoded by `encode_graph`, the layouts of its leaves
    (without constants), and the layouts of its outputs (None if free). The link measurements and
    the `family` of the ranks' kernels determine algorithms.
    """

    graph: bytes
    layouts: tuple[ShardLayout, ...]
    wanted: tuple[ShardLayout | None, ...]
    links: Links
    family: str = "cpu"

    def to_bytes(self) -> bytes:
        """Encode the definition."""
        head = encode((self.layouts, self.wanted, self.links, self.family))
        return len(head).to_bytes(_LENGTH_BYTES, "little") + head + self.graph

    @classmethod
    def from_bytes(cls, content: bytes) -> Definition:
        """Decode a result of `to_bytes`."""
        end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        return cls(content[end:], *decode(content[_LENGTH_BYTES:end]))

    def lowered(
        self, rank: int, ranks: int, messages_on: str | None = None
    ) -> tuple[Distributed, tuple[Symbol, ...]]:
        """Return one rank's part of the program, and its leaf for each leaf of the program; layouts
        and links are the same on every rank.

        Messages are sent from the device `messages_on`, where the rest runs on another.
        """
        graph = decode_graph(self.graph)
        leaves = [leaf for leaf in graph.leaves if leaf.role != "array"]
        found = distribute(
            graph.outputs,
            dict(zip(leaves, self.layouts, strict=True)),
            self.wanted,
            ranks=ranks,
            rank=rank,
            links=self.links,
            messages_on=messages_on,
            family=self.family,
        )
        return found, tuple(found.leaves[leaf] for leaf in leaves)


class RankProgram:
    """A program on one rank, compiled when it first has values."""

    def __init__(
        self,
        definition: Definition,
        communicator: Communicator,
        cache: ReplicaCache,
        device: Device,
    ) -> None:
        host = None if device.name == "cpu" else "cpu"
        found, self._leaves = definition.lowered(communicator.rank, communicator.size, host)
        self._device = device
        roots, self._fetches = with_fetches(found.roots, self._leaves, cache.limit, found.views)
        self._roots = [root for root in roots if root is not None]
        self._count = len(found.outputs)
        self._communicator = communicator
        self._cache = cache
        self._plan: Plan | None = None

    def run(self, numbers: Sequence[int], values: Sequence[Tensor]) -> list[Tensor]:
        """Return the program's outputs for the arrays with these numbers."""
        given = list(zip(self._leaves, values, strict=True))
        for each in self._fetches:
            part = self._cache.part(numbers[each.leaf], each.view, values[each.leaf])
            given.append((each.symbol, part))
        for symbol, value in given:
            if symbol.value is not value:
                symbol.move(value)
        if self._plan is None:
            self._plan = compile_nodes(
                self._roots,
                device=self._device,
                communicator=self._communicator,
                remember=False,
                sends_from_host=True,
            )
        # After the outputs there may be what keeps ranks to one order.
        return self._plan.run()[: self._count]

    def release(self, freed: Sequence[Tensor]) -> None:
        """Hold on to none of these values."""
        symbols = [*self._leaves, *[fetch.symbol for fetch in self._fetches]]
        held = [symbol for symbol in symbols if any(symbol.value is each for each in freed)]
        for symbol in held:
            symbol.move(None)
        if held and self._plan is not None:
            self._plan.release()


class Rank:
    """Array parts and programs, by the numbers that the master assigns."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.device = find_device("cpu")
        self._compares_gpus = False
        self.cache = ReplicaCache(communicator)
        self.arrays: dict[int, Tensor] = {}
        self._definitions: dict[int, Definition] = {}
        self._programs: dict[int, RankProgram] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all parts that are here."""
        return sum(part.nbytes for part in self.arrays.values())

    def renew(self, communicator: Communicator) -> None:
        """Continue with another communicator of the same ranks."""
        self.communicator = communicator
        if self._compares_gpus:
            self.communicator = with_nccl(communicator, self.device.index)
        self.limit_cache(self.cache.limit)

    def use_device(self, name: str) -> None:
        """Keep arrays on a device from now on, and compute there; ranks take turns with cards."""
        if name == "cuda":
            rank, nodes = self.communicator.rank, list(self.communicator.nodes)
            name = f"cuda:{nodes[:rank].count(nodes[rank]) % max(card_count(), 1)}"
        self.device = find_device(name)

    def compare_gpus(self) -> None:
        """Use NCCL from now on, if each rank has a separate GPU; all ranks call this."""
        self._compares_gpus = True
        self.renew(self.communicator.on_host)

    def limit_cache(self, nbytes: int) -> None:
        """Clear the cache, and limit it to `nbytes` from now on."""
        self._programs.clear()
        counts, self.cache = self.cache.counts, ReplicaCache(self.communicator, nbytes)
        self.cache.counts = counts

    def define(self, number: int, definition: Definition) -> None:
        """Store a program under its number."""
        self._definitions[number] = definition

    def undefine(self, number: int) -> None:
        """Discard a program."""
        self._definitions.pop(number, None)
        self._programs.pop(number, None)

    def run(self, number: int, leaves: Sequence[int], first: int) -> None:
        """Run a program on arrays; its outputs are numbered from `first` on."""
        if number not in self._programs:
            self._programs[number] = RankProgram(
                self._definitions[number], self.communicator, self.cache, self.device
            )
        results = self._programs[number].run(leaves, [self.part(leaf) for leaf in leaves])
        self._release(self.cache.take_dropped())
        for place, result in enumerate(results):
            # Received data is still on the host.
            here = result.device is self.device
            self.arrays[first + place] = result if here else result.to(self.device)

    def put(self, number: int, part: np.ndarray) -> None:
        """Keep this rank's part of an array; it belongs to this from now on."""
        self.arrays[number] = Tensor.from_numpy(part, copy=False).to(self.device)

    def part(self, number: int) -> Tensor:
        """Return this rank's part of an array."""
        found = self.arrays.get(number)
        if found is None:
            raise CommError.build(
                f"rank {self.communicator.rank}",
                expected=f"array {number}",
                got="none",
                hint="the run that should have computed it has failed",
            )
        return found

    def fetch(self, number: int, view: View, wait: bool) -> None:
        """Start to move an array to another layout; programs that read it wait for the end."""
        self.cache.begin(number, view, self.part(number), wait)

    def free(self, numbers: Iterable[int]) -> None:
        """Free arrays without references."""
        gone = [number for number in numbers if number in self.arrays]
        self.cache.free(gone)
        self._release([self.arrays.pop(number) for number in gone] + self.cache.take_dropped())

    def _release(self, freed: Sequence[Tensor]) -> None:
        if freed:
            for program in self._programs.values():
                program.release(freed)
