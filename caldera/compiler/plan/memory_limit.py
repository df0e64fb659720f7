"""Schedules within the memory limit: `settings.memory_limit` minus memory in use.

A schedule that fits is unchanged. Otherwise values are dropped and computed again, or moved to the
host (`recompute`), by the policy that costs the least time. The memory allowed to a policy shrinks
until the resulting layout fits. If no policy fits, the error states the smallest sufficient size.
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
"""Maximum number of attempts with less memory, when the planned schedule does not fit once laid
out.
"""
Build = Callable[[Sequence[Node | Transfer], bool], StepSchedule]
"""Makes a schedule of nodes in an order (none: the usual one), with reuse delayed or not."""


@dataclass(frozen=True)
class Room:
    """Bytes allowed to a plan's arena, and to values moved to the host, under a limit."""

    arena: int
    host: int
    limit: int


def room_for(program: Program, device: Device) -> Room | None:
    """Return the memory available to a plan of this program; None without a limit."""
    limit = device.pool.capacity
    if limit is None or settings.memory_limit is None:
        return None
    if sum(spec.nbytes for node in program.order() for spec in node.outputs) > limit // 4:
        # Memory may be scarce: unreferenced objects are collected first.
        gc.collect()
    symbols = {node.attrs["symbol"] for node in program.order() if "symbol" in node.attrs}
    symbols |= {symbol for symbol, _ in program.updates}
    turns = 1 if device.is_host else 2
    to_come = sum(
        size_class(each.spec.nbytes) * (turns if each.role == "input" else 1)
        for each in symbols
        if each.role == "input" or not _is_there(each, device)
    )
    # Results may still be in use while the next ones are written.
    to_come += 2 * sum(size_class(node.spec.nbytes) for node in program.outputs)
    there = device.pool.in_use - SharedArena.of(device).nbytes
    host = 0 if device.is_host else settings.memory_limit - find_device("cpu").pool.in_use
    return Room(limit - there - to_come, host, limit)


def _is_there(symbol: Symbol, device: Device) -> bool:
    """Return True if a variable or an array already has memory on the device."""
    tensor = symbol.value
    return device.is_host or (tensor.device is device and tensor.memory.has_block)


def within_limit(
    build: Build, room: Room | None, device: Device, *, delay_reuse: bool
) -> StepSchedule:
    """Return a schedule that fits into the memory, with values recomputed or moved as needed."""
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
    # Without measured times, which vary: a size reported as sufficient must suffice the next time.
    steady = ScheduleFacts.of(plain, StepSeconds(plain, device, measured=False), room.host)
    least = _smallest(build, plain, steady)
    if _fits(least, room.arena):
        return least
    raise _too_little(plain, least, room, device)


def _fits(schedule: StepSchedule, room: int) -> bool:
    return size_class(schedule.arena_bytes) <= room


def _largest(room: int) -> int:
    """Return the most bytes of which a block fits into the room: blocks are rounded up."""
    return max(bisect_right(range(max(room, 0) + 1), room, key=size_class) - 1, 0)


def _with_policy(
    build: Build, plain: StepSchedule, facts: ScheduleFacts, largest: int, policy: Policy
) -> tuple[float, StepSchedule] | None:
    """Return the cost and the schedule under a policy; None if it does not fit."""
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
        got=f"{bytes_text(max(0, room.arena))} of settings.memory_limit={room.limit}, in "
        "addition to variables, inputs and results",
        hint=f"set it to {room.limit - room.arena + needed} or more, or use smaller batches",
    )
