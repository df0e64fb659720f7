"""A graph as a list of kernel calls over one planned arena.

`StepSchedule` knows no addresses: it says in which order kernels run, which buffers they read and
write, and where in an arena the intermediate ones lie. `bind` ties it to real memory. A program
has one schedule; so has the body of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal

import numpy as np

from caldera.compiler.plan import arena
from caldera.compiler.plan.order import in_order, is_heavy
from caldera.compiler.plan.views import ViewFunction, is_all_of, meta_array, view_of
from caldera.core.graph.node import Node, Spec, Symbol
from caldera.core.graph.opdef import ITEM
from caldera.kernels.table import TABLE, Call, Kernel, Runner

Place = Literal["arena", "external", "constant", "host"]
Key = Symbol | Node | tuple[str, int]
"""Whose memory it is: a symbol's, a constant node's, or a numbered place such as ("output", 0)."""
Lookup = Callable[["Buffer"], Any]
Chooser = Callable[[Node], Kernel]
MOST_SPREAD = 8 << 20
"""Bytes of a value that may be kept longer than it is needed."""
LINGERING = 24
"""Steps for which such a value is kept for another step beside which they run."""


@dataclass(eq=False)
class Buffer:
    """Memory for one value: a part of the arena, or something that belongs to others.

    `shared` is the buffer whose memory it takes over, `within` one in which it lies from some byte
    on.
    """

    spec: Spec
    place: Place
    key: Key | None = None
    first: int = -1
    last: int = -1
    offset: int = 0
    shared: Buffer | None = None
    within: tuple[Buffer, int] | None = None

    @property
    def root(self) -> Buffer:
        """The buffer whose memory this one uses."""
        buffer = self
        while buffer.shared is not None:
            buffer = buffer.shared
        return buffer


@dataclass(frozen=True)
class BufferView:
    """A view of a buffer."""

    buffer: Buffer
    meta_array: np.ndarray
    views: tuple[ViewFunction, ...] = ()

    def array_in(self, array: Any) -> Any:
        """This value, given the buffer's array."""
        for function in self.views:
            array = function(array)
        return array


@dataclass
class Step:
    """One kernel call."""

    node: Node
    kernel: Kernel
    inputs: tuple[BufferView, ...]
    outputs: tuple[Buffer, ...]
    workspace: Buffer | None = None
    is_again: bool = False
    """Whether it computes what was computed before and dropped."""
    transfer: Transfer | None = None
    """What it copies between device and host, because there is no room for it meanwhile."""


@dataclass(frozen=True)
class Transfer:
    """Output number `output` of a node is copied to the host, or back from there."""

    node: Node
    output: int
    to_host: bool


@dataclass(frozen=True)
class Root:
    """A node whose value is wanted in a place of its own.

    `overwrites` is the external buffer that the place is also read as during the run, if any: the
    value may be written there directly only once nobody reads it any more.
    """

    node: Node
    key: Key
    overwrites: bool = False


