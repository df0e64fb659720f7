"""Binding of a plan: its kernel calls tied to memory, with outputs that may be relocated.

The calls that touch an output are bound twice, to two addresses. The difference shows where that
output enters: in native calls these are addresses among their arguments, which can be overwritten
before a run; an `AddressedRunner` states its addresses. Where anything else differs (most kernels
of NumPy, kernels with private memory) the output stays at its address, and results are copied.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from caldera.compiler.plan.arena import ArenaUser, SharedArena, block_to_keep
from caldera.compiler.plan.buffers import Outputs
from caldera.compiler.plan.operands import Operands, WeightCopies
from caldera.compiler.plan.order import captured, fuse_step, grouped
from caldera.compiler.plan.schedule import Buffer, Lookup, Step, StepSchedule
from caldera.core.graph import Node, Program, Spec, Symbol, laid_out, seen_as, stored_shape
from caldera.core.memory import ALIGNMENT, Block, CapturedGraph, Device, trim_heap
from caldera.kernels.native.codegen import NativeCall, NativeRunner, address_of
from caldera.kernels.table import AddressedRunner, Call, Runner, StepPiece

if TYPE_CHECKING:
    from caldera.compiler.plan.buffers import OutputSlot


class Patch(NamedTuple):
    """Argument of a native call that is an address in an output, `offset` bytes after its start."""

    slots: np.ndarray
    position: int
    offset: int


class Placeholders:
    """Arrays for outputs that calls are bound to and never run with: they take no memory."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        starts, end = [], ALIGNMENT
        for spec in specs:
            starts.append(end)
            # One extra line, so that no address belongs to two outputs.
            end += (spec.nbytes // ALIGNMENT + 2) * ALIGNMENT
        # The system allocates no pages for memory that is never touched.
        room = np.frombuffer(mmap.mmap(-1, end), np.uint8)
        self.arrays: list[Any] = []
        self.ranges: list[tuple[int, int]] = []
        for spec, start in zip(specs, starts, strict=True):
            flat = room[start : start + spec.nbytes].view(spec.dtype)
            stored = flat.reshape(stored_shape(spec.shape, spec.order))
            self.arrays.append(laid_out(stored, spec.shape, spec.order))
            address = address_of(room) + start
            self.ranges.append((address, address + spec.nbytes))


def bind_movable(
    schedule: StepSchedule,
    lookup: Callable[[Sequence[Any]], Lookup],
    communicator: Any,
    slots: Sequence[OutputSlot],
) -> tuple[list[tuple[Call, Runner]], list[list[Patch]]]:
    """Return the calls of a schedule, and for each output the patches to apply when it moves.

    `lookup(arrays)` finds arrays; outputs are taken from `arrays`. Slots of outputs that cannot
    move get separate memory, and are marked as copied.
    """
    specs = [slot.spec for slot in slots]
    here, there = Placeholders(specs), Placeholders(specs)
    bound = schedule.bind(lookup(here.arrays), communicator)
    patches: list[list[Patch]] = [[] for _ in slots]
    unlike: list[int] = []
    for number, step in enumerate(schedule.steps):
        touched = set(_outputs_of(step))
        if not touched:
            continue
        found, runner = None, bound[number][1]
        if isinstance(runner, NativeRunner):
            call = schedule.call(step, lookup(there.arrays), communicator)
            found = _differing_patches(runner, step.kernel.bind(call), here, there)
        elif isinstance(runner, AddressedRunner):
            found = list(_addressed_patches(runner, here))
        if found is None:
            unlike.append(number)
            for output in touched:
                slots[output].is_copied = True
            continue
        for output, patch in found:
            patches[output].append(patch)
    _fix_addresses(slots, patches)
    arrays = [
        slot.array() if slot.is_copied else each
        for slot, each in zip(slots, here.arrays, strict=True)
    ]
    for number in unlike:
        step = schedule.steps[number]
        call = schedule.call(step, lookup(arrays), communicator)
        bound[number] = call, step.kernel.bind(call)
    return bound, patches


def _fix_addresses(slots: Sequence[OutputSlot], patches: list[list[Patch]]) -> None:
    """Allocate memory for outputs that cannot move, and write its address to the calls."""
    for slot, places in zip(slots, patches, strict=True):
        if slot.is_copied:
            if slot.is_empty:
                slot.renew()
            for numbers, position, offset in places:
                numbers[position] = slot.address + offset
            places.clear()


def _outputs_of(step: Step) -> Iterator[int]:
    """Yield the numbers of the outputs that a step reads or writes."""
    for buffer in (*(value.buffer for value in step.inputs), *step.outputs):
        key = buffer.root.key
        if isinstance(key, tuple):
            yield key[1]


def _differing_patches(
    first: Runner, second: Runner, here: Placeholders, there: Placeholders
) -> list[tuple[int, Patch]] | None:
    """Return the positions of output addresses in the calls; None if anything else differs."""
    assert isinstance(first, NativeRunner)
    if not isinstance(second, NativeRunner) or len(first.calls) != len(second.calls):
        return None
    found: list[tuple[int, Patch]] = []
    for one, other in zip(first.calls, second.calls, strict=True):
        if (one.address, one.parts, len(one.slots)) != (
            other.address,
            other.parts,
            len(other.slots),
        ):
            return None
        for position in np.flatnonzero(one.slots != other.slots).tolist():
            given, moved = int(one.slots[position]), int(other.slots[position])
            if (given, moved) == (_status(one), _status(other)):
                continue
            output = _output_at(given, moved, here, there)
            if output is None and _are_private(one, other, position, here):
                continue
            if output is None:
                return None
            offset = given - here.ranges[output][0]
            found.append((output, Patch(one.slots, position, offset)))
    return found


def _addressed_patches(runner: AddressedRunner, here: Placeholders) -> Iterator[tuple[int, Patch]]:
    """Yield the positions of output addresses in a runner."""
    for position, address in enumerate(runner.slots.tolist()):
        for output, (begin, end) in enumerate(here.ranges):
            if begin <= address < end:
                yield output, Patch(runner.slots, position, address - begin)


def _output_at(given: int, moved: int, here: Placeholders, there: Placeholders) -> int | None:
    for output, ((begin, end), (other, _)) in enumerate(
        zip(here.ranges, there.ranges, strict=True)
    ):
        if begin <= given <= end and moved - other == given - begin:
            return output
    return None


def _are_private(one: NativeCall, other: NativeCall, position: int, here: Placeholders) -> bool:
    """Return True if a slot has memory that each binding allocates, without addresses in it."""
    first, second = one.values()[position], other.values()[position]
    if not (isinstance(first, np.ndarray) and isinstance(second, np.ndarray)):
        return False
    begins = any(begin <= one.slots[position] <= end for begin, end in here.ranges)
    could_be_addresses = first.dtype.kind in "iu" and not np.array_equal(first, second)
    return not begins and first.shape == second.shape and not could_be_addresses


def _status(call: NativeCall) -> int | None:
    """Return the address of a call's status, which differs between bindings."""
    return None if call.status is None else address_of(call.status)


@dataclass(eq=False)
class BoundCalls(ArenaUser):
    """The kernel calls of a plan, tied to memory: one set for each buffer of the inputs."""

    steps: list[Runner] = field(default_factory=list)
    pieces: list[StepPiece] = field(default_factory=list)
    patches: list[list[Patch]] = field(default_factory=list)
    graph: CapturedGraph | None = None

    def unbind(self) -> None:
        if self.graph is None:
            self.block = None
            self.clear()

    def clear(self) -> None:
        """Drop the calls. The lists are new: the old ones may still be queued on a stream."""
        self.steps, self.pieces, self.patches = [], [], []


class PlanBinding:
    """A schedule on one device's memory: operands, outputs, the arena and the calls over them.

    `copies` are half-precision copies of weights that the schedule reads.
    """

    def __init__(
        self,
        schedule: StepSchedule,
        optimised: Program,
        device: Device,
        communicator: Any,
        copies: WeightCopies | None,
    ) -> None:
        self.schedule = schedule
        self.device = device
        self.copies = copies
        self.writer = object()
        """Marks the device's updates as this plan's."""
        self.operands = Operands(optimised, schedule, device)
        self.outputs = Outputs([node.spec for node in optimised.outputs], device)
        self.bound = [BoundCalls() for _ in range(self.operands.inputs.turns)]
        self._communicator = communicator
        self._offloaded: Block | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held between runs: inputs, constants, copies of weights, and kept results."""
        copies = 0 if self.copies is None else self.copies.nbytes
        return self.operands.nbytes + self.outputs.nbytes + copies

    @property
    def is_captured(self) -> bool:
        """True if runs are replayed."""
        return self.bound[0].graph is not None

    def use(self, schedule: StepSchedule) -> None:
        """Replace the schedule, of which no calls are bound; the next run binds it."""
        self.schedule, self._offloaded = schedule, None

    def unbind(self) -> None:
        """Release the arrays of all calls."""
        self.bound = [BoundCalls() for _ in self.bound]

    def release_results(self) -> None:
        """Drop results that are too large to keep for the next run."""
        if not self.is_captured and self.outputs.release():
            self.unbind()

    def prepare(self, feeds: Mapping[str, Any] | None) -> BoundCalls:
        """Feed the inputs, make all operands ready for a run, and return its calls."""
        if self.operands.are_stale:
            self.operands.renew()
            self.unbind()
        inputs = self.operands.inputs
        inputs.feed(feeds or {})
        if self.copies is not None:
            self.copies.make_ready(self.writer)
        self.operands.make_ready()
        if self.copies is not None:
            self.copies.note()
        if self.bound[inputs.turn].graph is None:
            arena = SharedArena.of(self.device)
            block = arena.at_least(self.schedule.arena_bytes)
            if self.outputs.must_move():
                self.unbind()
            bound = self.bound[inputs.turn]
            if block is not bound.block:
                arena.bind(bound, block)
                self._bind(bound, block)
            if bound.patches:
                self.outputs.move(bound.patches)
        return self.bound[inputs.turn]

    def capture(self, unshared: StepSchedule | None) -> None:
        """Record the calls; as one launch if `unshared`, without reuse of memory, can be fused."""
        block = self._keep()
        for turn, bound in enumerate(self.bound):
            self.operands.inputs.turn = turn
            self._bind(bound, block)
            bound.graph = self._fused(unshared) or captured(self.device.stream, bound.pieces)
        self.operands.inputs.turn = 0

    def can_fuse(self, unshared: StepSchedule | None) -> bool:
        """Return True if all calls become one launch."""
        if unshared is None:
            return False
        self._bind(self.bound[0], self._keep())
        return self._fused(unshared) is not None

    def _fused(self, unshared: StepSchedule | None) -> CapturedGraph | None:
        if unshared is None:
            return None
        return fuse_step(self.device, unshared, self._lookup_in, self._communicator)

    def _keep(self) -> Block:
        """Fix the addresses of the outputs and of the arena, which is returned."""
        block = block_to_keep(self.device, self.schedule.arena_bytes)
        self.outputs.keep()
        return block

    def _bind(self, bound: BoundCalls, block: Block) -> None:
        """Bind the kernels of the schedule to arrays in `block`."""
        bound.clear()
        bound.block = block
        outputs = self.outputs
        if outputs.are_movable and not all(slot.is_copied for slot in outputs.slots):
            lookup = partial(self._lookup_in, block)
            # New calls have no addresses of outputs yet, not even of the last result.
            outputs.release_movable()
            steps, bound.patches = bind_movable(
                self.schedule, lookup, self._communicator, outputs.slots
            )
        else:
            outputs.allocate()
            steps = self.schedule.bind(self._lookup_in(block), self._communicator)
        bound.steps = [runner for _, runner in steps]
        bound.pieces = grouped(self.device.kernels, steps)
        # The calls refer to the arrays of results: dropped before the references are counted.
        del steps
        outputs.settle()
        # Memory used to choose and compile kernels is freed before the run takes its arena.
        trim_heap()

    def _lookup_in(self, block: Block, outputs: Sequence[Any] | None = None) -> Lookup:
        """Return the function from buffers to arrays, with `block` as the arena.

        `outputs` are the arrays of results if these are not in their slots.
        """

        def lookup(buffer: Buffer) -> Any:
            root = buffer.root
            if root.place == "constant":
                assert isinstance(root.key, Node)
                return self.operands.constant(root.key)
            if root.place in ("arena", "host"):
                spec = buffer.spec
                stored = stored_shape(spec.shape, spec.order)
                where = block if root.place == "arena" else self._host_block()
                memory = self.device.array(where, root.offset, stored, spec.dtype)
                return laid_out(memory, spec.shape, spec.order)
            if isinstance(root.key, Symbol):
                return self.operands.array(root.key)
            assert isinstance(root.key, tuple)
            number = root.key[1]
            found = self.outputs.slots[number].array() if outputs is None else outputs[number]
            return seen_as(found, buffer.spec)

        return lookup

    def _host_block(self) -> Block:
        """Return the host memory for values that do not fit into the device's."""
        if self._offloaded is None:
            self._offloaded = self.device.allocate_host(
                self.schedule.host_bytes, owner="off-loaded"
            )
        return self._offloaded
