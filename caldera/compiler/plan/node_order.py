"""The order in which the nodes of a plan are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caldera.core.graph.body import topological
from caldera.core.graph.node import Node
from caldera.core.graph.ops.collective import Number, start, turn
from caldera.core.graph.ops.control import scan


def in_order(nodes: Sequence[Node], written: Mapping[Any, Node]) -> list[Node]:
    """All that these nodes depend on, inputs before users; `written` has what symbols become.

    What is sent to other ranks comes as early as it can, so that it is on its way while the rest is
    computed; what comes from them where it is needed.

    Results that only loops read, such as gradients of parameters and what metrics count, come as
    soon as they can, and so do the nodes given: then what they are made of need not be kept, and a
    gradient may be written over the scores it is of. Before a variable is overwritten, all come
    that read it.
    """
    order = topological(nodes)
    sent = [node for node in order if node.op is start or node.op is turn]
    early: list[Node] = []
    for node in sorted(sent, key=_number):
        message = node.attrs.get("message")
        if message is None or message.kind != "gather":
            # One that is waited for at once comes late, but what it sends is ready first.
            early += node.inputs[:-1] if message is not None and message.now else [node]
    depth: dict[Node, float] = {}
    for node in order:
        depth[node] = 1 + max((depth[given] for given in node.inputs), default=0)
    leads_on: set[Node] = set()
    for node in reversed(order):
        if node in leads_on or is_heavy(node):
            leads_on.update(node.inputs)
    soon = {
        node: depth[node]
        for node in order
        if node not in leads_on and (is_heavy(node) or node.op.kind == "reduction")
    }
    after = {node: depth[node] for node in nodes}
    for node in order:
        for given in node.inputs:
            changed = written.get(given.attrs.get("symbol"))
            if changed is not None and is_heavy(node):
                soon[node] = depth[node]
                after[changed] = max(after[changed], depth[node] + 0.5)
    soon |= after
    return topological([*early, *sorted(soon, key=soon.__getitem__)])


def is_heavy(node: Node) -> bool:
    """Whether it is more than a loop over elements."""
    return node.op.kind in ("product", "other") or node.op is scan


def _number(node: Node) -> Number:
    """The place of a message or a turn in their order."""
    return node.attrs["number"] if node.op is turn else node.attrs["message"].number
