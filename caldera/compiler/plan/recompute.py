"""Recomputation or transfer to the host, so that a run fits into less memory.

`Recomputation` simulates the steps of a schedule under a memory limit. Where a step needs more
memory, values that are needed later are evicted: first the values with the least recomputation time
per byte and second of absence. Dropped values are recomputed before the step that reads them, by
the same kernels from the same values; dropped inputs are recomputed first. On a device with
separate memory the host may store a value instead, if copying it there and back takes less time.
The eviction rule is from Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021, here with
the whole run known ahead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from caldera.compiler.plan.arena import aligned
from caldera.compiler.plan.schedule import Buffer, Step, StepSchedule, Transfer
from caldera.compiler.plan.timing import StepSeconds
from caldera.core.graph.node import Node
from caldera.core.graph.ops.collective import all_sum, finish, start, turn
from caldera.kernels.table import COPY

_NEVER_AGAIN = frozenset({start, finish, turn, all_sum})
"""Ops that do more than compute a value of other values: ranks count their messages."""
SMALLEST_PART = 1 / 512
"""Of the memory there is: values below that are not worth dropping."""


@dataclass(frozen=True)
class Policy:
    """Weights in the comparison of values that could be evicted.

    The score is the seconds to recompute a value, per byte and per second of its absence, with a
    power `patience` for the latter. With `chains`, dropped values that depend on the value are
    included.
    """

    patience: float = 1.0
    chains: bool = True


POLICIES = (Policy(), Policy(chains=False), Policy(patience=0.5), Policy(patience=0.0))


@dataclass
class _Work:
    """Step of the simulation, with values by number."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    workspace: int
    measure: Callable[[], float]
    can_repeat: bool
    over: tuple[int, ...]
    """Of the values it reads, those whose memory it can give to a result."""

    @cached_property
    def seconds(self) -> float:
        """Seconds of the step, computed on demand: most steps never need it."""
        return self.measure()


@dataclass
class ScheduleFacts:
    """Facts about a schedule for simulation, computed once."""

    work: list[_Work] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    maker: list[int] = field(default_factory=list)
    uses: list[list[int]] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    """Start time of each step without recomputation."""
    outputs: list[tuple[Node, int]] = field(default_factory=list)
    """Node and output index of each value."""
    copies: list[float] = field(default_factory=list)
    """Seconds to copy each value to the host or back; infinite without separate host memory."""
    host_room: int = 0

    @classmethod
    def of(cls, schedule: StepSchedule, seconds: StepSeconds, host_room: int) -> ScheduleFacts:
        """Return the facts of a schedule in which every node is computed once; `host_room` is what
        may be moved to the host."""
        facts = cls(host_room=host_room)
        numbers: dict[Buffer, int] = {}
        now = 0.0
        for index, step in enumerate(schedule.steps):
            read = [value.buffer for value in step.inputs if value.buffer in numbers]
            reads = tuple(dict.fromkeys(numbers[buffer] for buffer in read))
            for number in reads:
                facts.uses[number].append(index)
            writes = []
            for output, buffer in enumerate(step.outputs):
                if buffer.place == "arena":
                    numbers[buffer] = len(facts.sizes)
                    writes.append(len(facts.sizes))
                    facts.outputs.append((step.node, output))
                    facts.copies.append(seconds.copied(buffer.spec.nbytes))
                    facts.sizes.append(aligned(buffer.spec.nbytes))
                    facts.maker.append(index)
                    facts.uses.append([])
            facts.clock.append(now)
            now += seconds.estimate(step)
            facts.work.append(_work(step, reads, tuple(writes), numbers, partial(seconds, step)))
        return facts

    @property
    def least(self) -> int:
        """Bytes that some step needs even if all other values are dropped."""
        return max((self._at(work) for work in self.work), default=0)

    def _at(self, work: _Work) -> int:
        held = sum(self.sizes[number] for number in {*work.reads, *work.writes})
        shared = sum(self.sizes[number] for number in work.over[: len(work.writes)])
        return held + work.workspace - shared


