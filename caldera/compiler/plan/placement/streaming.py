"""Work of the host in pieces, so that it begins when the first of what it reads has arrived.

The updates of an optimizer on the host read the gradients that a card has computed. They do not
need each other: while the first are computed, the copies of the other gradients are under way, and
so are those of new weights back to the card.
"""

from __future__ import annotations

from collections.abc import Sequence

from caldera.core.graph.node import Node
from caldera.core.memory import Device

SMALL = 1 << 12
"""Bytes of what is computed once for all pieces, such as the rate of this step."""
LEAST = 4 << 20
"""Bytes that a piece is given to read."""
PIECES = 8
"""As many as there are at most."""
Groups = list[tuple[Device, list[Node]]]


def streamed(groups: Sequence[tuple[Device, list[Node]]]) -> Groups:
    """The same groups, those of the host in pieces where they wait for much from a card."""
    found: Groups = []
    for number, (device, nodes) in enumerate(groups):
        waits = device.is_host and number > 0
        found += [(device, piece) for piece in (_pieces(nodes) if waits else [nodes])]
    return found


def _pieces(nodes: list[Node]) -> list[list[Node]]:
    parent = _components(nodes)
    inside = set(nodes)
    components: dict[Node, list[Node]] = {}
    head: list[Node] = []
    for node in nodes:
        (components.setdefault(_root(parent, node), []) if node in parent else head).append(node)
    bytes_of = {
        root: sum(
            given.outputs[0].nbytes for node in each for given in node.inputs if given not in inside
        )
        for root, each in components.items()
    }
    enough = max(LEAST, sum(bytes_of.values()) // PIECES)
    pieces, size = [head], 0
    for root, each in components.items():
        if size >= enough:
            pieces.append([])
            size = 0
        pieces[-1] += each
        size += bytes_of[root]
    return [piece for piece in pieces if piece]


def _components(nodes: Sequence[Node]) -> dict[Node, Node]:
    """Nodes that hang together, but for small ones that are made of nothing large."""
    inside, parent = set(nodes), {}
    for node in nodes:
        own = [given for given in node.inputs if given in inside]
        is_small = all(spec.nbytes <= SMALL for spec in node.outputs)
        reads_little = all(spec.nbytes <= SMALL for given in node.inputs for spec in given.outputs)
        if is_small and reads_little and not any(given in parent for given in own):
            continue
        parent[node] = node
        for given in own:
            if given in parent:
                parent[_root(parent, given)] = _root(parent, node)
    return parent


def _root(parent: dict[Node, Node], node: Node) -> Node:
    while parent[node] is not node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node
