"""Schedules of pipeline stages, and their idle time.

Both schedules leave each stage idle for (p-1)/(m+p-1) of the time, with p stages, m parts and a
backward step as long as a forward step. They differ in the number of parts in flight between their
forward and backward steps: all m, or at most p.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from caldera.compiler.plan.plan import Plan
from caldera.core.graph.ops.collective import turn


class Action(NamedTuple):
    """Action of a stage in one slot: "forward" or "backward" for one part of the batch."""

    kind: str
    part: int

    def __str__(self) -> str:
        return f"{self.kind} {self.part}"


def fill_drain(stage: int, stages: int, parts: int) -> list[Action]:
    """Return the schedule with all parts forward, then all parts backward.

    >>> from caldera.parallel.pipeline.schedule import fill_drain
    >>> [str(action) for action in fill_drain(0, stages=2, parts=2)]
    ['forward 0', 'forward 1', 'backward 0', 'backward 1']
    """
    return [Action(kind, part) for kind in ("forward", "backward") for part in range(parts)]


def one_forward_one_backward(stage: int, stages: int, parts: int) -> list[Action]:
    """Run backward steps as early as possible.

    The number of parts in flight of a stage is one plus the number of stages that follow.

    >>> from caldera.parallel.pipeline.schedule import one_forward_one_backward
    >>> [str(action) for action in one_forward_one_backward(1, stages=2, parts=2)]
    ['forward 0', 'backward 0', 'forward 1', 'backward 1']
    """
    ahead = min(stages - 1 - stage, parts)
    found = [Action("forward", part) for part in range(ahead)]
    for part in range(parts):
        if ahead + part < parts:
            found.append(Action("forward", ahead + part))
        found.append(Action("backward", part))
    return found


SCHEDULES: dict[str, Callable[[int, int, int], list[Action]]] = {
    "1f1b": one_forward_one_backward,
    "fill-drain": fill_drain,
}


def recorded(plan: Plan) -> list[Action]:
    """Return the actions of a plan, in the order in which it performs them."""
    turns = (step.node for step in plan.schedule.steps if step.node.op is turn)
    actions = (node.attrs["action"].split() for node in turns)
    return [Action(kind, int(part)) for kind, part in actions]


def timeline(orders: Sequence[Sequence[Action]]) -> list[list[Action | None]]:
    """Return the action of each stage in each time slot, with every action started as early as
    possible.

    A forward step requires the previous stage's, a backward step the next stage's. None is a slot
    in which a stage waits.

    >>> from caldera.parallel.pipeline.schedule import bubble_fraction, fill_drain, timeline
    >>> table = timeline([fill_drain(stage, 2, 3) for stage in range(2)])
    >>> [None if action is None else str(action) for action in table[1]][:3]
    [None, 'forward 0', 'forward 1']
    >>> bubble_fraction(table) == 1 / 4
    True
    """
    table: list[list[Action | None]] = [[] for _ in orders]
    done: list[set[Action]] = [set() for _ in orders]
    while any(len(done[stage]) < len(order) for stage, order in enumerate(orders)):
        now = [_next(stage, orders, done) for stage in range(len(orders))]
        if not any(now):
            raise ValueError(f"stages wait for each other for ever: {table}")
        for stage, action in enumerate(now):
            table[stage].append(action)
            if action is not None:
                done[stage].add(action)
    return table


def _next(
    stage: int, orders: Sequence[Sequence[Action]], done: Sequence[set[Action]]
) -> Action | None:
    order = orders[stage]
    if len(done[stage]) == len(order):
        return None
    action = order[len(done[stage])]
    needed = stage - 1 if action.kind == "forward" else stage + 1
    return action if not 0 <= needed < len(orders) or action in done[needed] else None


def bubble_fraction(table: Sequence[Sequence[Action | None]]) -> float:
    """Return the fraction of all slots in which a stage waits."""
    everything = [action for row in table for action in row]
    return everything.count(None) / len(everything)


def in_flight(order: Sequence[Action]) -> int:
    """Return the maximum number of parts between their forward and backward steps.

    >>> from caldera.parallel.pipeline.schedule import fill_drain, in_flight
    >>> from caldera.parallel.pipeline.schedule import one_forward_one_backward
    >>> in_flight(fill_drain(0, 2, 8)), in_flight(one_forward_one_backward(0, 2, 8))
    (8, 2)
    """
    steps = (1 if action.kind == "forward" else -1 for action in order)
    return max(itertools.accumulate(steps, initial=0))
