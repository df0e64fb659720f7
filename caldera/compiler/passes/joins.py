"""The driver of passes that join nodes: a pass is a list of (op, match) pairs.

    PASS = Joins((relu, _activated_sum), (relu_grad, _masked_gradient))

The driver visits the nodes of each op in order and calls the match, which inspects producers,
readers, shapes and dtypes and returns the `Join` to make, or None. Pairs are tried in order: a
match sees the joins of all earlier pairs. Then the program is rebuilt once. A joined node may need
more than the first node that it replaces, so the rebuilt order follows the inputs of the joins, not
the inputs of the old nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from caldera.core.graph import ITEM, Node, Nodes, Op, Program, topological, users_of


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
        """The nodes that still read a value once the joins are made."""
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
        """The item that reads one output of a node; None if no node does."""
        return next((user for user in self.users[node] if user.attrs["index"] == index), None)

    def depends(self, value: Node, on: Node) -> bool:
        """True if `value` is computed from `on`."""
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
