"""Sessions: evaluation of programs on the ranks of this job, or on workers."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from caldera.base.arguments import require, within
from caldera.base.config import settings
from caldera.comm import Communicator, SingleProcess, Traffic
from caldera.compiler.sharding.axis_split import Intervals
from caldera.compiler.sharding.calibration import is_clearly_other
from caldera.compiler.sharding.distributions import Distribution, as_layout
from caldera.compiler.sharding.layout import ShardLayout, check_shape
from caldera.compiler.sharding.volume import Links
from caldera.core.graph.node import Node, Spec, Symbol
from caldera.core.tensor.dtype import canonical
from caldera.dmath import shards  # noqa: F401 - its services
from caldera.dmath.codec import encode_graph, graph_key
from caldera.dmath.protocol import SERVICES
from caldera.dmath.rank import CacheCounts, Definition, Rank, View

PartOf = Callable[[int], np.ndarray]
WORTH_MEASURING = 1 << 20
"""Bytes of arrays from which on it matters which way is taken."""
MOST_PROGRAMS = 512
"""Maximum number of programs stored on ranks; least recently used ones are sent again when
needed.
"""


@dataclass(frozen=True)
class Known:
    """A program stored on the ranks: its number, output layouts, and the key of equivalent
    programs.
    """

    number: int
    layouts: tuple[ShardLayout, ...]
    key: Hashable


@dataclass(frozen=True)
class _Written:
    """Results of analysing a graph, cached from its last run."""

    outputs: tuple[weakref.ref[Node], ...]
    wanted: tuple[ShardLayout | None, ...]
    known: Known
    leaves: tuple[Symbol, ...]


class Handle:
    """Reference to an array: `number`, `spec`, `layout`, and the `session` whose ranks store it.

    The array's parts are freed with the last reference.
    """

    __slots__ = ("__weakref__", "layout", "number", "session", "spec")

    def __init__(self, session: Session, number: int, spec: Spec, layout: ShardLayout) -> None:
        self.session = session
        self.number = number
        self.spec = spec
        self.layout = layout
        weakref.finalize(self, session.forget, number).atexit = False

    def __repr__(self) -> str:
        return f"<array {self.number} {self.spec} on {len(self.layout.ranks)} ranks>"


class Session(ABC):
    """Ranks that store arrays and run programs.

    - `ranks`: the number of ranks with data.
    - `device`: the device on which they store it and compute.
    - `traffic`: sent and received data of this process, by operation; `control` counts orders.

    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2) as session:
    ...     total = dm.ones((4, 4)).sum().item()
    ...     session.ranks, session.traffic.mark()["control"].messages > 0
    (2, True)
    """

    ranks: int
    traffic: Traffic
    device = "cpu"
    one_script = False
    """True if one script controls all ranks; False if each rank runs the script."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._is_open = True
        self._arrays = 0
        self._known: OrderedDict[Hashable, Known] = OrderedDict()
        self._programs = 0
        self._written: weakref.WeakKeyDictionary[Node, _Written] = weakref.WeakKeyDictionary()
        self._forgotten: deque[int] = deque()
        self._lock = threading.RLock()
        self._links: Links | None = None

    # --- what programs ask for

    def put(self, array: np.ndarray, layout: ShardLayout) -> Handle:
        """Send the parts of a local array to their ranks, and return its handle."""
        check_shape("put", layout.shape, array.shape)
        spec = Spec(array.shape, canonical(array.dtype))
        return self.put_parts(spec, layout, lambda rank: layout.part_of(array, rank))

    def put_parts(self, spec: Spec, layout: ShardLayout, part_of: PartOf) -> Handle:
        """Create an array from parts; `part_of` returns the part of a rank, for one rank at a
        time.
        """
        self.check_open()
        with self._lock:
            handle = Handle(self, self._take_numbers(1), spec, layout)
            self._put(handle.number, layout, part_of)
        return handle

    def run(
        self, outputs: Sequence[Node], wanted: Sequence[ShardLayout | None] | None = None
    ) -> list[Handle]:
        """Compute nodes of whole values whose leaves are `Handle`s; each output in the layout that
        is wanted, or in any if that is None."""
        self.check_open()
        shapes = tuple(wanted) if wanted is not None else (None,) * len(outputs)
        with self._lock:
            known, leaves = self._program(outputs, shapes)
            first = self._take_numbers(len(outputs))
            handles = [
                Handle(self, first + place, node.spec.logical, layout)
                for place, (node, layout) in enumerate(zip(outputs, known.layouts, strict=True))
            ]
            self._run(known.number, [leaf.value.number for leaf in leaves], first)
        return handles

    def get(self, handle: Handle) -> np.ndarray:
        """Return the whole array whose parts are on ranks."""
        self.check_open(handle)
        with self._lock:
            parts = self._parts(handle, senders(handle.layout))
        whole = np.zeros(handle.spec.shape, handle.spec.dtype)
        for rank, part in parts.items():
            handle.layout.put(whole, rank, part)
        return whole

    def call(self, service: str, *arguments: Any) -> list[Any]:
        """Return the result of a service of `SERVICES` on each rank."""
        return self.call_each(service, [arguments] * self.ranks)

    def call_each(self, service: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the result of a service on each rank, with separate arguments for each."""
        self.check_open()
        with self._lock:
            return self._call(service, arguments)

    def new_handle(self, spec: Spec, layout: ShardLayout) -> Handle:
        """Return an array that ranks are about to have."""
        with self._lock:
            return Handle(self, self._take_numbers(1), spec, layout)

    @property
    def is_first(self) -> bool:
        """True in the process that performs work required once."""
        return True

    def agree(self, text: str) -> str:
        """Return the first process's text in every process that runs the script."""
        return text

    def replicate(
        self, handle: Handle, layout: ShardLayout | Distribution, wait: bool = False
    ) -> None:
        """Start to copy an array to a second layout, concurrently with other work.

        Programs that need the copy wait for its arrival and transfer no data. With `wait` the
        method returns after the arrival.
        """
        self.check_open(handle)
        there = as_layout(layout, handle.spec.shape, range(self.ranks))
        view = View(handle.layout, there, handle.spec.dtype)
        self.call("fetch", handle.number, view, wait)

    @property
    def cache(self) -> CacheCounts:
        """Return cache statistics: bytes saved on all ranks, and the largest cache of a rank."""
        counts = [CacheCounts(*each) for each in self.call("cache")]
        return replace(counts[0], nbytes=max(each.nbytes for each in counts))

    def limit_cache(self, nbytes: int) -> None:
        """Limit the cached remote data of each rank to `nbytes`; 0 disables caching."""
        self.call("limit_cache", within("Session.limit_cache", "nbytes", nbytes, 0, 1 << 62))

    def links(self, leaves: Sequence[Spec], *, again: bool = False) -> Links:
        """Return the times of messages and products, which determine algorithms.

        They are measured when the amount of data first makes them relevant. With `again` all ranks
        are queried for newer measurements.
        """
        known = self._links
        worth = sum(spec.nbytes for spec in leaves) >= WORTH_MEASURING
        if worth if known is None else again:
            with self._lock:
                found = Links(*(() if settings.deterministic else self.call("links")[0]))
            if known is None or is_clearly_other(found, known):
                self._links = found
        return self._links or Links()

    @property
    def family(self) -> str:
        """Kernels of the ranks' devices: "cuda" on GPUs, else "cpu"."""
        return "cuda" if self.device.startswith("cuda") else "cpu"

    @property
    def route(self) -> str:
        """Return how values travel between ranks; see `ArrayExplanation`."""
        return str(self.call("route")[0])

    def forget(self, number: int) -> None:
        """Mark an array as unreferenced; the next message frees its parts."""
        # Called by the garbage collector, in any thread and in the middle of anything.
        self._forgotten.append(number)

    def close(self) -> None:
        """Close the session, free its arrays and stop its workers."""
        self._is_open = False

    @property
    def processes(self) -> list[int]:
        """The numbers of the workers' processes, if it has started any."""
        return []

    @property
    def is_open(self) -> bool:
        """True if the session is usable in this process."""
        return self._is_open and self._process == os.getpid()

    def check_open(self, handle: Handle | None = None) -> None:
        """Raise if the ranks, or the ranks that store this array, are no longer available."""
        require(
            self._process == os.getpid(),
            "dmath",
            "the process that has connected",
            "one that was forked from it",
            hint="call dm.connect where arrays are used",
        )
        other = self if handle is None else handle.session
        require(
            self._is_open and other.is_open,
            "dmath",
            "a session that is open",
            "an array of an ended session" if handle else "one that has ended",
            hint="call dm.connect and make the arrays again, or load them from a file",
        )
        require(
            other is self,
            "dmath",
            "arrays of the session that is used now",
            "one that was made before dm.connect",
            hint="connect first, then make arrays",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- how ranks are told

    @abstractmethod
    def _put(self, number: int, layout: ShardLayout, part_of: PartOf) -> None: ...

    @abstractmethod
    def _define(self, number: int, definition: Definition) -> None: ...

    @abstractmethod
    def _undefine(self, number: int) -> None: ...

    @abstractmethod
    def _run(self, program: int, leaves: list[int], first: int) -> None: ...

    @abstractmethod
    def _parts(self, handle: Handle, ranks: Sequence[int]) -> dict[int, np.ndarray]: ...

    @abstractmethod
    def _call(self, service: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]: ...

    # --- programs

    def _program(
        self, outputs: Sequence[Node], wanted: tuple[ShardLayout | None, ...]
    ) -> tuple[Known, tuple[Symbol, ...]]:
        before = self._written.get(outputs[0])
        if before is not None and before.wanted == wanted:
            same = zip(before.outputs, outputs, strict=False)
            alike = len(before.outputs) == len(outputs) and all(ref() is node for ref, node in same)
            if alike and before.known.key in self._known:
                self._known.move_to_end(before.known.key)
                return before.known, before.leaves
        graph, symbols = graph_key(outputs)
        leaves = tuple(symbol for symbol in symbols if symbol.role != "array")
        for leaf in leaves:
            self._check_leaf(leaf)
        layouts, specs = tuple(leaf.value.layout for leaf in leaves), [leaf.spec for leaf in leaves]
        links = self.links(specs)
        if (graph, layouts, wanted, links) not in self._known and _is_power_of_two(self._programs):
            # Queried rarely, since it requires communication; the counter is the same on all ranks.
            links = self.links(specs, again=True)
        key = graph, layouts, wanted, links
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
        else:
            definition = Definition(encode_graph(outputs)[0], layouts, wanted, links, self.family)
            known = Known(self._programs, definition.lowered(0, self.ranks)[0].layouts, key)
            self._programs += 1
            self._define(known.number, definition)
            self._known[key] = known
            if len(self._known) > MOST_PROGRAMS:
                self._undefine(self._known.popitem(last=False)[1].number)
        nodes = tuple(weakref.ref(node) for node in outputs)
        self._written[outputs[0]] = _Written(nodes, wanted, known, leaves)
        return known, leaves

    def _check_leaf(self, leaf: Symbol) -> None:
        require(
            isinstance(leaf.value, Handle),
            "dmath",
            "arrays of dmath, numbers and NumPy arrays",
            repr(leaf),
            hint="make it one with dm.array(...)",
        )
        self.check_open(leaf.value)

    def _take_numbers(self, count: int) -> int:
        first = self._arrays
        self._arrays += count
        return first

    def _take_forgotten(self) -> list[int]:
        return sorted(self._forgotten.popleft() for _ in range(len(self._forgotten)))


class SpmdSession(Session):
    """Session in which every rank runs the script, including this one."""

    def __init__(self, communicator: Communicator | None = None) -> None:
        super().__init__()
        self._here = Rank(communicator or SingleProcess())
        self.ranks = self._here.communicator.size
        self.traffic = self._here.communicator.traffic

    @property
    def is_first(self) -> bool:
        return self._here.communicator.rank == 0

    @property
    def route(self) -> str:
        # The call of `explain` on a rank involves no other rank.
        return str(SERVICES["route"](self._here))

    def agree(self, text: str) -> str:
        return str(self._here.communicator.bcast_object(text))

    def _put(self, number: int, layout: ShardLayout, part_of: PartOf) -> None:
        self._here.put(number, part_of(self._here.communicator.rank))

    def _define(self, number: int, definition: Definition) -> None:
        self._here.define(number, definition)

    def _undefine(self, number: int) -> None:
        self._here.undefine(number)

    def _run(self, program: int, leaves: list[int], first: int) -> None:
        self._here.free(self._take_forgotten())
        self._here.run(program, leaves, first)

    def _parts(self, handle: Handle, ranks: Sequence[int]) -> dict[int, np.ndarray]:
        comm = self._here.communicator
        mine = np.asarray(self._here.part(handle.number).numpy(), order="C")
        sizes = [handle.layout.elements(rank) if rank in ranks else 0 for rank in range(comm.size)]
        everything = np.empty(sum(sizes), mine.dtype)
        own = mine.reshape(-1)[: sizes[comm.rank]]
        comm.Allgather(own, everything, sizes)
        ends = np.cumsum(sizes)
        return {rank: everything[ends[rank] - sizes[rank] : ends[rank]] for rank in ranks}

    def _call(self, service: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        comm = self._here.communicator
        said = SERVICES[service](self._here, *arguments[comm.rank])
        return comm.gather_objects(said)


def _is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def senders(layout: ShardLayout) -> list[int]:
    """Return ranks whose parts form the whole array, one for each set of equal parts.

    >>> from caldera.compiler.sharding.distributions import Replicated, Rows
    >>> senders(Replicated().of((4,), range(3))), senders(Rows().of((4, 2), range(2)))
    ([0], [0, 1])
    """
    seen: set[tuple[Intervals, ...]] = set()
    found = []
    for rank in layout.ranks:
        new = {piece.axes for piece in layout.pieces(rank)} - seen
        if new:
            seen |= new
            found.append(rank)
    return found
