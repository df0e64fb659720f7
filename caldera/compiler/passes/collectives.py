"""Collectives split into start and finish, in the same order on all ranks.

A rank that waits for a collective which the remaining ranks do not run would hang. So the order of
all collectives is fixed here, on the graph as it was written, which is the same on every rank.
Later passes may simplify it differently on some ranks (with an empty share of a batch, say). Each
part passes a token to the next, so the order is part of the graph and no pass can lose it.

- Consecutive sums that do not depend on each other share a message.
- A sum starts as soon as its values are ready, and ends before its first dependent. A sum that is
  awaited immediately, such as the last sum, starts just before its first dependent.
- A gather starts a given number of pieces ahead, and ends where its result is read.
- Messages between two ranks, turns, and synchronous redistributions keep the order in which they
  were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from caldera.compiler.passes.lower import lower
from caldera.core.graph import ITEM, Node, Nodes, Program, item, items, rebuilt, topological
from caldera.core.graph.ops.base import reshape
from caldera.core.graph.ops.collective import (
    GATHERING,
    TOKEN,
    Message,
    Number,
    all_sum,
    cut,
    finish,
    finish_collective,
    start,
    start_collective,
    turn,
)
from caldera.core.graph.ops.normalisation import SYNCHRONISED

LARGEST_SHARED = 1 << 16
"""Bytes of a sum that still shares a message with others."""


def collectives(program: Program) -> Program:
    """Put all collectives of a program in order."""
    program = without_hidden(program)
    units = _units(_by_need(program))
    sums = [unit for unit in units if not unit.is_gather and not unit.is_fixed]
    if sums and sums[-1].message.exchange is None:
        # No computation remains during the last sum. A custom exchange is excluded, because it is
        # called by a single thread.
        sums[-1].message = replace(sums[-1].message, now=True)
    written = _Writer(program, _events(units)).run() if units else program
    # From here on, tokens keep the order.
    return lower(written, lambda name: name != "tied")


def without_hidden(program: Program) -> Program:
    """Return the program with ops that contain collectives decomposed."""
    return lower(program, lambda name: name not in SYNCHRONISED | GATHERING)


@dataclass(eq=False)
class _Unit:
    """A message with its values, its bit and the bits of all its dependencies.

    `sums` are its `all_sum` nodes. Alternatively, `end` is the finish of an existing message.
    `sent` is passed from its new start to its new finish. For a message between two ranks, the unit
    is either only the start, or only the end (then `begun` is the start). A turn or a similar node
    has neither.
    """

    message: Message
    values: Nodes
    mask: int
    above: int
    sums: list[Node] = field(default_factory=list)
    end: Node | None = None
    sent: Nodes = ()
    node: Node | None = None
    begun: _Unit | None = None

    @property
    def is_gather(self) -> bool:
        return self.message.kind == "gather"

    @property
    def is_fixed(self) -> bool:
        """True if it keeps its written position."""
        return self.node is not None


def _by_need(program: Program) -> list[Node]:
    """Return all nodes, with each gather directly before its first reader."""
    found = [node for node in program.order() if _is_sum(node)]
    return topological([*sorted(found, key=_number), *program.roots])


def _is_sum(node: Node) -> bool:
    if node.op is start:
        return bool(node.attrs["message"].kind != "gather")
    return node.op is all_sum or _is_at_once(node)


def _is_at_once(node: Node) -> bool:
    """Return True for turns, and for distributed ops without a message that return a token."""
    return node.op is turn or (node.op.kind == "distributed" and node.outputs[-1] == TOKEN)


def _number(node: Node) -> Number:
    number = node.attrs["message"].number if node.op is start else node.attrs["number"]
    return number if isinstance(number, tuple) else (number,)


def _units(order: Sequence[Node]) -> list[_Unit]:
    """Return the messages in the order in which they are needed, and which depend on which."""
    units: list[_Unit] = []
    above: dict[Node, int] = {}
    begun: dict[Node, _Unit] = {}
    for node in order:
        seen = 0
        for given in node.inputs:
            seen |= above[given]
        if _is_at_once(node) or _is_between_two(node):
            unit = _fixed(node, 1 << len(units), seen, begun)
            units.append(unit)
            seen |= unit.mask
        elif node.op is start:
            unit = _Unit(node.attrs["message"], node.inputs, 1 << len(units), seen)
            units.append(unit)
            begun[node] = unit
        elif node.op is finish:
            unit = begun[node.inputs[0].inputs[0]]
            unit.end = node
            seen |= unit.mask
        elif node.op is all_sum:
            if not units or not _may_share(units[-1], node, seen):
                axis, number = node.attrs["axis"], node.attrs["number"]
                message = Message("sum", axis, number, now=True)
                units.append(_Unit(message, (), 1 << len(units), seen))
            unit = units[-1]
            unit.sums.append(node)
            unit.values = (*unit.values, node.inputs[0])
            unit.above |= seen
            seen |= unit.mask
        above[node] = seen
    return units


def _is_between_two(node: Node) -> bool:
    return node.op in (start, finish) and node.attrs["message"].is_point_to_point


def _is_token(node: Node) -> bool:
    """A value may look like one: eight-bit numbers, of which there are none."""
    if node.spec != TOKEN:
        return False
    if node.op is not ITEM:
        return node.op is turn
    return bool(node.attrs["index"] == len(node.inputs[0].outputs) - 1)


def _fixed(node: Node, mask: int, above: int, begun: dict[Node, _Unit]) -> _Unit:
    """A turn or the like, or the start or the end of a message between two ranks."""
    message = Message("turn", "", _number(node)) if _is_at_once(node) else node.attrs["message"]
    values = tuple(given for given in node.inputs if not _is_token(given))
    unit = _Unit(message, values, mask, above, node=node)
    if node.op is start:
        begun[node] = unit
    elif node.op is finish:
        unit.begun = begun[node.inputs[0].inputs[0]]
    return unit


def _may_share(last: _Unit, node: Node, above: int) -> bool:
    """Return True if a sum may be part of the preceding message."""
    if not last.sums or above & last.mask or last.message.axis != node.attrs["axis"]:
        return False
    first = last.sums[0]
    small = max(first.spec.nbytes, node.spec.nbytes) <= LARGEST_SHARED
    return small and first.dtype == node.dtype


def _events(units: Sequence[_Unit]) -> Iterator[tuple[str, _Unit]]:
    """Yield pairs (event, message) in order; events are "start", "finish" and "fixed".

    "fixed" marks a unit that keeps its position.
    """
    gathers = [unit for unit in units if unit.is_gather]
    begun = ended = 0
    under_way: list[_Unit] = []
    waiting: list[_Unit] = []

    def begin(unit: _Unit) -> Iterator[tuple[str, _Unit]]:
        scatters = [each for each in under_way if each.message.kind == "scatter"]
        if unit.message.kind == "scatter" and len(scatters) > unit.message.ahead:
            under_way.remove(scatters[0])
            yield "finish", scatters[0]
        under_way.append(unit)
        yield "start", unit

    for unit in units:
        for other in [each for each in waiting if each.mask & unit.above]:
            waiting.remove(other)
            yield from begin(other)
        for other in [each for each in under_way if each.mask & unit.above]:
            under_way.remove(other)
            yield "finish", other
        if unit.is_fixed:
            yield "fixed", unit
        elif unit.is_gather:
            while begun < min(len(gathers), ended + 1 + unit.message.ahead):
                yield "start", gathers[begun]
                begun += 1
            yield "finish", unit
            ended += 1
        elif unit.message.now:
            waiting.append(unit)
        else:
            yield from begin(unit)
    for unit in waiting:
        yield from begin(unit)
    for unit in under_way:
        yield "finish", unit


class _Writer:
    """Writes the program again, with tokens."""

    def __init__(self, program: Program, events: Iterator[tuple[str, _Unit]]) -> None:
        self._program = program
        self._events = events
        self._new: dict[Node, Node] = {}
        self._token: Node | None = None
        self._count = 0

    def run(self) -> Program:
        for event, unit in self._events:
            if event == "fixed":
                self._place(unit)
            elif event == "start":
                self._start(unit)
            else:
                self._finish(unit)
        return self._program.with_roots(rebuilt(self._program.roots, self._new))

    def _place(self, unit: _Unit) -> None:
        """Rewrite a unit that keeps its position, and replace its old token by the current one."""
        assert unit.node is not None
        if _is_at_once(unit.node):
            self._run(unit)
            return
        if unit.begun is None:
            self._start(unit)
        else:
            unit.message, unit.sent, unit.end = unit.begun.message, unit.begun.sent, unit.node
            self._finish(unit)
        assert self._token is not None
        self._new[item(unit.node, len(unit.node.outputs) - 1)] = self._token

    def _run(self, unit: _Unit) -> None:
        old = unit.node
        assert old is not None
        values = rebuilt(unit.values, self._new)
        tokens = [] if self._token is None else [self._token]
        made = old.op.node(*values, *tokens, **{**old.attrs, "number": self._next()})
        outputs = items(made)
        self._new |= zip(items(old), outputs, strict=True)
        self._token = outputs[-1]

    def _next(self) -> Number:
        self._count += 1
        return (self._count - 1,)

    def _start(self, unit: _Unit) -> None:
        values = rebuilt(unit.values, self._new)
        unit.message = replace(unit.message, number=self._next())
        unit.sent, self._token = start_collective(values, unit.message, self._token)

    def _finish(self, unit: _Unit) -> None:
        assert self._token is not None
        result, self._token = finish_collective(unit.sent, unit.message, self._token)
        if unit.end is not None:
            self._new[item(unit.end, 0)] = result
        for old, new in zip(unit.sums, cut(result, [n.shape for n in unit.sums]), strict=True):
            self._new[old] = reshape(new, old.shape)
