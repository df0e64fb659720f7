"""Walking graphs, rebuilding them, and graphs as values (the body of a fused node or a loop)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter


def topological(roots: Iterable[Node], done: set[Node] | None = None) -> list[Node]:
    """Every node the roots depend on, inputs before users, in a repeatable order.

    What is `done` is not visited again, and what is visited now is added to it.
    """
    order: list[Node] = []
    done = set() if done is None else done
    # An explicit stack: graphs of ten thousand nodes in a row are ordinary. Above a node lie None
    # and what it reads: once None is at the top again, all of that is in the order.
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
    """For each node, the nodes in `order` that read it (once each)."""
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
    """The graph with some nodes replaced; what stands below a replaced node is not visited."""
    return rebuilt(roots, dict(mapping))


def rebuilt(roots: Sequence[Node], new: dict[Node, Node]) -> tuple[Node, ...]:
    """The same for nodes that are replaced one after the other: `new` holds what each one has
    become so far, and what becomes of others is added to it."""
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
        """The outputs with these nodes in place of the parameters."""
        stand_ins = {parameter(i, spec): arguments[i] for i, spec in enumerate(self.parameters)}
        return substitute(self.outputs, stand_ins)

    def order(self) -> Sequence[Node]:
        """The body's nodes, inputs before users."""
        return self._order

    def __repr__(self) -> str:
        return f"<body of {len(self.order())} nodes>"