@dataclass
class StepSchedule:
    """Steps and the layout of their arena. `family` is that of the kernels.

    Without `reuse` every value has memory of its own, so that steps need not wait for each other.
    With `spread` that goes for the small ones that steps at either end of the run are made of,
    which can then be moved there, and for some steps for those that gradients of parameters are
    made of, which can then be computed beside what follows.

    `order` has the nodes, inputs before users. One that comes again is computed again, and those
    after it read the new value: the memory of the old one is free in between. The same goes for
    values that are copied to the host and back.
    """

    roots: Sequence[Root]
    choose: InitVar[Chooser]
    external: InitVar[Callable[[Node], Key | None]]
    in_place: bool = True
    family: str = "cpu"
    reuse: bool = True
    spread: bool = False
    order: Sequence[Node | Transfer] = ()
    steps: list[Step] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    arena_bytes: int = 0
    naive_bytes: int = 0
    host_bytes: int = 0
    """Of what is on the host meanwhile."""

    def __post_init__(self, choose: Chooser, external: Callable[[Node], Key | None]) -> None:
        self.copy = TABLE.copy(self.family)
        self._values: dict[Node, tuple[BufferView, ...]] = {}
        self._external: dict[Key, Buffer] = {}
        self._made_by: dict[Buffer, int] = {}
        written = {root.key: root.node for root in self.roots if root.overwrites}
        self.order = self.order or in_order([root.node for root in self.roots], written)
        self._on_host: dict[tuple[Node, int], Buffer] = {}
        for each in self.order:
            if isinstance(each, Transfer):
                self._move(each)
            else:
                self._values[each] = self._visit(each, choose, external(each))
        self._deliver()
        self._linger()
        self._collect()
        self._share()
        self._layout()

    # --- building

    def _visit(self, node: Node, choose: Chooser, key: Key | None) -> tuple[BufferView, ...]:
        if key is not None:
            return (self._whole(self._external_buffer(key, node.spec)),)
        if node.op is ITEM:
            return (self._values[node.inputs[0]][node.attrs["index"]],)
        if node.op.name == "constant":
            return (self._whole(self._new(node.spec, "constant", node)),)
        inputs = tuple(self._values[given][0] for given in node.inputs)
        if inputs:
            seen = view_of(node, inputs[0].meta_array)
            if seen is not None:
                function, strides = seen
                return (BufferView(inputs[0].buffer, strides, (*inputs[0].views, function)),)
        outputs = tuple(self._new(spec, "arena") for spec in node.outputs)
        self._add_step(node, choose(node), inputs, outputs)
        self.steps[-1].is_again = node in self._values
        return tuple(self._whole(buffer) for buffer in outputs)

    def _move(self, transfer: Transfer) -> None:
        """Copy a value to the host, or from there to other memory of the device."""
        node, output = transfer.node, transfer.output
        values = self._values[node]
        spec = node.outputs[output]
        target = self._new(spec, "host" if transfer.to_host else "arena")
        if transfer.to_host:
            self._on_host[node, output] = target
            given = values[output]
        else:
            given = self._whole(self._on_host[node, output])
            others = (values[:output], values[output + 1 :])
            self._values[node] = (*others[0], self._whole(target), *others[1])
        self._add_step(node, self.copy, (given,), (target,))
        self.steps[-1].transfer = transfer

    def _new(self, spec: Spec, place: Place, key: Key | None = None) -> Buffer:
        buffer = Buffer(spec, place, key)
        self.buffers.append(buffer)
        return buffer

    def _external_buffer(self, key: Key, spec: Spec) -> Buffer:
        if key not in self._external:
            self._external[key] = self._new(spec, "external", key)
        return self._external[key]

    def _whole(self, buffer: Buffer) -> BufferView:
        return BufferView(buffer, meta_array(buffer.spec))

    def _add_step(
        self,
        node: Node,
        kernel: Kernel,
        inputs: tuple[BufferView, ...],
        outputs: tuple[Buffer, ...],
    ) -> None:
        now = len(self.steps)
        for value in inputs:
            value.buffer.last = now
        for buffer in outputs:
            buffer.first = buffer.last = now
            self._made_by[buffer] = now
        step = Step(node, kernel, inputs, outputs)
        needed = kernel.workspace(node)
        if needed:
            step.workspace = self._new(Spec((needed,), np.dtype(np.uint8)), "arena")
            step.workspace.first = step.workspace.last = now
        self.steps.append(step)

    def _deliver(self) -> None:
        """Bring each root to its place: written there at once if possible, else copied."""
        copies: list[tuple[Root, BufferView, Buffer]] = []
        overwritten = {root.key for root in self.roots if root.overwrites}
        # Where the values of roots lie.
        taken = {self._values[root.node][0].buffer.root for root in self.roots}
        # Places that are read during the run come first: writing to them directly saves most.
        for root in sorted(self.roots, key=lambda root: not root.overwrites):
            value = self._values[root.node][0]
            target = self._external_buffer(root.key, root.node.spec)
            if self._can_write_directly(root, value, target, taken):
                value.buffer.place = "external"
                value.buffer.shared = target
                taken.add(target)
            else:
                copies.append((root, value, target))
        # Copies out of the run come before those that overwrite what it read. Of the latter, a
        # value that is itself read from a place about to be overwritten is taken aside first.
        late: list[tuple[Root, BufferView, Buffer]] = []
        for root, value, target in copies:
            if not root.overwrites:
                self._add_step(root.node, self.copy, (value,), (target,))
            elif value.buffer.root.key in overwritten:
                aside = self._new(root.node.spec, "arena")
                self._add_step(root.node, self.copy, (value,), (aside,))
                late.append((root, self._whole(aside), target))
            else:
                late.append((root, value, target))
        for root, value, target in late:
            self._add_step(root.node, self.copy, (value,), (target,))

    def _can_write_directly(
        self, root: Root, value: BufferView, target: Buffer, taken: set[Buffer]
    ) -> bool:
        buffer = value.buffer
        if buffer.place != "arena" or buffer.shared is not None:
            return False
        if value.views and not is_all_of(value.meta_array, buffer.spec, root.node.spec):
            return False
        if value.views and not (isinstance(root.key, tuple) and root.key[0] == "output"):
            return False  # the places of loops and of variables may have gaps
        if not root.overwrites:
            return True
        if target in taken:
            return False
        made = self._made_by[buffer]
        if target.last < made:
            return True
        return target.last == made and _may_share(self.steps[made], target, buffer)

    def _collect(self) -> None:
        """Let values that a step only puts side by side be written there at once."""
        if not self.in_place or not self.reuse:
            return
        for now, step in enumerate(self.steps):
            places = step.kernel.places(step.node)
            for value, place in zip(step.inputs, places, strict=False):
                buffer, whole = value.buffer, step.outputs[0]
                if place is None or place % arena.ALIGNMENT or value.views:
                    continue
                is_own = buffer.place == "arena" and buffer.shared is None
                if is_own and buffer.within is None and buffer.last == now:
                    buffer.within = (whole, place)
                    whole.first = min(whole.first, buffer.first)

    def _linger(self) -> None:
        """Keep what is read for results that nothing heavy follows, a few steps longer."""
        self._until: dict[Buffer, int] = {}
        if not self.spread:
            return
        leads_on: set[Buffer] = set()
        for now, step in reversed(list(enumerate(self.steps))):
            read = {value.buffer for value in step.inputs}
            is_last = leads_on.isdisjoint(step.outputs)
            if is_heavy(step.node) or not is_last:
                leads_on |= read
            if is_heavy(step.node) and is_last:
                spare = set() if step.workspace is None else {step.workspace}
                for buffer in _small({each.root for each in read} | spare):
                    self._until.setdefault(buffer, now + LINGERING)

    def _share(self) -> None:
        """Let outputs take over the memory of an input whose last reader they are."""
        if not self.in_place or not self.reuse:
            return
        for now, step in enumerate(self.steps):
            dying = {
                value.buffer.root: None
                for value in step.inputs
                if value.buffer.root.place == "arena"
                and value.buffer.root.last == now
                and value.buffer.root.within is None
                and value.buffer.root not in self._until
            }
            for output in step.outputs:
                taken = next((b for b in dying if _may_share(step, b, output)), None)
                if output.place == "arena" and taken is not None and output.within is None:
                    del dying[taken]
                    output.shared = taken
                    taken.last = output.last
                    if output in self._until:
                        self._until[taken] = self._until[output]

    def _layout(self) -> None:
        for buffer in self.buffers:
            root = buffer.root
            root.last = max(root.last, buffer.last)
        inside = [b for b in self.buffers if b.within is not None]
        own = [
            b for b in self.buffers if b.place == "arena" and b.shared is None and b.within is None
        ]
        end = len(self.steps)
        early, late = self._spread() if self.spread else (set(), set())
        offsets, self.arena_bytes = arena.place(
            [b.spec.nbytes for b in own],
            [b.first if self.reuse and b not in early else 0 for b in own],
            [
                max(b.last, self._until.get(b, 0)) if self.reuse and b not in late else end
                for b in own
            ],
        )
        for buffer, offset in zip(own, offsets, strict=True):
            buffer.offset = offset
        away = [b for b in self.buffers if b.place == "host"]
        places, self.host_bytes = arena.place(
            [b.spec.nbytes for b in away], [b.first for b in away], [b.last for b in away]
        )
        for buffer, offset in zip(away, places, strict=True):
            buffer.offset = offset
        for buffer in inside:
            assert buffer.within is not None
            buffer.offset = buffer.within[0].root.offset + buffer.within[1]
        self.naive_bytes = sum(
            arena.aligned(b.spec.nbytes) for b in self.buffers if b.place == "arena"
        )

    def _spread(self) -> tuple[set[Buffer], set[Buffer]]:
        """Small values that are made of nothing but what is there from the start, such as weights
        in another precision, and those that what is left after the run is made of."""
        early: set[Buffer] = set()
        late: set[Buffer] = set()
        for step in self.steps:
            if all(value.buffer.root.place != "arena" for value in step.inputs):
                early.update(buffer.root for buffer in step.outputs)
            if any(buffer.root.place == "external" for buffer in step.outputs):
                late.update(value.buffer.root for value in step.inputs)
        return _small(early), _small(late)

    # --- using

    def call(self, step: Step, lookup: Lookup, communicator: Any = None) -> Call:
        """A step on real memory: `lookup` gives the array of a buffer."""
        inputs = tuple(value.array_in(lookup(value.buffer)) for value in step.inputs)
        outputs = tuple(lookup(buffer) for buffer in step.outputs)
        workspace = None if step.workspace is None else lookup(step.workspace)
        return Call(step.node, outputs, inputs, workspace, communicator, step.kernel.shares)

    def calls(self, lookup: Lookup, communicator: Any = None) -> Iterator[tuple[Kernel, Call]]:
        """Every step on real memory, with its kernel."""
        for step in self.steps:
            yield step.kernel, self.call(step, lookup, communicator)

    def bind(self, lookup: Lookup, communicator: Any = None) -> list[tuple[Call, Runner]]:
        """What runs the steps, one after the other."""
        calls = self.calls(lookup, communicator)
        return [(call, kernel.bind(call)) for kernel, call in calls]


def _small(buffers: set[Buffer]) -> set[Buffer]:
    return {buffer for buffer in buffers if buffer.spec.nbytes <= MOST_SPREAD}


def _may_share(step: Step, taken: Buffer, output: Buffer) -> bool:
    """Whether the step may write `output` over the input buffer `taken`."""
    if not step.kernel.in_place(step.node) or output.spec != taken.spec:
        return False
    readers = [value for value in step.inputs if value.buffer.root is taken]
    return all(not value.views for value in readers)
