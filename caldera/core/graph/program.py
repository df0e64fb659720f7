"""Programs (outputs and variable updates), graph traversal and rewriting, and graph bodies.

All reads see the values from before the run; all updates commit together at its end. A body is
the graph of a fused node or a loop as a value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from caldera.core.graph.node import Node, Spec, Symbol
from caldera.core.graph.opdef import ITEM, Nodes, parameter
from caldera.errors import CalderaError


def topological(roots: Iterable[Node], done: set[Node] | None = None) -> list[Node]:
    """Return all nodes the roots depend on, inputs before users, in a repeatable order.

    Nodes in `done` are not visited again; visited nodes are added to it.
    """
    order: list[Node] = []
    done = set() if done is None else done
    # An explicit stack: graphs of ten thousand nodes in a row are ordinary. None and the inputs of
    # a node are pushed above it. When None is on top again, all inputs are in the order.
    stack: list[Any] = list(roots)[::-1]
    while stack:
        node = stack.pop()
        if node is None:
            order.append(stack.pop())
        elif node not in done:
            done.add(node)
            if node.inputs:
                stack += (node, None, *node.inputs[::-1])
            else:
                order.append(node)
    return order


def users_of(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return for each node the nodes in `order` that read it (once each)."""
    users: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for given in dict.fromkeys(node.inputs):
            users[given].append(node)
    return users


NodeRule = Callable[[Node], Node | None]


def rewrite(roots: Sequence[Node], rule: NodeRule) -> tuple[Node, ...]:
    """Rebuild the graph bottom-up; `rule` may replace each rebuilt node (None keeps it)."""
    new: dict[Node, Node] = {}
    for node in topological(roots):
        rebuilt = node.op.rebuild(node, tuple([new[given] for given in node.inputs]))
        new[node] = rule(rebuilt) or rebuilt
    return tuple(new[root] for root in roots)


def substitute(roots: Sequence[Node], mapping: Mapping[Node, Node]) -> tuple[Node, ...]:
    """Return the graph with some nodes replaced; nodes below a replaced node are not visited."""
    return rebuilt(roots, dict(mapping))


def rebuilt(roots: Sequence[Node], new: dict[Node, Node]) -> tuple[Node, ...]:
    """Rebuild the graph with the replacements in `new`, and add all rebuilt nodes to it.

    Callers may pass the same mapping again for nodes that are replaced in sequence.
    """
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in new:
                stack.pop()
                continue
            missing = [given for given in node.inputs if given not in new]
            if missing:
                stack.extend(missing)
                continue
            new[node] = node.op.rebuild(node, tuple([new[given] for given in node.inputs]))
            stack.pop()
    return tuple(new[root] for root in roots)


class Body:
    """A graph with arguments, itself a value: interned, so equal bodies are one object."""

    __slots__ = ("__weakref__", "_order", "outputs", "parameters")
    _table: ClassVar[weakref.WeakValueDictionary[object, Body]] = weakref.WeakValueDictionary()

    parameters: tuple[Spec, ...]
    outputs: tuple[Node, ...]
    _order: tuple[Node, ...]

    def __new__(cls, arguments: Sequence[Node], outputs: Sequence[Node]) -> Body:
        """Turn `outputs` into a body; `arguments` are the nodes that become its parameters."""
        specs = tuple(node.spec.logical for node in arguments)
        stand_ins = {node: parameter(i, specs[i]) for i, node in enumerate(arguments)}
        results = substitute(outputs, stand_ins)
        key = (specs, tuple(map(id, results)))
        body = cls._table.get(key)
        if body is None:
            body = super().__new__(cls)
            body.parameters = specs
            body.outputs = results
            body._order = tuple(topological(results))
            cls._table[key] = body
        return body

    def __call__(self, *arguments: Node) -> tuple[Node, ...]:
        """Return the outputs with these nodes in place of the parameters."""
        return substitute(self.outputs, dict(zip(self.arguments(), arguments, strict=False)))

    def arguments(self) -> list[Node]:
        """Return the nodes of the parameters."""
        return [parameter(i, spec) for i, spec in enumerate(self.parameters)]

    def with_outputs(self, outputs: Sequence[Node]) -> Body:
        """Return the body with its outputs replaced."""
        return Body(self.arguments(), outputs)

    def order(self) -> Sequence[Node]:
        """Return the body's nodes, inputs before users."""
        return self._order

    def __repr__(self) -> str:
        return f"<body of {len(self.order())} nodes>"


