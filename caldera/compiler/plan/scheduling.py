"""Scheduling: from the nodes of a graph to steps over buffers with lifetimes and offsets.

`schedule_steps` first lists the steps and buffers. Functions from these to tables then decide the
reuse of memory. They select the results written in place and the values that live longer. They also
select buffers to place inside others, and results that take over the memory of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from caldera.compiler.plan import arena
from caldera.compiler.plan.order import in_order, is_heavy
from caldera.compiler.plan.schedule import (
    Buffer,
    BufferView,
    Chooser,
    Key,
    Place,
    Root,
    Step,
    StepSchedule,
    Transfer,
    is_all_of,
    meta_array,
    view_of,
)
from caldera.core.graph import ITEM, Node, Spec
from caldera.kernels.table import TABLE, Kernel

MOST_DELAYED = 8 << 20
"""Bytes of a value whose memory may be reused later than possible."""
EXTRA_STEPS = 24
"""Number of steps by which the lifetime of such a value is extended, for a concurrent step."""


def schedule_steps(
    roots: Sequence[Root],
    choose: Chooser,
    external: Callable[[Node], Key | None],
    in_place: bool = True,
    family: str = "cpu",
    *,
    reuse: bool = True,
    delay_reuse: bool = False,
    order: Sequence[Node | Transfer] = (),
) -> StepSchedule:
    """Return the steps that compute `roots`, and the layout of their arena.

    `external` returns the key of a node whose value is stored outside of the arena. Without `reuse`
    every value has separate memory, so that steps do not wait for each other.

    `delay_reuse` assigns separate memory to small values read or written at either end of the run,
    so that their steps can be moved there. It also extends the lifetime of values that gradients of
    parameters are computed from, so that these can run concurrently with later steps.

    `order` lists the nodes, inputs before users. A node listed again is recomputed, and later nodes
    read the new value: its memory is free in between. The same holds for values that are copied to
    the host and back.
    """
    written = {root.key: root.node for root in roots if root.overwrites}
    order = order or in_order([root.node for root in roots], written)
    listing = _StepListing(choose, external, TABLE.copy(family))
    for each in order:
        listing.add(each)
    listing.copy_out(roots)
    steps, buffers = listing.steps, listing.buffers
    kept_until = _extend_lifetimes(steps) if delay_reuse else {}
    if in_place and reuse:
        for buffer, within in _suballocate(steps).items():
            buffer.within = within
            within[0].first = min(within[0].first, buffer.first)
        aliases, kept_until = _alias_in_place(steps, kept_until)
        for output, taken in aliases.items():
            output.shared = taken
    for buffer in buffers:
        buffer.root.last = max(buffer.root.last, buffer.last)
    early, late = _delay_reuse(steps) if delay_reuse else (set(), set())
    placed = [b for b in buffers if b.place == "arena" and b.shared is None and b.within is None]
    arena_bytes = _place(
        placed,
        [b.first if reuse and b not in early else 0 for b in placed],
        [
            max(b.last, kept_until.get(b, 0)) if reuse and b not in late else len(steps)
            for b in placed
        ],
    )
    on_host = [b for b in buffers if b.place == "host"]
    host_bytes = _place(on_host, [b.first for b in on_host], [b.last for b in on_host])
    for buffer in buffers:
        if buffer.within is not None:
            whole, offset = buffer.within
            buffer.offset = whole.root.offset + offset
    naive_bytes = sum(arena.aligned(b.spec.nbytes) for b in buffers if b.place == "arena")
    return StepSchedule(steps, buffers, order, family, arena_bytes, naive_bytes, host_bytes)


def _place(buffers: Sequence[Buffer], first: Sequence[int], last: Sequence[int]) -> int:
    """Set the offsets of buffers with these lifetimes, and return the total size."""
    offsets, nbytes = arena.place([b.spec.nbytes for b in buffers], first, last)
    for buffer, offset in zip(buffers, offsets, strict=True):
        buffer.offset = offset
    return nbytes


@dataclass
class _StepListing:
    """Steps in order, and their buffers with the first and last step that uses each."""

    choose: Chooser
    external: Callable[[Node], Key | None]
    copy: Kernel
    steps: list[Step] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    _values: dict[Node, tuple[BufferView, ...]] = field(default_factory=dict)
    _external: dict[Key, Buffer] = field(default_factory=dict)
    _on_host: dict[tuple[Node, int], Buffer] = field(default_factory=dict)

    def add(self, each: Node | Transfer) -> None:
        """Append the step of a node, if it needs one, or of a copy to or from the host."""
        if isinstance(each, Transfer):
            self._move(each)
        else:
            self._values[each] = self._visit(each)

    def _visit(self, node: Node) -> tuple[BufferView, ...]:
        key = self.external(node)
        if key is not None:
            return (_whole(self._external_buffer(key, node.spec)),)
        if node.op is ITEM:
            return (self._values[node.inputs[0]][node.attrs["index"]],)
        if node.op.name == "constant":
            return (_whole(self._new(node.spec, "constant", node)),)
        inputs = tuple(self._values[given][0] for given in node.inputs)
        if inputs:
            seen = view_of(node, inputs[0].meta_array)
            if seen is not None:
                function, strides = seen
                return (BufferView(inputs[0].buffer, strides, (*inputs[0].views, function)),)
        outputs = tuple(self._new(spec, "arena") for spec in node.outputs)
        self._add_step(node, self.choose(node), inputs, outputs)
        self.steps[-1].is_again = node in self._values
        return tuple(map(_whole, outputs))

    def _move(self, transfer: Transfer) -> None:
        """Copy a value to the host, or from there to other memory of the device."""
        node, output = transfer.node, transfer.output
        values = self._values[node]
        target = self._new(node.outputs[output], "host" if transfer.to_host else "arena")
        if transfer.to_host:
            self._on_host[node, output] = target
            given = values[output]
        else:
            given = _whole(self._on_host[node, output])
            self._values[node] = (*values[:output], _whole(target), *values[output + 1 :])
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
        step = Step(node, kernel, inputs, outputs)
        needed = kernel.workspace(node)
        if needed:
            step.workspace = self._new(Spec((needed,), np.dtype(np.uint8)), "arena")
        for buffer in (*outputs, *([step.workspace] if step.workspace else ())):
            buffer.first = buffer.last = now
        self.steps.append(step)

    def copy_out(self, roots: Sequence[Root]) -> None:
        """Write each root's value to its external buffer: by its own step if possible, else by
        a copy."""
        copies: list[tuple[Root, BufferView, Buffer]] = []
        overwritten = {root.key for root in roots if root.overwrites}
        # Buffers of the values of roots.
        taken = {self._values[root.node][0].buffer.root for root in roots}
        # Buffers that are read during the run come first: writing to them directly saves most.
        for root in sorted(roots, key=lambda root: not root.overwrites):
            value = self._values[root.node][0]
            target = self._external_buffer(root.key, root.node.spec)
            if self._can_write_directly(root, value, target, taken):
                value.buffer.place = "external"
                value.buffer.shared = target
                taken.add(target)
            else:
                copies.append((root, value, target))
        # Copies out of the run come before copies that overwrite a value it reads. A value read
        # from a buffer about to be overwritten is first copied aside.
        late: list[tuple[Root, BufferView, Buffer]] = []
        for root, value, target in copies:
            if not root.overwrites:
                self._add_step(root.node, self.copy, (value,), (target,))
            elif value.buffer.root.key in overwritten:
                aside = self._new(root.node.spec, "arena")
                self._add_step(root.node, self.copy, (value,), (aside,))
                late.append((root, _whole(aside), target))
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
            return False  # the memory of loops and of variables may have gaps
        if not root.overwrites:
            return True
        if target in taken:
            return False
        # The step that first uses an arena buffer writes it.
        made = self.steps[buffer.first]
        if target.last < buffer.first:
            return True
        readers = [given for given in made.inputs if given.buffer.root is target]
        return target.last == buffer.first and _can_alias(made, target, readers, buffer)


def _whole(buffer: Buffer) -> BufferView:
    return BufferView(buffer, meta_array(buffer.spec))


def _extend_lifetimes(steps: Sequence[Step]) -> dict[Buffer, int]:
    """Return a later last step for small buffers read by heavy steps that precede no heavy one."""
    kept_until: dict[Buffer, int] = {}
    leads_on: set[Buffer] = set()
    for now, step in reversed(list(enumerate(steps))):
        read = {value.buffer for value in step.inputs}
        is_last = leads_on.isdisjoint(step.outputs)
        if is_heavy(step.node) or not is_last:
            leads_on |= read
        if is_heavy(step.node) and is_last:
            workspace = set() if step.workspace is None else {step.workspace}
            for buffer in _small({each.root for each in read} | workspace):
                kept_until.setdefault(buffer, now + EXTRA_STEPS)
    return kept_until


def _suballocate(steps: Sequence[Step]) -> dict[Buffer, tuple[Buffer, int]]:
    """Return the output and the offset in it for each value that a step only concatenates."""
    found: dict[Buffer, tuple[Buffer, int]] = {}
    for now, step in enumerate(steps):
        for value, offset in zip(step.inputs, step.kernel.places(step.node), strict=False):
            buffer = value.buffer
            if offset is None or offset % arena.ALIGNMENT or value.views:
                continue
            is_own = buffer.place == "arena" and buffer.shared is None
            if is_own and buffer not in found and buffer.last == now:
                found[buffer] = (step.outputs[0], offset)
    return found


def _alias_in_place(
    steps: Sequence[Step], kept_until: Mapping[Buffer, int]
) -> tuple[dict[Buffer, Buffer], dict[Buffer, int]]:
    """Return the input buffer that each output takes over from its last reader.

    Also return the lifetimes, extended for such outputs.
    """
    kept = dict(kept_until)
    aliases: dict[Buffer, Buffer] = {}
    last: dict[Buffer, int] = {}
    for now, step in enumerate(steps):
        readers: dict[Buffer, list[BufferView]] = {}
        for value in step.inputs:
            root = value.buffer.root
            root = aliases.get(root, root)
            is_free = root.place == "arena" and root.within is None and root not in kept
            if is_free and last.get(root, root.last) == now:
                readers.setdefault(root, []).append(value)
        for output in step.outputs:
            taken = next((b for b in readers if _can_alias(step, b, readers[b], output)), None)
            if output.place == "arena" and taken is not None and output.within is None:
                del readers[taken]
                aliases[output] = taken
                last[taken] = output.last
                if output in kept:
                    kept[taken] = kept[output]
    return aliases, kept


def _can_alias(step: Step, taken: Buffer, readers: Sequence[BufferView], output: Buffer) -> bool:
    """Return True if the step may write `output` over the input `taken`, read as `readers`."""
    if not step.kernel.in_place(step.node) or output.spec != taken.spec:
        return False
    return not any(value.views for value in readers)


def _delay_reuse(steps: Sequence[Step]) -> tuple[set[Buffer], set[Buffer]]:
    """Return the small buffers to keep free from the start, and buffers to keep until the end."""
    early: set[Buffer] = set()
    late: set[Buffer] = set()
    for step in steps:
        if all(value.buffer.root.place != "arena" for value in step.inputs):
            early.update(buffer.root for buffer in step.outputs)
        if any(buffer.root.place == "external" for buffer in step.outputs):
            late.update(value.buffer.root for value in step.inputs)
    return _small(early), _small(late)


def _small(buffers: Iterable[Buffer]) -> set[Buffer]:
    return {buffer for buffer in buffers if buffer.spec.nbytes <= MOST_DELAYED}
