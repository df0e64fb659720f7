"""Calls of a plan in an order in which loops that are alike come together, and run at once.

Everything that is no loop stays in its order. Loops wait until somebody needs what they write, or
wants to write where they read; then all loops that could run with them do. What depends on what is
decided from the memory that calls touch, so it does not matter how a plan has laid that out; and
from what their kernels share besides.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from caldera.kernels.cuda.elementwise.batched_launch import kind_of, launch_of_many, most_together
from caldera.kernels.cuda.elementwise.loop import LoopRunner
from caldera.kernels.cuda.persistent.phases import Array, span
from caldera.kernels.cuda.runtime.launch import CudaRunner
from caldera.kernels.step_launch import LAUNCH_GROUPERS, Piece
from caldera.kernels.table import Call, Runner

Touched = tuple[Sequence[Array], Sequence[Array]]
"""What a call reads, and what it writes."""
_LAUNCH_SECONDS, _BANDWIDTH, _FLOPS = 2e-6, 2e12, 2e14
"""How long a call takes at least, and what a card does in a second, about."""


def grouped(bound: Sequence[tuple[Call, Runner]]) -> list[Piece]:
    """What runs these calls."""
    calls = [call for call, _ in bound]
    kinds = [kind_of(each.loop) if isinstance(each, LoopRunner) else None for _, each in bound]
    needed = needed_before([_touched(call) for call in calls])
    _keep_apart(calls, needed)
    groups = in_groups(needed, kinds)
    place = {index: number for number, group in enumerate(groups) for index in group}
    return [
        Piece(
            _together([bound[index][1] for index in group]),
            frozenset(place[other] for index in group for other in needed[index]),
            _LAUNCH_SECONDS + sum(_seconds(calls[index]) for index in group),
        )
        for group in groups
    ]


def _touched(call: Call) -> Touched:
    spare = () if call.workspace is None else (call.workspace,)
    return call.inputs, (*call.outputs, *spare)


def _keep_apart(calls: Sequence[Call], needed: list[set[int]]) -> None:
    """Let calls that share something wait for each other."""
    last: dict[str, int] = {}
    for index, call in enumerate(calls):
        for what in call.shares:
            if what in last:
                needed[index].add(last[what])
            last[what] = index


def _seconds(call: Call) -> float:
    """How long a call works, about."""
    spans = [span(array) for arrays in _touched(call) for array in arrays]
    nbytes = sum(last - first for first, last in spans)
    return nbytes / _BANDWIDTH + call.node.op.count_flops(call.node) / _FLOPS


def _together(runners: Sequence[Runner]) -> Runner:
    """A group, in as many launches as it takes."""
    if len(runners) == 1:
        (runner,) = runners
        if isinstance(runner, LoopRunner):
            # The compiler may begin: this one stays alone.
            runner.launch  # noqa: B018
        return runner
    loops = [each.loop for each in runners if isinstance(each, LoopRunner)]
    most = most_together(loops[0])
    # As even as possible: a launch for a single one would not be worth a kernel of its own.
    count = -(-len(loops) // most)
    return CudaRunner([launch_of_many(loops[part::count]) for part in range(count)])


def in_groups(needed: list[set[int]], kinds: Sequence[Hashable | None]) -> list[list[int]]:
    """Numbers of calls, in groups that run one after the other: `needed` has for each those before
    it that have to be done first; None is the kind of those that keep their order and stay alone.
    """
    order = _Order(needed, kinds)
    for index, kind in enumerate(kinds):
        if kind is None:
            order.until(index)
    order.rest()
    return order.groups


def needed_before(touched: Sequence[Touched]) -> list[set[int]]:
    """For each call those before it that have to be done first."""
    places = [
        (*span(array), owner, written)
        for owner, sides in enumerate(touched)
        for written, arrays in enumerate(sides)
        for array in arrays
    ]
    first, last, owner, written = np.array(places, np.int64).reshape(-1, 4).T
    starts = np.searchsorted(owner, range(len(touched) + 1))
    found = []
    for index in range(len(touched)):
        before = starts[index]
        meeting = np.zeros(before, bool)
        for place in range(before, starts[index + 1]):
            shared = (first[:before] < last[place]) & (last[:before] > first[place])
            meeting |= shared if written[place] else shared & (written[:before] == 1)
        found.append(set(owner[:before][meeting].tolist()))
    return found


class _Order:
    """Groups so far, and what waits."""

    def __init__(self, needed: list[set[int]], kinds: Sequence[Hashable | None]) -> None:
        self.groups: list[list[int]] = []
        self._kinds = kinds
        self._needed = [set(each) for each in needed]
        self._needing: list[list[int]] = [[] for _ in needed]
        for index, before in enumerate(needed):
            for other in before:
                self._needing[other].append(index)
        self._waiting: dict[Hashable, set[int]] = {}
        for index, kind in enumerate(kinds):
            if kind is not None:
                self._waiting.setdefault(kind, set()).add(index)

    def until(self, index: int) -> None:
        """All that a call needs, then the call itself."""
        while self._needed[index]:
            self._run_kind(self._kinds[self._first_able(index)])
        self._run([index])

    def rest(self) -> None:
        """What nobody has needed."""
        while self._waiting:
            # Those first of which none still waits for another.
            self._run_kind(min(self._waiting, key=self._to_wait_for))

    def _first_able(self, index: int) -> int:
        """Of what a call needs, directly or not, the first that needs nothing more."""
        found: list[int] = []
        seen: set[int] = set()
        ahead = list(self._needed[index])
        while ahead:
            other = ahead.pop()
            if other not in seen:
                seen.add(other)
                ahead += self._needed[other]
                if not self._needed[other]:
                    found.append(other)
        return min(found)

    def _able(self, kind: Hashable) -> list[int]:
        return sorted(index for index in self._waiting[kind] if not self._needed[index])

    def _to_wait_for(self, kind: Hashable) -> tuple[bool, int]:
        able = len(self._able(kind))
        return able < len(self._waiting[kind]), -able

    def _run_kind(self, kind: Hashable) -> None:
        able = self._able(kind)
        self._waiting[kind].difference_update(able)
        if not self._waiting[kind]:
            del self._waiting[kind]
        self._run(able)

    def _run(self, group: list[int]) -> None:
        self.groups.append(group)
        for index in group:
            for other in self._needing[index]:
                self._needed[other].discard(index)


LAUNCH_GROUPERS["cuda"] = grouped