def _work(
    step: Step,
    reads: tuple[int, ...],
    writes: tuple[int, ...],
    numbers: dict[Buffer, int],
    seconds: Callable[[], float],
) -> _Work:
    node = step.node
    workspace = 0 if step.workspace is None else aligned(step.workspace.spec.nbytes)
    can_repeat = (
        step.kernel.op != COPY
        and node.op not in _NEVER_AGAIN
        and node.op.kind not in ("state", "distributed")
        and len(writes) == len(step.outputs)
    )
    over: list[int] = []
    if writes and step.kernel.in_place(node):
        specs = {buffer.spec for buffer in step.outputs}
        viewed = {value.buffer for value in step.inputs if value.views}
        over = [
            numbers[value.buffer]
            for value in step.inputs
            if value.buffer in numbers and value.buffer.spec in specs and value.buffer not in viewed
        ]
    return _Work(reads, writes, workspace, seconds, can_repeat, tuple(dict.fromkeys(over)))


class TooLittle(Exception):
    """Raised if a step does not fit even when all other values are dropped."""


class Recomputation:
    """Simulation of the steps with `room` bytes.

    `order` lists step numbers in order of execution, with recomputed steps repeated, and the copies
    to and from the host.
    """

    def __init__(self, facts: ScheduleFacts, room: int, policy: Policy) -> None:
        self.facts = facts
        self.room = room
        self.policy = policy
        self.order: list[int | Transfer] = []
        self.seconds = 0.0
        """What is computed again or copied takes so long."""
        self._on_host: set[int] = set()
        self._host_left = facts.host_room
        self._resident: dict[int, None] = {}
        self._used = 0
        self._locked: dict[int, int] = {}
        self._dropped: set[int] = set()
        self._smallest = int(room * SMALLEST_PART)
        self._now = 0
        for index in range(len(facts.work)):
            self._now = index
            self._run(index)

    # --- running

    def _run(self, index: int) -> None:
        work = self.facts.work
        missing = self._closure([n for n in work[index].reads if n not in self._resident])
        for step in (*missing, index):
            for number in work[step].reads:
                self._locked[number] = self._locked.get(number, 0) + 1
        for step in missing:
            self.seconds += work[step].seconds
            self._compute(step, again=True)
        self._compute(index, again=False)

    def _compute(self, index: int, *, again: bool) -> None:
        work = self.facts.work[index]
        for number in work.reads:
            if number not in self._resident:
                self._fetch(number, keep=work.reads)
        for number in work.reads:
            self._locked[number] -= 1
        # The memory of an input with no further reader may be used for a result.
        dying = [number for number in work.reads if not self._is_needed(number, after=not again)]
        given = [number for number in dying if number in work.over][: len(work.writes)]
        for number in given:
            self._free(number)
        for number in work.writes:
            if number in self._resident:
                self._free(number)
        needed = sum(self.facts.sizes[number] for number in work.writes) + work.workspace
        self._make_room(needed, keep=work.reads)
        self.order.append(index)
        for number in work.writes:
            self._resident[number] = None
            self._used += self.facts.sizes[number]
            self._dropped.discard(number)
        for number in (*dying, *work.writes):
            if number in self._resident and not self._is_needed(number, after=not again):
                self._free(number)

    def _fetch(self, number: int, keep: Sequence[int]) -> None:
        """Copy a value from the host."""
        size = self.facts.sizes[number]
        self._make_room(size, keep)
        self.order.append(Transfer(*self.facts.outputs[number], to_host=False))
        self.seconds += self.facts.copies[number]
        self._resident[number] = None
        self._used += size

    def _is_needed(self, number: int, *, after: bool) -> bool:
        if self._locked.get(number):
            return True
        uses = self.facts.uses[number]
        return bool(uses) and uses[-1] >= self._now + after

    def _free(self, number: int) -> None:
        del self._resident[number]
        self._used -= self.facts.sizes[number]

    def _closure(self, missing: Sequence[int]) -> list[int]:
        """Return the steps that have to run again for these values, in their order."""
        facts, resident = self.facts, self._resident
        steps: set[int] = set()
        pending = list(missing)
        while pending:
            number = pending.pop()
            step = facts.maker[number]
            if step not in steps and number not in self._on_host:
                if not facts.work[step].can_repeat:
                    raise TooLittle
                steps.add(step)
                pending += [n for n in facts.work[step].reads if n not in resident]
        return sorted(steps)

    # --- making room

    def _make_room(self, needed: int, keep: Sequence[int]) -> None:
        if self._used + needed <= self.room:
            return
        kept = set(keep)
        candidates = [
            number
            for number in self._resident
            if number not in kept
            and not self._locked.get(number)
            and self.facts.sizes[number] >= self._smallest
        ]
        while self._used + needed > self.room:
            scored = [(self._score(number), number) for number in candidates]
            best = min(scored, default=None)
            if best is None or best[0] == float("inf"):
                raise TooLittle
            candidates.remove(best[1])
            self._evict(best[1])

    def _evict(self, number: int) -> None:
        """Drop a value, after it was copied to the host if that is the shorter way to have it."""
        copying = self._seconds_to_move(number)
        if copying > self._seconds_to_make(number):
            self._dropped.add(number)
        elif number not in self._on_host:
            self._on_host.add(number)
            self._host_left -= self.facts.sizes[number]
            self.order.append(Transfer(*self.facts.outputs[number], to_host=True))
            self.seconds += self.facts.copies[number]
        self._free(number)

    def _seconds_to_move(self, number: int) -> float:
        """Copying to the host, unless it is there already, and back."""
        once = self.facts.copies[number]
        if number in self._on_host:
            return once
        return 2 * once if self.facts.sizes[number] <= self._host_left else float("inf")

    def _score(self, number: int) -> float:
        facts = self.facts
        seconds = min(self._seconds_to_make(number), self._seconds_to_move(number))
        next_use = self._next_use(number)
        for follower in self._dropped_followers(number):
            next_use = min(next_use, self._next_use(follower))
            if self.policy.chains:
                seconds += facts.work[facts.maker[follower]].seconds
        gone = max(facts.clock[next_use] - facts.clock[self._now], 1e-9)
        return seconds / (facts.sizes[number] * gone**self.policy.patience)

    def _next_use(self, number: int) -> int:
        uses = self.facts.uses[number]
        position = bisect_left(uses, self._now)
        return uses[position] if position < len(uses) else len(self.facts.clock) - 1

    def _seconds_to_make(self, number: int) -> float:
        facts, resident = self.facts, self._resident
        steps: set[int] = set()
        pending = [number]
        total = 0.0
        while pending:
            each = pending.pop()
            step = facts.maker[each]
            if step in steps:
                continue
            if each in self._on_host and each != number:
                total += facts.copies[each]
                continue
            steps.add(step)
            if not facts.work[step].can_repeat:
                return float("inf")
            total += facts.work[step].seconds
            pending += [n for n in facts.work[step].reads if n not in resident]
        return total

    def _dropped_followers(self, number: int) -> Iterator[int]:
        """Yield values that were dropped and cannot be made again without this one."""
        facts = self.facts
        seen: set[int] = set()
        pending = [number]
        while pending:
            for step in facts.uses[pending.pop()]:
                if step >= self._now:
                    break
                for made in facts.work[step].writes:
                    if made in self._dropped and made not in seen:
                        seen.add(made)
                        pending.append(made)
                        yield made


