"""A schedule that fits into the memory there is: `settings.memory_limit` less what others hold.

What fits is left as it is. Else values are dropped and computed again, or moved to the host
(`recompute`), by whichever policy costs the least time; the room that a policy is given shrinks
until what it comes to fits when it is laid out. If none does, the error says how little would have
been enough.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caldera.base.config import settings
from caldera.base.formatting import bytes_text
from caldera.compiler.plan.arena import SharedArena
from caldera.compiler.plan.recompute import (
    POLICIES,
    Policy,
    Recomputation,
    ScheduleFacts,
    TooLittle,
    nodes_in_order,
)
from caldera.compiler.plan.schedule import StepSchedule, Transfer
from caldera.compiler.plan.timing import StepSeconds
from caldera.core.graph import Node, Program, Symbol
from caldera.core.memory import Device, find_device, size_class
from caldera.errors import OutOfMemoryError

ATTEMPTS = 8
"""How often the room is made smaller when what was planned in it did not fit as it is laid out."""
Build = Callable[[Sequence[Node | Transfer], bool], StepSchedule]
"""Makes a schedule of nodes in an order (none: the usual one), with reuse delayed or not."""


@dataclass(frozen=True)
class Room:
    """Bytes that the arena of a plan may take, and what may be moved to the host, under a limit."""

    arena: int
    host: int
    limit: int


def room_for(program: Program, device: Device) -> Room | None:
    """The room there is for a plan of this program; None if nobody has set a limit."""
    limit = device.pool.capacity
    if limit is None or settings.memory_limit is None:
        return None
    if sum(spec.nbytes for node in program.order() for spec in node.outputs) > limit // 4:
        # It may be tight: what is dead already, but waits for the collector, is in nobody's way.
        gc.collect()
    symbols = {node.attrs["symbol"] for node in program.order() if "symbol" in node.attrs}
    symbols |= {symbol for symbol, _ in program.updates}
    turns = 1 if device.is_host else 2
    to_come = sum(
        size_class(each.spec.nbytes) * (turns if each.role == "input" else 1)
        for each in symbols
        if each.role == "input" or not _is_there(each, device)
    )
    # Results may be held while the next ones are written.
    to_come += 2 * sum(size_class(node.spec.nbytes) for node in program.outputs)
    there = device.pool.in_use - SharedArena.of(device).nbytes
    host = 0 if device.is_host else settings.memory_limit - find_device("cpu").pool.in_use
    return Room(limit - there - to_come, host, limit)


def _is_there(symbol: Symbol, device: Device) -> bool:
    """Whether a variable or an array has its memory on the device already."""
    tensor = symbol.value
    return device.is_host or (tensor.device is device and tensor.memory.has_block)


def within_limit(
    build: Build, room: Room | None, device: Device, *, delay_reuse: bool
) -> StepSchedule:
    """The schedule, with as much computed again or moved as it takes to fit into the room."""
    plain = build((), delay_reuse)
    if room is None or _fits(plain, room.arena):
        return plain
    if delay_reuse:
        plain = build((), False)
        if _fits(plain, room.arena):
            return plain
    facts = ScheduleFacts.of(plain, StepSeconds(plain, device), room.host)
    largest = _largest(room.arena)
    fitting = [_with_policy(build, plain, facts, largest, policy) for policy in POLICIES]
    found = [each for each in fitting if each is not None]
    if found:
        return min(found, key=lambda each: each[0])[1]
    # By what does not vary: what is said to be enough must be enough the next time.
    steady = ScheduleFacts.of(plain, StepSeconds(plain, device, measured=False), room.host)
    least = _smallest(build, plain, steady)
    if _fits(least, room.arena):
        return least
    raise _too_little(plain, least, room, device)


def _fits(schedule: StepSchedule, room: int) -> bool:
    return size_class(schedule.arena_bytes) <= room


def _largest(room: int) -> int:
    """The most bytes of which a block fits into the room: blocks are rounded up."""
    return max(bisect_right(range(max(room, 0) + 1), room, key=size_class) - 1, 0)


def _with_policy(
    build: Build, plain: StepSchedule, facts: ScheduleFacts, largest: int, policy: Policy
) -> tuple[float, StepSchedule] | None:
    """What it costs, and the schedule; None if it does not fit."""
    given = largest
    for _ in range(ATTEMPTS):
        try:
            found = Recomputation(facts, given, policy)
        except TooLittle:
            return None
        schedule = build(nodes_in_order(plain, found.order), False)
        if schedule.arena_bytes <= largest:
            return found.seconds, schedule
        given = int(given * min(0.97, largest / schedule.arena_bytes))
    return None


def _smallest(build: Build, plain: StepSchedule, facts: ScheduleFacts) -> StepSchedule:
    """About the least memory that the nodes can be computed in."""
    best = plain
    low, high = facts.least, plain.arena_bytes
    for _ in range(ATTEMPTS):
        middle = (low + high) // 2
        try:
            order = Recomputation(facts, middle, POLICIES[0]).order
        except TooLittle:
            low = middle
            continue
        high = middle
        found = build(nodes_in_order(plain, order), False)
        best = min(best, found, key=lambda each: each.arena_bytes)
    return best


def _too_little(
    plain: StepSchedule, least: StepSchedule, room: Room, device: Device
) -> OutOfMemoryError:
    needed = size_class(least.arena_bytes)
    return OutOfMemoryError.build(
        f"memory of {device.name}",
        expected=f"at least {bytes_text(needed)} for the values of this plan, with all computed "
        f"again that can be ({bytes_text(plain.arena_bytes)} without that)",
        got=f"{bytes_text(max(0, room.arena))} of settings.memory_limit={room.limit}, beside what "
        "variables, inputs and results take",
        hint=f"set it to {room.limit - room.arena + needed} or more, or use smaller batches",
    )
