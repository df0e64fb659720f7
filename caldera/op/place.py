"""Where a mistake was made: the op, what it was given, and the layers around it."""

from __future__ import annotations

from caldera.graph.node import Node, describe
from caldera.graph.opdef import location


def place(name: str, *nodes: Node) -> str:
    """The start of an error message: `op.reshape of W (6, 5) float32`."""
    return f"{location(name)} of {', '.join(describe(node) for node in nodes)}"
