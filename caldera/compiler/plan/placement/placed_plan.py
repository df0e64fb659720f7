"""A plan whose parts run on several devices.

Parts are launched in order. A part of a GPU is launched and runs asynchronously; a part of the host
is computed concurrently in this thread, and waits only for the copies of its inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from caldera.base.arguments import checked
from caldera.compiler.plan.buffers import check_feeds, checked_feeds
from caldera.compiler.plan.explain import Explanation, StepRow
from caldera.compiler.plan.placement.parts import Subgraph
from caldera.compiler.plan.plan import Plan
from caldera.compiler.plan.schedule import Buffer, Step
from caldera.core.graph import Program, Symbol
from caldera.core.memory import Device
from caldera.core.tensor import Tensor


class JoinedSchedule:
    """Steps of all parts, for inspection."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.steps: list[Step] = [step for plan in plans for step in plan.schedule.steps]
        self.buffers: list[Buffer] = []
        begin = 0
        for plan in plans:
            for each in plan.schedule.buffers:
                self.buffers.append(replace(each, first=each.first + begin, last=each.last + begin))
            begin += len(plan.schedule.steps)
        self.arena_bytes = sum(plan.arena_bytes for plan in plans)
        self.naive_bytes = sum(plan.naive_bytes for plan in plans)


