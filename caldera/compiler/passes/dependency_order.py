"""An order of nodes for passes that join some of them: what a joined node needs is more than what
its first part was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes


def dependency_order(roots: Iterable[Node], needs: Callable[[Node], Nodes]) -> list[Node]:
    """Every node that the roots need, each after all that it needs itself; `topological` goes by
    inputs."""
    found: dict[Node, None] = {}
    pending = list(roots)
    while pending:
        missing = [each for each in needs(pending[-1]) if each not in found]
        if missing:
            pending.extend(missing)
        else:
            found[pending.pop()] = None
    return list(found)
