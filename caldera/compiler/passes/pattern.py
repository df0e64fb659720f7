"""Patterns of nodes, passes as lists of (pattern, rewrite) pairs, and passes that join nodes.

    x = anything("x")
    RULES = Rules(
        (p.mul(x, 1), lambda x: x),
        (p.neg(p.neg(x)), lambda x: x),
    )

A pattern is written like the expression it matches: `p.mul(x, 1)` is a product of any value with a
constant 1 (also a broadcast one), in either order since `mul` is commutative. The rewrite receives
the matched nodes by name and returns the new node, or None to leave the node unchanged. A returned
node with a smaller shape is broadcast.

    PASS = Joins((relu, _activated_sum), (relu_grad, _masked_gradient))

The driver visits the nodes of each op in order and calls the match, which inspects producers,
readers, shapes and dtypes and returns the `Join` to make, or None. Pairs are tried in order: a
match sees the joins of all earlier pairs. Then the program is rebuilt once. A joined node may need
more than the first node that it replaces, so the rebuilt order follows the inputs of the joins, not
the inputs of the old nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caldera.compiler.passes.constants import Number, uniform
from caldera.core.graph import ITEM, OPS, Kind, Node, Nodes, Op, Program, topological, users_of
from caldera.core.graph.ops.base import broadcast_to

Found = dict[str, Any]
Rewrite = Callable[..., Node | None]

_NUMBERS = frozenset({OPS["constant"], OPS["broadcast_to"]})


class Pattern(ABC):
    """Pattern that a node may match."""

    def may_match(self, op: Op) -> bool:
        """Return True if nodes with this op may match."""
        return True

    def wants(self) -> tuple[frozenset[Op], ...]:
        """For a quick no: sets of ops, of each of which one must be among the node's inputs."""
        return ()

    @abstractmethod
    def match(self, node: Node, found: Found) -> bool:
        """Return whether `node` looks like this; names are added to `found`."""


class _Anything(Pattern):
    def __init__(self, name: str, kind: Kind | None) -> None:
        self.name = name
        self.kind = kind

    def may_match(self, op: Op) -> bool:
        return self.kind is None or op.kind == self.kind

    def match(self, node: Node, found: Found) -> bool:
        if self.kind is not None and node.op.kind != self.kind:
            return False
        return found.setdefault(self.name, node) is node


class _Constant(Pattern):
    def __init__(self, name: str | None, test: Callable[[Any], bool]) -> None:
        self.name = name
        self.test = test

    def match(self, node: Node, found: Found) -> bool:
        value = uniform(node)
        if value is None or not self.test(value):
            return False
        if self.name is not None:
            found[self.name] = value
        return True


class _Applied(Pattern):
    def __init__(self, op: Op, inputs: Sequence[Pattern] | None, name: str | None) -> None:
        self.op = op
        self.inputs = inputs
        self.name = name

    def may_match(self, op: Op) -> bool:
        return op is self.op

    def wants(self) -> tuple[frozenset[Op], ...]:
        parts = self.inputs or ()
        return tuple(
            _NUMBERS if isinstance(part, _Constant) else frozenset({part.op})
            for part in parts
            if isinstance(part, _Constant | _Applied)
        )

    def match(self, node: Node, found: Found) -> bool:
        if node.op is not self.op:
            return False
        if self.name is not None and found.setdefault(self.name, node) is not node:
            return False
        if self.inputs is None:
            return True
        if not self.op.commutative:
            return _match_all(self.inputs, node.inputs, found)
        before = dict(found)
        if _match_all(self.inputs, node.inputs, found):
            return True
        found.clear()
        found.update(before)
        return _match_all(self.inputs, node.inputs[::-1], found)


def _match_all(patterns: Sequence[Pattern], nodes: Sequence[Node], found: Found) -> bool:
    return len(patterns) == len(nodes) and all(
        part.match(given, found) for part, given in zip(patterns, nodes, strict=True)
    )


