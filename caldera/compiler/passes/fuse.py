"""Fusion of element-wise chains into one loop, together with the reductions they feed.

Nodes are grouped; a group becomes one `fused` node whose body contains them. In a body,
element-wise nodes have the shape of the loop. Reductions are outputs that no node in the body
reads, because their value is complete only when the loop has ended.

A group may not take in a consumer if a path between the two leads through a node outside. The
joined node would have to run both before and after that node.

Two groups that compute the parts of complex numbers, with the same inputs, become one as well.

A part of a loop that only a later loop reads, such as the test for a positive relu result, moves
there if all that it reads is kept until then anyway. Otherwise its result would be kept as well.

If a program has turns (`turn`), a loop contains only nodes that are due at the same turn. A node
that is due early would otherwise wait for the whole loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caldera.compiler.passes.constants import source_of
from caldera.core.graph import Body, Node, Program, users_of
from caldera.core.graph.ops import complex_
from caldera.core.graph.ops.collective import Number, turn
from caldera.core.graph.ops.control import fused
from caldera.core.tensor import HALVES, Shape

LARGEST = 256
"""Maximum number of nodes of a body, which limits compile time."""
REDUCTIONS = frozenset({"sum", "max", "min", "prod"})


class _Group:
    """Nodes that become one loop, and their dependencies."""

    __slots__ = ("above", "first", "me", "members", "reads", "shape")

    def __init__(self, node: Node, position: int) -> None:
        self.members: dict[Node, None] = {node: None}
        self.reads: dict[Node, None] = dict.fromkeys(node.inputs)
        self.first = position
        self.shape: Shape | None = None
        # Each loop has a bit. `me` has the bits of the group's loops, `above` the bits of all loops
        # that its value depends on: a single `&` tests for a path.
        self.me = 0
        self.above = 0


def _is_loop(node: Node) -> bool:
    return node.op.kind == "elementwise" and node.op.decompose is None


def _is_tail(node: Node) -> bool:
    return node.op.name in REDUCTIONS and node.dtype not in HALVES


class _Fuser:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.order = program.order()
        self.roots = set(program.roots)
        self.users = users_of(self.order)
        self.place = {node: position for position, node in enumerate(self.order)}
        self.group: dict[Node, _Group] = {}
        self.due = _due(self.order)

    def run(self) -> Program:
        for position, node in enumerate(self.order):
            group = self.group[node] = _Group(node, position)
            for given in group.reads:
                group.above |= self.group[given].above | self.group[given].me
            if _is_loop(node):
                group.shape = node.shape
                group.me = 1 << position
            if _is_loop(node) or _is_tail(node):
                for given in node.inputs:
                    self._try_join(given, node, position)
            if node.op is complex_:
                self._try_join_parts(node, position)
        for node in reversed(self.order):
            self._try_move(node)
        return self._rebuild()

    def _try_join(self, producer: Node, consumer: Node, now: int) -> None:
        first, second = self.group[producer], self.group[consumer]
        if first is second or not _is_loop(producer):
            return
        if self.due.get(producer) != self.due.get(consumer):
            return
        if second.shape not in (None, first.shape):
            return
        if len(first.members) + len(second.members) > LARGEST or self._separated(first, second):
            return
        self._join(first, second, now)

    def _try_join_parts(self, node: Node, now: int) -> None:
        """The two parts of complex numbers read the same: one loop computes both."""
        real, imag = node.inputs
        first, second = self.group[real], self.group[imag]
        if first is second or not (_is_loop(real) and _is_loop(imag)):
            return
        if first.shape != second.shape or self.due.get(real) != self.due.get(imag):
            return
        if len(first.members) + len(second.members) > LARGEST:
            return
        if not (self._separated(first, second) or self._separated(second, first)):
            self._join(first, second, now)

    def _join(self, first: _Group, second: _Group, now: int) -> None:
        self._hand_down(first, second.above & ~first.above & ~first.me, now)
        self._hand_down(second, first.above & ~second.above & ~second.me, now)
        first.me |= second.me
        first.above = (first.above | second.above) & ~first.me
        first.first = min(first.first, second.first)
        first.members.update(second.members)
        first.reads.update(second.reads)
        for node in second.members:
            self.group[node] = first

    def _separated(self, first: _Group, second: _Group) -> bool:
        """Return True if `second` reads a value that is not ready while `first` is running."""
        for given in second.reads:
            between = self.group[given]
            if between is first:
                if not _is_loop(given):
                    return True
            elif between is not second and between.above & first.me:
                return True
        return False

    def _hand_down(self, group: _Group, more: int, now: int) -> None:
        """Add the dependencies `more` to all groups that depend on `group`."""
        if more:
            for node in self.order[group.first : now]:
                below = self.group[node]
                if below.above & group.me:
                    below.above |= more

    # --- values computed where they are read

    def _try_move(self, node: Node) -> None:
        """Move a node and the nodes it depends on to the only loop that reads it."""
        group, readers = self.group[node], self.users[node]
        if len(group.members) == 1 or not _is_loop(node) or node in self.roots:
            return
        later = {self.group[reader] for reader in readers}
        if len(later) != 1 or group in later:
            return
        (target,) = later
        if target.shape != group.shape or self.due.get(node) != self.due.get(readers[0]):
            return
        moved = self._computed_again(node, min(self.place[reader] for reader in readers))
        if not moved or len(target.members) + len(moved) > LARGEST:
            return
        for each in moved:
            del group.members[each]
            target.members[each] = None
            self.group[each] = target
        for changed in (group, target):
            changed.reads = dict.fromkeys(
                given for member in changed.members for given in member.inputs
            )

    def _computed_again(self, node: Node, when: int) -> list[Node]:
        """Return the nodes of the group that give `node`, if all that they read is kept till then.

        The nodes are in reverse order; the list is empty if a value would have to be kept longer.
        """
        group, found = self.group[node], [node]
        for member in found:
            for given in member.inputs:
                if given in found or self._is_kept(given, group, when):
                    continue
                inner = given in group.members and _is_loop(given) and given not in self.roots
                if not inner or any(user not in found for user in self.users[given]):
                    return []
                found.append(given)
        return found

    def _is_kept(self, value: Node, group: _Group, when: int) -> bool:
        """Return True if a reader outside the group needs the value at about this place."""
        if not value.inputs:
            return True
        begin = self.place[value]
        return any(
            self.group[reader] is not group
            and abs(self.place[reader] - when) < self.place[reader] - begin
            for reader in self.users[value]
        )

    # --- rebuilding

    def _rebuild(self) -> Program:
        new: dict[Node, Node] = {}
        for group in self._groups_in_order():
            if len(group.members) == 1:
                (node,) = group.members
                new[node] = node.op.rebuild(node, tuple([new[given] for given in node.inputs]))
            else:
                self._emit(group, new)
        return self.program.with_roots([new[root] for root in self.program.roots])

    def _emit(self, group: _Group, new: dict[Node, Node]) -> None:
        members = group.members
        sources = (source_of(given) for given in group.reads if given not in members)
        outside = dict.fromkeys(node for node in sources if node.op.name != "constant")
        outputs = [
            node
            for node in members
            if node in self.roots or any(user not in members for user in self.users[node])
        ]
        results = fused.outputs(*[new[node] for node in outside], body=Body(list(outside), outputs))
        new.update(zip(outputs, results, strict=True))

    def _groups_in_order(self) -> list[_Group]:
        """Return the groups in order, each after all its inputs."""
        result: list[_Group] = []
        seen: set[_Group] = set()
        for node in self.order:
            stack: list[tuple[_Group, Iterator[Node]]] = []
            if self.group[node] not in seen:
                seen.add(self.group[node])
                stack.append((self.group[node], iter(self.group[node].reads)))
            while stack:
                group, reads = stack[-1]
                for given in reads:
                    before = self.group[given]
                    if before not in seen:
                        seen.add(before)
                        stack.append((before, iter(before.reads)))
                        break
                else:
                    result.append(group)
                    stack.pop()
        return result


def _due(order: Sequence[Node]) -> dict[Node, Number]:
    """Return for each node the first turn that waits for it, if any does."""
    due: dict[Node, Number] = {}
    for node in reversed(order):
        if node.op is turn:
            due[node] = node.attrs["number"]
        if node in due:
            for given in node.inputs:
                due[given] = min(due.get(given, due[node]), due[node])
    return due


def fuse(program: Program) -> Program:
    """Join element-wise nodes, and reductions with the nodes that feed them, into fused nodes."""
    return _Fuser(program).run()
