"""Calls that can be told where to write, so that results need no binding anew.

The calls that touch an output are bound twice, to two places. What differs between the two is where
that output enters: in native calls these are addresses among the numbers they are given, which can
be written over before a run; an `AddressedRunner` says what its addresses are. Where anything else
differs (most kernels of NumPy, one with memory of its own) the output stays where it is, and
results are copied from there.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from caldera.compiler.plan.schedule import Lookup, Step, StepSchedule
from caldera.core.graph.memory_format import laid_out, stored_shape
from caldera.core.graph.node import Spec
from caldera.core.memory.pool import ALIGNMENT
from caldera.kernels.native.codegen.kernel import NativeCall, address_of
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.runners import AddressedRunner
from caldera.kernels.table import Call, Runner

if TYPE_CHECKING:
    from caldera.compiler.plan.buffers import OutputSlot


class Patch(NamedTuple):
    """A number of a native call that is an address in an output: so many bytes after its start."""

    slots: np.ndarray
    position: int
    offset: int


class Placeholders:
    """Arrays for outputs that calls are bound to and never run with: they take no memory."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        starts, end = [], ALIGNMENT
        for spec in specs:
            starts.append(end)
            # One line more, so that no address belongs to two of them.
            end += (spec.nbytes // ALIGNMENT + 2) * ALIGNMENT
        # The system gives no pages to what is never touched.
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
    """The calls of a schedule, and for each output what to write over when it moves.

    `lookup(arrays)` finds arrays, those of outputs among the ones given. Slots of outputs that
    cannot move get memory of their own, and are marked as copied.
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
            found = _differences(runner, step.kernel.bind(call), here, there)
        elif isinstance(runner, AddressedRunner):
            found = list(_addressed(runner, here))
        if found is None:
            unlike.append(number)
            for output in touched:
                slots[output].is_copied = True
            continue
        for output, patch in found:
            patches[output].append(patch)
    _fix(slots, patches)
    arrays = [
        slot.array() if slot.is_copied else each
        for slot, each in zip(slots, here.arrays, strict=True)
    ]
    for number in unlike:
        step = schedule.steps[number]
        call = schedule.call(step, lookup(arrays), communicator)
        bound[number] = call, step.kernel.bind(call)
    return bound, patches


def _fix(slots: Sequence[OutputSlot], patches: list[list[Patch]]) -> None:
    """Give memory to the outputs that stay where they are, and tell the calls that could move."""
    for slot, places in zip(slots, patches, strict=True):
        if slot.is_copied:
            if slot.is_empty:
                slot.renew()
            for numbers, position, offset in places:
                numbers[position] = slot.address + offset
            places.clear()


def _outputs_of(step: Step) -> Iterator[int]:
    """The numbers of the outputs that a step reads or writes."""
    for buffer in (*(value.buffer for value in step.inputs), *step.outputs):
        key = buffer.root.key
        if isinstance(key, tuple):
            yield key[1]


def _differences(
    first: Runner, second: Runner, here: Placeholders, there: Placeholders
) -> list[tuple[int, Patch]] | None:
    """Where addresses of outputs stand in the calls of `first`; None if not only they differ."""
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
            if output is None:
                return None
            offset = given - here.ranges[output][0]
            found.append((output, Patch(one.slots, position, offset)))
    return found


def _addressed(runner: AddressedRunner, here: Placeholders) -> Iterator[tuple[int, Patch]]:
    """Where addresses of outputs stand in a runner."""
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


def _status(call: NativeCall) -> int | None:
    """Where a call says whether it failed, which is its own in each binding."""
    return None if call.status is None else address_of(call.status)