class _Ops:
    """`p.name(inputs)` is the op `name` applied to patterns and numbers; `p.name(...)` to anything.

    `name=` is the name under which the rewrite gets the node itself.
    """

    def __getattr__(self, op_name: str) -> Callable[..., Pattern]:
        op = OPS.get(op_name)
        if op is None:
            raise AttributeError(f"there is no op {op_name!r}")

        def applied(*inputs: Any, name: str | None = None) -> Pattern:
            if inputs == (...,):
                return _Applied(op, None, name)
            parts = [part if isinstance(part, Pattern) else _literal(part) for part in inputs]
            return _Applied(op, parts, name)

        return applied


p = _Ops()


def anything(name: str, *, kind: Kind | None = None) -> Pattern:
    """Match any node (of a kind); a name used twice in a pattern must match the same node."""
    return _Anything(name, kind)


def number(name: str | None = None, test: Callable[[Any], bool] = lambda value: True) -> Pattern:
    """Match a constant that passes `test`, broadcast or not; binds its Python number."""
    return _Constant(name, test)


def _literal(value: Number) -> Pattern:
    if isinstance(value, bool):
        return number(test=lambda other: other is value)
    assert value != 0, "zeros have a sign: write number(test=...)"
    return number(test=lambda other: other == value and not isinstance(other, bool))


class Rules:
    """Pairs (pattern, rewrite); the first match is taken."""

    def __init__(self, *pairs: tuple[Pattern, Rewrite]) -> None:
        self.pairs = pairs
        self._by_ops: dict[tuple[Op, frozenset[Op]], list[tuple[Pattern, Rewrite]]] = {}

    def __add__(self, other: Rules) -> Rules:
        """Return the rules of both, `self` first."""
        return Rules(*self.pairs, *other.pairs)

    def once(self, node: Node) -> Node | None:
        """Return the result of the first matching rule for `node`; None if no rule matches."""
        if node.simplified_by is self:
            return None
        for pattern, rewrite in self._pairs_for(node):
            found: Found = {}
            if not pattern.match(node, found):
                continue
            new = rewrite(**found)
            if new is None or new is node:
                continue
            assert new.dtype == node.dtype, f"{node} must not become {new}"
            return broadcast_to(new, node.shape)
        node.simplified_by = self
        return None

    def _pairs_for(self, node: Node) -> list[tuple[Pattern, Rewrite]]:
        """Return the pairs that are worth a look, by the ops of the node and of its inputs."""
        key = (node.op, frozenset([given.op for given in node.inputs]))
        pairs = self._by_ops.get(key)
        if pairs is None:
            op, below = key
            pairs = self._by_ops[key] = [
                pair
                for pair in self.pairs
                if pair[0].may_match(op)
                and not any(below.isdisjoint(ops) for ops in pair[0].wants())
            ]
        return pairs

    def __call__(self, program: Program) -> Program:
        """Apply the rules bottom-up until none matches any more."""
        if not any(map(self._pairs_for, program.order())):
            return program
        return program.with_roots(settle(program.roots, self.once))


def settle(roots: Iterable[Node], rule: Callable[[Node], Node | None]) -> tuple[Node, ...]:
    """Rewrite bottom-up to a fixed point, in one sweep.

    `rule` receives a node whose inputs are final. Its result is rewritten in turn, so that the
    final graph contains no node that a rule would change.
    """
    roots = tuple(roots)
    final: dict[Node, Node] = {}
    # A node that was replaced waits here until its replacement is final.
    becomes: dict[Node, Node] = {}
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in final:
                stack.pop()
                continue
            if node in becomes:
                final[node] = final[becomes[node]]
                continue
            missing = [given for given in node.inputs if given not in final]
            if missing:
                stack.extend(missing)
                continue
            rebuilt = node.op.rebuild(node, tuple([final[given] for given in node.inputs]))
            known = final.get(rebuilt)
            if known is None:
                new = rule(rebuilt)
                if new is not None:
                    circles = new in becomes and new not in final
                    assert not circles, f"the rules go round in circles at {node}"
                    becomes[node] = new
                    stack.append(new)
                    continue
                known = final[rebuilt] = rebuilt
            final[node] = known
            stack.pop()
    return tuple(final[root] for root in roots)