@dataclass(frozen=True)
class Program:
    """Outputs, and for each updated variable the node of its new value."""

    outputs: Nodes
    updates: tuple[tuple[Symbol, Node], ...] = ()

    @property
    def roots(self) -> Nodes:
        """Nodes that have to be computed: outputs and updates."""
        return self.outputs + tuple(value for _, value in self.updates)

    def with_roots(self, roots: Sequence[Node]) -> Program:
        """Return the program with its roots replaced."""
        if tuple(roots) == self.roots:
            # Most passes change no node: the order of the nodes is known.
            return self
        count = len(self.outputs)
        targets = [symbol for symbol, _ in self.updates]
        return Program(tuple(roots[:count]), tuple(zip(targets, roots[count:], strict=True)))

    def mapped(self, convert: Callable[[Node, Nodes], Node]) -> Program:
        """Return the program with every node replaced by `convert(node, new_inputs)`."""
        new: dict[Node, Node] = {}
        for node in self.order():
            new[node] = convert(node, tuple([new[given] for given in node.inputs]))
        return self.with_roots([new[root] for root in self.roots])

    def order(self) -> Sequence[Node]:
        """Return all nodes, inputs before users."""
        # Not a cached_property: before Python 3.12 threads wait for each other at those.
        kept: dict[str, tuple[Node, ...]] = self.__dict__
        order = kept.get("_order")
        if order is None:
            order = kept["_order"] = tuple(topological(self.roots))
        return order


def program_of(outputs: Sequence[Node], updates: Sequence[Node] = ()) -> Program:
    """The program that computes `outputs` and performs every `assign` in `updates` or below."""
    changed: dict[Symbol, Node] = {}
    for node in topological([*outputs, *updates]):
        _check_leaf(node)
        if node.op.name != "assign":
            continue
        symbol: Symbol = node.inputs[0].attrs["symbol"]
        if changed.setdefault(symbol, node.inputs[1]) is not node.inputs[1]:
            raise CalderaError.build(
                "op.assign",
                expected="at most one new value for a variable in a program",
                got=f"two for {symbol.name}",
                hint="combine them into one expression",
            )
    # The value of an assignment is the new value; the update itself is now on the program.
    program = Program(tuple(outputs), tuple(changed.items()))
    return program.with_roots(rewrite(program.roots, _as_run))


def _check_leaf(node: Node) -> None:
    symbol = node.attrs.get("symbol")
    if symbol is not None and symbol.role == "parameter":
        raise CalderaError.build(
            "eval",
            expected="values that exist outside of a loop",
            got=f"{symbol.name} {symbol.spec}, an argument of a body",
            hint="return it from the body, as a carry or a y",
        )


def _as_run(node: Node) -> Node | None:
    """Return a node's replacement in a plan; None if unchanged. Guards serve only derivatives."""
    if node.op.name in ("assign", "guarded"):
        return node.inputs[node.op.name == "assign"]
    body = node.attrs.get("body")
    if body is None or all(part.op.name != "guarded" for part in body.order()):
        return None
    plain = body.with_outputs(rewrite(body.outputs, _as_run))
    return node.op.node(*node.inputs, **{**node.attrs, "body": plain})


Outputs = Sequence[Node | None]
Rule = Callable[[Node, Nodes], Outputs | None]


def rebuild(program: Program, rule: Rule) -> Program:
    """Rebuild bottom-up; `rule(node, new_inputs)` may return a new node for each output of a node.

    It returns None to keep the node, and None for an output without readers.
    """
    new: dict[Node, Node] = {}
    replaced: dict[Node, Outputs] = {}
    for node in program.order():
        if node.op is ITEM and node.inputs[0] in replaced:
            output = replaced[node.inputs[0]][node.attrs["index"]]
            assert output is not None, f"{node} is read after all"
            new[node] = output
            continue
        inputs = tuple([new[given] for given in node.inputs])
        outputs = rule(node, inputs)
        if outputs is None:
            new[node] = node.op.rebuild(node, inputs)
            continue
        replaced[node] = outputs
        # A node with several outputs is read only by its items: this entry is never used.
        new[node] = outputs[0] if len(node.outputs) == 1 and outputs[0] is not None else node
    return program.with_roots([new[root] for root in program.roots])