class PlacedPlan(Plan):
    """A program in parts, each a plan of its device; used like any other plan.

    `device` is the device of most parts' work: the first device other than the host, if there is
    one. `reason` explains the placement of nodes.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = op.var("x", (2,), fill=cd.constant(3.0), device="cpu")
    >>> y = op.var("y", (2,), fill=cd.constant(4.0), device="loopback")
    >>> plan = cd.compile([x + y])
    >>> plan.run()[0].tolist()
    [7.0, 7.0]
    >>> [part.device.name for part in plan.parts]
    ['loopback:0']
    """

    def __init__(
        self,
        original: Program,
        parts: Sequence[Subgraph],
        compiled: Callable[[Program, Device], Plan],
        reason: str,
    ) -> None:
        self.original = original
        self.parts = list(parts)
        self.reason = reason
        self.plans = [compiled(part.program, part.device) for part in parts]
        away = [part.device for part in parts if not part.device.is_host]
        self.device = away[0] if away else parts[0].device
        programs = [plan.optimised for plan in self.plans]
        self.optimised = Program(
            tuple(node for each in programs for node in each.outputs),
            tuple(update for each in programs for update in each.updates),
        )
        self._lock = threading.RLock()
        self._own = {
            symbol
            for part in parts
            for symbol, _ in part.program.updates
            if symbol not in {each for each, _ in original.updates}
        }

    # --- facts

    @property
    def schedule(self) -> Any:  # type: ignore[override]
        """The steps of all parts."""
        return JoinedSchedule(self.plans)

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arenas of all parts; parts on one device share an arena."""
        by_device: dict[Device, int] = {}
        for plan in self.plans:
            by_device[plan.device] = max(by_device.get(plan.device, 0), plan.arena_bytes)
        return sum(by_device.values())

    @property
    def naive_bytes(self) -> int:
        """Bytes the intermediate values would take without shared memory."""
        return sum(plan.naive_bytes for plan in self.plans)

    @property
    def held_bytes(self) -> int:
        """Bytes retained by the parts between runs, including values transferred between parts."""
        carried = sum(symbol.spec.nbytes for symbol in self._own)
        return carried + sum(plan.held_bytes for plan in self.plans)

    @property
    def copied_bytes(self) -> int:
        """Bytes copied between devices in a run."""
        return sum(copy.nbytes for part in self.parts for copy in part.copies)

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs a run has to be given."""
        return list(dict.fromkeys(name for plan in self.plans for name in plan.inputs))

    @property
    def symbols(self) -> list[Symbol]:
        """The variables, tensors and inputs that a run reads or updates."""
        found = {symbol for plan in self.plans for symbol in plan.symbols} - self._own
        return sorted(found, key=lambda symbol: symbol.serial)

    @property
    def is_stale(self) -> bool:
        """True if variables have moved since the plan was last bound to them."""
        return any(plan.is_stale for plan in self.plans)

    @property
    def can_capture(self) -> bool:  # type: ignore[override]
        """True if a part on a GPU can be captured."""
        return bool(self._capturable())

    @property
    def is_captured(self) -> bool:
        """True if all parts on GPUs that can be captured are replayed."""
        found = self._capturable()
        return bool(found) and all(plan.is_captured for plan in found)

    def _capturable(self) -> list[Plan]:
        return [plan for plan in self.plans if not plan.device.is_host and plan.can_capture]

    # --- running

    def run(self, feeds: Mapping[str, Any] | None = None) -> list[Tensor]:
        """Run all parts in order; return the outputs, each on the device that computed it."""
        given = self._checked(feeds)
        results: dict[int, Tensor] = {}
        with self._lock:
            for part, plan in zip(self.parts, self.plans, strict=True):
                for source, target in part.relays:
                    target.value.memory.copy_from(source.value.memory)
                found = plan.run({name: given[name] for name in plan.inputs})
                results.update(zip(part.outputs, found, strict=True))
                for symbol in part.sent:
                    symbol.value.memory.prefetch("device" if part.device.is_host else "host")
        return [results[number] for number in range(len(self.original.outputs))]

    def _checked(self, feeds: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return all inputs, before the first part runs: a later one must not find a wrong value
        when variables have been written already."""
        check_feeds(feeds)
        inputs = {each.name: each for each in self.symbols if each.role == "input"}
        return checked_feeds(feeds or {}, {name: inputs[name] for name in self.inputs})

    def release(self) -> None:
        """Let go of the arrays that calls are tied to, until the next run ties them again."""
        for plan in self.plans:
            plan.release()

    def capture(self) -> None:
        """Capture the parts on GPUs; the host's parts run as before."""
        with self._lock:
            for plan in self._capturable():
                plan.capture()

    # --- looking

    @checked
    def explain(self, feeds: Mapping[str, Any] | None = None, *, time: bool = True) -> Explanation:
        """Return the tables of all parts as one, with the device of each step and the copies
        between them; see `Plan.explain`."""
        given = {} if feeds is None else feeds
        if time:
            self._rehearse(feeds)
        found = [
            plan.explain({name: given[name] for name in plan.inputs} if feeds else None, time=time)
            for plan in self.plans
        ]
        return _joined(found, self.parts, self.reason)

    def _rehearse(self, feeds: Mapping[str, Any] | None) -> None:
        """Fill the tensors passed between parts, and restore the variables."""
        before = [(symbol.value, symbol.value.copy()) for symbol, _ in self.original.updates]
        if feeds is not None or not self.inputs:
            self.run(feeds)
        for tensor, old in before:
            tensor[...] = old.numpy()

    @checked
    def trace(
        self, path: str | PathLike[str], feeds: Mapping[str, Any] | None = None, *, runs: int = 3
    ) -> Path:
        """Write a trace of the GPU's longest part; see `Plan.trace`."""
        longest = max(
            self.plans, key=lambda plan: (not plan.device.is_host, len(plan.schedule.steps))
        )
        given = None if feeds is None else {name: feeds[name] for name in longest.inputs}
        return longest.trace(path, given, runs=runs)


def _joined(found: Sequence[Explanation], parts: Sequence[Subgraph], reason: str) -> Explanation:
    rows: list[StepRow] = []
    for each, part in zip(found, parts, strict=True):
        base = sum(row.step is not None for row in rows)
        for row in each.rows:
            step = None if row.step is None else row.step + base
            rows.append(replace(row, step=step, device=part.device.name))
    seconds = [each.seconds for each in found]
    total = None if None in seconds else sum(each for each in seconds if each is not None)
    if total:
        rows = [
            row if row.seconds is None else replace(row, share=row.seconds / total) for row in rows
        ]
    return replace(
        found[0],
        rows=rows,
        nodes_as_written=sum(each.nodes_as_written for each in found),
        nodes_optimised=sum(each.nodes_optimised for each in found),
        arena_bytes=sum(each.arena_bytes for each in found),
        naive_bytes=sum(each.naive_bytes for each in found),
        workspaces=tuple(size for each in found for size in each.workspaces),
        in_place=sum(each.in_place for each in found),
        device=", ".join(dict.fromkeys(part.device.name for part in parts)),
        precision=tuple(dict.fromkeys(name for each in found for name in each.precision)),
        flops=sum(each.flops for each in found),
        seconds=total,
        peaks=None,
        copies=tuple(copy for part in parts for copy in part.copies),
        placement=reason,
    )