# --- from steps to nodes


def nodes_in_order(
    schedule: StepSchedule, order: Sequence[int | Transfer]
) -> list[Node | Transfer]:
    """Return the nodes in the order of visits when the steps run in another order.

    Some steps run repeatedly: views of recomputed or copied values are repeated as well.
    """
    steps = schedule.steps
    step_of = {step.node: index for index, step in enumerate(steps) if step.kernel.op != COPY}
    views: dict[Node, list[Node]] = {}
    viewed: dict[Node, Node] = {}
    nodes: list[Node | Transfer] = []
    pending = iter(order)
    done: set[Node] = set()

    def advance(until: Node | None) -> None:
        for now in pending:
            if isinstance(now, Transfer):
                nodes.extend([now] if now.to_host else [now, *views[now.node]])
                continue
            node = steps[now].node
            if steps[now].kernel.op == COPY:
                continue
            nodes.append(node)
            if node is until and node not in done:
                done.add(node)
                return
            nodes.extend(views[node])

    for node in schedule.order:
        assert isinstance(node, Node)
        if node in step_of:
            viewed[node] = node
            views[node] = []
            advance(node)
            continue
        nodes.append(node)
        seen = viewed.get(node.inputs[0]) if node.inputs else None
        if seen is not None:
            viewed[node] = seen
            views[seen].append(node)
    advance(None)
    return nodes