@dataclass(frozen=True, eq=False)
class Join:
    """New nodes in place of old ones.

    `build` makes the new values from `inputs`, which are old nodes that the driver rebuilds first.
    `replaces` lists, for each old node, the indices of the new values for its outputs.
    """

    inputs: Nodes
    build: Callable[..., Nodes]
    replaces: Mapping[Node, tuple[int, ...]]


class Uses:
    """A program's nodes with their readers, and the joins found so far."""

    def __init__(self, program: Program) -> None:
        self.order = program.order()
        self.users = users_of(self.order)
        self.roots = set(program.roots)
        self.joined: dict[Node, Join] = {}
        self._position = {node: position for position, node in enumerate(self.order)}

    def add(self, join: Join) -> None:
        """Replace the join's nodes when the program is rebuilt."""
        self.joined |= dict.fromkeys(join.replaces, join)

    def readers(self, value: Node) -> list[Node]:
        """Return the nodes that still read a value once the joins are made."""
        return [
            user
            for user in self.users[value]
            if user not in self.joined or value in self.joined[user].inputs
        ]

    def only_reader(self, value: Node) -> Node | None:
        """Return the only reader of a value; None for a root, or with several readers."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and value not in self.roots else None

    def output(self, node: Node, index: int) -> Node | None:
        """Return the item that reads one output of a node; None if no node does."""
        return next((user for user in self.users[node] if user.attrs["index"] == index), None)

    def depends(self, value: Node, on: Node) -> bool:
        """Return True if `value` is computed from `on`."""
        return self._position[value] > self._position[on] and on in topological([value])


Match = Callable[[Uses, Node], Join | None]


class Joins:
    """A pass that joins nodes; see the module's text."""

    def __init__(self, *pairs: tuple[Op, Match]) -> None:
        self._pairs = pairs

    def __call__(self, program: Program) -> Program:
        """Return the program with all matches joined."""
        ends: dict[Op, list[Node]] = {op: [] for op, _ in self._pairs}
        for node in program.order():
            if node.op in ends:
                ends[node.op].append(node)
        if not any(ends.values()):
            return program
        uses = Uses(program)
        for op, match in self._pairs:
            for node in ends[op]:
                found = match(uses, node)
                if found is not None:
                    uses.add(found)
        return rebuilt(program, uses.joined)


def rebuilt(program: Program, joined: Mapping[Node, Join]) -> Program:
    """Return the program with the nodes of each join replaced by its results."""
    if not joined:
        return program
    built: dict[Join, Nodes] = {}
    new: dict[Node, Nodes] = {}

    def needs(node: Node) -> Nodes:
        return joined[node].inputs if node in joined else node.inputs

    for node in _dependency_order(program.roots, needs):
        join = joined.get(node)
        if join is None and node.op is ITEM and node.inputs[0] in joined:
            new[node] = (new[node.inputs[0]][node.attrs["index"]],)
            continue
        inputs = tuple([new[given][0] for given in needs(node)])
        if join is None:
            new[node] = (node.op.rebuild(node, inputs),)
            continue
        if join not in built:
            built[join] = join.build(*inputs)
        new[node] = tuple([built[join][index] for index in join.replaces[node]])
    return program.with_roots([new[root][0] for root in program.roots])


def _dependency_order(roots: Iterable[Node], needs: Callable[[Node], Nodes]) -> list[Node]:
    """Return the nodes that the roots depend on, in topological order."""
    found: dict[Node, None] = {}
    pending = list(roots)
    while pending:
        missing = [each for each in needs(pending[-1]) if each not in found]
        if missing:
            pending.extend(missing)
        else:
            found[pending.pop()] = None
    return list(found)
